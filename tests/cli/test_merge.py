"""How `headwater merge` runs its process."""

from __future__ import annotations

import argparse
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from edge_agent.cli import merge


def test_a_region_looks_for_garbage_once_in_thousands_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of many groups make many objects and few cycles: every look goes through all of them."""
    seen: list[tuple[int, int, int]] = []
    service: Any = SimpleNamespace(stop=lambda: None, run=lambda: seen.append(gc.get_threshold()))
    settings = SimpleNamespace(node=SimpleNamespace(id="region-1"), spool=SimpleNamespace(path="spool.db"))
    monkeypatch.setattr(merge, "settings_of", lambda *_: settings)
    monkeypatch.setattr(merge, "quarantine_of", lambda _: None)
    monkeypatch.setattr(merge, "Guard", lambda _: None)
    monkeypatch.setattr(merge, "Service", lambda *_: service)
    before = gc.get_threshold()
    try:
        assert merge.main(argparse.Namespace(dry_run=False)) == 0
    finally:
        gc.set_threshold(*before)
    assert [first >= 10_000 for first, _, _ in seen] == [True]
