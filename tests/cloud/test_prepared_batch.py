"""What a decision takes from the messages of a batch, and what its row says (docs/protocol.md 8.1, 8.2; no Spark)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.delta.tables import BATCHES
from cloud_job.ingest.intake import Intake
from cloud_job.spark.prepared_batch import Decided, decided, row_of
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import Work
from tests.support.cloud.child_frames import JOURNAL, SECOND, Child, at, query, record, starts, tick


class Root:
    """A state, and batches that are decided on it."""

    def __init__(self) -> None:
        self.decider, self.state = Decider(JOURNAL, 20 * SECOND), RootState(RootLimits(revise_every_us=3600 * SECOND))
        self.parts: Any = {}

    def intake(self, *records: bytes, owner: str = "me") -> Intake:
        intake = Intake(self.decider, self.parts, self.state.number + 1, owner, self.state.decided_us)
        intake.read(b"".join(records), "file")
        return intake

    def batch(self, *records: bytes, flush: bool = False, owner: str = "me") -> Decided:
        return decided(self.intake(*records, owner=owner), self.state, flush=flush)


def test_a_frame_is_applied_once_with_its_parts_when_it_takes_effect() -> None:
    """protocol 2.2, 8.2"""
    root, child = Root(), Child("gw", (query(),))
    birth, first, second = child.birth(), child.rows(at(1), starts(0)), child.rows(at(2), starts(1))
    made = root.batch(tick(at(1)), record(child, at(1), birth), record(child, at(1), second))
    assert (made.applied, [*root.parts]) == ({}, [("gw", 1, 2)]), "it waits for the one before it"
    assert made.stored is not None
    made = root.batch(tick(at(2)), record(child, at(2), first))
    assert [*made.applied] == [("gw", 1, 1), ("gw", 1, 2)]
    assert all(len(parts) == 1 for parts in made.applied.values())
    assert root.parts == {}


def test_what_could_not_be_read_is_stored_and_counted_though_no_frame_came() -> None:
    """protocol 3.6"""
    root = Root()
    made = root.batch(tick(at(1)), record("gw", at(1), b"noise"))
    assert (made.work.unread, len(made.stored or ())) == (1, 1)
    assert root.batch(tick(at(2))).stored is None


def test_each_run_owns_the_batches_that_it_decides() -> None:
    """protocol 8.5"""
    root = Root()
    for owner in ("a", "a", "b"):
        root.batch(tick(at(1)), owner=owner)
    assert root.state.owners == [(0, "a"), (2, "b")]


def test_revisions_that_are_put_off_are_due_at_the_end() -> None:
    """protocol 8.3"""
    root, child = Root(), Child("gw", (query(),))
    root.batch(tick(at(2)), record(child, at(2), child.birth()), record(child, at(2), child.rows(at(2), starts(0))))
    found = []
    for second in (3, 4):
        late = child.rows(at(second), starts(0.5), length_us=1, late=True)
        found.append(root.batch(tick(at(second)), record(child, at(second), late)).work.revising)
    found.append(root.batch(tick(at(5)), flush=True).work.revising)
    assert [len(spans) for spans in found] == [1, 0, 1]


@pytest.mark.parametrize(
    ("stored", "effects", "unread", "nothing"),
    [(None, (), 0, True), ("rows", (), 0, False), (None, ("effect",), 0, False), (None, (), 1, False)],
)
def test_a_batch_that_changes_a_table_does_not_wait(stored: Any, effects: Any, unread: int, nothing: bool) -> None:
    """protocol 8.2"""
    decision: Any = SimpleNamespace(effects=effects)
    assert Decided(stored, decision, {}, Work(1, unread=unread)).changes_nothing == nothing


def test_the_row_of_a_batch_says_who_decided_it_when_and_from_what() -> None:
    root, child, ahead = Root(), Child("gw", (query(),)), 365 * 86_400
    root.batch(tick(at(3)), record(child, at(3), child.birth()))
    rows = child.rows(at(3), starts(1))
    intake = root.intake(tick(at(ahead)), record(child, at(3), rows), record("gw", at(3), b"noise"))
    made = decided(intake, root.state)
    row = row_of(made, intake, ["b", "a"], b"state")
    assert row == {
        "number": 1,
        "owner": "me",
        "decided_us": at(ahead),
        "elapsed_us": at(86_403),  # a step of the clock counts a day at most (8.4)
        "files": ["b", "a"],
        "messages": 1,
        "effects": 1,
        "frontiers": row["frontiers"],
        "work": made.work.dumps(),
        "state": b"state",
    }
    assert row.keys() <= BATCHES.columns.keys()


def test_the_row_of_a_batch_has_the_frontier_of_each_group() -> None:
    root, child = Root(), Child("gw", (query(),))
    intake = root.intake(tick(at(3)), *(record(child, at(3), each) for each in (child.birth(), child.rows(at(2)))))
    row = row_of(decided(intake, root.state), intake, [], b"")
    frontiers = [{"source": "s", "where": "", "by": ["site"], "frontier": at(2)}]
    assert json.loads(str(row["frontiers"])) == frontiers
