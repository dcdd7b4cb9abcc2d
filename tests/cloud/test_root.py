"""The Spark root on frames made by hand: one rule at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_job.delta import tables
from cloud_job.delta.tables import Place
from cloud_job.spark import results as spark_results
from cloud_job.spark import row_sources, slice_cache
from edge_agent.algebra.frame import Define, Frame, Gap, Receipt
from edge_agent.algebra.windows import Sliding, Tumbling
from edge_agent.errors import PortError
from edge_agent.root import work_rows
from edge_agent.root.decision import root_state
from edge_agent.wire import frames, landing
from tests.support.cloud.child_frames import JOURNAL, SECOND, Child, at, query, record, starts, tick, ticks
from tests.support.cloud.damaged_files import LAST_S, flipped, wanted, written
from tests.support.cloud.jobs import GRACE_US, Roots, meaning

pytestmark = pytest.mark.spark
Start = Callable[..., Roots]


def key_of(name: str, second: float, key: str = "site=a") -> tuple[str, str, int]:
    return name, key, at(second)


@pytest.mark.parametrize("gone", [tables.MESSAGES, tables.RESULTS, tables.BATCHES])
def test_a_table_that_was_deleted_is_not_created_empty_beside_the_others(roots: Start, gone: tables.Table) -> None:
    """Rows made without its readings would be marked complete."""
    root = roots()
    child = Child("gw-1", (query(),))
    root.take(tick(at(1)), record(child, at(1), child.birth()))
    root.take(tick(at(2)), record(child, at(2), child.rows(at(1), starts(0), np.array([1.0]))))
    folder, aside = Path(root.place.path(gone)), root.base / "aside"
    folder.rename(aside)
    for _ in range(2):
        with pytest.raises(PortError, match=f"{gone.name.split('.')[1]}.*is gone.*put it back"):
            root.start()
        assert not folder.exists()
    aside.rename(folder)
    root.start()
    assert len(root.results()) == 1


def test_a_window_closes_when_every_child_has_got_that_far(roots: Start) -> None:
    """protocol 4.4, 8.1"""
    root = roots()
    one, two = Child("gw-1", (query(),)), Child("gw-2", (query(),))
    root.take(
        tick(at(1)),
        record(one, at(1), one.birth()),
        record(two, at(1), two.birth()),
        record(one, at(2), one.rows(at(2), starts(0, 1), np.array([1.0, 5.0]))),
        record(two, at(2), two.rows(at(1), starts(0), np.array([3.0]))),
    )
    (row,) = root.results().values()
    assert (row["start"], row["end"], row["key"], row["labels"]) == (at(0), at(1), "site=a", {"site": "a"})
    assert row["values"] == {"avg": 2.0, "count": 2.0}
    assert (row["readings"], row["revision"], row["late"], row["withdrawn"]) == (2, 0, 0, False)
    assert (row["complete"], row["expected"], row["received"], row["node"]) == (True, 2, 2, "")
    assert row["window_end"].timestamp() == at(1) / SECOND
    root.take(tick(at(3)), record(two, at(3), two.beat(at(2))))
    assert root.results()[key_of("q", 1)]["values"] == {"avg": 5.0, "count": 1.0}
    assert [r["query"] for r in root.rows(tables.QUERIES)] == ["q"]
    assert {r["node"]: r["behind"] for r in root.rows(tables.NODES)} == {"gw-1": False, "gw-2": False}


def test_duplicates_and_epochs_out_of_order_count_once_and_in_order(roots: Start) -> None:
    """protocol 1.1, 1.2, 2.2: the second epoch waits for the last frame of the first, whatever comes when."""
    root = roots()
    old = Child("gw-1", (query(),))
    first = [old.birth(), old.rows(at(1), starts(0), np.array([1.0])), old.rows(at(2), starts(1), np.array([2.0]))]
    new = Child("gw-1", (query(),), epoch=2)
    second = [new.birth((1, 2)), new.rows(at(3), starts(2), np.array([4.0]))]
    root.take(tick(at(1)), record(new, at(1), second[1]), record(old, at(1), first[1]), record(old, at(1), first[0]))
    assert root.results().keys() == {key_of("q", 0)}
    root.start()  # what waits survives a restart
    root.take(tick(at(2)), *(record(new, at(2), payload) for payload in (*second, second[1], first[1])))
    assert root.results().keys() == {key_of("q", 0)}
    root.take(tick(at(3)), record(old, at(3), first[2]), record(old, at(3), first[2]))
    found = root.results()
    assert {key: row["values"]["avg"] for key, row in found.items()} == {
        key_of("q", 0): 1.0,
        key_of("q", 1): 2.0,
        key_of("q", 2): 4.0,
    }
    assert {row["readings"] for row in found.values()} == {1}
    stored = root.rows(tables.MESSAGES, "part > 0")
    assert len(stored) == 3, "each frame is stored once"


def test_late_readings_revise_what_has_closed_and_are_put_off_when_they_come_often(roots: Start) -> None:
    """protocol 4.2, 8.3"""
    root = roots(revise_every_us=60 * SECOND)
    child = Child("gw-1", (query(),), ("site=a", "site=b"))

    def late(second: float, key: int = 0) -> bytes:
        return record(
            child, at(second), child.rows(at(3), starts(0.5), np.array([9.0]), np.array([key]), length_us=1, late=True)
        )

    root.take(
        tick(at(1)),
        record(child, at(1), child.birth()),
        record(child, at(1), child.rows(at(3), starts(0, 1), np.array([1.0, 1.0]))),
    )
    root.take(tick(at(10)), late(10))
    row = root.results()[key_of("q", 0)]
    assert (row["revision"], row["readings"], row["late"], row["values"]["avg"]) == (1, 2, 1, 5.0)
    assert root.results()[key_of("q", 1)]["revision"] == 0, "rows whose readings are the same are not revised"
    root.take(tick(at(20)), late(20), late(20, key=1))
    assert root.results()[key_of("q", 0)]["revision"] == 1
    root.start()  # what was put off survives a restart
    root.take(tick(at(75)), record(child, at(75), child.beat(at(4))))
    assert root.results()[key_of("q", 0)]["revision"] == 2
    assert root.results()[key_of("q", 0, "site=b")]["revision"] == 0, "a key that only late readings have is a new row"
    root.take(tick(at(80)), late(80))
    assert root.results()[key_of("q", 0)]["revision"] == 2
    root.job.finish()
    row = root.results()[key_of("q", 0)]
    assert (row["revision"], row["readings"], row["late"]) == (3, 4, 3)


def test_members_of_the_configuration_are_waited_for_and_retired_nodes_are_not(roots: Start) -> None:
    """protocol 4.5, 1.5"""
    root = roots()
    root.start(members=("gw-2",))
    one, two = Child("gw-1", (query(),)), Child("gw-2", (query(),))
    birth, first = one.birth(), one.rows(at(2), starts(0), np.array([1.0]))
    root.take(tick(at(1)), record(one, at(1), birth), record(one, at(2), first))
    assert not root.results()
    late = at(2) + GRACE_US + SECOND
    root.take(ticks(at(1), late), record(one, late, one.rows(at(3), starts(1), np.array([2.0]))))
    assert {(r["expected"], r["received"]) for r in root.results().values()} == {(2, 1)}
    root.take(record(two, late, two.birth()), record(two, late, two.rows(at(4), starts(3), np.array([7.0]))))
    root.start(retired=("gw-2",))
    root.take(record(one, late + SECOND, one.rows(at(9), starts(4), np.array([5.0]))))
    row = root.results()[key_of("q", 4)]
    assert (row["expected"], row["received"], row["complete"]) == (1, 1, True)


def test_rows_say_who_is_missing_and_are_revised_when_they_return(roots: Start) -> None:
    """protocol 4.4, 4.7: a silent child is left out after the grace time."""
    root = roots()
    one, two = Child("gw-1", (query(),)), Child("gw-2", (query(),))
    births = [record(child, at(1), child.birth()) for child in (one, two)]
    root.take(tick(at(1)), *births, record(two, at(1), two.rows(at(1), starts(0), np.array([7.0]))))
    late = at(2) + GRACE_US
    root.take(ticks(at(1), late), record(one, late, one.rows(at(3), starts(0, 1, 2), np.array([1.0, 2.0, 3.0]))))
    found = root.results()
    assert {second: found[key_of("q", second)]["received"] for second in (0, 1, 2)} == {0: 2, 1: 1, 2: 1}
    row = found[key_of("q", 2)]
    assert (row["expected"], row["received"], row["complete"]) == (2, 1, False)
    missing = [(r["coverage_id"], r["leaf"], r["reason"]) for r in root.rows(tables.COVERAGE)]
    assert missing == [(row["coverage_id"], "gw-2", "behind")]
    assert any(r["behind"] for r in root.rows(tables.NODES, "node = 'gw-2'"))
    root.take(tick(late + SECOND), record(two, late + SECOND, two.rows(at(4), starts(1), np.array([8.0]))))
    found = root.results()
    assert [found[key_of("q", s)]["revision"] for s in (0, 1, 2)] == [0, 1, 1], "coverage alone revises too"
    assert all(row["complete"] and row["received"] == 2 for row in found.values())
    assert found[key_of("q", 1)]["values"]["avg"] == 5.0


def test_a_coverage_stands_once_however_many_the_state_has_forgotten(
    roots: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 4.7: joined with gold.results, it gives each missing gateway once."""
    monkeypatch.setattr(root_state, "MOST_COVERS", 1)
    root, child = roots(), Child("gw-1", (query(),))
    group = child.queries[0].group

    def lost(second: float, reason: str) -> bytes:
        gap = Gap((group,), at(second), at(second + 0.1), 3, ("gw-1",), reason, 1, "")
        return record(child, at(second), child.gap(gap))

    root.take(tick(at(1)), record(child, at(1), child.birth()))
    for second, reason in enumerate(("poison", "began", "poison", "began")):
        root.take(lost(second, reason), record(child, at(4), child.rows(at(second + 1), starts(second))))
    assert len(root.job.state.covers_known) == 1
    rows = [(row["coverage_id"], row["leaf"], row["reason"]) for row in root.rows(tables.COVERAGE)]
    assert sorted(rows) == sorted(set(rows))
    assert sorted(reason for *_, reason in rows) == ["began", "began", "lost", "lost"]  # each alone, and both
    assert [row["complete"] for row in root.results().values()] == [False] * 4


