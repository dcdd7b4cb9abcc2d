"""Published definitions at a merger, a region and the lander, and claims of their children."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edge_agent.algebra.frame import Birth, Define, Frame, Serving
from edge_agent.algebra.query.query import Query
from edge_agent.config.definitions.definitions import canonical_query, query_of
from edge_agent.config.in_force.known_definitions import (
    MOST_REMOVED,
    KnownDefinitions,
    Publication,
    difference,
)
from edge_agent.config.node_file.settings import load
from edge_agent.machines.downlink.senders import Senders
from edge_agent.machines.events import Arrived, Commit, Committed, LowerLink, Quarantine, Restored, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.runtime.lander import TELL_EVERY_US
from edge_agent.runtime.region import RegionLoop, heard
from edge_agent.wire import frames, landing, snapshot
from tests.hostile.published_queries import BEGIN_US, BEYOND, TOPIC, S, of, query
from tests.hostile.stand_ins import Broker, Process
from tests.support.machines.scripted_child import Sender


class Tree:
    """A merger that knows what is published; frames go in as bytes."""

    def __init__(self, *published: Publication) -> None:
        self.known = KnownDefinitions(published=published)
        self.merger = Merger(NodeSettings("m"), Random(1), grace_us=60 * S, definitions=self.known)
        self.sent: list[Frame] = []
        self.slots: dict[str, object] = {}
        self.quarantined: list[str] = []
        self.now_us = BEGIN_US
        self.feed(LowerLink(up=True))

    def feed(self, event: Any) -> None:
        events = [event]
        while events:
            for action in self.merger.handle(events.pop(0), self.now_us):
                if isinstance(action, Commit):
                    self.sent += action.frames
                    self.slots |= action.state
                    events.append(Committed())
                if isinstance(action, Quarantine):
                    self.quarantined.append(f"{action.node}: {action.reason}")

    def hears(self, sender: Sender, frame: Frame) -> None:
        self.feed(Arrived(((sender.node, heard(frames.encode(frame)), None),)))

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_us += S
            self.feed(Tick())

    def served(self) -> set[int]:
        found = [each for frame in self.sent for change in frame.members for each in change.serving]
        return {each.revision for each in found if not each.node}

    def texts(self) -> list[str]:
        return [text for frame in self.sent if frame.define is not None for text in frame.define.queries]


def child(node: str, tree: Tree, value: Query) -> Sender:
    sender = Sender(node, value)
    sender.outbox.journal = tree.merger.journal
    return sender


def test_a_merger_passes_on_no_claim_that_is_not_published_and_says_so() -> None:
    tree = Tree(of(query(1)))
    good, bad = child("good", tree, query(1)), child("bad", tree, query(BEYOND, "9s"))
    tree.hears(good, good.birth(BEGIN_US))
    tree.hears(bad, bad.birth(BEGIN_US))
    tree.passes(75)
    assert tree.served() == {1}
    assert tree.texts() == [canonical_query(query(1))]
    assert tree.quarantined == [f"bad: revision {BEYOND} of query q is not published for it, only up to revision 1"]
    tree.known.publish(of(query(BEYOND, "9s")))
    tree.passes(75)
    assert tree.served() == {1, BEYOND}
    assert query_of(tree.texts()[-1]).revision == BEYOND


def test_a_merger_settles_rows_that_are_not_as_published_before_they_meet_those_of_others() -> None:
    tree = Tree(of(query(1)))
    good, bad = child("good", tree, query(1)), child("bad", tree, query(1, "1s", "median"))
    for sender, birth in ((good, good.birth(BEGIN_US)), (bad, bad.birth(BEGIN_US))):
        if sender is bad:
            assert birth.define is not None
            birth = replace(birth, define=replace(birth.define, queries=()))
        tree.hears(sender, birth)
        piece = (BEGIN_US, BEGIN_US + S, "", 2.0)
        tree.hears(sender, sender.send(piece, frontier_us=BEGIN_US + S))
    for _ in range(75):
        tree.passes(1)
        tree.hears(good, good.send(frontier_us=tree.now_us))
    assert any("defined with other functions" in why for why in tree.quarantined)
    assert sum(frame.readings for frame in tree.sent) == 1


def test_a_local_group_of_a_sibling_is_not_ones_own() -> None:
    local = query(1, scope="local")
    tree = Tree()
    bad = child("bad", tree, local)
    birth = bad.birth()
    assert birth.define is not None
    ((number, group),) = birth.define.groups
    birth = replace(birth, define=replace(birth.define, groups=((number, replace(group, node="good")),)))
    tree.merger.parent.senders = Senders(None)
    tree.hears(bad, birth)
    tree.passes(2)
    assert any("speaks for good" in why for why in tree.quarantined)


def test_a_region_hears_what_is_published_and_keeps_it_over_a_restart(tmp_path: Path) -> None:
    broker = Broker()
    region = Process("region", tmp_path, broker)
    broker.send("m", TOPIC, canonical_query(query(3)).encode())
    region.run(5)
    assert isinstance(region.loop, RegionLoop)
    assert region.loop.known.published() == [of(query(3))]
    again = Process("region", tmp_path, Broker())
    again.run(1)
    assert isinstance(again.loop, RegionLoop)
    assert again.loop.known.published() == [of(query(3))]
    machine = again.loop.machine
    assert isinstance(machine, Merger)
    assert machine.parent.known is again.loop.known


def test_the_lander_tells_the_root_what_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    broker = Broker()
    lander = Process("root", tmp_path, broker)
    broker.send("m", TOPIC, canonical_query(query(3)).encode())
    lander.run(8)
    told = list(_told(tmp_path))
    assert told == [("", "q", 3, canonical_query(query(3)))]
    lander.clock.us += TELL_EVERY_US
    lander.run(8)
    assert list(_told(tmp_path)) == told * 2, "all of it, from time to time"


def _told(folder: Path) -> Any:
    for path in sorted(folder.rglob(f"*{landing.SUFFIX}")):
        for topic, _, payload in landing.iterate(path.read_bytes()):
            if topic == landing.TICK_TOPIC:
                yield from landing.tick(payload).published


def test_definitions_that_differ_on_two_brokers_are_an_alarm_until_they_agree() -> None:
    upper = of(query(3))
    assert difference(of(query(3)), upper) == ""
    assert difference(of(query(2)), upper) == "", "it is passed on"
    assert "revision 4 on the lower broker, 3 on the upper one" in difference(of(query(4)), upper)
    assert "has other content" in difference(of(query(3, "9s")), upper)
    assert difference(replace(upper, text=None), upper) == ""
    removed = replace(upper, text="")
    assert "has other content" in difference(removed, upper)


def test_a_region_between_two_brokers_says_in_its_status_what_differs(tmp_path: Path) -> None:
    broker = Broker()
    region = Process("region", tmp_path, broker)
    path = tmp_path / "headwater.toml"
    path.write_text(path.read_text() + '[lower]\nbroker = "mqtt://127.0.0.1:8"\n')
    region.settings = load(path)
    region.run(2)
    loop = region.loop
    assert isinstance(loop, RegionLoop)
    for connection, revision in ((loop.up, 3), (loop.lower, 4)):
        loop._message(connection, TOPIC, canonical_query(query(revision)).encode(), BEGIN_US)
    alarms = loop.status.card(loop.machine, loop.clock)["alarms"]
    assert isinstance(alarms, dict)
    assert list(alarms) == ["query q"]
    loop._message(loop.up, TOPIC, canonical_query(query(4)).encode(), BEGIN_US)
    assert "alarms" not in loop.status.card(loop.machine, loop.clock)


def test_of_queries_that_are_removed_the_latest_stay_known() -> None:
    """A fleet that makes and removes queries for years; a gateway that was away for long does not serve them again."""
    known = KnownDefinitions()
    known.publish(of(query(1)))
    for number in range(MOST_REMOVED + 10):
        known.publish(Publication("", f"gone-{number}", 1, "{}"))
        known.publish(Publication("", f"gone-{number}", 2, ""))
    assert len(known.published()) == MOST_REMOVED + 1
    assert not known.serves("gw", ("gw",), Serving(f"gone-{MOST_REMOVED}", 2), BEGIN_US)
    assert known.serves("gw", ("gw",), Serving("q", 1), BEGIN_US)
    known.publish(Publication("", f"gone-{MOST_REMOVED}", 3, "{}"))
    assert len(known.published()) == MOST_REMOVED + 1
    known.publish(Publication("", "another", 1, ""))
    assert len(known.published()) == MOST_REMOVED + 2


def test_a_definition_that_is_published_is_not_forgotten() -> None:
    known = KnownDefinitions()
    old, new = query(1), query(2)
    known.add(canonical_query(old))
    known.publish(of(new))
    known.add(canonical_query(new))
    assert known.forget([old.key, new.key]) == [], "frames that name it may be under way"
    known.name([old.key, new.key])
    assert known.forget([old.key, new.key]) == [old.key]
    assert [*known.texts] == [canonical_query(new)]


def test_a_definition_that_no_frame_has_named_yet_is_kept_over_a_restart() -> None:
    """protocol 6.1, 6.5: its gateway states it once, and nobody above would know what its rows mean."""
    tree, again, value = Tree(), Tree(), query(7)
    birth = Birth(1 << 32, tree.merger.journal, None, "1")
    frame = Frame(1, 0, birth, Define(queries=(canonical_query(value),)))
    tree.feed(Arrived((("a", heard(frames.encode(frame)), None),)))
    tree.passes(3)
    kept = {name: slot for name, slot in tree.slots.items() if slot is not None}
    restored = Restored(snapshot.loads(snapshot.dumps(kept)))
    again.merger = Merger(
        NodeSettings("m"),
        Random(2),
        restored,
        grace_us=60 * S,
        definitions=KnownDefinitions(),
        unpack=lambda each: each,
    )
    again.now_us = tree.now_us
    again.feed(LowerLink(up=True))
    again.passes(5)
    assert value.key in again.merger.parent.known.revisions()
    assert canonical_query(value) in again.texts()
