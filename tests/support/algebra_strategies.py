"""Hypothesis strategies for the values of the algebra; small, so that counterexamples can be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from edge_agent.algebra.aggregates import FUNCTIONS, Readings
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import TYPES, Window
from edge_agent.algebra.windows.declaration import NEEDED, Setting

# sums of squares of these stay exact enough to compare variances by value
floats = st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: round(v, 3))
units = st.one_of(st.integers(-1000, 1000), st.integers(-(2**53), 2**53))
LABELS = ("weight", "area")
WEIGHTS = (0.5, 3.0, float("nan"), 0.0)  # what labels say as numbers; NaN: they say none
MIN_US = 60_000_000
ZONES = (  # changes at 1 h and at midnight, forward and back, of half an hour, of a whole day; far from UTC; none
    *("UTC", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Australia/Lord_Howe", "Pacific/Apia"),
    *("Africa/Casablanca", "Asia/Kathmandu", "Pacific/Kiritimati", "America/Toronto"),
)
CHANGES_US = tuple(  # moments at which clocks of some of these change; and two at which none does
    seconds * 1_000_000
    for seconds in (
        *(1_774_746_000, 1_792_890_000),  # Berlin, 29 March and 25 October 2026
        *(1_541_300_400, 1_518_919_200),  # Sao Paulo, 4 November 2018 (midnight skipped), 18 February 2018 (23 h twice)
        *(1_772_946_000, 1_793_509_200),  # Havana, 8 March 2026 (midnight skipped), 1 November 2026 (twice)
        *(1_759_593_600, 1_775_314_800),  # Lord Howe, half an hour
        1_325_239_200,  # Apia, 30 December 2011, which was not there
        *(1_771_120_800, 1_773_540_000),  # Casablanca, Ramadan 2026
        *(86_400, 1_800_000_000),
    )
)
TINY = tuple(
    word for word, spec in TYPES.items() if all(k.kind in {"duration", "instant", "count", "flag"} for k in spec.KEYS)
)
scales = st.sampled_from([None, 0, -1, -3, 2])


def values(scale: int | None) -> st.SearchStrategy[float] | st.SearchStrategy[int]:
    """Values of a sensor of that scale."""
    return floats if scale is None else units


@st.composite
def readings(draw: st.DrawFn, scale: int | None, node: int = 0, max_size: int = 12) -> Readings:
    """Readings of one node, sorted as `lift` wants them; times collide often."""
    times = sorted(draw(st.lists(st.integers(0, 20), max_size=max_size)))
    value = draw(st.lists(values(scale), min_size=len(times), max_size=len(times)))
    dtype = np.float64 if scale is None else np.int64
    said = {label: np.array([WEIGHTS[(3 * node + i) % 4] for i in range(len(times))], np.float64) for label in LABELS}
    return Readings(np.array(times, np.int64), np.array(value, dtype), np.arange(len(times)), node, said)


@st.composite
def aggregates(draw: st.DrawFn) -> tuple[Aggregate, ...]:
    """A few different aggregates with parameters.

    Not those of higher powers: how close they come depends on the condition of the readings, tests/laws says how.
    """
    some = [a for a in every_aggregate() if a.fn not in {"skewness", "kurtosis", "moment", "percent_change"}]
    chosen = draw(st.lists(st.sampled_from(some), min_size=1, max_size=4, unique=True))
    return tuple(chosen)


def every_aggregate() -> list[Aggregate]:
    """Every registered function with every combination of its parameters."""
    out: list[Aggregate] = []
    for function in FUNCTIONS.values():
        choices: list[tuple[tuple[str, Any], ...]] = [()]
        for name, param in function.params:
            assert param.choices, f"{function.name}, {name}: say choices=(...), values that the laws are to try"
            choices = [(*chosen, (name, value)) for chosen in choices for value in param.choices]
        out += [Aggregate(function.name, "_".join([function.name, *(str(v) for _, v in c)]), c) for c in choices]
    return out


@st.composite
def windows(draw: st.DrawFn, longest: int = 24, types: tuple[str, ...] = TINY) -> Window:
    """Windows of a few microseconds, of every type that can be so short; slides need not divide lengths."""
    found: Window = draw(specs({word: TYPES[word] for word in types}, longest))
    return found


@st.composite
def specs(
    draw: st.DrawFn, types: Mapping[str, Any], longest: int = 24, conditions: tuple[str, ...] = ("value > 2",)
) -> Any:
    """A window of one of these types, of a few microseconds or readings; from its keys alone."""
    spec = types[draw(st.sampled_from(sorted(types)))]
    return _mended(spec(**{key.inside: draw(_tiny(key, longest, conditions)) for key in spec.KEYS}))


def _mended(window: Any) -> Any:
    """The window, what is wrong with it put right by the checker's own remedies."""
    wrong = window.wrong()
    while wrong is not None:
        inside = next(key.inside for key in window.KEYS if key.name == wrong.key)
        window = type(window)(**{key.inside: getattr(window, key.inside) for key in window.KEYS} | {inside: wrong.hint})
        wrong = window.wrong()
    return window


def _tiny(key: Setting, longest: int, conditions: tuple[str, ...]) -> st.SearchStrategy[Any]:
    if key.kind == "condition":
        return st.sampled_from([*conditions, *([] if key.default is NEEDED else [key.default])])
    if key.kind in {"duration", "instant", "count"}:
        return st.integers(1 if key.low else 0, longest)
    return _large(key)


@st.composite
def large_windows(draw: st.DrawFn, types: tuple[str, ...] = tuple(TYPES)) -> Window:
    """Windows as people ask for them, of every type; minutes to weeks, in zones whose clocks do all that clocks do."""
    spec = TYPES[draw(st.sampled_from(types))]
    found: Window = _mended(spec(**{key.inside: draw(_large(key)) for key in spec.KEYS}))
    return found


def _large(key: Setting) -> st.SearchStrategy[Any]:
    match key.kind:
        case "duration":
            return st.sampled_from([0, 90, 360, 1440, 1447]).map(lambda m: max(m, 90 if key.low else 0) * MIN_US)
        case "instant":
            return st.sampled_from(CHANGES_US)
        case "word":
            return st.sampled_from(key.words)
        case "zone":
            return st.sampled_from(ZONES)
        case "count":
            return st.integers(key.low, min(key.high, key.low + 1_000))
        case "flag":
            return st.booleans()
    return st.text(max_size=5)


@st.composite
def queries(draw: st.DrawFn, by: tuple[str, ...] = (), lateness_us: int = 3, late: str = "revise") -> tuple[Query, ...]:
    """Queries of one group."""
    specs = draw(st.lists(st.tuples(windows(), aggregates()), min_size=1, max_size=4))
    return tuple(
        Query(f"q{i}", 1, "s", window, wanted, by=by, lateness_us=lateness_us, late=late)
        for i, (window, wanted) in enumerate(specs)
    )