def test_a_declared_loss_marks_the_windows_it_touches(roots: Start) -> None:
    """protocol 3.5, 4.7"""
    root = roots()
    child = Child("gw-1", (query(),))
    group = child.queries[0].group
    lost = Gap((group,), at(1.5), at(1.6), 3, ("gw-1",), "poison", 1, "sha256 00")
    root.take(
        tick(at(1)),
        record(child, at(1), child.birth()),
        record(child, at(1), child.rows(at(1), starts(0))),
        record(child, at(1), child.gap(lost)),
        record(child, at(1), child.rows(at(3), starts(1, 2))),
    )
    found = root.results()
    assert [found[key_of("q", s)]["complete"] for s in (0, 1, 2)] == [True, False, True]
    (gap,) = root.rows(tables.GAPS)
    assert (gap["node"], gap["sources"], gap["readings"], gap["reason"]) == ("gw-1", ["s"], 3, "poison")
    assert [(r["leaf"], r["reason"]) for r in root.rows(tables.COVERAGE)] == [("gw-1", "lost")]
    after = replace(lost, start_us=at(0.2), end_us=at(0.3))
    root.take(tick(at(4)), record(child, at(4), child.gap(after)))
    row = root.results()[key_of("q", 0)]
    assert (row["revision"], row["complete"], row["readings"]) == (1, False, 1)


