"""Reads the streams of a recording into columns. Format: docs/recordings.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partials.arrays import Array, Ints
from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.algebra.query.key import Labels
from edge_agent.config.checking.checker import short
from edge_agent.config.checking.durations import whole_us
from edge_agent.errors import ConfigError

KEY: Final = "key"  # name of the label for the key of a recording
MARKS: Final = ("wm", "p")  # first element of watermark and marker items
FAR_US: Final = 2**55  # a thousand years: readings beyond are left out, markers refused, watermarks mean the end
EXACT: Final = 2**53  # integers up to this are exact in every aggregate
WIDEST: Final = 2**61 - 1  # largest integer of the wire format (wire/columns/series.py)
MOST_SQUARES: Final = 10**38  # a larger sum has no result (docs/protocol.md 7.1)
LONGEST_KEY: Final = 30_000  # characters
LONGEST_KEY_BYTES: Final = 3 * LONGEST_KEY  # as UTF-8: a record of a frame has room for it
NO_INTEGER: Final = 2**62  # represents NaN among integers; the slicer skips and counts it, as it is over the limit


@dataclass(frozen=True, slots=True)
class ChildStream:
    """One child's items in arrival order, as columns.

    time_us, value, series: shape (k,), the readings; series indexes Recording.labels. item: shape (k,), position of
    each reading among all items. mark_us, mark_item: shape (m,), time and position of the watermarks. markers:
    (position, marker) of punctuation windows.
    """

    child: str
    time_us: Ints
    value: Array
    series: Ints
    item: Ints
    mark_us: Ints
    mark_item: Ints
    markers: tuple[tuple[int, Marker], ...] = ()


def read_streams(
    raw: Mapping[str, Any], order: Sequence[str], unit_us: int, *, squared: bool = False
) -> tuple[list[ChildStream], list[Labels], int | None]:
    """Returns (streams in `order`, labels by series, scale of all values). squared: whether a query sums squares."""
    items = {child: raw.get(child, []) for child in order}
    for child, stream in items.items():
        _unicode(child, "streams", "a name of a child")
        if not isinstance(stream, list):
            raise ConfigError(f"streams.{child}: wanted a list of items")
        for at, item in enumerate(stream):
            if not isinstance(item, list) or len(item) < 2 or (type(item[0]) is not str and len(item) < 3):
                raise ConfigError(
                    f"streams.{child}[{at}]: wanted [time, key, value] or a mark, got {short(repr(item))}"
                )
    values = [stream[at][2] for stream in items.values() for at in _readings(stream, unit_us)]
    scale = 0 if _exact(values, squared=squared) else None
    series: dict[str, int] = {}
    streams = [columns(child, stream, unit_us, series, scale) for child, stream in items.items()]
    return streams, [((KEY, text),) for text in series], scale


def _exact(values: Sequence[Any], *, squared: bool) -> bool:
    """Whether all values except NaN are integers that fit into the wire format and whose sums have a result."""
    if not all(type(value) is int or _is_nan(value) for value in values):
        return False
    peak = max((abs(value) for value in values if type(value) is int), default=0)
    return peak <= EXACT or (peak <= WIDEST and not (squared and peak * peak * len(values) >= MOST_SQUARES))


def columns(child: str, items: Sequence[Any], unit_us: int, series: dict[str, int], scale: int | None) -> ChildStream:
    readings = _readings(items, unit_us)
    marks = [at for at, item in enumerate(items) if item[0] == "wm"]
    times = [_us(items[at][0], unit_us, child, at) for at in readings]
    codes = [series.setdefault(_label(items[at][1], child, at), len(series)) for at in readings]
    values = [_number(items[at][2], child, at) if scale is None else _integer(items[at][2]) for at in readings]
    mark_us = [max(-FAR_US, min(FAR_US, _us(items[at][1], unit_us, child, at))) for at in marks]
    return ChildStream(
        child,
        np.array(times, np.int64),
        np.array(values, np.float64 if scale is None else np.int64),
        np.array(codes, np.int64),
        np.array(readings, np.int64),
        np.array(mark_us, np.int64),
        np.array(marks, np.int64),
        tuple((at, _marker(items[at], unit_us, child, at)) for at in range(len(items)) if items[at][0] == "p"),
    )


def _readings(items: Sequence[Any], unit_us: int) -> list[int]:
    """Positions of the readings, except those that `is_far` leaves out."""
    return [at for at, item in enumerate(items) if type(item[0]) is not str and not is_far(item[0], unit_us)]


def is_far(time: object, unit_us: int) -> bool:
    """Whether a time is more than a thousand years from 0, as the times of broken clocks may be."""
    return isinstance(time, int | float) and abs(time * unit_us) >= FAR_US


def _marker(item: Sequence[Any], unit_us: int, child: str, at: int) -> Marker:
    """Read ["p", time], ["p", time, id], ["p", time, "start" or "end"] or ["p", time, id, "start" or "end"]."""
    more = [part for part in item[2:] if part is not None]
    kind = str(more.pop()) if more and more[-1] in ("start", "end") else ""
    name = more[0] if more else ""
    if isinstance(name, list | dict):
        raise ConfigError(f"streams.{child}[{at}]: wanted a text or number as id of a mark, got {short(repr(name))}")
    if isinstance(name, float) and name.is_integer():
        name = int(name)  # as in the query
    _unicode(str(name), f"streams.{child}[{at}]", "the id")
    return Marker(_time(item[1], unit_us, child, at), kind, str(name))


def item_times(stream: ChildStream) -> Ints:
    """Times of readings and markers in arrival order, microseconds."""
    if not stream.markers:
        return stream.time_us
    items = np.concatenate([stream.item, [at for at, _ in stream.markers]])
    times = np.concatenate([stream.time_us, [marker.time_us for _, marker in stream.markers]])
    ordered: Ints = times[np.argsort(items)]
    return ordered


def _label(key: object, child: str, at: int) -> str:
    try:
        label = key_label(key)
    except RecursionError as err:  # json.dumps takes fewer levels than json.loads
        raise ConfigError(f"streams.{child}[{at}]: the key is nested too deep; flatten it") from err
    _unicode(label, f"streams.{child}[{at}]", "the key")
    if len(label) > LONGEST_KEY:
        raise ConfigError(f"streams.{child}[{at}]: a key of {len(label)} characters; at most {LONGEST_KEY} are allowed")
    size_bytes = len(label.encode())
    if size_bytes > LONGEST_KEY_BYTES:
        most = f"at most {LONGEST_KEY_BYTES} are allowed"
        raise ConfigError(f"streams.{child}[{at}]: a key of {size_bytes} bytes; {most}")
    return label


def _unicode(text: str, where: str, what: str) -> None:
    if not is_unicode(text):
        raise ConfigError(f"{where}: {what} is not valid Unicode: {short(repr(text))}")


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can contain the text: JSON may have half of a pair of surrogates, which no output can contain."""
    return text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text)


