"""The naive answer for windows between markers: keep every item of every child, sort, loop. Plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Punctuation
from tests.oracle.central_computer import Reading, answers, key_of

Span = tuple[int, int]
Row = tuple[str, str, str, int, int]  # query, child ('' for all), key, start, end


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker. kind: '', 'start' or 'end'."""

    time_us: int
    kind: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Child:
    """What one child saw. late: a reading's frontier when it came, of those that were late."""

    readings: Sequence[Reading]
    marks: Sequence[Mark]
    late: Mapping[Reading, float]


def spans(query: Query, child: Child) -> list[Span]:
    """The windows of one child, with or without readings, in order."""
    return cut(query, [child])


def cut(query: Query, children: Sequence[Child]) -> list[Span]:
    """The windows of one stream of all these. The first reading that counts leads."""
    window = query.window
    assert isinstance(window, Punctuation)
    marks = sorted({(m.time_us, m.kind) for c in children for m in c.marks if window.punctuation_id in {"", m.id}})
    begin: int | None = None
    if window.leading == "open" and marks:
        leads = [r.time_us for c in children for r in c.readings if _counts(query, c.late.get(r), marks[0][0])]
        begin = min((time for time in leads if time < marks[0][0]), default=None)
    out = []
    for time, kind in marks:
        if begin is not None and kind != "start":
            if time > begin:
                out.append((begin, time))
            begin = None
        if begin is None and kind != "end":
            begin = time
    return out


def results(
    query: Query, children: Mapping[str, Child], joined: Mapping[str, int] | None = None
) -> dict[Row, dict[str, float | None]]:
    """Every row of a query over all children.

    joined: child -> number of the window of all children that its own first one is a part of; others: 0.
    """
    window = query.window
    assert isinstance(window, Punctuation)
    own = {name: spans(query, child) for name, child in children.items()}
    merged: list[tuple[str, Span, list[tuple[str, Span]]]] = []  # child of the row, bounds, what is in it
    match window.interpretation:
        case "local":
            merged = [(name, span, [(name, span)]) for name, found in own.items() for span in found]
        case "bounds":
            for span in sorted({span for found in own.values() for span in found}):
                merged.append(("", span, [(name, span) for name, found in own.items() if span in found]))
        case "order":
            since = dict.fromkeys(own, 0) | dict(joined or {})
            for i in range(min(since[name] + len(found) for name, found in own.items())):
                ith = [(name, found[i - since[name]]) for name, found in own.items() if i >= since[name]]
                bounds = (min(span[0] for _, span in ith), max(span[1] for _, span in ith))
                merged.append(("", bounds, ith))
        case "central":
            for span in cut(query, list(children.values())):
                merged.append(("", span, [(name, span) for name in children]))
        case "overlap":
            for name, span in sorted(((n, s) for n, found in own.items() for s in found), key=lambda one: one[1]):
                if merged and span[0] <= merged[-1][1][1]:
                    _, (low, high), inside = merged.pop()
                    merged.append(("", (low, max(high, span[1])), [*inside, (name, span)]))
                else:
                    merged.append(("", span, [(name, span)]))
    out = {}
    for child, bounds, inside in merged:
        by_key: dict[str, list[Reading]] = {}
        for name, (low, high) in inside:
            for reading in children[name].readings:
                if low <= reading.time_us < high and _counts(query, children[name].late.get(reading), high):
                    by_key.setdefault(key_of(query, reading), []).append(reading)
        for key, readings in by_key.items():
            ordered = sorted(readings, key=lambda r: (r.time_us, r.node.encode(), r.order))
            out[query.id, child, key, *bounds] = answers(query, ordered)
    return out


def _counts(query: Query, frontier: float | None, end_us: int) -> bool:
    """Whether a late reading is in a window: only in one that was open under the policy per_window."""
    if frontier is None or query.late == "revise":
        return True
    return query.late == "per_window" and end_us > frontier
