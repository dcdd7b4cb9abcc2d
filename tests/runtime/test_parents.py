"""A process whose parents are on two brokers: who is heard where, and what goes where (docs/protocol.md 1.5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edge_agent.algebra.frame import Birth, Frame, Receipt
from edge_agent.config import topics
from edge_agent.config.in_force import known_definitions
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.machines.events import Commit, Publish, Restored, Sent
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.ports.mqtt.link import Down, Taken, Up
from edge_agent.ports.service_manager import parent_answers
from edge_agent.runtime import region as runtime_region
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.region import RegionLoop
from edge_agent.wire import frames, receipts
from tests.support.fakes import BEGIN_US
from tests.support.runtime.scripted import FillingSpool, ScriptedClock, ScriptedConnection, parts

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


def test_a_broker_that_lost_its_retained_messages_gets_all_three_again_at_once(gateway: Two) -> None:
    """Without its books, `headwater status` shows no lag of the node, and an audit that it does not answer fails."""
    gateway.turn()
    known = len(gateway.one.published)
    gateway.one.arrives += [Down("closed by the broker", 1.0, was_up=True), Up(session_present=False)]
    gateway.turn()
    again = {topic for topic, payload in gateway.one.published[known:] if payload}
    assert again >= {topics.status("g"), topics.state("g"), topics.books("g")}


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
    name = f"x-{len(gateway.one.published)}"  # an id is executed once
    gateway.one.message(topics.commands("g"), f'{{"cmd": "accept-loss", "id": "{name}"{fields}}}'.encode())
    gateway.turn()
    (text,) = gateway.one.sent(topics.answer("g", name))
    answer: dict[str, Any] = json.loads(text)
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


class Hall:
    """A region at region-1, whose broker is that of its children too; region-2 is on another broker."""

    def __init__(self, folder: Path) -> None:
        settings = NodeSettings("m", parents=("region-1", "region-2"))
        made, self.spool = parts(Merger(settings, Random(1), grace_us=60_000_000), folder, "region-1", "region")
        assert isinstance(made.up, ScriptedConnection)
        assert isinstance(made.clock, ScriptedClock)
        self.clock = made.clock
        self.one, self.two = made.up, ScriptedConnection("m")
        self.loop = RegionLoop(replace(made, others={"region-2": self.two}), restored={}, lower=self.one)
        self.turn()

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.pass_s(seconds)
        self.loop.turn(0.0)

    def goes_to(self, parent: str) -> None:
        self.loop.machine.choice.parents = (parent,)
        self.turn(1.0)
        assert self.loop.machine.outbox.parent == parent

    def published(self, connection: ScriptedConnection, revision: int | None, length: str) -> None:
        """An operator's definition for all on one of the brokers."""
        window = {"type": "tumbling", "length": length}
        query = {"source": "s", "window": window, "aggregates": [{"fn": "count"}]}
        number = {} if revision is None else {"revision": revision}
        connection.message(ALL_Q, json.dumps({**query, **number}).encode())
        self.turn()

    def passed_on(self) -> list[int]:
        """Revisions of the query that left for the lower broker."""
        return [json.loads(payload)["revision"] for payload in self.one.sent(ALL_Q)]


ALL_Q = topics.definition("query", "q")


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    made = Hall(tmp_path)
    yield made
    made.loop.close()
    made.spool.close()


def test_a_region_hears_its_children_where_they_are_whoever_its_parent_is(hall: Hall) -> None:
    """protocol 1.5: commands count at the broker of the present parent only."""
    of_children = {topics.frames_of_children("m"), topics.status(), topics.state(), *topics.definitions_below()}
    from_above = {topics.commands("m"), topics.commands_to_all(), *topics.definitions_for("m")}
    mine = topics.ack("m")
    assert (heard(hall.one), heard(hall.two)) == (of_children | from_above | {mine}, {mine})
    hall.goes_to("region-2")
    assert (heard(hall.one), heard(hall.two)) == (of_children | {mine}, from_above | {mine})
    hall.goes_to("region-1")
    assert (heard(hall.one), heard(hall.two)) == (of_children | from_above | {mine}, {mine})


def test_a_region_passes_on_what_is_published_above_once_that_is_another_broker(hall: Hall) -> None:
    """protocol 6.5: the parent there does not hear its children's broker; on one broker the parent numbers them."""
    hall.published(hall.one, 3, "1s")
    hall.published(hall.one, None, "2s")
    hall.turn(5.0)
    assert hall.passed_on() == []
    hall.published(hall.one, 4, "2s")  # by the parent
    hall.goes_to("region-2")
    hall.published(hall.two, 2, "1s")  # older than what is below
    hall.turn(5.0)
    assert hall.passed_on() == []
    hall.published(hall.two, 5, "5s")
    hall.turn(5.0)
    hall.published(hall.one, None, "7s")
    hall.turn(5.0)
    assert hall.passed_on() == [5, 6]
    hall.goes_to("region-1")
    hall.published(hall.one, None, "9s")
    hall.published(hall.two, 9, "9s")  # still under way when it was left
    hall.turn(5.0)
    assert hall.passed_on() == [5, 6]
    assert hall.loop._wake_us() > hall.clock.now_us(), "it does not wait for what another does"


def test_definitions_are_compared_with_those_at_the_broker_of_the_present_parent(hall: Hall) -> None:
    """protocol 6.5: the alarm of one broker says nothing of the other."""
    hall.published(hall.one, 3, "1s")
    hall.goes_to("region-2")
    hall.published(hall.two, 3, "2s")
    assert list(hall.loop.status.differ) == ["query q"]
    hall.goes_to("region-1")
    assert hall.loop.status.differ == {}


def test_queries_that_were_removed_are_compared_no_longer_than_they_are_known(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed in memory for ever: who publishes names of queries could fill it."""
    for module in (known_definitions, runtime_region):
        monkeypatch.setattr(module, "MOST_REMOVED", 10)
    hall.loop._tidy_at = 10
    hall.published(hall.one, 3, "1s")
    for n in range(200):
        hall.one.message(topics.definition("query", f"q{n}"), b'{"removed": true, "revision": 2}')
        hall.turn()
    assert "q" in hall.loop._for_all
    assert len(hall.loop._for_all) <= 2 * 11 + 1


def test_a_region_takes_nothing_from_a_node_that_is_among_its_parents(hall: Hall) -> None:
    """protocol 1.5: two that go to each other would send in a circle. It is told, and neither waits for the other."""
    payload = frames.encode(Frame(5, 0, Birth(5 << 32, 0, None, "1")))
    for node in ("region-2", "g"):
        hall.one.message(topics.frames(node, "m"), payload, token=1)
    hall.turn(1.0)
    hall.turn(1.0)
    assert hall.one.sent(topics.ack("region-2")) == []
    assert hall.one.sent(topics.ack("g")) != []
    assert hall.one.acked == [1, 1]
    assert [found["example"] for found in hall.loop.refusals.plain().values()] == ["region-2"]
