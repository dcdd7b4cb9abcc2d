"""Equality of values that hold arrays, bit by bit: -0.0 differs from 0.0, a float from an integer."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from edge_agent.algebra.partials.partial import Partials


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal. Columns of partials count by position: a decoded section has no names yet."""
    if isinstance(a, Partials) and isinstance(b, Partials):
        pairs = [(a.start, b.start), (a.end, b.end), (a.key, b.key)]
        pairs += list(zip(a.states.values(), b.states.values(), strict=True))
        return all(same_array(x, y) for x, y in pairs)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and same_array(a, b)
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.compare)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    return bool(a == b)


def same_array(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether type, shape and bits are equal; of object arrays, type and value of each item."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == object:
        return all(type(x) is type(y) and x == y for x, y in zip(a.ravel(), b.ravel(), strict=True))
    return a.tobytes() == b.tobytes()
