"""Hypothesis strategies for sensor and query definitions."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from edge_agent.algebra.aggregates import FUNCTIONS
from edge_agent.algebra.query import where_parser
from edge_agent.algebra.query.query import LATE_POLICIES, Aggregate, Query, Sensor
from edge_agent.algebra.windows.sliding import MOST_OVERLAP, Sliding
from edge_agent.algebra.windows.tumbling import Tumbling
from edge_agent.config.definitions.aggregate_entries import COLUMNS
from edge_agent.config.topics import is_item_id
from tests.support.algebra_strategies import large_windows

DAY_US: Final = 86_400_000_000
ITEMS: Final = st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True).filter(is_item_id)
NAMES: Final = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
LABELS: Final = NAMES.filter(lambda n: n not in {"value", "and", "or", "not", "in"})
REVISIONS: Final = st.integers(0, 2**40)
MEASURES_US: Final = st.integers(1_000, 30 * DAY_US) | st.integers(1, 600).map(lambda s: s * 1_000_000)
WHERES: Final = st.sampled_from(
    ["", "value > 0", "value > 0 and site = 'a'", "not (unit in ('1', '2')) or value <= -1.5"]
)


@st.composite
def windows(draw: st.DrawFn) -> Any:
    """Every type of the registry; the oldest two in every measure."""
    if draw(st.booleans()):
        return draw(large_windows())
    length_us = draw(MEASURES_US)
    if draw(st.booleans()):
        return Tumbling(length_us, draw(st.integers(0, length_us - 1)))
    slide_us = draw(st.integers(max(1_000, -(-length_us // MOST_OVERLAP)), length_us))
    return Sliding(length_us, slide_us, draw(st.integers(0, slide_us - 1)))


@st.composite
def aggregates(draw: st.DrawFn) -> tuple[Aggregate, ...]:
    columns = draw(
        st.lists(NAMES.filter(lambda n: n.lower() not in COLUMNS), min_size=1, max_size=5, unique_by=str.lower)
    )
    made = []
    for name in columns:
        fn = draw(st.sampled_from(sorted(FUNCTIONS)))
        params = {n: draw(st.sampled_from(p.choices)) for n, p in FUNCTIONS[fn].params}
        defaults = {n: p.default for n, p in FUNCTIONS[fn].params}
        made.append(Aggregate(fn, name, tuple(sorted((n, v) for n, v in params.items() if v != defaults[n]))))
    return tuple(made)


@st.composite
def queries(draw: st.DrawFn) -> Query:
    filter_text = draw(WHERES)
    return Query(
        id=draw(ITEMS),
        revision=draw(REVISIONS),
        source=draw(ITEMS),
        window=draw(windows()),
        aggregates=draw(aggregates()),
        where=filter_text and str(where_parser.parse(filter_text)),
        by=tuple(draw(st.lists(LABELS, max_size=3, unique=True))),
        lateness_us=draw(st.integers(0, 7 * DAY_US)),
        late=draw(st.sampled_from(LATE_POLICIES)),
        effective_from_us=draw(st.none() | st.integers(0, 2**51)),
    )


TEXTS: Final = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="{}"), min_size=1, max_size=9
)
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "mqtt": {
        "topic": st.sampled_from(["a/b", "plant/+/temp/x", "+/+/#"]),
        "value": st.sampled_from(["", "/temperature", "/a~1b/0"]),
        "time": st.sampled_from(["", "/ts"]),
        "qos": st.integers(0, 1),
        "format": st.sampled_from(["auto", "number", "json", "cbor"]),
    },
    "host": {
        "metrics": st.sampled_from([("cpu",), ("cpu", "memory", "load", "thermal"), ("load", "cpu")]),
        "every_us": st.integers(10_000, DAY_US),
    },
    "file": {
        "path": st.just("a b/readings.csv"),
        "format": st.sampled_from(["auto", "csv", "jsonl"]),
        "time": st.just("time"),
        "value": st.sampled_from(["value", "/a/b"]),
        "speed": st.sampled_from([0.0, 1.0, 2.5]),
    },
    "simulated": {
        "wave": st.sampled_from(["sine", "walk", "steps"]),
        "seed": st.integers(0, 2**53),
        "rate": st.sampled_from([0.5, 1.0, 1e6]),
        "series": st.integers(1, 1000),
        "mean": st.floats(-1e12, 1e12),
        "amplitude": st.floats(0, 1e12),
        "period_us": st.integers(1000, DAY_US),
        "noise": st.just(0.0),
        "gaps": st.floats(0, 1),
        "disorder_us": st.integers(0, DAY_US),
        "outage_every_us": st.just(60_000_000),
        "outage_for_us": st.integers(0, 59_999_999),
        "begin_us": st.none() | st.integers(0, 2**51),
        "speed": st.sampled_from([0.0, 1.0, 60.0]),
    },
}


@st.composite
def sensors(draw: st.DrawFn) -> Sensor:
    driver = draw(st.sampled_from(sorted(OPTIONS)))
    options = {name: draw(values) for name, values in OPTIONS[driver].items()}
    scale = draw(st.none() | st.integers(-9, 9))
    return Sensor(
        id=draw(ITEMS),
        revision=draw(REVISIONS),
        driver=driver,
        options=tuple((n, v) for n, v in options.items() if v is not None),
        labels=tuple(sorted(draw(st.dictionaries(LABELS, TEXTS, max_size=3)).items())),
        unit=draw(st.just("") | TEXTS),
        scale=scale,
        range=draw(st.none() | st.just((-40.0, 125.0))) if scale is None or scale > -9 else None,
        timeout_us=draw(st.integers(10_000, 30 * DAY_US)),
        delay_us=draw(st.integers(0, DAY_US)),
        nan=draw(st.sampled_from(["skip", "quarantine"])),
    )
