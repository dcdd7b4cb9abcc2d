"""A command to one node: executed once for each id, and never because it was retained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edge_agent.algebra.frame import Receipt
from edge_agent.config import topics
from edge_agent.config.definitions.definitions import MOST_PATTERNS
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.ports.mqtt.link import Messages
from edge_agent.ports.mqtt.packets import RETAIN
from edge_agent.ports.spool import Spool
from edge_agent.runtime.fleet_commands import MOST_IDS, MOST_PASSED, PASSED_EXPIRY_S, FleetCommands
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.status_and_commands import OperatorCommand
from edge_agent.wire import frames, receipts
from tests.support.fakes import BEGIN_US
from tests.support.runtime.scripted import ScriptedClock, ScriptedConnection, parts

Started = Callable[[], GatewayLoop]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Starts a gateway with what the one before it committed."""
    loops: list[GatewayLoop] = []

    def start() -> GatewayLoop:
        for before in loops:
            before.close()
        loops.clear()
        spool = Spool(tmp_path / "spool.db", "g", frames.encode)
        restored = spool.open()
        spool.close()
        made, _ = parts(Gateway(NodeSettings("g"), Random(1), restored), tmp_path, "m")
        loops.append(GatewayLoop(made, restored=restored.state, limits=LimitsTable(), definitions=()))
        loops[0]._configure(BEGIN_US)
        return loops[0]

    yield start
    for loop in loops:
        loop.close()


def told(loop: GatewayLoop, *commands: dict[str, Any] | bytes, flags: int = 0, to: str = "g") -> list[dict[str, Any]]:
    """The answers to these commands, in order."""
    connection = loop.up
    assert isinstance(connection, ScriptedConnection)
    before = len(connection.published)
    topic = topics.commands(to) if to else topics.commands_to_all()
    for command in commands:
        payload = command if isinstance(command, bytes) else json.dumps(command).encode()
        connection.arrives.append(Messages([(topic, payload, 0, flags)]))
    loop._hear(connection, BEGIN_US)
    loop._make_durable(BEGIN_US)
    return [json.loads(text) for name, text in connection.published[before:] if "/cmd/" in name]


MARK = {"cmd": "mark", "id": "m-1", "at": "2026-11-21T06:00:00Z"}


def test_a_command_with_an_id_is_executed_once_by_its_node_also_after_a_start(started: Started) -> None:
    done, repeated = told(started(), MARK, MARK)
    assert (done["ok"], repeated["ok"]) == (True, False)
    assert "has been executed" in repeated["why"]
    loop = started()
    assert told(loop, MARK) == [repeated]
    assert [answer["id"] for answer in told(loop, {**MARK, "id": "m-2"})] == ["m-2"]
    assert told(loop, {**MARK, "id": "m-2"}, to="") == [], "to all nodes, because this one might have been offline"


def test_a_command_without_an_id_or_that_changes_nothing_is_executed_each_time(started: Started) -> None:
    loop = started()
    assert len(told(loop, b"rebirth", b"rebirth")) == 2
    ask = {"cmd": "diagnose", "id": "demo"}
    assert len(told(loop, ask, ask)) == 2


def test_a_command_that_could_not_be_executed_may_be_repeated(started: Started) -> None:
    """Such as accept-loss on a full disk."""
    loop = started()
    wrong = {"cmd": "mark", "id": "m-1", "at": "never"}
    assert [answer["ok"] for answer in told(loop, wrong, wrong, MARK, MARK)] == [False, False, True, False]


def test_a_command_to_all_that_could_not_be_executed_here_may_be_repeated(started: Started) -> None:
    """Such as `reload` of a file with a mistake. A node said nothing to the corrected command."""
    loop = started()
    wrong = {"cmd": "mark", "id": "m-1", "at": "never"}
    refused = {"cmd": "rebirth", "id": "m-1"}
    answers = told(loop, wrong, refused, {**MARK, "nodes": "g"}, MARK, MARK, to="")
    assert [answer["ok"] for answer in answers] == [False, False, False, True]


