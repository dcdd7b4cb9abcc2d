"""The decision of the Spark root over a large fleet, on the driver: what a batch costs where every merger moves on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from cloud_job.ingest.intake import Intake
from edge_agent.algebra.frame import (
    Birth,
    Define,
    ExcludedLeaf,
    Frame,
    GroupPart,
    Leaf,
    Members,
    Plan,
    Section,
    Serving,
)
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.planner import plan as planned
from edge_agent.algebra.query.query import Query
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.root.completeness import Decider, Decision
from edge_agent.root.decision import decide
from edge_agent.root.decision.ops_rows import NodeRows
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import Work
from edge_agent.wire import frames
from edge_agent.wire.heads import Parts
from tests.benchmarks.bench import bench, record
from tests.support.cloud import child_frames
from tests.support.cloud.child_frames import JOURNAL, SECOND, START

MERGERS, LEAVES, QUERIES = 100, 100, 100  # leaves of each merger; every query has a group of its own
BATCHES = 6
GRACE_US = 60 * SECOND


class Region:
    """A merger with its leaves, and a frame each second with a row of every query."""

    def __init__(self, node: str, queries: tuple[Query, ...], leaves: int) -> None:
        """leaves: how many."""
        self.node, self.queries, self.seq = node, queries, 0
        self.leaves = tuple(f"{node}-gw-{i:03d}" for i in range(leaves))
        self.plans: tuple[Plan, ...] = tuple(planned((query,), None)[0].plan for query in queries)

    def birth(self) -> list[bytes]:
        """Its first frames: one would be larger than any that travels."""
        define = Define(
            keys=(0, ("site=a",)),
            nodes=(0, (self.node,)),
            groups=tuple((i, query.group) for i, query in enumerate(self.queries)),
            plans=tuple((i, i, plan) for i, plan in enumerate(self.plans)),
            queries=tuple(map(canonical_query, self.queries)),
        )
        listed = tuple(Leaf(name, 1) for name in self.leaves)
        members = [Members(i, listed, serving=(Serving(q.id, q.revision),)) for i, q in enumerate(self.queries)]
        first = self._next(birth=Birth(1 << 32, JOURNAL, None, "0.1.0"), define=define)
        return [first, *(self._next(members=tuple(members[i : i + 25])) for i in range(0, len(members), 25))]

    def second(self, start_us: int, excluded: int) -> list[bytes]:
        """The windows from start_us on. excluded: how many leaves are left out of all groups."""
        start, value = np.array([start_us]), np.ones(1)
        out = tuple(ExcludedLeaf(name, start_us - SECOND, start_us - SECOND) for name in self.leaves[:excluded])
        parts = []
        for i, plan in enumerate(self.plans):
            states = child_frames.lifted(value, start, plan, None)
            rows = Partials(start, start + SECOND, np.zeros(1, np.int64), states)
            parts.append(GroupPart(i, start_us + SECOND, (Section.of(i, plan, rows),), (), out))
        return [self._next(groups=tuple(parts))]

    def _next(self, **content: object) -> bytes:
        made = frames.encode(Frame(1, self.seq, **content))  # type: ignore[arg-type]
        self.seq += 1
        return made


class Driver:
    """What the root's driver does of a batch before it writes anything."""

    def __init__(self) -> None:
        self.decider, self.state, self.parts = Decider(JOURNAL, GRACE_US), RootState(RootLimits()), Parts()
        self.nodes, self.number = NodeRows(), 0
        self.steps: dict[str, float] = {}

    def batch(self, content: bytes) -> tuple[float, Decision, Work]:
        """CPU seconds of a batch, and what it decided."""
        began_s = self._at_s = time.process_time()
        self.state.own(self.number, "run")
        intake = Intake(self.decider, self.parts, self.number, "run", self.state.decided_us)
        intake.read(content, "file")
        self._step("intake")
        decision = self.decider.decide(intake.now_us)
        self._step("frontiers")
        keys = ((e.node, e.epoch, e.seq) for e in decision.effects)
        applied = {key: self.parts.pop(key) for key in keys if key in self.parts}
        work = decide.step(self.state, decision, applied, self.decider.parent.dictionaries, self.decider.gaps)
        self.decider.release(decision, self.state.limits.horizon_us, self.state.reach)
        self._step("work")
        work.dumps()
        self._step("bytes")
        self.nodes.columns(decision, self.number)
        self._step("nodes")
        self.number += 1
        return time.process_time() - began_s, decision, work

    def _step(self, name: str) -> None:
        now_s = time.process_time()
        self.steps[name], self._at_s = now_s - self._at_s, now_s


def batches(many: int, excluded: int) -> Iterator[bytes]:
    """Landing files: births, then a second of event time each. excluded: leaves of each merger that are left out."""
    queries = tuple(child_frames.query(f"q{i:03d}", source=f"s{i:03d}") for i in range(QUERIES))
    fleet = [Region(f"region-{i:03d}", queries, LEAVES) for i in range(MERGERS)]
    for number in range(many + 1):
        now_us = START + number * SECOND
        made = [region.second(now_us - SECOND, excluded) if number else region.birth() for region in fleet]
        landed = (
            child_frames.record(region.node, now_us, frame)
            for region, found in zip(fleet, made, strict=True)
            for frame in found
        )
        yield b"".join([*landed, child_frames.tick(now_us)])


def measure(excluded: int) -> tuple[float, float, dict[str, float]]:
    """CPU of the batch with the births and the least of the others; its steps."""
    driver, first_s, found = Driver(), None, []
    for content in batches(BATCHES, excluded):
        took_s, _, work = driver.batch(content)
        if first_s is None:
            first_s = took_s
            continue
        assert len(work.closing) == QUERIES, len(work.closing)
        assert {span.expected for span in work.closing} == {MERGERS * LEAVES}
        found.append((took_s, dict(driver.steps)))
    took_s, steps = min(found, key=lambda each: each[0])
    assert first_s is not None
    return first_s, took_s, steps


@bench("decision_root_s", "decision_root_excluded_s", budget_s=300)
def root_decision() -> None:
    fleet = f"{MERGERS * LEAVES} leaves below {MERGERS} mergers, {QUERIES} queries in as many groups"
    for name, excluded in (("decision_root_s", 0), ("decision_root_excluded_s", 1)):
        first_s, took_s, steps = measure(excluded)
        parts = ", ".join(f"{step} {each_s:.2f}" for step, each_s in steps.items())
        left_out = f", {excluded} leaf of each merger left out" if excluded else ""
        how = f"{fleet}{left_out}: CPU of the driver for a batch in which all close a window, least of {BATCHES}"
        record(name, took_s, "s", f"{how}, without Delta and the bytes of the state; {parts}; births {first_s:.1f} s")


if __name__ == "__main__":
    for excluded in (0, 1):
        print(excluded, measure(excluded))