def test_readings_beyond_the_horizon_are_kept_apart(roots: Start) -> None:
    """protocol 4.2"""
    root = roots(horizon_us=10 * SECOND)
    child = Child("gw-1", (query(),))
    root.take(
        tick(at(1)),
        record(child, at(1), child.birth()),
        record(child, at(1), child.rows(at(100), starts(0, 95), np.array([1.0, 2.0]))),
    )
    old = child.rows(at(100), starts(0.5, 95.5), np.array([9.0, 9.0]), length_us=1, late=True)
    root.take(tick(at(2)), record(child, at(2), old))
    found = root.results()
    assert (found[key_of("q", 0)]["readings"], found[key_of("q", 95)]["readings"]) == (1, 2)
    (row,) = root.rows(tables.LATE)
    assert (row["node"], row["source"], row["key"], row["start"], row["readings"]) == (
        "gw-1",
        "s",
        "site=a",
        at(0.5),
        1,
    )
    assert "horizon" in row["reason"]


def test_bad_messages_are_kept_with_their_reason_and_the_line_goes_on(roots: Start) -> None:
    """protocol 3.6"""
    root = roots()
    child = Child("gw-1", (query(),))
    birth = child.birth()
    bad = frames.encode(Frame(1, 1)).replace(b"\x41", b"\x41")[:-2] + b"\x41\xff"
    contradiction = frames.encode(Frame(1, 2, define=Define(keys=(0, ("site=other",)))))
    child.seq = 3
    root.take(
        tick(at(1)),
        record("gw-1", at(1), b"\xff\xff"),
        record(child, at(1), birth),
        record(child, at(1), bad),
        record(child, at(1), contradiction),
        record(child, at(1), child.rows(at(1), starts(0), np.array([1.0]))),
    )
    assert root.results()[key_of("q", 0)]["values"]["count"] == 1.0
    kept = sorted((r["seq"], bytes(r["payload"]), r["reason"]) for r in root.rows(tables.QUARANTINE))
    assert [(seq, payload) for seq, payload, _ in kept] == [(-1, b"\xff\xff"), (1, bad), (2, contradiction)]
    assert "keys" in kept[2][2] or "key numbers" in kept[2][2]
    damaged = root.land(tick(at(2)), record(child, at(2), child.rows(at(2), starts(1))), b"\x83\x01")
    root.batch([damaged])
    assert key_of("q", 1) in root.results()
    assert any("damaged" in r["reason"] for r in root.rows(tables.QUARANTINE))


