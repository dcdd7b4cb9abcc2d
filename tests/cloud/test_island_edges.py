"""The edges of what cloud_job/spark/islands.py asks of Spark: each case lies just within or just beyond one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from cloud_job.delta.driver_rows import arrow, small
from cloud_job.delta.tables import RESULTS
from cloud_job.spark import islands
from edge_agent.algebra.query.query import Aggregate
from edge_agent.algebra.span import FAR_US
from edge_agent.root.decision.work import CoverageCell, Islands, SessionKey, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
GAP = 10
ALL = CoverageCell("", -FAR_US, FAR_US, -FAR_US, FAR_US, "all", 2, 1, complete=False)
COUNTS = (((Aggregate("count", "count", ()),), None),)
PIECES = arrow("order int, start bigint, end bigint, key string, late boolean, count bigint")
ROWS = arrow(
    "query string, definition_revision bigint, node string, key string, start bigint, end bigint, withdrawn boolean"
)


def query(**about: Any) -> Islands:
    """Sessions with a gap of 10, all of which get their first row; its pieces end far before any bound."""
    plain: dict[str, Any] = {"shape": 0, "gap_us": GAP, "max_us": 0, "orders": (), "bound_us": 1_000, "shut_us": 0}
    plain |= dict.fromkeys(("low_us", "touch", "start_from_us", "start_until_us", "end_until_us"))
    plain |= {"due": True, "crossing_us": 0, "node": "", "meets": False, "keys": (), "cells": (ALL,)}
    return Islands("", 1, **{**plain, **about})


@dataclass
class Case:
    """pieces: (first reading, last one, key, whether late), of one reading each. rows: (key, start, end) that come."""

    about: Islands
    pieces: Sequence[tuple[int, int, str, bool]]
    rows: list[tuple[str, int, int]]
    high_us: int = FAR_US


def made(spark: SparkSession, cases: dict[str, Case], *, revising: bool) -> dict[str, list[dict[str, Any]]]:
    """The rows of each case, computed together."""
    found = [replace(case.about, query=name, orders=(i,)) for i, (name, case) in enumerate(cases.items())]
    rows = [(i, a, b + 1, key, late, 1) for i, c in enumerate(cases.values()) for a, b, key, late in c.pieces]
    ranges = {i: [(0, case.high_us)] for i, case in enumerate(cases.values())}
    work = Work(7, COUNTS, islands=tuple(found))
    out: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for row in islands.sessions(small(spark, rows, PIECES), work, ranges, revising=revising).collect():
        out[row["query"]].append(row.asDict())
    return out


def at(*moments: int, key: str = "k") -> list[tuple[int, int, str, bool]]:
    """A reading at each of these."""
    return [(us, us, key, False) for us in moments]


def told(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return sorted((row["key"], row["start"], row["end"]) for row in rows)


def test_pieces_are_joined_up_to_the_gap_and_cut_at_multiples_of_the_longest_duration(spark: SparkSession) -> None:
    """protocol 5.3, 5.5"""
    cases = {
        "the gap": Case(query(), at(0, 10), [("k", 0, 20)]),
        "beyond the gap": Case(query(), at(0, 11), [("k", 0, 10), ("k", 11, 21)]),
        "a long piece reaches over a short one": Case(query(), [(0, 99, "k", False), *at(20, 105)], [("k", 0, 115)]),
        "keys apart": Case(query(), [*at(0), *at(5, key="l")], [("k", 0, 10), ("l", 5, 15)]),
        "a cut": Case(query(max_us=50), at(45, 49, 50, 52), [("k", 45, 59), ("k", 50, 62)]),
        "a cut before 1970": Case(
            query(max_us=50, shut_us=-100),
            at(-52, -50, -1, 0),
            [("k", -52, -42), ("k", -50, -40), ("k", -1, 9), ("k", 0, 10)],
        ),
        "no cut": Case(query(), at(45, 49, 50, 52), [("k", 45, 62)]),
    }
    found = made(spark, cases, revising=False)
    assert {name: told(rows) for name, rows in found.items()} == {name: case.rows for name, case in cases.items()}


def test_a_row_counts_its_readings_and_those_that_came_late(spark: SparkSession) -> None:
    pieces = [(0, 0, "k", False), (1, 1, "k", True), (2, 2, "k", True), (3, 3, "k", False), (3, 3, "k", False)]
    ((row,),) = made(spark, {"q": Case(query(node="gw-1"), pieces, [])}, revising=False).values()
    assert (row["readings"], row["late"], row["revision"], row["withdrawn"], row["batch"]) == (5, 2, 0, False, 7)
    assert (row["query"], row["definition_revision"], row["node"], row["key"]) == ("q", 1, "gw-1", "k")
    assert (row["coverage_id"], row["expected"], row["received"], row["complete"]) == ("all", 2, 1, False)
    assert row["values"] == {"count": 5.0}


def touched(low: int, high: int, *, key: str = "k", bound_us: int = 1_000, shut_us: int = 0) -> SessionKey:
    return SessionKey(key, bound_us, shut_us, (low, high))


def test_first_rows_go_to_islands_that_are_complete_that_had_none_and_that_are_served(spark: SparkSession) -> None:
    """protocol 5.1, 6.3. The island of a reading at 50 ends at 60."""
    yes, no = [("k", 50, 60)], list[tuple[str, int, int]]()
    two = [("k", 50, 60), ("l", 50, 60)]
    both = [*at(50), *at(50, key="l")]
    cases = {
        "below the bound": Case(query(bound_us=61), at(50), yes),
        "at the bound": Case(query(bound_us=60), at(50), no),
        "shut at its end": Case(query(shut_us=60), at(50), yes),
        "shut behind its end": Case(query(shut_us=61), at(50), no),
        "a bound of the key": Case(query(keys=(SessionKey("k", 60, 0),)), both, two[1:]),
        "a key further than others": Case(query(bound_us=60, keys=(SessionKey("k", 61, 0),)), both, yes),
        "a key that had rows": Case(query(keys=(SessionKey("k", 1_000, 61),)), both, two[1:]),
        "a key that had none": Case(query(shut_us=61, keys=(SessionKey("k", 1_000, 60),)), both, yes),
        "touched at its start": Case(query(keys=(touched(0, 50),)), at(50), no),
        "touched before its start": Case(query(keys=(touched(0, 49),)), at(50), yes),
        "touched at its end": Case(query(keys=(touched(60, 99),)), at(50), no),
        "touched after its end": Case(query(keys=(touched(61, 99),)), at(50), yes),
        "touched as another key": Case(query(keys=(touched(0, 99, key="l"),)), both, yes),
        "touched for all keys": Case(query(touch=(0, 99)), at(50), yes),
        "served from its start": Case(query(start_from_us=50), at(50), yes),
        "served from later": Case(query(start_from_us=51), at(50), no),
        "served until its start": Case(query(start_until_us=50), at(50), no),
        "served until later": Case(query(start_until_us=51), at(50), yes),
        "served to its end": Case(query(end_until_us=60), at(50), yes),
        "served to before its end": Case(query(end_until_us=59), at(50), no),
        "of another range": Case(query(), at(50), yes, high_us=20),
    }
    found = made(spark, cases, revising=False)
    assert {name: told(rows) for name, rows in found.items()} == {name: case.rows for name, case in cases.items()}


def test_islands_that_late_pieces_touch_are_computed_again_if_they_had_a_row(spark: SparkSession) -> None:
    """protocol 5.4. The island of a reading at 50 ends at 60."""
    yes, no = [("k", 50, 60)], list[tuple[str, int, int]]()
    cells = (replace(ALL, revising=True),)
    both = [*at(50), *at(50, key="l")]

    def again(touch: tuple[int, int] | None = None, **about: Any) -> Islands:
        return query(**{"touch": touch, "cells": cells, "shut_us": 61, **about})

    cases = {
        "touched at its start": Case(again((0, 50)), at(50), yes),
        "touched before its start": Case(again((0, 49)), at(50), no),
        "touched at its end": Case(again((60, 99)), at(50), yes),
        "touched after its end": Case(again((61, 99)), at(50), no),
        "had no row yet": Case(again((0, 99), shut_us=60), at(50), no),
        "not due": Case(again((0, 99), due=False), at(50), no),
        "its key is touched at its start": Case(again(keys=(touched(0, 50),)), both, yes),
        "its key is touched before": Case(again(keys=(touched(0, 49),)), both, no),
        "its key is touched at its end": Case(again(keys=(touched(60, 99),)), both, yes),
        "its key is touched after": Case(again(keys=(touched(61, 99),)), both, no),
        "its key had no row yet": Case(again(shut_us=0, keys=(touched(0, 99),)), at(50), yes),
        "of the key it is not touched": Case(again((0, 99), keys=(touched(0, 9, shut_us=61),)), at(50), yes),
        "its key is not due": Case(again(due=False, keys=(touched(0, 99),)), at(50), no),
        "below the bound": Case(again((0, 99), bound_us=61), at(50), yes),
        "at the bound": Case(again((0, 99), bound_us=60), at(50), no),
        "served from later": Case(again((0, 99), start_from_us=51), at(50), no),
        "ends in the range": Case(again((0, 99)), at(50), yes, high_us=61),
        "its end may be missing": Case(again((0, 99)), at(50), no, high_us=60),
        "begins in the range": Case(again((0, 99)), at(50), no, high_us=51),
        "begins behind the range": Case(again((0, 99)), at(50), yes, high_us=50),
    }
    found = made(spark, cases, revising=True)
    assert {name: told(rows) for name, rows in found.items()} == {name: case.rows for name, case in cases.items()}


def test_the_coverage_of_a_row_is_that_of_the_cell_in_which_it_begins_and_ends(spark: SparkSession) -> None:
    """protocol 4.7. A cell of a key counts for this key alone, and one for other rows not at all."""
    cells: tuple[CoverageCell, ...] = (
        CoverageCell("", 0, 50, 0, 60, "before", 2, 1, complete=False),
        CoverageCell("", 0, 50, 60, 99, "ends later", 2, 1, complete=False),
        CoverageCell("", 50, 99, 0, 60, "begins later", 2, 1, complete=False),
        CoverageCell("", 50, 99, 60, 99, "behind", 2, 2, complete=True),
        CoverageCell("=own", 0, 99, 0, 99, "own", 3, 3, complete=True),
        CoverageCell("=also", 0, 99, 0, 99, "also", 3, 3, complete=True),
    )
    cells += tuple(replace(cell, coverage_id=f"again: {cell.coverage_id}", revising=True) for cell in cells)
    pieces = [
        *at(49, key="before"),  # ends at 59
        *((49, 50, key, False) for key in ("ends later", "own")),
        *at(50, key="behind"),
        *at(10, key="also"),
    ]
    keys = (SessionKey("also", 1_000, 0), SessionKey("behind", 1_000, 0))
    found = made(spark, {"q": Case(query(cells=cells, keys=keys), pieces, [])}, revising=False)["q"]
    named = {name: name for name in ("before", "ends later", "behind", "own", "also")}
    assert {row["key"]: row["coverage_id"] for row in found} == named
    again = query(cells=cells, shut_us=99, touch=(0, 99), keys=(replace(keys[0], shut_us=99),))
    rows = made(spark, {"q": Case(again, pieces, [])}, revising=True)["q"]
    assert {row["key"]: row["coverage_id"] for row in rows} == {key: f"again: {name}" for key, name in named.items()}
    assert {row["key"]: row["complete"] for row in rows if row["key"] in ("behind", "before")} == {
        "behind": True,
        "before": False,
    }


def known(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Rows of gold.results: (query, revision, node, key, start, end, withdrawn), nothing in the other columns."""
    from pyspark.sql import functions as F

    found = small(spark, rows, ROWS)
    for name, (kind, _) in RESULTS.columns.items():
        if name not in found.columns:
            found = found.withColumn(name, F.lit(None).cast(kind))
    return found.select(*RESULTS.columns)


