"""Central order in the job, without Spark: any cut into micro-batches and any restart give the same windows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_job.delta.driver_rows import arrow_schema
from cloud_job.delta.late_and_quarantine import late
from cloud_job.delta.tables import MESSAGES
from cloud_job.ingest.decode import READ
from cloud_job.ingest.decode_lookup import DecodeLookups
from cloud_job.ingest.intake import Intake
from cloud_job.ordered import ordered_windows as central
from cloud_job.ordered import position_rows
from cloud_job.ordered.position_rows import STATES
from cloud_job.ordered.position_store import PositionStore
from cloud_job.ordered.reading_chunks import chunks_of
from cloud_job.spark import decision_checkpoint
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.windows.count_sliding import CountSliding
from edge_agent.algebra.windows.count_tumbling import CountTumbling
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.decide import step
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import Work
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.wire.heads import Parts
from tests.support.cloud import recorded_fleets
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.raw_frames import Reading, naive, raw_rows
from tests.support.effort import examples
from tests.support.simulation.faults import calm, everything, lossy
from tests.support.simulation.fleets import GRACE
from tests.support.simulation.ordered_fleets import CountedFleet
from tests.support.simulation.world import RootHost

FAR_US: Final = START + 10**9
GRACE_US: Final = 10**12


@dataclass
class Dry:
    """The job's decisions on a central query, carried out on the driver; its state goes through bytes each time."""

    grace_us: int = GRACE_US
    chain: int = position_rows.CHAIN
    limits: RootLimits = field(default_factory=lambda: RootLimits(revise_every_us=0))
    rows: list[dict[str, Any]] = field(default_factory=list)
    aside: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.decider, self.state, self.parts = Decider(0, self.grace_us), RootState(self.limits), Parts()
        self.states, self.stored = PositionStore(), arrow_schema(MESSAGES).empty_table()

    def batch(self, records: Sequence[bytes]) -> Work:
        """One micro-batch."""
        intake = Intake(self.decider, self.parts, self.state.number + 1, "me", self.state.decided_us)
        intake.read(b"".join(records), "file")
        self.stored = pa.concat_tables([self.stored, intake.table()])
        if not self.state.owners:
            self.state.owners.append((0, "me"))
        decision = self.decider.decide(intake.now_us)
        found = {(e.node, e.epoch, e.seq) for e in decision.effects} & self.parts.keys()
        applied = {key: self.parts.pop(key) for key in found}
        books = self.decider.parent.dictionaries
        work = Work.loads(step(self.state, decision, applied, books, self.decider.gaps).dumps())
        lookups = DecodeLookups(books, self.state)
        lookup = lookups.of(work, {order.number: [(NEVER_US, FAR_US)] for order in work.orders})
        rows = self.stored.filter(self.stored["start"].is_valid()).select(READ)
        asked = (self.state.query(QueryKey(o.query, o.revision)) for o in work.ordering)
        queries = [query for query in asked if query is not None]
        if work.ordering:
            before = self.states.before(work.ordering)
            assert before is not None
            raw = chunks_of(lookup, work.ordering)(iter(rows.to_batches()))
            with mock.patch.object(position_rows, "CHAIN", self.chain):
                made, states = central.advanced([*raw, *before], work.ordering, queries, work.number)
            self.states.took(states, work.number)
            self.rows += made.to_pylist()
        if work.beyond:
            columns = ["node", "epoch", "seq", "part", "plan", "payload"]
            bases = {digest: plan.basis for digest, (_, plan) in self.state.plans.items()}
            self.aside += late(self.stored.select(columns), work, lookups.pages(), bases).to_pylist()
        self.decider, self.state, self.parts = decision_checkpoint.loads(
            decision_checkpoint.dumps(self.decider, self.state, self.parts), self.limits, self.grace_us
        )
        return work


def told(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], tuple[int, dict[str, float | None]]]:
    """(query, key, start) -> (end, values); none stands twice."""
    found = {(r["query"], r["key"], r["start"]): (r["end"], dict(r["values"])) for r in rows}
    assert len(found) == len(rows)
    return found


@examples(40)
@given(
    st.integers(0, 10**6),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from([None, 0]),
    st.lists(st.integers(1, 12), max_size=9),
    st.integers(1, 3),
)
def test_any_cut_into_batches_gives_the_windows_of_one_central_order(
    seed: int, counts: tuple[int, int], scale: int | None, cuts: list[int], chain: int
) -> None:
    """protocol 7.4, 8.2: keys, nodes and equal times mixed, frames before and after each other.

    chain: rows of a key before one holds all its readings again.
    """
    random, (length, slide) = Random(seed), counts
    window = CountTumbling(length) if slide >= length else CountSliding(length, slide)
    asked = query("c", window, ("sum", "first", "last"))
    fleet = [Child(f"gw-{name}", (asked,), ("site=a", "site=b"), scale) for name in ("b", "a")]
    births = [record(child, START, child.birth()) for child in fleet]
    messages: list[bytes] = []
    readings: list[Reading] = []
    for turn in range(4):
        low = START + 10 * turn
        for child in fleet:
            mine = []
            for order in range(turn * 100, turn * 100 + random.randrange(6)):
                time_us, value = low + random.randrange(10), float(random.randrange(9))
                mine.append(Reading(time_us, random.choice(child.keys), value, child.node, order))
            readings += mine
            messages.append(record(child, START, raw_rows(child, low + 10, mine)))
    random.shuffle(messages)  # frames wait until those before them have come
    messages = [*births, *messages, *(record(child, START, child.beat(FAR_US)) for child in fleet)]
    dry = Dry(chain=chain)
    edges = sorted({min(max(cut, 2), len(messages)) for cut in cuts} | {0, len(messages)})  # both are known at once
    for first, last in itertools.pairwise(edges):
        dry.batch([tick(START), *messages[first:last]])
    dry.batch([tick(FAR_US)])
    assert told(dry.rows) == naive(asked, readings, length, min(slide, length))
    assert dry.aside == []
    assert all(row["complete"] and row["expected"] == 2 for row in dry.rows)