def test_plans_of_other_scales_and_of_floats_meet_at_the_root(roots: Start) -> None:
    """protocol 7.1: at the finer scale; as floats where one is of floats."""
    root = roots()
    fns = ("sum", "var", "max", "first")
    tenth = Child("gw-1", (query(fns=fns),), scale=-1)
    whole = Child("gw-2", (query(fns=fns),), scale=0)
    root.take(
        tick(at(1)),
        *(record(child, at(1), child.birth()) for child in (tenth, whole)),
        record(tenth, at(1), tenth.rows(at(1), starts(0), np.array([15]))),
        record(whole, at(1), whole.rows(at(1), starts(0.5), np.array([3]), length_us=SECOND // 2)),
    )
    assert root.results()[key_of("q", 0)]["values"] == {"sum": 4.5, "var": 1.125, "max": 3.0, "first": 1.5}
    floats = Child("gw-3", (query(fns=fns),))
    root.take(
        tick(at(2)),
        record(floats, at(2), floats.birth()),
        record(floats, at(2), floats.rows(at(2), starts(0.25), np.array([4.5]), length_us=1, late=True)),
        *(record(child, at(2), child.beat(at(2))) for child in (tenth, whole)),
    )
    values = root.results()[key_of("q", 0)]["values"]
    assert values["sum"] == pytest.approx(9.0)
    assert values["var"] == pytest.approx(2.25)


def test_several_queries_share_the_slices_of_one_plan(roots: Start) -> None:
    """protocol 6.1, 6.2: slices count in every window that contains them. 8.6: a restart reads back what it kept."""
    root = roots()
    long = query("long", Sliding(6 * SECOND, SECOND), ("sum", "last"))
    queries = (query("t", Tumbling(2 * SECOND)), query("s", Sliding(3 * SECOND, SECOND), ("sum", "last")), long)
    child = Child("gw-1", queries, ("site=a", "site=b%2C%25"))
    keys, values = np.array([0, 0, 0, 1]), np.array([1.0, 2.0, 3.0, 50.0])
    root.take(
        tick(at(1)),
        record(child, at(1), child.birth()),
        record(child, at(1), child.rows(at(4), starts(0, 1, 3, 3), values, keys)),
    )
    found = root.results()
    assert found[key_of("t", 0)]["values"] == {"avg": 1.5, "count": 2.0}
    sums = {second: found[key_of("s", second)]["values"] for second in (-2, -1, 0, 1)}
    assert sums == {
        -2: {"sum": 1.0, "last": 1.0},
        -1: {"sum": 3.0, "last": 2.0},
        0: {"sum": 3.0, "last": 2.0},
        1: {"sum": 5.0, "last": 3.0},
    }
    row = found[key_of("t", 2, "site=b%2C%25")]
    assert row["labels"] == {"site": "b,%"}
    assert json.loads(root.rows(tables.BATCHES)[-1]["frontiers"])[0]["source"] == "s"
    assert found[key_of("long", -2)]["values"] == {"sum": 6.0, "last": 3.0}
    root.start()
    root.take(tick(at(2)), record(child, at(2), child.rows(at(6), starts(4, 5), np.array([7.0, 8.0]))))
    found = root.results()
    assert found[key_of("long", 0)]["values"] == {"sum": 21.0, "last": 8.0}
    assert found[key_of("long", -1, "site=b%2C%25")]["values"] == {"sum": 50.0, "last": 50.0}
    assert found[key_of("s", 3)]["values"] == {"sum": 18.0, "last": 8.0}


def test_one_root_owns_the_tables(roots: Start) -> None:
    """protocol 8.5: by a lock on one machine, by the decision elsewhere."""
    root = roots()
    with pytest.raises(PortError, match="another root"):
        type(root.job)(root.spark, root.place, root.job.settings).open()
    child = Child("gw-1", (query(),))
    root.job.close()
    anywhere = Place(root.place.root, guarded=True)
    loser = root.start(anywhere)
    loser._held().release()  # as on two machines, whose file system has no common locks
    winner = root.start(anywhere)
    winner._held().release()
    path = root.land(
        tick(at(1)), record(child, at(1), child.birth()), record(child, at(1), child.rows(at(1), starts(0)))
    )
    root.job = winner
    root.batch([path])
    root.job = loser
    with pytest.raises(PortError, match="another root owns the tables"):
        root.batch([path])
    assert root.results()[key_of("q", 0)]["readings"] == 1
    root.start()
    after = root.land(tick(at(2)), record(child, at(2), child.rows(at(2), starts(1))))
    root.batch([after])
    assert {key: row["readings"] for key, row in root.results().items()} == {key_of("q", 0): 1, key_of("q", 1): 1}


def test_a_landing_file_that_was_cut_short_is_a_declared_loss_after_the_grace_time(roots: Start) -> None:
    """protocol 3.2, 2.2: what it lacks was receipted, so nobody sends it again."""
    root = roots()
    child = Child("gw-1", (query(),))
    root.take(tick(at(1)), record(child, at(1), child.birth()))
    sent = [record(child, at(2), child.rows(at(second + 1), starts(second), np.array([1.0]))) for second in range(2)]
    word = landing.encode_tick(at(2), JOURNAL, sent, [("gw-1", Receipt(1, JOURNAL, 3))], connected=True)
    root.take(word, sent[0])
    (bad,) = root.rows(tables.QUARANTINE)
    assert "cut short: 1 of 3 records are missing" in bad["reason"]
    later = record(child, at(3), child.rows(at(3), starts(2), np.array([4.0])))
    root.take(tick(at(3)), later)
    root.start()  # what it waits for survives a restart
    assert root.results().keys() == {key_of("q", 0)}
    root.take(ticks(at(3), at(3) + GRACE_US))
    found = root.results()
    assert {key: (row["complete"], row["readings"]) for key, row in found.items()} == {
        key_of("q", 0): (True, 1),
        key_of("q", 2): (False, 1),
    }
    assert {row["reason"] for row in root.rows(tables.COVERAGE)} == {"lost"}
    (gap,) = root.rows(tables.GAPS)
    assert (gap["reason"], gap["nodes"]) == ("received frames are in no landing file", ["gw-1"])
    assert gap["detail"].endswith("epoch 00000001, 2 to 2")


def test_landing_files_that_a_disk_changed_leave_no_row_complete_without_its_readings(roots: Start) -> None:
    """protocol 3.2: bits of the lander's own record and of a frame, a file that was cut short, one of zeros, a copy."""
    root, files = roots(horizon_us=3_600 * SECOND), written()
    changed = {
        4: flipped(files[4][1], 8 * 14),
        8: flipped(files[8][1], 8 * (len(files[8][1]) // 2)),
        11: files[11][1][:120],
        13: bytes(len(files[13][1])),
    }
    contents = [changed.get(number, content) for number, (_, content) in enumerate(files)]
    paths = [root.land(content) for content in (*contents, contents[20])]
    for first in range(0, len(paths), 9):
        root.batch(paths[first : first + 9])
    root.take(ticks(at(LAST_S), at(LAST_S + 7) + GRACE_US))
    true, found = wanted(), {start: row for (_, _, start), row in root.results().items()}
    assert found.keys() <= true.keys()
    assert all(row["readings"] <= true[start] for start, row in found.items())
    assert all(row["readings"] == true[start] for start, row in found.items() if row["complete"])
    assert {True, False} == {row["complete"] for row in found.values()}
    assert len(root.rows(tables.QUARANTINE)) == len(changed)
    assert {gap["reason"] for gap in root.rows(tables.GAPS)} == {"received frames are in no landing file"}


@pytest.mark.parametrize("window", [Sliding(20 * SECOND, SECOND), Tumbling(SECOND)])
def test_more_rows_than_the_driver_may_compute_are_left_to_the_executors(
    roots: Start, window: Sliding | Tumbling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.6 million rows of one frame filled the driver's memory, at each start again."""
    elsewhere: list[int] = []
    whole = spark_results.results

    def results(*args: Any) -> Any:
        elsewhere.append(1)
        return whole(*args)

    monkeypatch.setattr(row_sources, "results", results)

    def made() -> dict[Any, Any]:
        root, child = roots(), Child("gw-1", (query(window=window),), ("site=a", "site=b"))
        root.take(tick(at(1)), record(child, at(1), child.birth()))
        for first in (0, 30):
            rows = child.rows(at(first + 29), starts(*range(first, first + 8)), np.arange(8.0), np.arange(8) % 2)
            root.take(record(child, at(first + 30), rows), tick(at(first + 31)))
        late = child.rows(at(60), starts(9), np.array([5.0]), np.array([0]), late=True)
        root.take(record(child, at(62), late), tick(at(63)))
        return {key: meaning(row) for key, row in root.results().items()}

    wanted = made()
    assert len(wanted) >= 16
    before = len(elsewhere)  # late readings of windows that the driver has let go
    for module in (slice_cache, spark_results):
        monkeypatch.setattr(module, "MOST_ROWS", 3)
    monkeypatch.setattr(work_rows, "MOST_FORMED", 2)
    assert made() == wanted
    assert len(elsewhere) >= 2 * before + 2
