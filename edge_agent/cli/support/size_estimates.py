"""For `explain`: the expected bytes of a plan (per window of each query, per row, per second) and why it is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.algebra.columns.kind import RowSize
from edge_agent.algebra.query.planner import Placement
from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.algebra.query.wire_costs import (
    FRAME_BYTES,
    MINUTE_US,
    compared,
    digits,
    of_window,
    speed,
    speeds,
    window_us,
)
from edge_agent.cli.support.message_rendering import listed
from edge_agent.config.definitions.drivers import DRIVERS

UNITS_S: Final = (("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001), ("us", 0.000001))
NAMED: Final = 8  # at most so many queries are named in a line; a thousand may have the same size


@dataclass(frozen=True, slots=True)
class Rate:
    """Readings per second of one key. source: where this number comes from, as text."""

    per_s: float
    source: str


ASSUMED: Final = Rate(1.0, "assumed; --rate sets another")


def rate_of(sensor: Sensor | None, by: Iterable[str]) -> Rate:
    """The readings per second of a key by these labels, from the sensor's definition; 1 if it has no rate."""
    rate = None if sensor is None else DRIVERS[sensor.driver].rate
    return ASSUMED if sensor is None or rate is None else Rate(rate(sensor, set(by)), "rate of its sensor")


def sizes_of(placement: Placement, queries: Iterable[Query], rate: Rate) -> dict[str, Any]:
    """Sizes of one plan as plain values. queries: those that use it. Plans of late readings get no rates or sizes per
    window, because these depend on how many readings come late.
    """
    cost, late = placement.cost, placement.feeds == "late"
    sizes = {} if late else {q.id: of_window(cost, placement.kind, q.window, rate.per_s) for q in queries}
    per_s = None if late else cost.per_s(rate.per_s)
    rows_per_s = None if late or cost.rows_per_s is None else float(cost.rows_per_s)
    readings = rate.per_s * float(cost.times) / rows_per_s if rows_per_s else 1.0
    row = cost.row(readings) if rows_per_s or not sizes else max(sizes.values(), key=lambda size: size.most)
    return {
        "readings_per_s": rate.per_s,
        "rate": rate.source,
        "rows_per_s": rows_per_s,
        "bytes_per_row": _bounds(row),
        "bytes_per_s": None if per_s is None else _bounds(per_s),
        "bytes_per_window": {name: _bounds(size) for name, size in sizes.items()},
        "window_assumed": {q.id: "1m" for q in queries if q.id in sizes and _assumes(q, placement)},
        "bytes_per_frame": FRAME_BYTES,
    }


def _assumes(query: Query, placement: Placement) -> bool:
    """Whether the length of a window is unknown, so that MINUTE_US is assumed."""
    counted = placement.kind == "raw" and hasattr(query.window, "length")
    return placement.kind != "marker" and not counted and window_us(query.window) is None


def _bounds(size: RowSize) -> dict[str, Any]:
    return {"expected": float(f"{size.expected:.6g}"), "most": float(f"{size.most:.6g}")}


def lines_of(sizes: dict[str, Any]) -> list[str]:
    """The sizes of a plan as lines of text."""
    many, row, per_s = sizes["readings_per_s"], sizes["bytes_per_row"], sizes["bytes_per_s"]
    lines = []
    if sizes["bytes_per_window"]:
        lines.append(f"of a key with {digits(many)} reading{'s' * (many != 1)}/s ({sizes['rate']}), as expected:")
    by_text: dict[str, list[str]] = {}
    for name, size in sizes["bytes_per_window"].items():
        assumed = f" of {MINUTE_US // 60_000_000}m" if name in sizes["window_assumed"] else ""
        text = f"{digits(size['expected'])} B a window{assumed}, at most {digits(size['most'])} B"
        by_text.setdefault(text, []).append(name)
    lines += [f"{listed(names, NAMED)}: {text}" for text, names in by_text.items()]
    rows = f"rows of {digits(row['expected'])} B, at most {digits(row['most'])} B"
    if sizes["rows_per_s"] is not None:
        rows += f", {often(sizes['rows_per_s'])}"
    if per_s is not None:
        rows += f": {speed(per_s['expected'])}, at most {speed(per_s['most'])}"
    return [*lines, rows, f"{sizes['bytes_per_frame']} B more a frame, whatever the number of keys"]


NAMES: Final = {"slice": "slices", "window": "whole windows"}
WHY: Final = {
    "slice": "a slice is sent once, however many windows contain it",
    "window": "the edges cut more slices than there are windows",
}


def reason_of(placement: Placement, rate: Rate) -> str:
    """Why a plan is sent as it is. If whole windows and slices were compared: with the bytes per second of both."""
    cost, other, kind = placement.cost, placement.other, placement.kind
    if other is None:
        return placement.reason
    mine, others = cost.per_s(rate.per_s), other.per_s(rate.per_s)
    if mine is None or others is None:
        return f"{placement.reason}; what comes once has no rate to compare"
    chosen, refused = (NAMES[kind], *(name for each, name in NAMES.items() if each != kind))
    figure, figure_of_other = speeds(mine.expected, others.expected)
    if figure == figure_of_other:
        figures = f"equal: {chosen} and {refused} take {figure}"
    else:
        figures = f"{chosen} take {figure}, {refused} {figure_of_other}"
        if mine.expected < others.expected:
            return f"{figures}: {WHY[kind]}"
    for per_s, fewer, more in compared(cost, other, (cost if kind == "slice" else other).rows_per_s):
        low, high = speeds(fewer, more)
        if fewer < more and low != high:
            at = f"{digits(per_s)} readings/s" if per_s > 1 else f"one reading {often(per_s).removeprefix('one ')}"
            return f"{figures}; {chosen} are preferred since they take {low} instead of {high} at {at}"
    return f"{figures}; {chosen} are preferred since other queries can share them"


def often(rate: float) -> str:
    """A rate per second as text: `13 a second`, `one every 30.4d`; 0 is `one in all`."""
    if not rate:
        return "one in all"
    if rate > 1:
        return f"{rate:.4g} a second"
    seconds = 1 / rate
    unit, size = next((name, size) for name, size in UNITS_S if seconds >= size)
    return f"one every {seconds / size:.3g}{unit}"
