"""Windows of readings in order, the naive way: loops over a list, one key at a time. See
tests/oracle/central_computer.py."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from edge_agent.algebra.windows import CountSliding, CountTumbling, State
from tests.oracle import member_itself

if TYPE_CHECKING:
    from edge_agent.algebra.windows import OrderedWindow
    from tests.oracle.central_computer import Reading

SIGNS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": operator.eq}


def windows(window: OrderedWindow, readings: Sequence[Reading], first: int = 0) -> dict[tuple[int, int], list[Reading]]:
    """(start, end) -> readings of one key, which come in global order. first: the position of the first."""
    if isinstance(window, State):
        return states(window, readings)
    if not isinstance(window, CountTumbling | CountSliding):
        return member_itself.cut(window, readings, first)
    slide = window.slide if isinstance(window, CountSliding) else window.length
    starts = range(0, len(readings) - window.length + 1, slide)
    return {(first + at, first + at + window.length): list(readings[at : at + window.length]) for at in starts}


def states(window: State, readings: Sequence[Reading]) -> dict[tuple[int, int], list[Reading]]:
    """[first reading where begin holds, next where end holds)."""
    out: dict[tuple[int, int], list[Reading]] = {}
    inside: list[Reading] = []
    for reading in readings:
        ends = holds(window.end, reading) if window.end else not holds(window.begin, reading)
        if inside and ends:
            if reading.time_us > inside[0].time_us:
                out[inside[0].time_us, reading.time_us] = inside
            inside = []
        if inside or holds(window.begin, reading):
            inside.append(reading)
    return out


def holds(condition: str, reading: Reading) -> bool:
    """Conditions of the form `name sign number` or `name = 'text'`."""
    found = re.fullmatch(r"(\w+) (>=|<=|>|<|=) (-?[\d.]+|'\w*')", condition)
    assert found is not None, condition
    name, sign, literal = found.groups()
    if literal.startswith("'"):
        return reading.labels.get(name, "") == literal.strip("'")
    assert name == "value"
    return bool(SIGNS[sign](float(reading.value), float(literal)))
