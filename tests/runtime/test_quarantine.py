"""The file of bad bytes: anybody who may publish can fill it, so it is bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.runtime import quarantine
from edge_agent.runtime.quarantine import QUARANTINE, SHOWN_BYTES, QuarantineFile


def test_a_flood_takes_two_files_of_bounded_size_and_the_newest_lines_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "MOST_BYTES", 2_000)
    file = QuarantineFile(tmp_path / QUARANTINE)
    for n in range(200):
        file.put(n, "g", "why", bytes(50))
    assert file.count == 200
    assert {each.name for each in tmp_path.iterdir()} == {QUARANTINE, f"{QUARANTINE}.1"}
    assert all(each.stat().st_size <= 2_000 for each in tmp_path.iterdir())
    texts = [(tmp_path / name).read_text() for name in (f"{QUARANTINE}.1", QUARANTINE)]
    lines = [json.loads(line) for line in "".join(texts).splitlines()]
    assert [line["at_us"] for line in lines] == list(range(200 - len(lines), 200))


def test_of_a_long_payload_the_beginning_is_stored_with_its_size(tmp_path: Path) -> None:
    file = QuarantineFile(tmp_path / QUARANTINE)
    file.put(1, "g", "why", b"ab" * SHOWN_BYTES)
    line = json.loads(file.path.read_text())
    assert line["size_bytes"] == 2 * SHOWN_BYTES
    assert bytes.fromhex(line["hex"]) == (b"ab" * SHOWN_BYTES)[:SHOWN_BYTES]
