"""A process that is killed while it handles something: after three starts it is left out, and `state` says so."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from edge_agent.config import topics
from edge_agent.config.in_force.registry import DefinitionRegistry
from edge_agent.errors import PortError
from edge_agent.machines.region.merger import Merger
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.start_record import NAME, SIZE_BYTES, StartRecord
from tests.hostile.stand_ins import TEXTS, Broker, Process

GOOD = topics.definition("sensor", "good")
BAD = topics.definition("sensor", "bad")
SENSOR = json.dumps({"driver": "mqtt", "topic": "a/b", "revision": 1}).encode()


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it, nothing is tidied up."""


def starts(role: str, folder: Path, fill: Callable[[Broker, Process], None]) -> Process:
    """Start the process until it lives. Returns the one that did."""
    for _ in range(5):
        broker = Broker()
        process = Process(role, folder, broker)
        fill(broker, process)
        try:
            process.run(30)
        except Killed:
            continue
        return process
    raise AssertionError("five starts were not enough")


def test_a_definition_that_kills_the_gateway_is_left_out_after_three_starts_and_state_says_so(tmp_path: Path) -> None:
    taken, attempts = DefinitionRegistry.take, []

    def take(self: DefinitionRegistry, scope: str, kind: str, item: str, payload: bytes | str) -> bool:
        if item == "bad":
            attempts.append(item)
            raise Killed
        return taken(self, scope, kind, item, payload)

    def fill(broker: Broker, _: Process) -> None:
        broker.send("g", GOOD, SENSOR)
        broker.send("g", BAD, SENSOR)

    with mock.patch.object(DefinitionRegistry, "take", take):
        process = starts("gateway", tmp_path, fill)
    assert len(attempts) == 4  # what was handled is known from the second on
    states = [json.loads(p) for t, p in process.broker.published if t == topics.state("g")]
    assert states[-1]["items"]["sensor/good"]["ok"]
    assert "three starts" in states[-1]["items"]["sensor/bad"]["errors"][0]["why"]
    assert process.guard.quarantine.count == 1


@pytest.mark.parametrize("payload", [b"no frame", b"\x84\x01\x05\x00\x40"])
def test_a_frame_that_kills_the_merger_is_left_out_after_three_starts(payload: bytes, tmp_path: Path) -> None:
    handled, attempts = Merger._handle, []

    def handle(self: Merger, event: object, now_us: int) -> object:
        messages = getattr(event, "messages", ())
        if any(child == "bad" and "three starts" not in message.reason for child, message, _ in messages):
            attempts.append(event)
            raise Killed
        return handled(self, event, now_us)  # type: ignore[arg-type]

    def fill(broker: Broker, _: Process) -> None:
        broker.send("m", topics.frames("bad", "m"), payload)
        broker.send("m", topics.frames("good", "m"), b"another")

    with mock.patch.object(Merger, "_handle", handle):
        process = starts("region", tmp_path, fill)
    assert len(attempts) == 4  # what was handled is known from the second on
    assert process.broker.open("m") == []


def test_a_process_that_ends_in_order_or_serves_for_long_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / NAME
    for _ in range(5):
        record = StartRecord(path)
        assert not record.careful
        record.handling("x")
        record.settled()
        record.close()
    for n in range(5):  # killed, but never with the same
        record = StartRecord(path)
        assert record.careful == (n > 0)
        assert not record.fatal
        record.handling(f"x-{n}")
        record.close()


def test_a_start_without_the_definitions_of_the_last_run_reads_no_file_again_when_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions wait for their sensors, also over a start in which none comes."""
    monkeypatch.setitem(TEXTS, "gateway", f'{TEXTS["gateway"]}[files]\nfolders = ["{tmp_path}"]\n')
    (tmp_path / "r.csv").write_text("time,value\n" + "".join(f"{1_700_000_000 + n},{n}\n" for n in range(9)))
    file = {"driver": "file", "path": str(tmp_path / "r.csv"), "speed": "max", "revision": 1}

    def started(*, without: bool, comes: bool) -> int:
        """How many readings the sensor takes in one life of the process."""
        broker = Broker()
        process = Process("gateway", tmp_path, broker)
        process.guard.without_definitions = without
        if comes:
            broker.send("g", topics.definition("sensor", "f"), json.dumps(file).encode())
        taken: list[int] = []

        def look() -> None:
            assert isinstance(process.loop, GatewayLoop)
            taken.append(process.loop.sensors.counters().get("f", {}).get("readings", 0))

        process.each_turn = look
        process.run(10)
        return max(taken)

    assert started(without=False, comes=True) == 9
    assert started(without=False, comes=False) == 0
    assert started(without=True, comes=False) == 0
    assert started(without=True, comes=True) == 0


@pytest.mark.parametrize("character", ["x", "\\", "\x01", "é", "\U0001f4a3", '"'])
def test_three_starts_that_end_at_a_message_with_the_longest_topic_are_recognised(
    character: str, tmp_path: Path
) -> None:
    topic = character * (65_535 // len(character.encode()))
    for n in range(4):
        record = StartRecord(tmp_path / NAME)
        assert record.failed == n
        assert record.is_fatal(f"{topic} 1") == (n == 3)
        assert not record.is_fatal(f"{topic} 2")
        record.handling(f"{topic} 1")
        record.close()


@pytest.mark.parametrize("role", ["gateway", "region", "root"])
def test_a_second_process_that_is_refused_leaves_the_record_of_the_first_as_it_is(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as a start that failed: the next one handled messages one by one, or left a good one out."""
    monkeypatch.chdir(tmp_path)
    first = Process(role, tmp_path, Broker())
    path = first.guard.quarantine.path.with_name(NAME)
    contents = set[str]()

    def second() -> None:
        contents.add(path.read_text().strip())
        with pytest.raises(PortError, match="in use by process"):
            Process(role, tmp_path, Broker()).run(1)
        contents.add(path.read_text().strip())

    first.each_turn = second
    first.run(2)
    assert len(contents) == 1
    assert '"open": true' in contents.pop()
    assert '"open": false' in path.read_text()


@pytest.mark.parametrize(
    "content",
    ["damaged", "[" * SIZE_BYTES, '{"open": true, "failed": 1e999, "same": 0, "what": "", "last": ""}'],
)
def test_a_record_that_cannot_be_read_is_none(content: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(content)
    assert not StartRecord(path).careful


def test_a_pipe_in_place_of_the_record_holds_up_no_start(tmp_path: Path) -> None:
    path = tmp_path / NAME
    os.mkfifo(path)
    begun = threading.Thread(target=StartRecord, args=(path,), daemon=True)
    begun.start()
    begun.join(10)
    assert not begun.is_alive()
