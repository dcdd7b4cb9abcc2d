"""The checker: reads tables of declared keys, collects every mistake with its place, and says what to do.

A table is declared once, as `Key`s; the JSON Schemas and the tables of the docs come from them too.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from edge_agent.config.checking.documents import Document, Path
from edge_agent.errors import ConfigError, NotSupported, Problem, advice


class _Mark:
    """A value that only equals itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


BAD: Final = _Mark("BAD")  # stands where a value could not be read; its problem is in the report
REQUIRED: Final = _Mark("REQUIRED")  # the default of a key that has none
UNKNOWN: Final = "unknown key"
SHOWN: Final = 60  # characters of a foreign value in a message
LISTED: Final = 24  # words that a hint lists; where there are more, the page does


class ValueType(Protocol):
    """The type of the value at a key: checks what people write, and writes it back. suffix: the unit of the value
    inside.
    """

    @property
    def suffix(self) -> str:
        """'_us', '_bytes' or ''."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        """The value inside, or BAD with a problem in the report."""

    def write(self, value: Any) -> object:
        """What people write for a value inside; JSON-able. read(write(x)) is x."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table. default: the value inside, REQUIRED, or None for 'not given'.

    doc: what it is, one line. why: the reason of the default. later: a known key that this version does not support.
    """

    name: str
    kind: ValueType
    default: object = None
    doc: str = ""
    why: str = ""
    later: bool = False

    @property
    def inside(self) -> str:
        """The name of the value inside: with its unit."""
        return self.name + self.kind.suffix


@dataclass(slots=True)
class Report:
    """Collects the problems of one document.

    unit_us: microseconds of a plain number where a duration is wanted; None refuses plain numbers (only recordings set
    it). lenient: unknown keys are ignored (recordings only). unbounded: durations have no bounds, because a node wrote
    the text itself, perhaps from a recording with odd numbers.
    """

    document: Document = field(default_factory=lambda: Document({}))
    base: Path = ()
    unit_us: int | None = None
    lenient: bool = False
    unbounded: bool = False
    problems: list[Problem] = field(default_factory=list)
    later: list[Problem] = field(default_factory=list)

    def wrong(self, at: Path, got: object, why: str, hint: str = "") -> Any:
        """Note a mistake; returns BAD."""
        self.problems.append(Problem(dotted((*self.base, *at)), plain(got), why, hint, self._line(at)))
        return BAD

    def unknown(self, at: Path, name: str, names: Iterable[str], hint: str = "") -> Any:
        """Note a key that no table has here; returns BAD."""
        near = hint or nearest(name, names) or f"known here: {', '.join(sorted(names))}"
        return self.wrong((*at, name), name, f'{UNKNOWN} "{short(name)}"', near)

    def unsupported(self, at: Path, got: object, what: str, hint: str = "") -> Any:
        """Note a known word that this version does not support; returns BAD."""
        problem = Problem(dotted((*self.base, *at)), plain(got), f"{what} is not supported yet", hint, self._line(at))
        self.later.append(problem)
        return BAD

    def finish(self, name: str = "") -> None:
        """Raise the problems. name: of the file or the definition, at the start of every line.

        Raises: ConfigError with every problem; NotSupported if nothing is wrong but something is not supported yet.
        """
        if self.problems:
            problems = tuple(sorted([*self.problems, *self.later], key=lambda p: p.line or 0))
            raise ConfigError("\n".join(line_of(p, name) for p in problems), problems)
        if self.later:
            raise NotSupported("\n".join(line_of(p, name) for p in self.later), tuple(self.later))

    def _line(self, at: Path) -> int | None:
        return self.document.line((*self.base, *at))


def read_table(keys: Sequence[Key], value: object, at: Path, report: Report, *, whole: bool = False) -> dict[str, Any]:
    """Read a table by its keys. The result has every key, with its value, its default or BAD.

    whole: no other key is allowed, even if the report is lenient.
    """
    if not isinstance(value, Mapping):
        report.wrong(at, value, f"wanted a table, got {type_of(value)}")
        return {key.name: BAD for key in keys}
    known = {key.name: key for key in keys}
    strange = [] if report.lenient and not whole else [str(name) for name in value if name not in known]
    for name in strange:
        report.unknown(at, name, known)
    meant = {nearest(name, known) for name in strange}  # one line for a misspelt key is enough
    found: dict[str, Any] = {}
    for key in keys:
        if key.name not in value:
            found[key.name] = key.default
            if key.default is REQUIRED:
                missing = f'"{key.name}" is missing'
                found[key.name] = BAD if key.name in meant else report.wrong(at, None, missing, _example(key))
        elif key.later:
            found[key.name] = report.unsupported((*at, key.name), value[key.name], f'"{key.name}"')
        else:
            found[key.name] = key.kind.read(value[key.name], (*at, key.name), report)
    return found


def complete(values: Mapping[str, Any]) -> bool:
    """Whether no value of a table is BAD, at its first level."""
    return not any(value is BAD for value in values.values())


def line_of(problem: Problem, name: str = "") -> str:
    """A problem as one line: `edge.toml:12  sensor "boiler": unknown key "windw"; did you mean "window"?`."""
    place = name if problem.line is None or not name else f"{name}:{problem.line}"
    at = problem.at.rpartition(".")[0] if problem.why.startswith(UNKNOWN) else problem.at  # the table it stands in
    where = _where(at)
    got = json.dumps(problem.got, ensure_ascii=False)
    shown = "" if problem.got is None or got in problem.why else f" = {short(got)}"
    said = f"{where}{shown}: {problem.why}" if where else f"{problem.why}"
    return "".join([f"{place}  " if place else "", said, f"; {advice(problem.hint)}" if problem.hint else ""])


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The valid word most similar to it, '' if none is similar. cutoff: how similar, 1 is equal."""
    from difflib import get_close_matches  # only where something is wrong

    by_fold = {word.lower(): word for word in names}
    near = get_close_matches(name.lower(), by_fold, n=1, cutoff=cutoff)
    return by_fold[near[0]] if near else ""


def dotted(path: Path) -> str:
    """A path as text: `query.x.aggregates[1].fn`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{short(part)}" for part in path).lstrip(".")


def plain(value: object) -> object:
    """A value for a problem: JSON-able and short."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return short(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return short(json.dumps(value, ensure_ascii=False, default=str))


def type_of(value: object) -> str:
    """The name of a value's type, for people."""
    names = ((bool, "true or false"), (int, "a number"), (float, "a number"), (str, "text"), (Mapping, "a table"))
    if isinstance(value, list | tuple):
        return "a list"
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def one_of(got: str, words: Sequence[str], others: str = "") -> str:
    """A hint for a word that is none of these: the nearest, else all. others: what is allowed besides."""
    listed = f"one of {', '.join(words)}" if len(words) <= LISTED else f"one of {len(words)} in docs/configure.md"
    return nearest(got, words) or listed + others


def _where(at: str) -> str:
    head, _, rest = at.partition(".")
    if head in {"sensor", "query"} and rest:
        item, _, inner = rest.partition(".")
        return f'{head} "{item}"{f", {inner}" if inner else ""}'
    return at


def short(text: str) -> str:
    """At most SHOWN characters of a foreign text."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _example(key: Key) -> str:
    return f"add {key.name} = ...: {key.doc}" if key.doc else f"add {key.name} = ..."
