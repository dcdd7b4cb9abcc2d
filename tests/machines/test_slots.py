"""The slots of a spool: typed values, a version, and spools of the layout before."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from edge_agent.algebra.frame import Flush, Frame, Leaf, Members, Serving
from edge_agent.algebra.query.query import Aggregate, Query, Sensor
from edge_agent.algebra.windows import CountTumbling, Punctuation, Session, Sliding, Tumbling
from edge_agent.errors import ConfigError
from edge_agent.machines.checkpoint import slots
from edge_agent.machines.checkpoint.membership_slots import MembershipSlots
from edge_agent.machines.checkpoint.slot import Slot
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.events import Commit, Committed, Configured, Event, LowerLink, Restored, Tick
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.node import Node
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.ports.spool import Spool
from edge_agent.runtime.region import pack, unpack
from edge_agent.wire import frames, snapshot

S = 1_000_000
T0 = 1_000 * S
OLD = Path(__file__).with_name("spools_of_version_1")
SENSOR = Sensor("s", 1, "simulated", scale=0, timeout_us=3 * S, rereadable=True, own_clock=True)
SUM, MEDIAN = (Aggregate("sum", "sum"),), (Aggregate("median", "median"),)
QUERIES = (
    Query("time", 1, "s", Tumbling(10 * S), SUM, by=("k",), lateness_us=0),
    Query("median", 1, "s", Tumbling(10 * S), MEDIAN, lateness_us=0),
    Query("rolling", 1, "s", Sliding(20 * S, 5 * S), MEDIAN, where="value > 3", lateness_us=0),
    Query("session", 1, "s", Session(5 * S), SUM, by=("k",), lateness_us=0),
    Query("raw", 1, "s", CountTumbling(3), SUM, lateness_us=0),
    Query("local", 1, "s", Punctuation("local"), SUM, lateness_us=0),
    Query("central", 1, "s", Punctuation("central"), SUM, lateness_us=0),
)


def run(machine: Node, spool: Spool, events: Iterable[tuple[Event, int]]) -> list[str]:
    """The frames that it commits, as bytes in hexadecimal."""
    sent: list[Frame] = []
    for event, now_us in events:
        for action in machine.handle(event, now_us):
            if isinstance(action, Commit):
                sent += [*action.frames, *action.replace]
                spool.commit(action)
                machine.handle(Committed(), now_us)
    return [frames.encode(_as_then(frame)).hex() for frame in sent]


def _as_then(frame: Frame) -> Frame:
    """Without what births and flushes did not say then."""
    if frame.flush is not None:
        frame = replace(frame, flush=Flush(frame.flush.after))
    return frame if frame.birth is None else replace(frame, birth=replace(frame.birth, held=None, flush=None))


def gateway(restored: Restored) -> tuple[Node, list[tuple[Event, int]]]:
    node = Gateway(NodeSettings("press-1"), Random(4), restored)
    return node, [(Configured((SENSOR,), QUERIES), T0 + 9 * S), (Tick(), T0 + 30 * S)]


def merger(restored: Restored) -> tuple[Node, list[tuple[Event, int]]]:
    node = Merger(NodeSettings("hall"), Random(5), restored, grace_us=60 * S, pack=pack, unpack=unpack)
    return node, [(LowerLink(up=True), T0 + 12 * S), (Tick(), T0 + 13 * S), (Tick(), T0 + 200 * S)]


@pytest.mark.parametrize(("name", "node", "machine"), [("gateway", "press-1", gateway), ("merger", "hall", merger)])
def test_a_spool_of_version_1_is_read_and_written_as_the_present_one(
    tmp_path: Path, name: str, node: str, machine: Callable[[Restored], tuple[Node, list[tuple[Event, int]]]]
) -> None:
    """Spools written by commit 58927e6, with open rows of every kind, and the frames that it sent when it went on.

    But for exceptions: of members left out that have open sessions too.
    """
    path = tmp_path / f"{name}.db"
    path.write_bytes(gzip.decompress((OLD / f"{name}.db.gz").read_bytes()))
    spool = Spool(path, node, frames.encode)
    restored = spool.open()
    assert restored.frames
    assert slots.LAYOUT.read(restored.state) is None
    assert run(machine(restored)[0], spool, machine(restored)[1]) == json.loads((OLD / "frames.json").read_text())[name]
    spool.close()
    again = Spool(path, node, frames.encode)
    state = again.open().state
    assert slots.LAYOUT.read(state) == slots.VERSION
    machine(Restored(state))
    again.close()


def test_slots_of_a_newer_headwater_are_refused_in_a_clear_line() -> None:
    with pytest.raises(ConfigError, match="slots of version 99, this headwater reads up to 21: run the newer"):
        gateway(Restored(slots.LAYOUT.write(99)))


def test_the_types_of_the_slots_change_with_the_version_only() -> None:
    """Another digest: raise slots.VERSION, read the version before as long as it is in use, and put it here."""
    declared = vars(slots).values()
    names = [(each.name, _shape(each.holds)) for each in declared if isinstance(each, Slot)]
    shapes = [_shape(each) for name, each in vars(slots).items() if name.endswith("State") and is_dataclass(each)]
    text = json.dumps([names, shapes])
    assert (slots.VERSION, hashlib.sha256(text.encode()).hexdigest()[:16]) == (21, "b1c388f480ae1a00")


def _shape(kind: Any) -> object:
    if is_dataclass(kind) and kind.__module__ == slots.__name__:
        hints = get_type_hints(kind)
        return [(each.name, _shape(hints[each.name])) for each in fields(kind)]
    if get_origin(kind) is np.ndarray:  # its first argument, the shape, differs between versions of numpy
        return ["ndarray", _shape(get_args(kind)[1])]
    return [getattr(kind, "__name__", str(kind)), *map(_shape, get_args(kind))]


def test_a_merger_knows_its_journal_from_either_slot() -> None:
    """protocol 3.7: one damaged slot makes it no new parent."""
    known = merger(Restored(slots.JOURNAL.write(77)))[0]
    again = merger(Restored(slots.JOURNAL_AGAIN.write(77)))[0]
    assert isinstance(known, Merger)
    assert isinstance(again, Merger)
    assert known.journal == again.journal == 77


def test_all_that_a_member_is_comes_back_from_the_slots_of_a_merger() -> None:
    """protocol 1.2: what its leaves have not said since its journal was lost, too."""
    group, membership = QUERIES[0].group, GroupMembership(60 * S)
    member = membership.member("hall")
    member.change(Members(0, (Leaf("a", 1), Leaf("b", 1)), (), (Serving("q", 1),)))
    member.promise(T0, T0)
    member.lose("hall", T0)
    member.anew.add("b")
    member.since_us, member.older, member.live = T0 - S, {7: (0, T0)}, True
    state = MembershipSlots({}).changes({group: membership.snapshot()})
    again = GroupMembership.restore(60 * S, MembershipSlots.read(snapshot.loads(snapshot.dumps(state)))[group])
    assert again.snapshot() == membership.snapshot()
    assert (again.member("hall").unsaid, again.member("hall").anew) == ({"a": 1, "b": 1}, {"b"})


def test_a_commit_in_which_only_a_frontier_has_risen_rewrites_one_slot_of_all_groups_and_none_of_each() -> None:
    """protocol 3.1: a child may be in thousands of groups, and a commit comes every second."""
    group, membership = QUERIES[0].group, GroupMembership(60 * S)
    member = membership.member("hall")
    member.change(Members(0, (Leaf("hall", 1),), (), (Serving("q", 1, 5),)))
    membership.serving(T0)
    kept = MembershipSlots({})
    first = kept.changes({group: membership.snapshot()})
    member.promise(T0, T0)
    second = kept.changes({group: membership.snapshot()})
    assert len(first) == 3
    assert len(second) == 1
    member.change(Members(0, (), (), (Serving("r", 1, 7),)))
    membership.serving(T0 + S)
    third = kept.changes({group: membership.snapshot()})
    assert len(third) == 3
    spooled = snapshot.loads(snapshot.dumps({**first, **second, **third}))
    assert GroupMembership.restore(60 * S, MembershipSlots.read(spooled)[group]).snapshot() == membership.snapshot()
    assert len(MembershipSlots(spooled).changes({group: membership.snapshot()})) == 3, "it does not know what was read"
    assert list(kept.changes({}).values()).count(None) == 2, "the slots of a group that is gone"
