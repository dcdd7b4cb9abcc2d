"""What nobody needs expires, and no row is ever made of a part of its readings (docs/protocol.md 8.4)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloud_job.delta import driver_rows, maintain, retention, tables
from cloud_job.delta.tables import Place
from edge_agent.algebra.windows import Session
from edge_agent.algebra.windows.count_tumbling import CountTumbling
from edge_agent.errors import PortError
from edge_agent.root.decision.root_state import RootLimits
from tests.support.cloud.child_frames import SECOND, Child, at, one, query, record, tick, ticks
from tests.support.cloud.jobs import GRACE_US, CrashError, FragileJob, Roots, born
from tests.support.cloud.raw_frames import Reading, raw_rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


EXPIRED: dict[int | None, bool] = {None: False}  # the row that counts what has gone


def maintained(root: Roots) -> dict[int | None, bool]:
    """Stop the root, maintain. Returns start -> True, of all parts that are still there; of no other."""
    root.job.close()
    maintain.maintain(root.spark, root.place, lambda _line: None, tables=())  # compaction is slow, and tried elsewhere
    return {row["start"]: row["payload"] is not None for row in root.rows(tables.MESSAGES, "part <> 0")}


def states(root: Roots) -> dict[int, bool]:
    """Batch -> whether its row has a state."""
    return {row["number"]: row["state"] is not None for row in root.rows(tables.BATCHES)}


def test_what_is_beyond_the_horizon_expires_and_stays_beyond_a_longer_one(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_STATES", 1)
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    for second in (1, 2, 100):
        root.take(tick(at(second)), one(child, second - 1, second), one(child, second - 1, second, 3.0))
    before = root.results()
    with pytest.raises(PortError, match=r"another root .* stop it first"):
        maintain.maintain(root.spark, root.place, lambda _line: None)
    assert maintained(root) == {at(99): True, **EXPIRED}
    assert root.results() == before
    assert states(root) == {0: False, 1: False, 2: True, 3: True}, "the last one is whole now"

    root.limits = RootLimits(revise_every_us=0, horizon_us=1000 * SECOND)  # the operator gives a longer one
    root.start()
    late = [one(child, second, 101, 9.0, late=True) for second in (1, 99)]
    root.take(tick(at(101)), *late, late[0])
    after = root.results()
    assert after["q", "site=a", at(1)] == before["q", "site=a", at(1)], "its payloads are gone: it stays as it is"
    revised = after["q", "site=a", at(99)]
    assert (revised["readings"], revised["values"]["avg"], revised["revision"]) == (3, 13 / 3, 1)
    (row,) = root.rows(tables.LATE)
    assert (row["start"], row["readings"]) == (at(1), 1)
    root.take(tick(at(102)), one(child, 101, 102))
    assert root.results().keys() - after.keys() == {("q", "site=a", at(101))}
    maintained(root)
    assert states(root) == {0: False, 1: False, 2: False, 3: False, 4: True, 5: True}, "a run begins with a whole one"


def test_readings_that_a_child_makes_up_do_not_keep_those_of_all_from_expiring(roots: Callable[..., Roots]) -> None:
    """A row of one gateway may count 2^40 readings, and a frame has many rows: their sum left 64 bits, each time."""
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    for second in (1, 2, 3, 100):
        root.take(tick(at(second)), one(child, second - 1, second))
    name = root.place.sql(tables.MESSAGES)
    for last in (100, 200):
        root.spark.sql(f"UPDATE {name} SET readings = {2**62} WHERE part > 0 AND start < {at(last - 2)}")
        assert maintained(root) == {at(last - 1): True, **EXPIRED}
        assert [row["readings"] for row in root.rows(tables.MESSAGES, "batch = -1")] == [2**63 - 1]
        root.start()
        root.take(tick(at(200)), one(child, 199, 200))


def test_a_frame_that_waits_for_another_does_not_expire(roots: Callable[..., Roots]) -> None:
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    root.take(tick(at(1)), one(child, 0, 1))
    root.take(tick(at(100)), one(child, 99, 100))
    missing, waits = (one(child, second, 100, late=True) for second in (1, 0.5))
    root.take(tick(at(100)), waits)
    assert maintained(root)[at(0.5)], "it has not taken effect"
    root.start()
    root.take(tick(at(101)), missing)
    assert {row["start"]: row["readings"] for row in root.rows(tables.LATE)} == {at(0.5): 1, at(1): 1}


def test_a_session_that_goes_on_for_longer_than_the_horizon_is_whole(roots: Callable[..., Roots]) -> None:
    child = Child("gw-1", (query(window=Session(2 * SECOND)),))
    root = born(roots, child)
    for first in (0, 30):
        start = np.arange(at(first), at(first + 30), SECOND)
        root.take(tick(at(first + 30)), record(child, at(first), child.rows(at(first + 30), start, length_us=1)))
        maintained(root)
        root.start()
    assert root.results() == {}, "it goes on"
    root.take(tick(at(100)), record(child, at(100), child.rows(at(100))))
    (row,) = root.results().values()
    assert (row["start"], row["readings"], row["complete"]) == (at(0), 60, True)


def test_rows_that_the_last_decision_owes_are_written_before_their_payloads_go(roots: Callable[..., Roots]) -> None:
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    root.job.crash = ("decision", root.job.state.number + 1)
    with pytest.raises(CrashError):
        root.take(tick(at(100)), one(child, 0, 1), one(child, 99, 100))
    assert root.results() == {}
    assert maintained(root) == {at(99): True, **EXPIRED}
    assert {row["start"]: row["readings"] for row in root.results().values()} == {at(0): 1, at(99): 1}


def test_a_revision_that_is_put_off_keeps_its_payloads(roots: Callable[..., Roots]) -> None:
    child = Child("gw-1", (query(),))
    root = born(roots, child, revise_every_us=1000 * SECOND)
    root.take(tick(at(1)), one(child, 0, 1))
    for value in (2.0, 4.5):  # the first is written at once, the second is put off
        root.take(tick(at(2)), one(child, 0.5, 2, value, late=True))
    root.take(tick(at(100)), one(child, 99, 100))
    assert root.results()["q", "site=a", at(0)]["readings"] == 2
    assert all(maintained(root).values())
    root.start()
    root.job.finish()
    row = root.results()["q", "site=a", at(0)]
    assert (row["readings"], row["values"]["avg"]) == (3, 2.5)
    assert maintained(root) == {at(99): True, **EXPIRED}
    root.start()  # the last decision had the revision, and its readings are gone
    assert root.results()["q", "site=a", at(0)] == row


def test_readings_that_wait_for_a_position_do_not_expire(roots: Callable[..., Roots]) -> None:
    """A gateway that is named and was never heard holds count windows, but no frontier (protocol 7.4)."""
    asked = query("q", CountTumbling(2), ("sum",))
    here, other = (Child(node, (asked,)) for node in ("gw-a", "gw-b"))
    root = roots(horizon_us=10 * SECOND)
    root.start(members=("gw-a", "gw-b"))
    mine = [Reading(at(i), "site=a", float(i), "gw-a", i) for i in range(4)]
    birth, rows = here.birth(), raw_rows(here, at(100), mine)
    root.take(tick(at(0)), record(here, at(0), birth), record(here, at(0), rows))
    silent_us = at(100) + 2 * GRACE_US
    root.take(ticks(at(0), silent_us), record(here, silent_us, here.beat(at(100))))
    assert root.results() == {}
    assert all(maintained(root).values())
    root.start(members=("gw-a", "gw-b"))
    root.take(tick(silent_us), record(other, silent_us, other.birth()), record(other, silent_us, other.rows(at(100))))
    assert {row["start"]: row["values"]["sum"] for row in root.results().values()} == {0: 1.0, 2: 5.0}


@pytest.mark.parametrize("step", ["work", "expired", "upkeep"])
def test_maintenance_that_is_killed_after_any_commit_leaves_what_a_start_needs(
    roots: Callable[..., Roots], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The last decision had the row of the second 1, whose readings are gone by then."""
    monkeypatch.setattr(retention, "KEPT_STATES", 0)
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    root.take(tick(at(1)), one(child, 0, 1))
    root.take(tick(at(100)), one(child, 1, 2), one(child, 99, 100))
    assert root.job.needed_from < root.job.state.number, "a start decides again"
    before = root.results()

    class Killed(FragileJob):
        crash = (step, root.job.state.number)

    with monkeypatch.context() as killed:
        killed.setattr(maintain, "Job", Killed)
        with pytest.raises(CrashError):
            maintained(root)
    root.start()
    assert root.results() == before
    root.take(tick(at(101)), one(child, 100, 101))
    assert root.results() == before | {key: row for key, row in root.results().items() if key[2] == at(100)}
    assert maintained(root) == {at(99): True, at(100): True, **EXPIRED}


