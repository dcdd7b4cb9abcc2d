"""What rows are expected to weigh, and at most weigh, against the frames that a gateway sends."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.algebra.query.planner import plan
from edge_agent.algebra.query.query import Aggregate, Param, Query
from edge_agent.algebra.query.row_sizes import of_row
from edge_agent.algebra.query.wire_costs import FRAME_BYTES, of_window
from edge_agent.algebra.windows import (
    Calendar,
    CountSliding,
    CountTumbling,
    FixedBand,
    Punctuation,
    Session,
    Sliding,
    Spec,
    Tumbling,
)
from tests.support.laws.sent_frames import BEGIN_US, SECOND, Stream, sent

MINUTE = 60 * SECOND
TEN = Tumbling(10 * SECOND)
SHORT, LONG = Stream(2, 60), Stream(100, 60)


def asked(window: Spec, *fns: str, scope: str = "global") -> Query:
    aggregates = tuple(Aggregate(fn, fn, (("k", 5),) if fn == "top_k" else ()) for fn in fns)
    return Query("q", 1, "s", window, aggregates, by=("unit",), scope=scope)  # type: ignore[arg-type]


def near(weighed: float, expected: float) -> bool:
    return 0.5 <= weighed / expected <= 2.0


@pytest.mark.parametrize("scale", [None, -1])
@pytest.mark.parametrize(
    ("fns", "stream"),
    [
        (("count",), SHORT),
        (("avg",), SHORT),
        (("avg",), LONG),
        (("avg",), Stream(10, 60, keys=20)),
        (("avg", "stddev", "max"), SHORT),
        (("avg", "stddev", "max"), LONG),
        (("avg", "stddev", "max"), Stream(10, 60, keys=20)),
        (("min", "max"), Stream(10, 60, keys=20)),
        (("first", "last"), Stream(10, 60, keys=20, jitter_us=50_000)),
        (("time_of_min",), LONG),
        (("geomean",), LONG),
        (("slope",), LONG),
        (("median",), SHORT),
        (("median",), LONG),
        (("median",), Stream(10, 60, keys=20)),
        (("median",), Stream(1_000, 30)),
        (("rate",), SHORT),
        (("rate",), LONG),
        (("rate",), Stream(50, 60, jitter_us=20_000)),
        (("rate",), Stream(5, 60, keys=20)),
        (("median", "rate"), LONG),
        (("top_k",), SHORT),
    ],
)
def test_rows_of_numbers_and_of_readings_weigh_what_is_expected(
    fns: tuple[str, ...], stream: Stream, scale: int | None
) -> None:
    _holds(asked(TEN, *fns), scale, stream)


@pytest.mark.parametrize("scale", [None, -1])
@pytest.mark.parametrize("rate", [2, 20, 100, 1_000, 10_000])
@pytest.mark.parametrize("fn", ["approx_distinct", "theta_distinct", "approx_median"])
def test_sketches_weigh_what_is_expected_until_they_are_full_and_then(fn: str, rate: float, scale: int | None) -> None:
    _holds(asked(TEN, fn), scale, Stream(rate, 20))


@pytest.mark.parametrize("rate", [2, 20, 100, 1_000, 10_000])
def test_the_most_frequent_values_are_bounded_however_many_readings_there_are(rate: float) -> None:
    _holds(asked(TEN, "top_k"), -1, Stream(rate, 20))
    of_floats = sent(asked(TEN, "top_k"), None, Stream(rate, 20))
    assert (
        of_floats.bytes
        <= of_floats.frames * FRAME_BYTES + of_floats.rows * of_row(("count", "frequent"), None, 10 * rate).most
    )
    assert of_row(("count", "frequent"), None, 1e9).most < 5_000


@pytest.mark.parametrize("scale", [None, -1])
@pytest.mark.parametrize(
    ("window", "scope", "stream"),
    [
        (Tumbling(SECOND), "global", Stream(50, 60)),
        (Sliding(MINUTE, SECOND), "global", Stream(50, 120)),
        (Sliding(10 * SECOND, 7 * SECOND), "global", Stream(10, 140)),
        (Sliding(20 * SECOND, SECOND), "local", Stream(50, 120)),
        (FixedBand(BEGIN_US, 40 * SECOND), "global", Stream(10, 60)),
        (Calendar("day", "UTC"), "global", Stream(0.1, 200_000, commit_s=1_000)),
        (Tumbling(10 * SECOND), "global", Stream(0.05, 2_000, commit_s=10)),  # rarer than windows
        (CountTumbling(100), "global", Stream(50, 120)),
        (CountTumbling(100), "global", Stream(50, 60, keys=10)),
        (CountSliding(100, 10), "global", Stream(1, 60)),
        (Punctuation("local"), "global", Stream(50, 600, marked_s=60)),
        (Punctuation("bounds"), "global", Stream(50, 600, marked_s=60)),
        (Punctuation("order"), "global", Stream(50, 600, marked_s=60)),
        (Punctuation("central"), "global", Stream(50, 120, marked_s=60)),
    ],
)
@pytest.mark.parametrize("fn", ["avg", "median"])
def test_all_that_is_sent_of_a_window_is_what_is_expected(
    window: Spec, scope: str, stream: Stream, fn: str, scale: int | None
) -> None:
    query = asked(window, fn, scope=scope)
    found = sent(query, scale, stream)
    placed = plan((query,), scale)
    readings = stream.rate * stream.seconds
    if isinstance(window, FixedBand):
        windows = 1.0
    elif isinstance(window, CountTumbling | CountSliding):
        windows = readings / getattr(window, "slide", window.length)
    elif isinstance(window, Punctuation):
        windows = stream.seconds / stream.marked_s
    else:
        windows = stream.seconds * 1e6 / query.time_window.spacing[0].step_us
    sizes = [of_window(each.cost, each.kind, window, stream.rate).times(windows * stream.keys) for each in placed]
    frames = FRAME_BYTES * found.frames
    assert near(found.bytes, frames + sum(size.expected for size in sizes))
    assert found.bytes <= frames + sum(size.most for size in sizes) * 1.1  # windows begin and end beside the stream


@pytest.mark.parametrize("scale", [None, -1])
def test_sessions_weigh_their_bounds_and_registers_too(scale: int | None) -> None:
    query = asked(Session(SECOND), "avg")
    found = sent(query, scale, Stream(20, 100, keys=8, outage_s=3))
    (placed,) = plan((query,), scale)
    size = placed.cost.row(20 * 7)
    assert found.rows == pytest.approx(80, abs=8)
    assert near(found.bytes, FRAME_BYTES * found.frames + size.expected * found.rows)
    assert found.bytes <= FRAME_BYTES * found.frames + size.most * found.rows


@pytest.mark.parametrize("scale", [None, -1])
@pytest.mark.parametrize("fn", sorted(FUNCTIONS))
def test_no_function_sends_more_than_is_said_at_most(fn: str, scale: int | None) -> None:
    given: dict[str, Param] = {"q": 0.5, "edges": (10.0, 20.0), "value": 20, "weight": "unit"}
    params = dict(FUNCTIONS[fn].params)
    chosen = tuple((name, given.get(name, param.choices[0])) for name, param in params.items() if param.default is None)
    query = Query("q", 1, "s", TEN, (Aggregate(fn, fn, chosen),), by=("unit",))
    for stream in (Stream(1, 30, keys=3), Stream(50, 30, jitter_us=10_000)):
        found = sent(query, scale, stream)
        (placed,) = plan((query,), scale)
        most = placed.cost.row(10 * stream.rate + 1).most
        assert found.bytes <= FRAME_BYTES * found.frames + most * found.rows


def test_what_is_expected_grows_with_readings_and_never_beyond_the_most() -> None:
    for fn in ("avg", "median", "rate", "approx_distinct", "theta_distinct", "approx_median"):
        for scale in (None, -1):
            (placed,) = plan((asked(TEN, fn),), scale)
            sizes = [placed.cost.row(10.0**power) for power in range(9)]
            assert all(size.expected <= size.most for size in sizes), fn
            assert all(few.expected <= many.expected and few.most <= many.most for few, many in pairwise(sizes)), fn


def _holds(query: Query, scale: int | None, stream: Stream) -> None:
    """Rows of one query over windows of ten seconds, all together and without what frames add."""
    found = sent(query, scale, stream)
    (placed,) = plan((query,), scale)
    size = placed.cost.row(10 * stream.rate)
    frames, rows = FRAME_BYTES * found.frames, stream.keys * stream.seconds / 10
    assert found.rows >= rows  # more where a frame is full
    assert near(found.bytes, frames + rows * size.expected), found
    assert found.bytes <= frames + rows * size.most
    if size.expected >= 20:
        assert near(found.of_rows, rows * size.expected), found
