"""Guards calls of other packages, so that a failing or slow function only loses its own results.

Source of the rules: docs/extend.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Generic, NamedTuple, TypeVar

IN_A_ROW: Final = 3  # successive slow calls that switch a function off; a single one may be due to a busy machine
MOST_TEXT: Final = 200  # most characters of an exception's text
FEW: Final = 4  # values of each sequence shown in the text of a disagreement
Answer = TypeVar("Answer")
Result = TypeVar("Result")


class Loaded(NamedTuple, Generic[Result]):
    """An object loaded from an entry point. package: its distribution and version, else the entry point's name."""

    point: str
    target: str  # module:attribute
    found: Result
    package: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The first failure of a kind. name: component, function or window type. off: whether it is now switched off."""

    package: str
    name: str
    step: str  # the method: lift, combine, lower, cut, ...
    why: str
    off: bool

    @property
    def text(self) -> str:
        """What failed and why, in one line."""
        return f"{self.step} of {self.name} (package {self.package}): {self.why}"

    @property
    def hint(self) -> str:
        """The next step for the operator."""
        if self.off:
            return "its results are null until restart; make it faster or remove it from the queries"
        return "its results are null where it fails; correct or remove the package"


class PluginGuard:
    """Calls the functions of one package and counts their failures.

    slow_s: a function that takes longer than this in IN_A_ROW successive calls is switched off; None: no limit. timer:
    returns seconds.
    """

    def __init__(self, package: str, slow_s: float | None = None, timer: Callable[[], float] = lambda: 0.0) -> None:
        self.package = package
        self.failed: Counter[tuple[str, str, str]] = Counter()  # (name, step, type of exception) -> calls
        self.why: dict[str, str] = {}  # name -> its latest failure
        self._slow_s, self._timer = slow_s, timer
        self._slow: Counter[tuple[str, str]] = Counter()  # (name, step) -> slow calls since the last fast one
        self._off: set[str] = set()
        self._news: list[Failure] = []
        self._calling = False

    def call(self, name: str, step: str, attempt: Callable[[], Answer]) -> Answer | None:
        """The result of `attempt`; None if it failed or is switched off. Nested calls belong to the outer call."""
        if self._calling:
            return attempt()
        if name in self._off:
            return None
        self._calling, began_s = True, self._timer()
        try:
            answer = attempt()
        except (Exception, SystemExit) as err:
            self._fail(name, step, error_text(err))
            return None
        finally:
            self._calling = False
        took_s, limit_s = self._timer() - began_s, self._slow_s
        self._slow[name, step] = self._slow[name, step] + 1 if limit_s is not None and took_s > limit_s else 0
        if self._slow[name, step] < IN_A_ROW:
            return answer
        self._off.add(name)
        self._fail(name, step, f"took {took_s:.1f} s (limit {limit_s:g} s), {IN_A_ROW} calls in a row; switched off")
        return None

    def news(self) -> list[Failure]:
        """Failures of a new kind since the last call of this method."""
        news, self._news = self._news, []
        return news

    def _fail(self, name: str, step: str, why: str) -> None:
        kind = (name, step, why.partition(":")[0])  # without the exception's text, which may differ for each reading
        self.why[name] = why
        self.failed[kind] += 1
        if self.failed[kind] == 1:
            self._news.append(Failure(self.package, name, step, why, name in self._off))


def usable(
    loaded: Iterable[Loaded[Result]], refused: dict[str, str], refusal: Callable[[Result], str]
) -> Iterator[Loaded[Result]]:
    """Yield the objects that can be used. refusal: returns why one cannot be used, '' if it can.

    Reasons are added to `refused`, by entry point. An exception of `refusal` is a reason, too.
    """
    for each in loaded:
        try:
            why = refusal(each.found)
        except Exception as err:
            why = error_text(err)
        if why:
            refused[each.point] = f"{each.target}: {why}"
        else:
            yield each


def error_text(err: BaseException) -> str:
    """Type and text of an exception in one line of at most MOST_TEXT characters, each of which UTF-8 can encode."""
    try:
        message = str(err)
    except Exception:  # the exception's own `__str__` may raise, too
        message = ""
    text = " ".join(f"{type(err).__name__}: {message}".split()).encode("utf-8", "replace").decode()
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."


def disagreement(ways: Mapping[str, Sequence[Any]], near: float = 0.0) -> str:
    """Compare several ways to compute the same values. Returns the first difference as text, '' if all agree.

    ways: name of the way -> its values. near: tolerance of floats, relative and absolute.
    """
    (name, first), *others = ways.items()
    for other, values in others:
        for i, (a, b) in enumerate(zip_longest(first, values) if first != values else ()):
            floats = isinstance(a, float) and isinstance(b, float)
            if a != b and not (floats and math.isclose(a, b, rel_tol=near, abs_tol=near)):
                return f"{name} give {list(first[i : i + FEW])}, {other} give {list(values[i : i + FEW])}"
    return ""