def test_at_a_uri_one_maintains_at_a_time_and_a_root_that_writes_ends_it(roots: Callable[..., Roots]) -> None:
    """protocol 8.5: there it took no lock; where a store lets two write one version, commits were lost."""
    child = Child("gw-1", (query(),))
    root = born(roots, child)
    root.job.close()
    place = Place(root.place.root, guarded=True)
    lock = Path(place.root) / maintain.LOCK

    def maintained_by(say: Callable[[str], None]) -> None:
        maintain.maintain(root.spark, place, say, tables=(tables.SENSORS,))

    seen: list[dict[str, object]] = []

    def another(_line: str) -> None:
        seen.append(json.loads(lock.read_text()))
        with pytest.raises(PortError, match=r"maintain runs on .* \(process \d+\) since 20.*delete this file"):
            maintained_by(print)

    maintained_by(another)
    assert [each["process"] for each in seen] == [os.getpid()]
    assert not lock.exists()

    def writes(_line: str) -> None:
        row = {"number": 99, "owner": "another", "decided_us": 0}
        place.append(tables.BATCHES, driver_rows.rows(root.spark, tables.BATCHES, [row]), "decision", 99)

    with pytest.raises(PortError, match="a root has written batch 99"):
        maintained_by(writes)
    assert not lock.exists()