def test_rows_that_touch_one_computed_again_are_withdrawn(spark: SparkSession) -> None:
    """protocol 5.4, 5.5: of the same query revision, node and key; the row with the same start is revised instead."""
    rows = known(
        spark,
        ("q", 1, "", "k", 30, 50, False),
        ("q", 1, "", "k", 29, 49, False),
        ("q", 1, "", "k", 50, 55, False),
        ("q", 1, "", "k", 80, 90, False),
        ("q", 1, "", "k", 81, 90, False),
        ("q", 1, "", "k", 60, 70, True),
        ("q", 1, "", "l", 60, 70, False),
        ("q", 2, "", "k", 60, 70, False),
        ("q", 1, "gw", "k", 60, 70, False),
        ("p", 1, "", "k", 60, 70, False),
        ("cut", 1, "", "k", 99, 120, False),
        ("cut", 1, "", "k", 149, 160, False),
        ("cut", 1, "", "k", 150, 160, False),
        ("cut", 1, "", "k", 101, 102, False),
    )
    again = known(spark, ("q", 1, "", "k", 50, 80, False), ("cut", 1, "", "k", 100, 155, False))
    found = [replace(query(), query="q"), replace(query(max_us=50), query="cut"), replace(query(), query="p")]
    gone = islands.withdrawn(rows, again, found, 7).collect()
    assert sorted((row["query"], row.start) for row in gone) == [("cut", 101), ("cut", 149), ("q", 30), ("q", 80)]
    assert {(row.definition_revision, row.node, row.key, row.withdrawn, row.batch) for row in gone} == {
        (1, "", "k", True, 7)
    }


