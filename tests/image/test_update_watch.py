"""What `headwater update watch` decides is about the version that runs, also if another one was started meanwhile."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from edge_agent.cli.fleet import update
from edge_agent.ports.service_manager import parent_answers
from edge_agent.provisioning.updates.version_folder import VersionFolder
from edge_agent.provisioning.updates.versions import IMAGE, Installed, ServiceState, Versions

INSTALLED: Final = {name: Installed(name, (1, 1)) for name in ("0.2.0", "0.3.0")}
FIRST: Final = Versions(installed=INSTALLED, trial="0.2.0", chosen="0.2.0", starts=1)
SECOND: Final = Versions(installed=INSTALLED, trial="0.3.0", chosen="0.3.0", starts=1, failed=("0.2.0",))


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, *texts: str) -> Versions:
    """The state after a watch over 0.2.0, while 0.3.0 is started at its first look. texts: of the service at each."""
    store = VersionFolder(folder)
    store.write(FIRST)

    def looks() -> Iterator[ServiceState]:
        for text in texts:
            store.write(SECOND)
            yield ServiceState(True, text, 5.0)
        pytest.fail("it goes on watching")

    look = looks()
    monkeypatch.setattr(update, "EVERY_S", 0.0)
    monkeypatch.setattr(update, "_service", lambda: next(look))
    assert update._watch(store, argparse.Namespace()) == 0
    return store.read()


def test_a_verdict_about_the_version_before_puts_none_into_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = watched(tmp_path, monkeypatch, parent_answers("0.2.0"))
    assert (after.current, after.trial, after.starts) == (IMAGE, "0.3.0", 1)


def test_a_gateway_that_is_stopped_during_a_trial_stays_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ten minutes its version was given up, and the gateway started, while somebody worked at the machine."""
    store = VersionFolder(tmp_path)
    store.write(FIRST)
    stopped, answered = ServiceState(False, stopped=True), ServiceState(True, parent_answers("0.2.0"), 1.0)
    looks, clock, asked = iter([stopped] * 20 + [answered]), iter(range(0, 100_000, 300)), list[tuple[str, ...]]()
    monkeypatch.setattr(update, "EVERY_S", 0.0)
    monkeypatch.setattr(update, "_service", lambda: next(looks))
    monkeypatch.setattr(update, "_systemctl", lambda *words: asked.append(words))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert update._watch(store, argparse.Namespace()) == 0
    assert store.read().current == "0.2.0"
    assert asked == []


def test_the_version_that_was_started_meanwhile_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after = watched(tmp_path, monkeypatch, "", parent_answers("0.3.0"))
    assert (after.current, after.trial) == ("0.3.0", None)
