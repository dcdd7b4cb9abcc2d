"""How far a node is and why it is behind, in the words that `headwater status` and ops.nodes show."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from edge_agent.algebra.frame import Heartbeat
from edge_agent.algebra.partials.partial import Batch
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.events import Arrived, LowerLink, Read, Tick
from edge_agent.machines.gateway.gateway_standing import standing
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.region.merger_standing import standing as region_standing
from tests.support.machines.scripted_child import Sender, journalled
from tests.support.machines.simulated_host import QUERY, SENSOR, T0, S, SimulatedHost, gateway_host, read


def test_a_gateway_names_what_it_waits_for() -> None:
    """protocol 4.1: parent, definitions, a sensor without readings, a sensor that is silent within its timeout."""
    live = replace(SENSOR, driver="mqtt", own_clock=False, rereadable=False, timeout_us=3_600 * S)
    host = gateway_host(sensors=(live,))
    assert standing(host.machine, T0) == (None, "waits for its parent: no receipt so far")
    host.accepted(T0)
    assert standing(host.machine, T0 + 40 * S) == (None, "sensor s: no reading for 40 s")
    read(host, T0 + 40 * S, 1, T0 + 40 * S)
    host.do(Tick(), T0 + 42 * S)
    assert standing(host.machine, T0 + 42 * S) == (T0 + 40 * S, "")
    why = "sensor s: silent for 60 s, counts as idle after 3600 s (timeout)"
    assert standing(host.machine, T0 + 100 * S) == (T0 + 40 * S, why)
    empty = gateway_host(sensors=(), queries=())
    empty.accepted(T0)
    assert standing(empty.machine, T0) == (None, "waits for definitions: no query of a sensor here")
    assert QUERY.source == "s"


def test_a_gateway_names_a_sensor_with_a_clock_of_its_own() -> None:
    """protocol 4.1: a recording of last week; docs/operate.md promises a reason for each node that is behind."""
    host = gateway_host(sensors=(replace(SENSOR, driver="file", own_clock=True),))
    host.accepted(T0)
    one = np.ones(1, np.int64)
    host.do(Read("s", Batch(one * T0, one, one * 0, [()]), position=1, clock_us=T0 + 2 * S), T0)
    host.do(Tick(), T0 + 2 * S)
    assert standing(host.machine, T0 + 5 * S)[1] == ""
    assert standing(host.machine, T0 + 600 * S)[1] == "sensor s: its file has a clock of its own, 598 s behind"


def test_a_region_names_the_child_that_holds_it_up_though_it_speaks() -> None:
    """A gateway that forgot a query goes on without it, and stays in the group of that query (protocol 4.5)."""
    host = SimulatedHost(Merger(NodeSettings("m"), Random(2), grace_us=20 * S))
    host.accepted(T0)
    host.do(LowerLink(up=True), T0)
    child = Sender("a", QUERY)
    for frame in (
        journalled(child.birth(), host.machine),
        child.send((T0, T0 + 5 * S, "", 1.0), frontier_us=T0 + 5 * S),
    ):
        host.do(Arrived((("a", frame, None),)), T0 + 6 * S)
    for second in range(7, 40):
        host.do(Arrived((("a", Heartbeat(child.outbox.epoch, child.outbox.seq - 1, ()), None),)), T0 + second * S)
        host.do(Tick(), T0 + second * S)
        reached_us, why = region_standing(host.machine, T0 + second * S)
        assert (reached_us, bool(why)) == (T0 + 5 * S, second > 27), why
    assert why == "a: its frontier for s has not risen since 1970-01-01T00:16:47Z"


def test_a_parent_says_why_a_child_is_left_out() -> None:
    """protocol 4.4: silent for the grace time, a clock ahead, catching up; else nothing."""
    children = Children(grace_us=20 * S)
    children.heard("a", 5 * S)
    member = Member()
    assert children.why_out("a", member, 6 * S) == ""
    member.out = True
    assert children.why_out("a", member, 6 * S) == "left out until it has caught up"
    assert children.why_out("a", member, 26 * S) == "silent since 1970-01-01T00:00:05Z, left out"
    member.ahead = True
    assert children.why_out("a", member, 6 * S).startswith("its frontier is ahead of the clock here")