def test_what_comes_below_the_frontier_that_gave_positions_is_set_aside() -> None:
    """protocol 7.4: a position once given is final."""
    asked = query("c", CountTumbling(2), ("sum",))
    child = Child("gw-1", (asked,))
    first = [Reading(START + i, "site=a", float(i), "gw-1", i) for i in (0, 1, 2)]
    behind = [Reading(START + i, "site=a", 50.0, "gw-1", 9 + i) for i in (1, 3)]
    dry = Dry()
    birth = record(child, START, child.birth())
    dry.batch([tick(START), birth, record(child, START, raw_rows(child, START + 3, first))])
    dry.batch([tick(START), record(child, START, raw_rows(child, START + 9, behind, late=True))])
    assert {start: values["sum"] for (_, _, start), (_, values) in told(dry.rows).items()} == {0: 1.0, 2: 52.0}
    (gone,) = dry.aside
    assert (gone["node"], gone["key"], gone["start"], gone["end"], gone["readings"]) == (
        *("gw-1", "site=a", START + 1, START + 2),
        1,
    )
    assert "positions" in gone["reason"]


def test_a_new_revision_goes_on_from_the_next_position() -> None:
    """protocol 7.4, 6.3"""
    old = query("c", CountTumbling(3), ("sum",))
    new = query("c", CountTumbling(2), ("sum",), revision=2)
    one, two = Child("gw-1", (old,)), Child("gw-1", (new,), epoch=2)
    dry = Dry()
    early = [Reading(START + i, "site=a", 1.0, "gw-1", i) for i in range(4)]
    later = [Reading(START + 10 + i, "site=a", 5.0, "gw-1", i) for i in range(4)]
    dry.batch([tick(START), record(one, START, one.birth()), record(one, START, raw_rows(one, START + 9, early))])
    birth = two.birth((1, one.seq - 1))
    dry.batch([tick(START), record(two, START, birth), record(two, START, raw_rows(two, START + 20, later))])
    found = {(r["definition_revision"], r["start"], r["end"]): dict(r["values"])["sum"] for r in dry.rows}
    assert found == {(1, 0, 3): 3.0, (2, 4, 6): 10.0, (2, 6, 8): 10.0}


def rounded(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 9) for name, value in values.items()}


@pytest.mark.parametrize(("seed", "chaos"), [(3_000, calm), (3_001, lossy), (3_002, everything), (3_004, everything)])
def test_fleets_give_the_rows_of_the_plain_root(seed: int, chaos: Callable[[Random], recorded_fleets.Chaos]) -> None:
    """protocol 7.4, 4.4, 4.7, 8.2: through mergers, crashes and losses, in micro-batches cut anywhere."""
    fleet = CountedFleet(seed, chaos(Random(seed)))
    fleet.run()
    host = fleet.world.hosts["root"]
    assert isinstance(host, RootHost)
    files = [(at_us, tuple(objects)) for at_us, objects in host.files]
    plain, dry, rows = NumpyRoot(0, grace_us=GRACE), Dry(GRACE), []
    for group in recorded_fleets.grouped(files, 6, Random(seed)):
        for _, objects in group:
            plain.decider.parent.inbox.journal = host.journal
            for node, message, received_us in objects:
                plain.take(node, message, received_us)
        rows += plain.step(group[-1][0])
        dry.batch([recorded_fleets.content(file, host.journal) for file in group])
    about: tuple[str, ...] = ("query", "definition_revision", "node", "key", "start", "end")
    about += ("readings", "complete", "expected", "received")
    got = {tuple(row[name] for name in about): (rounded(dict(row["values"])), row["details"]) for row in dry.rows}
    want = {tuple(getattr(row, name) for name in about): (rounded(row.values), row.details) for row in rows}
    assert len(got) == len(dry.rows)
    assert len(want) > 20
    assert got == want
    told_of = ("node", "source", "key", "start", "end", "readings", "reason")
    aside = sorted(tuple(row[name] for name in told_of) for row in dry.aside)
    assert aside == sorted(tuple(getattr(beyond, name) for name in told_of) for beyond in plain.beyond)


@pytest.mark.parametrize(("most", "known"), [(2, True), (1, False)])
def test_states_stay_on_the_driver_while_they_are_few(most: int, known: bool) -> None:
    asked = query("c", CountTumbling(2), ("sum",))
    child = Child("gw-1", (asked,), ("site=a", "site=b"))
    dry = Dry()
    dry.states = PositionStore(2)
    mine = [Reading(START, key, 1.0, "gw-1", 0) for key in child.keys]
    work = dry.batch(
        [tick(START), record(child, START, child.birth()), record(child, START, raw_rows(child, START + SECOND, mine))]
    )
    few = PositionStore(most)
    before = dry.states.before(work.ordering)
    assert before is not None
    states = [row for batch in before for row in batch.to_pylist()]
    assert sorted((row["key"], row["seq"]) for row in states) == [("site=a", 1), ("site=b", 1)]
    rows = {name: pa.array([1, 1]) for name in ("definition_revision", "base", "position", "held_from", "since")}
    texts = {"query": ["c", "c"], "node": ["", ""], "key": ["site=a", "site=b"], "held": [b"", b""]}
    few.took(pa.table({**rows, **texts, "scale": pa.array([None, None], pa.int32())}).select(list(STATES)), 1)
    assert (few.before(work.ordering) is not None) == known
