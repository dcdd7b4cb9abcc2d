"""Recordings that the published system answers wrongly or never, and some edges of windows, each with its right rows.

A probe's first letters are its name in the list of defects that were found by running that system. Expected values are
written by hand, not taken from any code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.recording.row_rendering import RenderedRow

Place = tuple[str, Any, int, int]  # query, key, start, end
Item = list[Any]


@dataclass(frozen=True, slots=True)
class Probe:
    """given: the recording. rows: every row it must give. why: what goes wrong elsewhere.

    in_time: rows that must be there before the streams end: nothing waits for what may never come.
    """

    given: Mapping[str, Any]
    rows: Mapping[Place, Any]
    why: str
    in_time: tuple[Place, ...] = ()


def ones(first: int, last: int, key: Any = None, step: int = 10) -> list[Item]:
    """A reading of 1 at each step, both ends included."""
    return [[time, key, 1] for time in range(first, last + 1, step)]


def query(aggregate: str, name: str = "q", param: Mapping[str, Any] | None = None, **window: Any) -> dict[str, Any]:
    """A query of a recording."""
    return {"id": name, "window": window, "aggregate": aggregate, **({"param": param} if param else {})}


def tree(queries: list[dict[str, Any]], *streams: list[Item], **more: Any) -> dict[str, Any]:
    """A recording of so many children, whose clocks are their newest readings unless said."""
    named = {f"child-{i}": stream for i, stream in enumerate(streams)}
    return {"queries": queries, "streams": named, "watermarks": {"mode": "implicit"}, **more}


ONE_MERGER: Final = {"merger": ["child-0", "child-1"], "root": ["merger"]}
UPPER: Final = {"even": "upper"}
GAP: Final = query("sum", type="session", gap=50)


def _t2() -> Probe:
    asked = [query("median", f"m{n}", UPPER, type="tumbling", length=n) for n in (100, 400)]
    long = {("m400", None, 0, 400): 200, ("m400", None, 400, 800): 600}
    stream: list[list[Any]] = [[time, None, time] for time in range(0, 800, 20)]
    short = {("m100", None, start, start + 100): start + 40 for start in range(0, 800, 100)}
    return Probe(tree(asked, stream), {**short, **long}, "the short window's end takes slices that the long one needs")


def _d1(topology: Mapping[str, Any] | None) -> Probe:
    stream: list[list[Any]] = [[time, None, 100 if time // 100 % 2 == 0 else 0] for time in range(0, 800, 10)]
    given = tree([query("median", param=UPPER, type="sliding", length=200, slide=100)], stream, stream)
    rows = {("q", None, start, start + 200): 100 for start in range(0, 700, 100)}
    rows[("q", None, 700, 900)] = 0
    more = {} if topology is None else {"topology": topology}
    return Probe({**given, **more}, rows, "through a merger overlapping slices are sent again and count twice")


def _t3() -> Probe:
    starts = (0, 200, 400)
    seven = [item for start in starts for item in ones(start, start + 40, 7)] + ones(1000, 1000, 9)
    eight = [item for start in starts for item in ones(start + 10, start + 60, 8)] + ones(1000, 1000, 9)
    found: dict[Place, Any] = {("q", 7, start, start + 90): 5 for start in starts}
    found |= {("q", 8, start + 10, start + 110): 6 for start in starts}
    return Probe(
        tree([GAP], seven, eight, topology=ONE_MERGER),
        {**found, ("q", 9, 1000, 1050): 2},
        "a key of one child waits for ever for the next session of the other child",
        tuple(found),
    )


def _d2() -> Probe:
    left = [*ones(0, 50, 7), *ones(300, 350, 7), *ones(600, 650, 7), *ones(2000, 2000, 9)]
    right = [*ones(20, 80, 7), *ones(1000, 1010, 9), *ones(2000, 2000, 9)]
    found: dict[Place, Any] = {
        ("q", 7, 0, 130): 13,
        ("q", 7, 300, 400): 6,
        ("q", 7, 600, 700): 6,
        ("q", 9, 1000, 1060): 2,
    }
    return Probe(
        tree([GAP], left, right),
        {**found, ("q", 9, 2000, 2050): 2},
        "a key that goes quiet on one child takes even the first shared session with it",
        tuple(found),
    )


def _d4(topology: Mapping[str, Any] | None) -> Probe:
    left = [*ones(3, 153), *ones(503, 703)]
    right = [*ones(3, 43), *ones(153, 183), *ones(603, 643), *ones(690, 703)]
    more = {} if topology is None else {"topology": topology}
    rows = {("q", None, 3, 233): 25, ("q", None, 503, 753): 28}
    return Probe(
        tree([GAP], left, right, **more),
        rows,
        "the hint comes in the message after the session, so two overlapping sessions come out: 21 and 4",
        (("q", None, 3, 233),),
    )


def _d5(last: int) -> Probe:
    rows = {("q", None, 0, last + 50): last // 10 + 1, ("q", None, 1000, 1050): 1}
    stream: list[list[Any]] = [
        *ones(0, last),
        *ones(1000, 1000),
    ]
    return Probe(
        tree([GAP], stream),
        rows,
        "one side asks for end < frontier, the other skips end <= the last one: an end on the step never leaves",
        (("q", None, 0, last + 50),),
    )


def _t5() -> Probe:
    asked = [{"id": "q", "window": {"type": "session", "gap": 50}, "aggregates": ["sum", "max"]}]
    left, right = [[0, 1, 3], [30, 1, 9], [400, 1, 1]], [[60, 1, 5], [90, 1, 2], [400, 1, 2]]
    rows = {("q", 1, 0, 140): {"sum": 19, "max": 9}, ("q", 1, 400, 450): {"sum": 3, "max": 2}}
    return Probe(tree(asked, left, right, topology=ONE_MERGER), rows, "two functions of sessions stop the merger")


def _t6() -> Probe:
    given = tree([query("sum", type="tumbling", length=100)], ones(0, 190), [], topology=ONE_MERGER)
    rows = {("q", None, 0, 100): 10, ("q", None, 100, 200): 10}
    return Probe(given, rows, "a child without readings holds everything back")


def _t7() -> Probe:
    begin = 1_570_000_000_000
    stream: list[list[Any]] = [[begin + 10 * i, None, 1] for i in range(100_000)]
    rows = {("q", None, begin + 1000 * i, begin + 1000 * (i + 1)): 100 for i in range(1000)}
    given = tree([query("sum", type="tumbling", length=1000)], stream)
    return Probe(given, rows, "the clock of windows begins at 0 and never gets to 2019", tuple(rows)[:250])


def _t8(policy: str) -> Probe:
    stream: list[list[Any]] = [*ones(20, 90), ["wm", 150], [10, None, 5], [160, None, 1], ["wm", 300]]
    given = tree([query("sum", type="tumbling", length=100)], stream, watermarks={"mode": "markers"})
    first = 13 if policy == "revise" else 8
    rows = {("q", None, 0, 100): first, ("q", None, 100, 200): 1}
    return Probe({**given, "late_policy": policy}, rows, "a late reading goes without a trace, whatever one asks for")


def _t9() -> Probe:
    def asked(name: str, aggregate: str, **param: Any) -> dict[str, Any]:
        return query(aggregate, name, param, type="tumbling", length=10)

    queries = [
        asked("avg", "avg"),
        asked("truncated", "avg", rounding="truncate"),
        asked("median", "median"),
        asked("lower", "median", even="lower"),
        asked("upper", "median", even="upper"),
    ]
    stream: list[list[Any]] = [[i, None, value] for i, value in enumerate((1, 2, 3, 4))]
    answers = {"avg": 2.5, "truncated": 2, "median": 2.5, "lower": 2, "upper": 3}
    rows = {(name, None, 0, 10): value for name, value in answers.items()}
    return Probe(tree(queries, stream), rows, "whole numbers only: 2 and 3, and the median's convention is not said")


def _in_between() -> Probe:
    """A reading out of order joins what would be two sessions; one beyond the gap does not."""
    stream: list[list[Any]] = [*([time, 0, 1] for time in (1, 9, 15, 30, 12, 41)), ["wm", 70]]
    given = tree([query("sum", type="session", gap=10)], stream, watermarks={"mode": "markers"})
    rows = {("q", 0, 1, 25): 4, ("q", 0, 30, 40): 1, ("q", 0, 41, 51): 1}
    return Probe(given, rows, "a session is asked for its place before all of it has come")


def _exactly_one_gap() -> Probe:
    left, right = [[0, 5, 1], [100, 5, 1], [251, 5, 1]], [[50, 5, 1], [150, 5, 1], [201, 5, 1]]
    rows = {("q", 5, 0, 200): 4, ("q", 5, 201, 301): 2}
    return Probe(tree([GAP], left, right), rows, "one gap apart is one session here and two there, by tier")


def _late_joins() -> Probe:
    stream: list[list[Any]] = [[100, 1, 1], [200, 1, 2], ["wm", 400], [150, 1, 4], [500, 1, 8], ["wm", 900]]
    given = tree([GAP], stream, [[600, 2, 1], ["wm", 900]], watermarks={"mode": "markers"}, late_policy="revise")
    rows = {("q", 1, 100, 250): 7, ("q", 1, 500, 550): 8, ("q", 2, 600, 650): 1}
    return Probe(given, rows, "a late reading between two closed sessions leaves both standing beside the joined one")


def _slide_beside_length() -> Probe:
    stream: list[list[Any]] = [[time, 0, 1] for time in (1, 10, 11, 12, 13, 14, 15)]
    stream += [[19, 0, 3], [29, 0, 4], [36, 0, 5]]
    given = tree([query("sum", type="sliding", length=10, slide=4)], [*stream, ["wm", 55]], watermarks="markers")
    totals = (1, 4, 6, 7, 3, 4, 4, 9, 5, 5)
    rows = {("q", 0, 4 * i, 4 * i + 10): total for i, total in enumerate(totals)}
    return Probe(given, rows, "a slide that does not divide the length moves the slices")


PROBES: Final[dict[str, Probe]] = {
    "T2-two-lengths": _t2(),
    "D1-direct": _d1(None),
    "D1-through-a-merger": _d1(ONE_MERGER),
    "T3-keys-of-one-child": _t3(),
    "D2-a-key-goes-quiet": _d2(),
    "D4-direct": _d4(None),
    "D4-through-a-merger": _d4(ONE_MERGER),
    "D5-an-end-on-the-step": _d5(150),
    "D5-an-end-beside-it": _d5(140),
    "T5-two-functions": _t5(),
    "T6-a-child-without-readings": _t6(),
    "T7-times-of-today": _t7(),
    "T8-late-revises": _t8("revise"),
    "T8-late-is-dropped": _t8("drop"),
    "T9-means-and-medians": _t9(),
    "a-reading-in-between": _in_between(),
    "exactly-one-gap": _exactly_one_gap(),
    "late-joins": _late_joins(),
    "slide-beside-length": _slide_beside_length(),
}


def rows_of(told: list[RenderedRow]) -> dict[Place, Any]:
    """Rows as a probe says them."""
    return {(t["query"], t["key"], t["start"], t["end"]): t.get("value", t.get("values")) for t in told}
