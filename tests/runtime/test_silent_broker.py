"""A broker that counts lost packets as in flight delivers no QoS 1 message any more: the node connects anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from edge_agent.algebra.frame import Birth, Frame, Heartbeat
from edge_agent.config import topics
from edge_agent.config.node_file.settings import parse
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.runtime import lander as landers
from edge_agent.runtime.lander import LanderLoop
from edge_agent.runtime.loop import LONGEST_QUIET_US, QUIET_US, SilentBroker
from edge_agent.runtime.region import RegionLoop
from edge_agent.wire import frames
from tests.support.runtime.scripted import ScriptedClock, ScriptedConnection, parts

S = 1_000_000
EPOCH = 5


def test_it_connects_anew_after_a_minute_without_anything_then_after_twice_the_time() -> None:
    silent = SilentBroker()
    renewed = [at_s for at_s in range(3 * LONGEST_QUIET_US // S) if silent.connect_anew(at_s * S, 0, missing=True)]
    pauses_s = [later - before for before, later in pairwise(renewed)]
    assert renewed[0] == QUIET_US // S
    assert pauses_s[:4] == [121, 241, 481, 961]
    assert max(pauses_s) == LONGEST_QUIET_US // S + 1


def test_it_begins_to_wait_anew_with_each_message_and_where_nothing_is_missing() -> None:
    silent = SilentBroker()
    assert not silent.connect_anew(0, 0, missing=True)
    assert not silent.connect_anew(QUIET_US, 1, missing=True)
    assert not silent.connect_anew(2 * QUIET_US - 1, 1, missing=True)
    assert not silent.connect_anew(2 * QUIET_US, 1, missing=False)
    assert not silent.connect_anew(3 * QUIET_US - 1, 1, missing=True)
    assert silent.connect_anew(4 * QUIET_US - 1, 1, missing=True)


class Parent:
    """A parent's process without a broker, and its child "a"."""

    def __init__(self, loop: LanderLoop | RegionLoop, node: str, journal: int) -> None:
        self.loop, self.journal = loop, journal
        self.clock, self.lower = ScriptedClock(), ScriptedConnection(node)
        self.topic = topics.frames("a", node)
        loop.clock = self.clock

    def births(self) -> None:
        self.lower.message(self.topic, frames.encode(Frame(EPOCH, 0, Birth(EPOCH << 32, self.journal, None, "1"))), 7)

    def beats(self, last_seq: int, seconds: int) -> int:
        """A heartbeat a second. Returns how often the connection was to be made anew so far."""
        for _ in range(seconds):
            self.lower.message(self.topic, frames.encode_heartbeat(Heartbeat(EPOCH, last_seq, ())))
            self.clock.pass_s(1.0)
            self.loop.turn(0.0)
        return len(self.lower.renewed)


@pytest.fixture(params=["lander", "region"])
def parent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Parent]:
    if request.param == "lander":
        text = '[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://127.0.0.1:9"\n'
        lander = LanderLoop(parse(f'{text}[lander]\nfolder = "{tmp_path}"\n'), "0")
        made = Parent(lander, "root", lander.journal.id)
        lander.connection, lander.connections = made.lower, [made.lower]
        yield made
        lander.close()
        return
    merger = Merger(NodeSettings("m", commit_interval_us=S), Random(1), grace_us=60 * S)
    given, spool = parts(merger, tmp_path, "root", "region")
    region = RegionLoop(given, restored={}, lower=ScriptedConnection("m"))
    made = Parent(region, "m", merger.journal)
    region.lower = region.executor.lower = made.lower
    region.connections = [given.up, made.lower]
    yield made
    region.close()
    spool.close()


def test_a_parent_whose_children_name_frames_that_do_not_come_connects_anew(parent: Parent) -> None:
    """protocol 2.5: a heartbeat names the last frame. It comes at QoS 0, where nothing of QoS 1 does."""
    assert parent.beats(3, 58) == 0
    assert parent.beats(3, 10) == 1
    assert parent.beats(3, 60) == 1


def test_a_parent_that_has_what_its_children_name_stays(parent: Parent) -> None:
    parent.births()
    assert parent.beats(0, 200) == 0


def test_a_child_without_a_receipt_connects_anew(parent: Parent) -> None:
    """protocol 3.2: a receipt comes for each frame, and answers who asks for a journal."""
    up = parent.loop.connections[0]
    assert isinstance(up, ScriptedConnection)
    for _ in range(70):
        parent.clock.pass_s(1.0)
        parent.loop.turn(0.0)
    assert len(up.renewed) == (up is not parent.lower)


def test_frames_for_another_parent_and_those_of_the_node_itself_are_not_taken(parent: Parent) -> None:
    own = parent.topic.rpartition("/")[2]
    birth = frames.encode(Frame(EPOCH, 0, Birth(EPOCH << 32, parent.journal, None, "1")))
    others = [topics.frames("a", "another"), *([topics.frames(own, own)] if own == "m" else [])]
    for topic in (*others, parent.topic):
        before = len(parent.lower.published)
        parent.lower.message(topic, birth, 7)
        for _ in range(3):
            parent.clock.pass_s(1.0)
            parent.loop.turn(0.0)
        parent.loop._make_durable(parent.clock.now_us())
        answers = [name for name, _ in parent.lower.published[before:] if name.endswith("/ack")]
        assert bool(answers) == (topic == parent.topic), topic


def test_a_node_that_has_another_parent_gets_no_receipt(parent: Parent) -> None:
    """protocol 1.5, 3.7: for its own parent it would be that of a new journal."""
    own = parent.topic.rpartition("/")[2]
    for status, receipts in (
        ({"online": True, "parent": "another"}, 0),
        ({"online": True}, 0),
        ({"online": "yes", "parent": own}, 0),
        ({"online": True, "parent": own}, 1),
    ):
        parent.lower.message(topics.status("a"), json.dumps(status).encode())
        for _ in range(3):
            parent.clock.pass_s(1.0)
            parent.loop.turn(0.0)
        parent.loop._make_durable(parent.clock.now_us())  # a region's receipts follow a commit
        assert len(parent.lower.sent(topics.ack("a"))) == receipts, status


@pytest.mark.parametrize("parent", ["lander"], indirect=True)
def test_heartbeats_of_children_without_end_take_no_room(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landers, "MOST_BEATS", 5)
    beat = frames.encode_heartbeat(Heartbeat(EPOCH, 3, ()))
    for n in range(20):
        parent.lower.message(topics.frames(f"c{n}", "root"), beat)
    parent.loop.turn(0.0)
    assert isinstance(parent.loop, LanderLoop)
    assert len(parent.loop._beats) == 5
