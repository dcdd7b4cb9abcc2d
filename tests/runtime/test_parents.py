"""A process whose parents are on two brokers: who is heard where, and what goes where (docs/protocol.md 1.5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edge_agent.algebra.frame import Frame, Receipt
from edge_agent.config import topics
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.machines.events import Commit, Publish, Restored, Sent
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.ports.mqtt.link import Down, Taken
from edge_agent.ports.service_manager import parent_answers
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.wire import receipts
from tests.support.fakes import BEGIN_US
from tests.support.runtime.scripted import FillingSpool, ScriptedConnection, parts

ACK = topics.ack("g")


class Two:
    """A gateway at region-1; region-2 is on another broker."""

    def __init__(self, folder: Path) -> None:
        settings = NodeSettings("g", parents=("region-1", "region-2"))
        made, self.spool = parts(Gateway(settings, Random(1), Restored({})), folder, "region-1")
        assert isinstance(made.up, ScriptedConnection)
        self.one, self.two = made.up, ScriptedConnection("g")
        self.loop = GatewayLoop(
            replace(made, others={"region-2": self.two}), restored={}, limits=LimitsTable(), definitions=()
        )

    def turn(self) -> None:
        for connection in (self.one, self.two):
            self.loop._hear(connection, BEGIN_US)
        self.loop._settle(BEGIN_US)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    made.loop.waiter.close()
    made.spool.close()


def heard(connection: ScriptedConnection) -> set[str]:
    return set(connection._filters)


def test_commands_and_definitions_count_at_the_broker_of_the_present_parent_only(gateway: Two) -> None:
    """protocol 1.5; receipts count from each."""
    all_of_it = {ACK, topics.commands("g"), topics.commands_to_all(), *topics.definitions_for("g")}
    gateway.turn()
    assert (heard(gateway.one), heard(gateway.two)) == (all_of_it, {ACK})
    gateway.loop.machine.outbox.parent = "region-2"
    gateway.turn()
    assert (heard(gateway.one), heard(gateway.two)) == ({ACK}, all_of_it)
    assert gateway.loop.up is gateway.two
    for connection in (gateway.one, gateway.two):
        connection.message(topics.commands("g"), b'{"cmd": "diagnose", "id": "x"}')
    gateway.turn()
    answers = [connection.sent(topics.answer("g", "x")) for connection in (gateway.one, gateway.two)]
    assert [len(each) for each in answers] == [0, 1]


def test_the_service_manager_hears_once_that_the_parent_answers(gateway: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of the agent on trial is judged by it."""
    said = list[str]()
    monkeypatch.setattr(gateway.loop._systemd, "status", said.append)
    gateway.turn()
    gateway.one.message(ACK, b"no receipt")
    gateway.turn()
    assert said == []
    for _ in range(3):
        gateway.one.message(ACK, receipts.encode(Receipt(1, 1, 0)))
        gateway.turn()
    assert said == [parent_answers(gateway.loop.status.version)]


def test_the_broker_of_a_parent_that_was_left_says_where_the_node_is(gateway: Two) -> None:
    """Its books and its state are at the present one: old ones there would count."""
    gateway.turn()
    gateway.loop.machine.outbox.parent = "region-2"
    gateway.turn()
    for connection in (gateway.one, gateway.two):
        assert json.loads(connection.sent(topics.status("g"))[-1])["parent"] == "region-2"
    assert gateway.one.sent(topics.books("g"))[-1] == gateway.one.sent(topics.state("g"))[-1] == b""
    assert json.loads(gateway.two.sent(topics.books("g"))[-1])["parent"] == "region-2"
    assert gateway.two.sent(topics.state("g"))[-1] != b""


def test_only_the_present_parents_connection_is_the_link(gateway: Two) -> None:
    """protocol 1.5"""
    gateway.turn()
    gateway.two.up = False
    gateway.two.arrives.append(Down("gone", 1.0, was_up=True))
    gateway.turn()
    assert gateway.loop.machine.outbox.link_up
    gateway.loop.machine.outbox.parent = "region-2"
    gateway.turn()
    assert not gateway.loop.machine.outbox.link_up


def test_frames_go_to_the_broker_of_their_parent_and_each_broker_answers_for_its_own(gateway: Two) -> None:
    """protocol 1.5, 3.3: tokens of two connections are alike."""
    executor = gateway.loop.executor
    executor.perform(Commit(frames=(Frame(1, 0), Frame(1, 1))), BEGIN_US)
    gateway.one.published.clear()
    gateway.two.published.clear()
    executor.perform(Publish(1, 0), BEGIN_US)
    executor.perform(Publish(1, 1, to="region-2"), BEGIN_US)
    sent = [[topic for topic, _ in connection.published] for connection in (gateway.one, gateway.two)]
    assert sent == [[topics.frames("g", "region-1")], [topics.frames("g", "region-2")]]
    assert executor.taken(Taken(1, 0, "Success"), gateway.two) == [Sent(1, 1)]
    executor.void(gateway.two)
    assert executor.taken(Taken(1, 0, "Success"), gateway.one) == [Sent(1, 0)]


def test_nothing_is_given_up_while_the_disk_takes_no_commit(gateway: Two) -> None:
    """protocol 1.5, 3.1: an answer must not say what a power cut could undo."""
    assert isinstance(gateway.spool, FillingSpool)
    gateway.spool.full = True
    gateway.loop.executor.perform(Commit({"n": 1}), BEGIN_US)
    gateway.one.message(topics.commands("g"), b'{"cmd": "accept-loss", "id": "x"}')
    gateway.turn()
    (answer,) = gateway.one.sent(topics.answer("g", "x"))
    assert json.loads(answer)["ok"] is False
    assert "accepts no commit" in json.loads(answer)["why"]


def asked(gateway: Two, fields: str) -> dict[str, Any]:
    gateway.one.message(topics.commands("g"), f'{{"cmd": "accept-loss", "id": "x"{fields}}}'.encode())
    gateway.turn()
    answer: dict[str, Any] = json.loads(gateway.one.sent(topics.answer("g", "x"))[-1])
    return answer


def test_an_operator_gives_up_one_former_parent_by_its_name_or_all(gateway: Two) -> None:
    """protocol 1.5: the others may come back."""
    lines = gateway.loop.machine.outbox.former_lines
    for epoch, parent in ((5, "hall-1"), (6, "hall-2"), (7, "hall-3")):
        frame = Frame(epoch, 0)
        gateway.loop.executor.perform(Commit(frames=(frame,)), BEGIN_US)
        lines.leave(parent, 9, (epoch, 0), [((epoch, 0), True)], up=False)
    refused = asked(gateway, ', "parent": "hall-9"')
    assert refused["ok"] is False
    assert "hall-1, hall-2, hall-3" in refused["why"]
    assert asked(gateway, ', "parent": ["hall-1"]')["ok"] is False
    assert sorted(lines.waiting()) == ["hall-1", "hall-2", "hall-3"]
    one = asked(gateway, ', "parent": "hall-2"')
    assert [each["parent"] for each in one["given_up"]] == ["hall-2"]
    assert sorted(lines.waiting()) == ["hall-1", "hall-3"]
    rest = asked(gateway, "")
    assert [each["parent"] for each in rest["given_up"]] == ["hall-1", "hall-3"]
    assert not lines.waiting()