def key_label(key: object) -> str:
    """The label value of a key: JSON, or the string itself if the key is a string that is not valid JSON."""
    if isinstance(key, str):
        try:
            json.loads(key)
        except (ValueError, RecursionError):
            return key
    return json.dumps(key, ensure_ascii=False, sort_keys=True)


def key_of(label: str) -> Any:
    """The key of a label value; inverse of `key_label`."""
    try:
        return json.loads(label)
    except (ValueError, RecursionError):
        return label


def _number(value: object, child: str, at: int) -> float:
    """A value as a float; null is NaN, and texts of numbers such as "NaN" are allowed."""
    try:
        return math.nan if value is None else float(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer of many digits
        return -math.inf if value < 0 else math.inf  # type: ignore[operator]
    except (TypeError, ValueError) as err:
        raise ConfigError(f"streams.{child}[{at}]: wanted a number, got {short(repr(value))}") from err


def _is_nan(value: object) -> bool:
    return value is None or (isinstance(value, str | float) and str(value).strip().lower() == "nan")


def _integer(value: object) -> int:
    """A value as an integer, NO_INTEGER for NaN, if all values except NaN are integers."""
    return value if type(value) is int else NO_INTEGER


def _us(time: object, unit_us: int, child: str, at: int) -> int:
    us = time * unit_us if isinstance(time, int | float) and not isinstance(time, bool) else math.nan
    if math.isinf(us):
        return int(math.copysign(FAR_US, us))
    us = whole_us(us)
    if math.isnan(us) or us != int(us):
        raise ConfigError(f"streams.{child}[{at}]: wanted a time in whole microseconds, got {short(repr(time))}")
    return int(us)


def _time(time: object, unit_us: int, child: str, at: int) -> int:
    us = _us(time, unit_us, child, at)
    if abs(us) >= FAR_US:
        why = "is more than a thousand years from 0; correct it"
        raise ConfigError(f"streams.{child}[{at}]: time {short(repr(time))} {why}")
    return us
