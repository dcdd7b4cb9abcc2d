"""A step of a merger states what changed, also right after steps in which only frontiers rose (4.4, 4.6, 1.5)."""

from __future__ import annotations

from random import Random

from edge_agent.algebra.frame import Frame, Leaf, Serving
from edge_agent.machines.events import Arrived, LowerLink, Retire, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from tests.support.machines.scripted_child import Sender, journalled
from tests.support.machines.simulated_host import QUERY, T0, S, SimulatedHost

GRACE_S = 60


def quiet(*nodes: str) -> tuple[SimulatedHost[Merger], list[Sender]]:
    """A merger ten seconds after the births of children that rise by a second each; their last step was quiet."""
    host = SimulatedHost(Merger(NodeSettings("m"), Random(3), grace_us=GRACE_S * S))
    host.do(LowerLink(up=True), T0)
    host.accepted(T0)
    children = [Sender(node, QUERY) for node in nodes]
    for child in children:
        host.do(Arrived(((child.node, journalled(child.birth(), host.machine), None),)), T0)
    for second in range(1, 11):
        rise(host, children, second)
    assert host.machine.sent.of(QUERY.group).settled
    assert host.machine.sent.of(QUERY.group).frontier_us == T0 + 10 * S
    host.frames.clear()
    return host, children


def rise(host: SimulatedHost[Merger], children: list[Sender], second: int) -> None:
    now_us = T0 + second * S
    host.do(Arrived(tuple((child.node, child.send(frontier_us=now_us), None) for child in children)), now_us)
    host.do(Tick(), now_us + S // 2)


def excepted(frames: list[Frame]) -> list[str]:
    return [each.node for frame in frames for part in frame.groups for each in part.exceptions or ()]


def test_quiet_steps_send_no_frame() -> None:
    host, children = quiet("a", "b")
    for second in range(11, 20):
        rise(host, children, second)
    assert not host.frames


def test_a_child_that_falls_silent_is_an_exception_when_the_frontier_leaves_it_behind() -> None:
    host, children = quiet("a", "b")
    for second in range(11, 13 + GRACE_S):
        rise(host, children[:1], second)
    assert host.machine.sent.of(QUERY.group).frontier_us > T0 + 10 * S
    assert excepted(host.frames) == ["b"]


def test_an_exception_of_a_child_is_passed_on() -> None:
    host, _ = quiet("a")
    host.machine.parent.children.memberships[QUERY.group].members["a"].exceptions["a"] = (T0, T0)
    host.do(Tick(), T0 + 12 * S)
    assert excepted(host.frames) == ["a"]


def test_a_report_of_a_leaf_that_the_child_does_not_list_is_passed_on() -> None:
    host, _ = quiet("a")
    host.machine.parent.children.memberships[QUERY.group].leave("a", Leaf("x", 5, 3))
    host.do(Tick(), T0 + 12 * S)
    assert [name for frame in host.frames for change in frame.members for name in change.dropped] == ["x"]


def test_a_child_that_is_retired_is_dropped() -> None:
    host, _ = quiet("a", "b")
    host.do(Retire("b"), T0 + 11 * S)
    host.do(Tick(), T0 + 12 * S)
    assert [name for frame in host.frames for change in frame.members for name in change.dropped] == ["b"]


def test_an_end_of_a_query_is_stated() -> None:
    host, (child,) = quiet("a")
    told = child.tell(Serving("q", 1, end_until_us=T0 + 60 * S))
    host.do(Arrived((("a", told, None),)), T0 + 11 * S)
    host.do(Tick(), T0 + 12 * S)
    stated = [each for frame in host.frames for change in frame.members for each in change.serving]
    assert [each.end_until_us for each in stated] == [T0 + 60 * S]
