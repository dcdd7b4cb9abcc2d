"""Window types of other packages: refuses invalid classes, checks that their methods agree, guards every call.

Source: docs/extend.md.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import numpy as np

from edge_agent.algebra.partials.arrays import Ints
from edge_agent.algebra.plugin_calls import PluginGuard, disagreement
from edge_agent.algebra.span import FAR_US as NEVER_ENDS_US
from edge_agent.algebra.span import NO_EDGE, Lattice, Listed, Run
from edge_agent.algebra.windows.declaration import Setting
from edge_agent.algebra.windows.ordered import OrderedReadings, RowWindows
from edge_agent.algebra.windows.protocols import OrderedWindow, Spec, Window

KINDS: Final = ("duration", "instant", "word", "zone", "count", "condition", "text", "flag")
WINDOWS: Final = 16  # `contradiction` compares at least this many windows, unless the next limits are lower
MOST_EDGES: Final = 20_000  # most edges that `contradiction` computes
FAR_US: Final = 2**52  # latest event time that `contradiction` looks at: some 140 years after 1970
NONE: Final = np.zeros(0, np.int64)
NOTHING: Final[dict[str, Callable[..., Any]]] = {  # method -> result that replaces that of a failed call: no windows
    "edges": lambda _low, _high: NONE,
    "assign": lambda _start, _end: (NONE, NONE),
    "ends": lambda start: np.asarray(start) + 1,
    "runs": lambda _after, _upto: (),
    "cut": lambda line: RowWindows(NONE, NONE, NONE, NONE, NONE, np.array(line.until, np.int64)),
}

USUAL: Final[dict[str, Any]] = {  # property -> value if it fails and has never been read
    "unit_us": 1,
    "spacing": (Lattice(60_000_000, 0),),
    "one_length": False,
    "longest_us": 86_400_000_000,
}
JOIN: Final[dict[str, Callable[[Any, Any], Any]]] = {"unit_us": math.gcd, "longest_us": max, "one_length": min}


def lacks(found: type) -> str:
    """The members that a window type lacks, with the protocol that asks for them; '' for none."""
    wanted = OrderedWindow if hasattr(found, "cut") else Window
    members = [name for each in (Spec, wanted) for name in (*each.__annotations__, *vars(each)) if name[0] != "_"]
    missing = [name for name in members if not hasattr(found, name)]
    return f"lacks {', '.join(missing)} (edge_agent.algebra.windows.{wanted.__name__})" if missing else ""


def refusal(found: Any, taken: Collection[str]) -> str:
    """Why a class cannot be used as a window type, '' if it can. taken: names of existing types."""
    if why := lacks(found):
        return why
    if found.type in taken:
        return f"window type {found.type!r} exists already; choose another word"
    if any(not isinstance(key, Setting) or key.kind not in KINDS for key in found.KEYS):
        return f"KEYS must be Settings of the kinds {', '.join(KINDS)}"
    return ""


def contradiction(spec: Window) -> str:
    """Why a spec is invalid: the first difference between its methods on its first windows; '' if they agree.

    They must agree because gateways use `edge_sets`, mergers and the numpy root use `assign` and `ends`, and Spark uses
    `runs`. Raises: any exception of the spec.
    """
    if len({spec, spec}) != 1:  # raises if it cannot be hashed
        return "a spec must equal itself: make it a frozen dataclass"
    steps = [max(int(lattice.step_us), 1) for lattice in spec.spacing]
    finest_us = min([*steps, *(max(int(each.step_us), 1) for each in spec.edge_sets)])
    upto_us = min(spec.longest_us + WINDOWS * max(steps), MOST_EDGES * finest_us, FAR_US)
    start = np.asarray(spec.edge_sets[0].points(0, upto_us))
    end = np.asarray(spec.ends(start))
    if end.shape != start.shape or bool((end <= start).any() or (end[1:] < end[:-1]).any()):
        return "ends() must return an end after each start, in the order of the starts"
    length = end - start
    if len(length) and (length.max() > spec.longest_us or (spec.one_length and np.ptp(length))):
        lengths = f"{length.min()} to {length.max()} us"
        return f"longest_us is {spec.longest_us}, one_length {spec.one_length}: windows of {lengths}"
    ended = end <= upto_us
    edges = np.unique(np.concatenate([start, end[ended]]))
    windows = list(zip(start[ended].tolist(), length[ended].tolist(), strict=True))
    few, cut = 4 * WINDOWS, edges[: 4 * WINDOWS]
    low, high = np.concatenate([start[:few], cut[:-1]]), np.concatenate([end[:few], cut[1:]])  # of windows; of slices
    i, j = np.nonzero((start[None, :] <= low[:, None]) & (end[None, :] >= high[:, None]))
    row, first = map(np.asarray, spec.assign(low, high))
    ways = "edge_sets[0] and ends"
    return (
        disagreement(
            {
                ways: edges.tolist(),
                "edges": np.asarray(spec.edges(0, upto_us)).tolist(),
                "edge_sets": np.unique(np.concatenate([each.points(0, upto_us) for each in spec.edge_sets])).tolist(),
                "multiples of unit_us": (edges // spec.unit_us * spec.unit_us).tolist(),
            }
        )
        or disagreement({ways: windows, "runs": sorted(w for run in spec.runs(0, upto_us) for w in _windows(run))})
        or disagreement({ways: _triples(low[i], high[i], start[j]), "assign": _triples(low[row], high[row], first)})
    )


def _windows(run: Run) -> Iterator[tuple[int, int]]:
    """(start, length) of each window of a run."""
    after, upto = ((us - run.length_us - run.offset_us) // run.slide_us + 1 for us in (run.after_us, run.upto_us))
    return ((run.offset_us + i * run.slide_us, run.length_us) for i in range(max(after, 0), max(upto, 0)))


def _triples(*columns: Ints) -> list[tuple[int, ...]]:
    """(start of a range, its end, start of a window that contains it), sorted."""
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def guard_methods(found: Any, guard: PluginGuard) -> None:
    """Wrap the methods of a window type so that a failing call returns no windows, and its properties and edge sets.

    A property that fails has a value that suits every spec seen so far. An edge set that fails has all multiples of
    unit_us, see GuardedEdges.
    """
    for step in NOTHING:
        if hasattr(found, step):
            setattr(found, step, _guarded(getattr(found, step), step, guard))
    suits = dict[str, Any]()
    for name in (*USUAL, "edge_sets"):
        found_as = inspect.getattr_static(found, name, None)
        if isinstance(found_as, property | functools.cached_property):  # a field of the spec cannot fail
            setattr(found, name, _guarded_property(found_as, name, guard, suits))


def _guarded_property(read: Any, name: str, guard: PluginGuard, suits: dict[str, Any]) -> property:
    """suits: name of a property -> a value that is valid for every spec seen so far."""

    def guarded(self: Any) -> Any:
        if name == "edge_sets":
            sets = guard.call(self.type, name, lambda: _edge_sets(read.__get__(self, type(self)), self, guard))
            return (GuardedEdges(None, self, guard),) if sets is None else sets
        value = guard.call(self.type, name, lambda: read.__get__(self, type(self)))
        if value is None:
            return suits.get(name, USUAL[name])
        join = JOIN.get(name)
        suits[name] = join(suits[name], value) if join is not None and name in suits else value
        return value

    return property(guarded)


def _edge_sets(found: Any, spec: Any, guard: PluginGuard) -> tuple[Any, ...]:
    """The edge sets of a spec, with those of the package guarded. Raises: ValueError if there are none."""
    if not (sets := tuple(found)):
        raise ValueError("edge_sets is empty")
    return tuple(each if type(each) in (Lattice, Listed) else GuardedEdges(each, spec, guard) for each in sets)


class GuardedEdges:
    """An edge set of a package's own. After a failure its edges are all multiples of the type's unit_us.

    All edges of the windows are among these, so that slices are only shorter: results stay right, and other queries of
    the same plan go on. It stays so, because slices of both kinds would overlap. inner: None: it has failed already.
    """

    def __init__(self, inner: Any, spec: Any, guard: PluginGuard) -> None:
        self._inner, self._guard, self._type = inner, guard, str(spec.type)
        self._spare = Lattice(max(int(spec.unit_us), 1), 0)

    def _call(self, step: str, attempt: Callable[[Any], Any]) -> Any:
        """The result of attempt(inner); None after a failure."""
        if self._inner is None:
            return None
        answer = self._guard.call(self._type, step, lambda: attempt(self._inner))
        if answer is None:
            self._inner = None
        return answer

    @property
    def step_us(self) -> int:
        found = self._call("step_us of an edge set", lambda inner: max(int(inner.step_us), 1))
        return self._spare.step_us if found is None else int(found)

    @property
    def first_us(self) -> int:
        found = self._call("first_us of an edge set", lambda inner: int(inner.first_us))
        return 0 if found is None else int(found)

    @property
    def last_us(self) -> int:
        found = self._call("last_us of an edge set", lambda inner: int(inner.last_us))
        return NEVER_ENDS_US if found is None else int(found)

    def points(self, low_us: int, high_us: int) -> Ints:
        def checked(inner: Any) -> Ints:
            edges = np.asarray(inner.points(low_us, high_us))
            bad = edges.ndim != 1 or edges.dtype != np.int64 or bool((edges[1:] <= edges[:-1]).any())
            if bad or (len(edges) and not low_us <= edges[0] <= edges[-1] <= high_us):
                raise ValueError("points must return increasing integers within the bounds")
            return edges

        found: Ints | None = self._call("points of an edge set", checked)
        return self._spare.points(low_us, high_us) if found is None else found

    def around(self, time_us: Ints) -> tuple[Ints, Ints]:
        def checked(inner: Any) -> tuple[Ints, Ints]:
            before, after = map(np.asarray, inner.around(time_us))
            if not {(before.shape, before.dtype), (after.shape, after.dtype)} == {(time_us.shape, np.dtype(np.int64))}:
                raise ValueError("around must return two columns of integers")
            if ((before != NO_EDGE) & (before > time_us)).any() or (after <= time_us).any():
                raise ValueError("around must return the edges before and after each time")
            return before, after

        found: tuple[Ints, Ints] | None = self._call("around of an edge set", checked)
        return self._spare.around(time_us) if found is None else found

    def __eq__(self, other: object) -> bool:
        theirs = other._inner if isinstance(other, GuardedEdges) else None
        if self._inner is None or theirs is None:
            return self is other
        return self._call("comparison of an edge set", lambda inner: bool(inner == theirs)) is True

    def __hash__(self) -> int:
        found = self._call("hash of an edge set", hash)
        return hash(self._type) if found is None else int(found)

    def __repr__(self) -> str:
        found = self._call("repr of an edge set", repr)
        return f"{self._type} {self._spare if found is None else found}"


def _guarded(method: Callable[..., Any], step: str, guard: PluginGuard) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *args: Any) -> Any:
        def checked() -> Any:
            answer = method(self, *args)
            if step == "cut":
                _check_rows(answer, *args)
            return tuple(answer) if step == "runs" else answer

        answer = guard.call(self.type, step, checked)
        answer = NOTHING[step](*args) if answer is None else answer
        return iter(answer) if step == "runs" else answer

    return guarded


def _check_rows(cut: RowWindows, line: OrderedReadings) -> None:
    """Check that the rows of all windows are within their keys. Raises: ValueError."""
    shapes = {np.shape(column) for column in (cut.key, cut.low, cut.high, cut.start, cut.end)}
    if (
        not (len(shapes) == 1 and np.shape(cut.keep) == line.first.shape)
        or ((cut.low < line.first[cut.key]) | (cut.low >= cut.high) | (cut.high > line.until[cut.key])).any()
        or ((cut.keep < line.first) | (cut.keep > line.until)).any()
    ):
        raise ValueError("a window has rows outside its key, or the columns have unequal lengths")
