"""What a merger remembers of its last statements to its parent."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from edge_agent.algebra.frame import NEVER_US, ExcludedLeaf, Leaf
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.events import Arrived, Command, LowerLink, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.region.sent_upward import SentGroup, SentUpward, until_the_last_frame
from edge_agent.machines.uplink.step import GroupStep, Hints, Step
from tests.support.machines.scripted_child import GRACE, SUM, S, Sender
from tests.support.machines.simulated_host import JOURNAL, SimulatedHost

QUERY = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
NOW = 5_000 * S


def test_a_birth_does_not_state_again_what_held_only_until_the_last_frame_of_the_step_before() -> None:
    """protocol 2.3, 1.2: no later step would have ended it, and the new leaf would have been missing for ever."""
    host = SimulatedHost(Merger(NodeSettings("m"), Random(1), grace_us=GRACE))
    host.accepted(NOW)
    host.do(LowerLink(up=True), NOW)
    child = Sender("c", QUERY, leaves=("g",))
    child.outbox.journal = host.machine.journal
    host.do(Arrived((("c", child.birth(), None), ("c", child.send(frontier_us=NOW), None))), NOW)
    host.do(Tick(), NOW + S)
    (listing,) = child.outbox.put(Step((GroupStep(QUERY.group, leaves=(Leaf("h", 1),)),)))
    host.do(Arrived((("c", listing, None), ("c", child.send(frontier_us=NOW + S), None))), NOW + S)
    host.do(Tick(), NOW + 2 * S)
    host.do(Command("rebirth"), NOW + 2 * S)
    host.do(Tick(), NOW + 3 * S)
    above, spooled = ChildFrames(JOURNAL, GRACE), [frame for frame, _ in host.disk.frames.values()]
    assert sum(frame.birth is not None for frame in spooled) == 2
    for frame in spooled:
        above.take("m", frame, NOW + 3 * S)
    frontiers = above.children.memberships[QUERY.group].leaf_frontiers()
    assert {leaf: us for leaf, (us, _) in frontiers.items()} == {"g": NOW + S, "h": NOW + S}


def test_a_step_whose_promise_is_withheld_states_the_exceptions_of_before_and_remembers_them() -> None:
    """protocol 4.6, 5.2: else no later step would end them. Those of leaves that it drops end with the leaves."""
    merger, group = Merger(NodeSettings("m", max_keys=1), Random(1), grace_us=GRACE), QUERY.group
    stay, gone = (ExcludedLeaf(name, NOW, NOW) for name in ("stay", "gone"))
    merger.sent.groups[group] = SentGroup(NOW, {"stay": Leaf("stay", 1)}, exceptions=(), excepted=(gone, stay))
    hints = Hints(["k=1", "k=2"], np.arange(2), np.full(2, NOW))
    (each,) = merger._withhold(Step((GroupStep(group, NOW, exceptions=(), hints=hints),))).groups
    assert (each.frontier_us, each.exceptions) == (None, (stay,))
    sent = merger.sent.of(group)
    assert (sent.exceptions, sent.excepted) == ((stay,), (stay,))


def test_promises_that_were_made_while_the_clock_was_ahead_are_lowered_with_its_step_back() -> None:
    """protocol 4.4"""
    sent, ended = SentUpward(), replace(QUERY.group, source="t")
    sent.of(QUERY.group).frontier_us = NOW + 900 * S
    sent.end(ended, NOW + 900 * S)
    membership: Any = SimpleNamespace(published_us=NOW - S)
    sent.stepped_back(NOW, {QUERY.group: membership})
    assert sent.promised() == {ended: NOW, QUERY.group: NOW - S}


def test_of_a_group_that_ended_only_the_promise_is_left() -> None:
    """protocol 4.4, 2.5: heartbeats and births name it no more."""
    sent = SentUpward()
    sent.of(QUERY.group).frontier_us = NOW
    sent.end(QUERY.group, NOW)
    assert (dict(sent.frontiers()), sent.promised()) == ({}, {QUERY.group: NOW})


def test_a_leaf_that_a_step_lists_in_another_entry_first_is_an_exception_until_its_last_frame() -> None:
    """protocol 2.3, 1.5: its rows of that line may be in the frames between, though it is listed as before."""
    known = {"g": Leaf("g", 1), "h": Leaf("h", 1)}
    assert until_the_last_frame((), known, known) == ()
    assert until_the_last_frame((), known, known, {"g"}) == (ExcludedLeaf("g", NEVER_US, NEVER_US),)