def test_pieces_are_read_again_where_late_ones_touch_rows(spark: SparkSession) -> None:
    """protocol 5.4: of the pieces and of the rows that they may join, and no further."""
    rows = known(
        spark,
        ("q", 1, "", "k", 30, 50, False),
        ("q", 1, "", "k", 0, 29, False),
        ("q", 1, "", "k", 60, 90, False),
        ("q", 1, "", "k", 10, 500, True),
        ("q", 1, "", "l", 10, 500, False),
        ("q", 2, "", "k", 10, 500, False),
        ("q", 1, "gw", "k", 10, 500, False),
        ("p", 1, "", "k", 10, 500, False),
        ("all", 1, "", "k", 30, 50, False),
        ("all", 1, "", "l", 60, 120, False),
        ("none", 1, "", "k", 62, 70, False),
        ("from", 1, "", "k", 30, 50, False),
        ("far", 1, "", "k", 30, 50, False),
    )
    key = (touched(50, 60),)
    found = [
        replace(query(keys=key), query="q"),
        replace(query(touch=(50, 60)), query="all"),
        replace(query(keys=key), query="none"),
        replace(query(keys=key, start_from_us=100, crossing_us=30), query="from"),
        replace(query(keys=key, start_from_us=20, crossing_us=30), query="from"),
        replace(query(keys=key, start_from_us=20, crossing_us=29), query="far"),
        replace(query(), query="no touch"),
        replace(query(keys=key, due=False), query="q"),
        replace(query(touch=(50, 60)), query="nowhere"),
    ]
    ranges, longest = islands.revising_ranges(rows, found)
    assert ranges == {
        0: [(30, 91)],
        1: [(30, 121)],
        2: [(50, 61)],
        3: [(30, 61)],
        4: [(10, 61)],
        5: [(30, 61)],
    }
    assert longest == {0: 10 + 2 * 30, 1: 2 * 60, 2: 10, 3: 10 + 2 * 20, 4: 10 + 2 * 20, 5: 10 + 2 * 20, 8: 0}
    assert islands.lowest_us(ranges) == 10
    closing = [query(low_us=5), query(), query(low_us=0)]
    assert islands.closing_ranges(closing) == {0: [(5, FAR_US)], 2: [(0, FAR_US)]}
