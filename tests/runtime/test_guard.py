"""What a process leaves out is bounded and not for ever, and failures that are over do not add up to its end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_agent.errors import PortError
from edge_agent.runtime import guard as guards
from edge_agent.runtime.guard import MOST_OF_TOPIC, MOST_UNKNOWN, MUTED_S, Guard
from edge_agent.runtime.quarantine import QUARANTINE, QuarantineFile
from edge_agent.runtime.start_record import MOST_SAME, NAME, SETTLED_S, StartRecord
from tests.support.fakes import BEGIN_US

TOPIC = "hw/1/up/c/f/m"


class Timed:
    """A guard whose time the test sets. fails: a loop ends with a bug while it handles a message, or with none."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        time = SimpleNamespace(monotonic=lambda: self.now_s, sleep=lambda _: None)
        monkeypatch.setattr(guards, "time", time)
        self.guard = Guard(QuarantineFile(folder / QUARANTINE))

    def fails(self, topic: str, payload: bytes) -> bool:
        return self._ends((topic, payload), ValueError("a bug"))

    def fails_somewhere(self) -> bool:
        return self._ends(None, ValueError("a bug"))

    def disk_fails(self) -> bool:
        return self._ends(None, PortError("disk I/O error"))

    def _ends(self, handling: tuple[str, bytes] | None, error: Exception) -> bool:
        clock = SimpleNamespace(now_us=lambda: BEGIN_US)
        loop: Any = SimpleNamespace(handling=handling, stopping=False, turned=True, clock=clock)
        return self.guard.failed(error, loop)


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Timed:
    return Timed(tmp_path, monkeypatch)


def test_a_topic_that_was_left_out_as_a_whole_is_handled_again_after_a_while(timed: Timed) -> None:
    for n in range(MOST_OF_TOPIC):
        assert timed.guard.why_left_out(TOPIC, b"good") == ""
        assert timed.fails(TOPIC, b"bad %d" % n)
    assert "messages of this topic" in timed.guard.why_left_out(TOPIC, b"good")
    assert timed.guard.why_left_out("another", b"good") == ""
    timed.now_s += MUTED_S
    assert timed.guard.why_left_out(TOPIC, b"good") == ""
    assert timed.guard.why_left_out(TOPIC, b"bad 0"), "this one stays out"
    timed.fails(TOPIC, b"one more")
    assert timed.guard.why_left_out(TOPIC, b"good") == "", "they are counted anew"


def test_messages_at_fault_without_end_take_no_room(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MOST_LEFT_OUT", 10)
    for n in range(100):
        timed.fails(f"topic {n}", b"bad")
    assert len(timed.guard._left_out) == len(timed.guard._faults) == 10
    assert timed.guard.why_left_out("topic 99", b"bad"), "the latest are remembered"
    for n in range(100):
        for _ in range(MOST_OF_TOPIC):
            timed.fails(f"topic {n}", b"bad")
    assert len(timed.guard._muted) <= 10


def test_failures_of_unknown_cause_end_a_process_only_if_no_message_was_handled_in_between(timed: Timed) -> None:
    for _ in range(3 * MOST_UNKNOWN):
        assert timed.fails_somewhere()
        timed.guard.passed()
    for _ in range(3 * MOST_UNKNOWN):
        assert timed.fails_somewhere()
        assert timed.fails(TOPIC, b"found")
    assert [timed.fails_somewhere() for _ in range(MOST_UNKNOWN + 1)] == [True] * MOST_UNKNOWN + [False]


def test_faults_of_the_disk_that_are_over_do_not_add_up(timed: Timed) -> None:
    for _ in range(3 * MOST_UNKNOWN):
        assert timed.disk_fails()
        timed.now_s += SETTLED_S
    assert [timed.disk_fails() for _ in range(MOST_UNKNOWN + 1)] == [True] * MOST_UNKNOWN + [False]


def test_where_the_disk_fails_the_message_in_hand_is_not_noted_as_what_ended_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three such starts it would be left out."""
    record = tmp_path / NAME
    record.write_text('{"open": true, "failed": 0, "what": "", "last": "", "same": 0}')  # the one before was killed
    timed = Timed(tmp_path, monkeypatch)
    timed.guard.starts.begin()
    timed.guard.begins(TOPIC, b"good")
    assert json.loads(record.read_text())["what"].startswith(TOPIC)
    timed.disk_fails()
    assert json.loads(record.read_text())["what"] == ""
    timed.guard.starts.close()


@pytest.mark.parametrize("killed", [True, False])
def test_a_message_is_fatal_if_as_many_starts_in_a_row_were_killed_in_it(tmp_path: Path, killed: bool) -> None:
    """One kill may come at any message: only the same one again and again is at fault."""
    path = tmp_path / NAME
    for start in range(MOST_SAME + 2):
        record = StartRecord(path)
        assert record.is_fatal("topic of a message") == (killed and start >= MOST_SAME), start
        record.handling("topic of a message")
        if not killed:
            record.settled()
        record.close()
    record = StartRecord(path)
    assert not record.is_fatal("topic of another message")
    record.close()