def test_a_command_may_name_as_many_nodes_as_there_are_patterns(started: Started) -> None:
    """It was cut off at 1024 bytes, and refused because it had no id."""
    nodes = [f"press-of-hall-number-seven-{n:05}" for n in range(MOST_PATTERNS - 1)]
    (answer,) = told(started(), {**MARK, "nodes": [*nodes, "g"]}, to="")
    assert answer["ok"]


@pytest.mark.parametrize(
    "payload",
    [b"{" * 5, b'{"id": "x"}', b'{"cmd": "mark", "pad": "%s"}' % (b"x" * 9_000)],
    ids=["no JSON", "no name", "too long"],
)
@pytest.mark.parametrize("to", ["g", ""])
def test_what_is_no_command_is_named(payload: bytes, to: str, started: Started) -> None:
    (answer,) = told(started(), payload, to=to)
    assert "not a command" in answer["why"]


def test_a_misspelt_parent_gives_up_nothing(started: Started) -> None:
    (answer,) = told(started(), {"cmd": "accept-loss", "id": "x", "parents": ["m"]})
    assert answer["why"] == "parents: unknown key of accept-loss; keys are parent"


@pytest.mark.parametrize("to", ["g", ""])
def test_a_retained_command_is_refused_and_shown(started: Started, to: str) -> None:
    """It came again with each connection, and was executed again each time."""
    loop = started()
    assert told(loop, MARK, b"rebirth", flags=RETAIN, to=to) == []
    ((why, found),) = loop.refusals.plain().items()
    assert "publish it without retain" in why
    assert found["count"] == 2
    assert told(loop, b"", to=to) == [], "which deletes it"
    assert len(told(loop, MARK, to=to)) == 1


def test_what_is_for_another_node_is_left_alone(started: Started) -> None:
    loop = started()
    assert told(loop, MARK, to="h") == []
    connection = loop.up
    assert isinstance(connection, ScriptedConnection)
    for node in ("h", "g"):
        connection.message(topics.ack(node), receipts.encode(Receipt(1, 5, 0)))
        loop._hear(connection, BEGIN_US)
        assert loop._answered == (node == "g")


def test_a_mark_without_a_time_is_refused_while_the_time_is_not_known(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedClock, "synced", property(lambda _: False))
    loop = started()
    without, with_time = told(loop, {"cmd": "mark", "id": "m-1"}, {**MARK, "id": "m-2"})
    assert (without["ok"], with_time["ok"]) == (False, True)
    assert "not synchronised" in without["why"]


def test_ids_without_end_take_no_room_and_the_latest_are_known_after_a_start() -> None:
    commands = [OperatorCommand("mark", f"m-{n}", named=True) for n in range(2 * MOST_IDS)]
    fleet = FleetCommands()
    assert all(fleet.is_new(command) for command in commands)
    again = FleetCommands(fleet.slots())
    assert not any(again.is_new(command) for command in commands[MOST_IDS:])
    assert again.is_new(commands[0])


def test_a_merger_passes_on_the_latest_commands_and_none_that_has_waited_for_long() -> None:
    fleet = FleetCommands()
    for at_us, payload in enumerate((b"old", b"new")):
        fleet.wait(payload, at_us)
    assert fleet.passed(PASSED_EXPIRY_S * 1_000_000) == [b"new"]
    for n in range(2 * MOST_PASSED):
        fleet.wait(b"%d" % n, 0)
    assert fleet.passed(1) == [b"%d" % n for n in range(MOST_PASSED, 2 * MOST_PASSED)]
    assert fleet.passed(1) == []


def test_a_command_with_patterns_without_end_is_refused() -> None:
    few, many = (OperatorCommand("reload", "r", named=True, fields={"nodes": ["x"] * n}) for n in (MOST_PATTERNS, 65))
    assert FleetCommands().refusal(few) is None
    assert FleetCommands().refusal(many) is not None
