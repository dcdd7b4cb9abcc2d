"""A fault of the disk that shows while a message is handled is not taken for a fault of the message."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.algebra.frame import Birth, Frame
from edge_agent.config import topics
from edge_agent.config.in_force.revision_numbering import RevisionNumberer
from edge_agent.errors import PortError
from edge_agent.ports.mqtt.link import TooLargeError
from edge_agent.ports.spool import MalformedError, Spool
from edge_agent.runtime.guard import MOST_UNKNOWN, Guard, Service
from edge_agent.wire import frames
from tests.hostile.stand_ins import Broker, Process

GOOD = topics.definition("sensor", "good")
SENSOR = json.dumps({"driver": "mqtt", "topic": "a/b", "revision": 1}).encode()


def damaged() -> sqlite3.DatabaseError:
    """As SQLite raises it."""
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def fails_once_while(process: Process, topic: str, error: Callable[[], Exception]) -> Callable[..., Any]:
    """A transaction of the spool that fails the first time that a message of this topic is handled."""
    transact, failed = Spool._transact, list[str]()

    def instead(self: Spool, *args: Any, **named: Any) -> tuple[int, int]:
        handling = None if process.loop is None else process.loop.handling
        if handling is not None and handling[0] == topic and not failed:
            failed.append(topic)
            raise error()
        return transact(self, *args, **named)

    return instead


def killed_before(folder: Path) -> None:
    """The process before was killed, so this one handles messages one by one, each with its own commit."""
    (folder / "starts.json").write_text('{"open":true,"failed":0,"what":"","last":"","same":0}')


def test_a_gateway_whose_spool_is_damaged_runs_the_definition_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    killed_before(tmp_path)
    broker = Broker()
    process = Process("gateway", tmp_path, broker)

    def made(guard: Guard) -> Any:
        broker.send("g", GOOD, SENSOR)  # retained: it comes at each connection
        return process._made(guard)

    process.service = Service(made, process.guard)
    monkeypatch.setattr(Spool, "_transact", fails_once_while(process, GOOD, damaged))
    with caplog.at_level(logging.INFO, "headwater"):
        process.run(30)
    said = [record.getMessage() for record in caplog.records]
    assert "message.left_out" not in said
    assert said.count("begins_again") == said.count("spool.set_aside") == 1
    states = [json.loads(payload) for topic, payload in broker.published if topic == topics.state("g")]
    assert states[-1]["items"]["sensor/good"]["ok"]
    assert process.guard.quarantine.count == 0
    assert (tmp_path / "spool.db.corrupt-1").exists()


def test_a_region_whose_spool_is_damaged_takes_the_frame_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    killed_before(tmp_path)
    broker = Broker()
    process = Process("region", tmp_path, broker)
    topic = topics.frames("g", "m")
    broker.send("m", topic, frames.encode(Frame(5, 0, Birth(5 << 32, 0, None, "1"))))
    monkeypatch.setattr(Spool, "_transact", fails_once_while(process, topic, damaged))
    with caplog.at_level(logging.INFO, "headwater"):
        process.run(30)
    said = [record.getMessage() for record in caplog.records]
    assert "message.left_out" not in said
    assert said.count("begins_again") == said.count("spool.set_aside") == 1
    assert not process.guard.quarantine.path.exists()
    assert broker.open("m") == []


def test_a_lander_whose_disk_fails_numbers_the_definition_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hear, failed = RevisionNumberer.hear, list[str]()

    def instead(self: RevisionNumberer, topic: str, payload: bytes, now_us: int) -> None:
        if not failed:
            failed.append(topic)
            raise PortError("cannot write the journal: disk I/O error")
        hear(self, topic, payload, now_us)

    monkeypatch.setattr(RevisionNumberer, "hear", instead)
    broker = Broker()
    process = Process("root", tmp_path, broker)
    broker.send("m", GOOD, json.dumps({"driver": "mqtt", "topic": "a/b"}).encode())
    process.run(30)
    assert failed == [GOOD]
    assert process.guard.quarantine.count == 0
    assert any(topic == GOOD and b"revision" in payload for topic, payload in broker.published)


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (MalformedError("the spool is damaged"), False),
        (PortError("the spool cannot be read: disk I/O error"), False),
        (damaged(), False),
        (TooLargeError("9 bytes; the broker accepts packets of at most 8 bytes"), True),
        (sqlite3.InterfaceError("a value that SQLite does not have"), True),
        (ValueError("a bug"), True),
    ],
)
def test_an_error_of_the_disk_is_no_reason_to_leave_a_message_out(
    error: Exception, blamed: bool, tmp_path: Path
) -> None:
    process = Process("gateway", tmp_path, Broker())
    loop = process._made(process.guard)
    loop.handling = (GOOD, SENSOR)
    assert process.guard.failed(error, loop)
    assert bool(process.guard.why_left_out(GOOD, SENSOR)) == blamed
    assert process.guard.quarantine.count == blamed
    assert not process.guard.without_definitions
    loop.close()


def test_a_disk_that_fails_again_and_again_ends_the_process_and_is_blamed_on_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd starts it again, and the error is one line."""
    monkeypatch.setattr("edge_agent.runtime.guard.PAUSE_S", 0.0)
    process = Process("gateway", tmp_path, Broker())
    loop = process._made(process.guard)
    loop.handling = (GOOD, SENSOR)
    error = PortError("the spool cannot be read: disk I/O error")
    assert [process.guard.failed(error, loop) for _ in range(MOST_UNKNOWN + 1)] == [True] * MOST_UNKNOWN + [False]
    assert not process.guard.without_definitions, "the definitions of the last run are as good as before"
    loop.close()
