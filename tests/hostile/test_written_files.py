"""Everything that a process writes is for its own user only."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from edge_agent.cli.support.serving import settings_of
from edge_agent.config import topics
from tests.hostile.stand_ins import Broker, Process


@pytest.mark.parametrize("role", ["gateway", "region", "root"])
def test_whatever_a_process_writes_is_for_its_own_user_only(role: str, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        broker = Broker()
        process = Process(role, tmp_path, broker)
        present = set(tmp_path.rglob("*"))
        settings_of(argparse.Namespace(config=str(tmp_path / "headwater.toml")), role)
        me = "g" if role == "gateway" else "m"
        broker.send(me, topics.ack(me), b"no receipt")
        broker.send(me, topics.frames("a", "m"), b"no frame")
        process.run(8)
    finally:
        os.umask(before)
    written = set(tmp_path.rglob("*")) - present
    assert written
    assert [path.name for path in written if path.stat().st_mode & 0o077] == []
