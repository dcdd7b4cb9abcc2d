"""Which landing files a run has read, and which it deletes (docs/protocol.md 8.1, 8.2; no Spark)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cloud_job.spark import read_files
from cloud_job.spark.read_files import IDLE_S, ReadFiles


def test_files_that_wait_stand_in_the_next_decision_in_order_and_are_deleted_after_it(tmp_path: Path) -> None:
    for name in "abcdef":
        (tmp_path / name).touch()
    read = ReadFiles(tmp_path)
    read.resume(["a", "gone"])
    read.wait((("b", b""), ("c", b"")))
    read.wait((("d", b""),))
    assert [name for name in "abcdef" if name in read] == ["a", "b", "c", "d"]
    names = read.with_idle([("e", b"")])
    assert names == ["b", "c", "d", "e"]
    read.delete()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c", "d", "e", "f"], "those that wait stay"
    read.decided(names)
    assert read.idle == []
    assert [name for name in "abcdef" if name in read] == names
    read.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    read.decided(read.with_idle([("f", b"")]))
    assert [name for name in "abcdef" if name in read] == ["f"], "those before are gone"


def test_what_waits_has_bounds_that_begin_anew_with_each_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(read_files, "IDLE_FILES", 3)
    monkeypatch.setattr(read_files, "IDLE_BYTES", 10)
    read = ReadFiles(tmp_path)
    for files in ([("a", b""), ("b", b"")], [("c", b"")]), ([("a", b"12345")], [("b", b"12345")]):
        assert read.may_wait()
        read.wait(tuple(files[0]))
        assert read.may_wait()
        read.wait(tuple(files[1]))
        assert not read.may_wait()
        read.decided([])
    now_s += IDLE_S
    assert read.may_wait()
    now_s += 0.1
    assert not read.may_wait()
    read.decided([])
    assert read.may_wait()
