"""Values of frames <-> plain JSON, so that schemas/vectors/*.json say what the bytes beside them mean.

Every field that is not its default is written by name, a group's cut as gap, maximum and form; a column by its numbers,
3.0 a float and 3 an integer, a bag by its values and counts, a series by its times, values, nodes and arrival numbers,
a sketch by its bytes, hexadecimal.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from edge_agent.algebra import frame as frame_module
from edge_agent.algebra.partials.multisets import Multiset
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.series import Series
from edge_agent.algebra.query.group_cut import BY_TIME, GroupCut, cut_from_text
from edge_agent.algebra.query.query import Group


def of(value: Any) -> Any:
    """A value as JSON."""
    if isinstance(value, Partials):
        columns = [[of(item) for item in column.tolist()] for column in value.states.values()]
        return {"start": value.start.tolist(), "end": value.end.tolist(), "key": value.key.tolist(), "columns": columns}
    if isinstance(value, (Multiset, Series)):
        return {f.name: getattr(value, f.name).tolist() for f in fields(value)}
    if isinstance(value, GroupCut):
        cut = {"gap_us": value.gap_us, "max_us": value.max_us, "form": value.text}
        return {name: item for name, item in cut.items() if item}
    if isinstance(value, Group) and value.cut != BY_TIME:
        return {**of(replace(value, cut=BY_TIME)), **of(value.cut)}
    if is_dataclass(value):
        return {
            f.name: of(getattr(value, f.name))
            for f in fields(value)
            if f.compare and (f.default is MISSING or getattr(value, f.name) != f.default)
        }
    if isinstance(value, (tuple, list)):
        return [of(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.hex() if isinstance(value, bytes) else value


def value(kind: Any, meaning: Any) -> Any:
    """JSON to a value of that type: the inverse of `of`."""
    if kind is Partials:
        start, end, key = (np.array(meaning[name], np.int64) for name in ("start", "end", "key"))
        return Partials(start, end, key, {str(i): _column(column) for i, column in enumerate(meaning["columns"])})
    if is_dataclass(kind) and isinstance(kind, type):
        if kind is Group:
            parts = [meaning.get(name, empty) for name, empty in (("gap_us", 0), ("max_us", 0), ("form", ""))]
            rest = {name: item for name, item in meaning.items() if name not in {"gap_us", "max_us", "form"}}
            rest["by"] = tuple(rest["by"])
            return Group(**rest, cut=cut_from_text(*parts))
        hints = get_type_hints(kind, vars(frame_module))
        return kind(**{name: value(hints[name], item) for name, item in meaning.items()})
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if inner[1:] == (...,):
            return tuple(value(inner[0], item) for item in meaning)
        return tuple(value(one, item) for one, item in zip(inner, meaning, strict=True))
    if get_origin(kind) in (Union, types.UnionType):
        if meaning is None:
            return None
        shaped = [one for one in get_args(kind) if (get_origin(one) is tuple) == isinstance(meaning, list)]
        return value(next(one for one in shaped if one is not types.NoneType), meaning)
    return bytes.fromhex(meaning) if kind is bytes else meaning


def _column(items: list[Any]) -> np.ndarray[Any, Any]:
    if isinstance(items[0], str):
        return np.array([bytes.fromhex(item) for item in items], object)
    if isinstance(items[0], dict) and "time_us" in items[0]:
        cells = np.empty(len(items), object)
        cells[:] = [Series(**{name: np.array(numbers) for name, numbers in item.items()}) for item in items]
        return cells
    if isinstance(items[0], dict):
        bags = np.empty(len(items), object)
        bags[:] = [Multiset(np.array(item["values"]), np.array(item["counts"], np.int64)) for item in items]
        return bags
    if all(type(item) is int for item in items) and any(not -(2**63) <= item < 2**63 for item in items):
        return np.array(items, object)
    return np.array(items)
