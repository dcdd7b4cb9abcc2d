"""A merger forgets queries that no child and no row names any more: births above do not state them for ever (6.5)."""

from __future__ import annotations

from random import Random

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.config.in_force.known_definitions import KnownDefinitions
from edge_agent.machines.events import Arrived, LowerLink, Retire, Tick
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from tests.support.machines.scripted_child import GRACE, SUM, Sender, journalled
from tests.support.machines.simulated_host import T0, Disk, S, SimulatedHost

OLD, NEW = (Query(name, 1, "s", Tumbling(10 * S), SUM, lateness_us=0) for name in ("old", "new"))


def merger(disk: Disk, now_us: int) -> SimulatedHost[Merger]:
    process = Merger(
        *(NodeSettings("m"), Random(now_us), disk.restored(), disk.load), grace_us=GRACE, definitions=KnownDefinitions()
    )
    host = SimulatedHost(process, disk)
    host.accepted(now_us)
    host.do(LowerLink(up=True), now_us)
    return host


def arrive(host: SimulatedHost[Merger], now_us: int, *frames: Frame) -> None:
    found = (frame if frame.birth is None else journalled(frame, host.machine) for frame in frames)
    host.do(Arrived(tuple(("a", frame, None) for frame in found)), now_us)
    host.do(Tick(), now_us + S)


def known(host: SimulatedHost[Merger]) -> list[str]:
    return [query.id for query in (OLD, NEW) if canonical_query(query) in host.machine.parent.known.texts]


def born_without(child: Sender) -> Frame:
    """Its next birth, in which it serves another query."""
    child.queries = (NEW,)
    return child.birth()


def test_with_the_last_epoch_that_names_a_query_all_that_is_known_of_it_goes() -> None:
    """protocol 6.3, 6.5: its text, and when it was agreed to begin."""
    host, child = merger(Disk(), T0), Sender("a", OLD)
    arrive(host, T0 + S, child.birth(T0), child.send((T0, T0 + S, "", 1.0), frontier_us=T0 + 10 * S))
    assert known(host) == ["old"]
    (membership,) = host.machine.parent.children.memberships.values()
    assert "'old'" in repr(membership.snapshot())
    arrive(host, T0 + 3 * S, born_without(child))
    assert known(host) == ["new"]
    assert "'old'" not in repr(membership.snapshot())


def test_with_a_group_that_has_no_leaf_any_more_its_queries_go() -> None:
    """protocol 1.5, 6.5: no epoch ends there, and the child had sent no rows."""
    host, child = merger(Disk(), T0), Sender("a", OLD)
    arrive(host, T0 + S, child.birth(T0))
    assert known(host) == ["old"]
    host.do(Retire("a"), T0 + 3 * S)
    host.do(Tick(), T0 + 4 * S)
    assert not host.machine.parent.children.memberships
    assert known(host) == []
    again = merger(host.disk, T0 + 9 * S)
    assert not any(frame.define.queries for frame in again.frames if frame.define is not None), "nor after a start"


def test_a_query_whose_rows_were_open_when_its_last_epoch_ended_goes_with_the_next_start() -> None:
    """protocol 6.5: the rows need its text until they are sent, and that is no event of an epoch."""
    host, child = merger(Disk(), T0), Sender("a", OLD)
    arrive(host, T0 + S, child.birth(T0), child.send((T0, T0 + S, "", 1.0)))
    arrive(host, T0 + 3 * S, born_without(child))
    assert known(host) == ["old", "new"]
    again = merger(host.disk, T0 + 9 * S)
    again.do(Tick(), T0 + 10 * S)
    assert any(frame.readings for frame in again.frames)
    assert known(again) == ["new"]
