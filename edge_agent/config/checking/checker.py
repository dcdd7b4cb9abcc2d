"""The checker reads tables of declared keys and reports every mistake with its place and a hint.

A table is declared once, as a sequence of `Key`. The JSON Schemas and the tables in the docs are generated from it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from edge_agent.config.checking.documents import Document, Path
from edge_agent.config.checking.foreign_json import printable
from edge_agent.errors import ConfigError, NotSupported, Problem, advice


class _Mark:
    """A unique value that equals only itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


BAD: Final = _Mark("BAD")  # in place of a value that could not be read; its problem is in the report
REQUIRED: Final = _Mark("REQUIRED")  # default of a key that must be given
UNKNOWN: Final = "unknown key"
SHOWN: Final = 60  # characters of a foreign value shown in a message
LISTED: Final = 24  # most words that a hint lists; longer lists are in docs/configure.md


class ValueType(Protocol):
    """The type of the value of a key. Converts what people write to an internal value, and back."""

    @property
    def suffix(self) -> str:
        """Unit of the internal value, the end of its name: '_us', '_bytes' or ''."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        """Check and convert a written value. Returns the internal value, or BAD with a problem in the report."""

    def write(self, value: Any) -> object:
        """The written form of an internal value, JSON-able. read(write(x)) is x."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table. default: an internal value, REQUIRED, or None for 'not given'.

    doc: the meaning, one line. why: the reason for the default. later: a known key that this version does not support.
    pace: of a sensor, decides only when its readings come: with another value its driver goes on where it was.
    """

    name: str
    kind: ValueType
    default: object = None
    doc: str = ""
    why: str = ""
    later: bool = False
    pace: bool = False

    @property
    def inside(self) -> str:
        """The name of the internal value: the name of the key with the unit, like `length_us`."""
        return self.name + self.kind.suffix


@dataclass(slots=True)
class Report:
    """Collects the problems of one document.

    base: path of the document's value in a larger document. unit_us: unit of durations that are plain numbers; None:
    plain numbers are refused. lenient: unknown keys are ignored. Both are only for recordings. unbounded: bounds of
    durations are not checked, because a node wrote the text itself, perhaps from a recording. later: problems about
    words that this version does not support. more: path of a table -> its keys that are read apart from the others.
    """

    document: Document = field(default_factory=lambda: Document({}))
    base: Path = ()
    unit_us: int | None = None
    lenient: bool = False
    unbounded: bool = False
    problems: list[Problem] = field(default_factory=list)
    later: list[Problem] = field(default_factory=list)
    more: dict[Path, tuple[str, ...]] = field(default_factory=dict)

    def wrong(self, at: Path, got: object, why: str, hint: str = "") -> Any:
        """Note a mistake at path `at`. got: the wrong value. Returns BAD."""
        self.problems.append(Problem(dotted((*self.base, *at)), plain(got), why, hint, self._line(at)))
        return BAD

    def unknown(self, at: Path, name: str, names: Iterable[str], hint: str = "") -> Any:
        """Note an unknown key of the table at path `at`. names: the known keys. Returns BAD."""
        names = (*names, *self.more.get(at, ()))
        near = hint or nearest(name, names) or f"known here: {', '.join(sorted(names))}"
        return self.wrong((*at, name), name, f'{UNKNOWN} "{short(name)}"', near)

    def unsupported(self, at: Path, got: object, what: str, hint: str = "") -> Any:
        """Note a known word that this version does not support. Returns BAD."""
        problem = Problem(dotted((*self.base, *at)), plain(got), f"{what} is not supported yet", hint, self._line(at))
        self.later.append(problem)
        return BAD

    def finish(self, name: str = "") -> None:
        """Raise if there are problems. name: of the file or definition, the start of every line.

        Raises: ConfigError with every problem; NotSupported if all of them are words that are not supported yet.
        """
        if self.problems:
            problems = tuple(sorted([*self.problems, *self.later], key=lambda p: p.line or 0))
            raise ConfigError("\n".join(line_of(p, name) for p in problems), problems)
        if self.later:
            raise NotSupported("\n".join(line_of(p, name) for p in self.later), tuple(self.later))

    def _line(self, at: Path) -> int | None:
        return self.document.line((*self.base, *at))


def read_table(keys: Sequence[Key], value: object, at: Path, report: Report, *, whole: bool = False) -> dict[str, Any]:
    """Read a table by its keys. Returns for the name of every key its value, its default or BAD.

    whole: unknown keys are mistakes even if the report is lenient.
    """
    if not isinstance(value, Mapping):
        secret = any(is_secret(key.kind) for key in keys)
        report.wrong(at, None if secret else value, f"wanted a table, got {type_of(value)}")
        return {key.name: BAD for key in keys}
    known = {key.name: key for key in keys}
    strange = [] if report.lenient and not whole else [str(name) for name in value if name not in known]
    for name in strange:
        report.unknown(at, name, known)
    meant = {nearest(name, known) for name in strange}  # do not also report a misspelt key as missing
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


def is_secret(kind: ValueType) -> bool:
    """Whether values of this type may be in no message, not even wrong ones."""
    return bool(getattr(kind, "secret", False))


def complete(values: Mapping[str, Any]) -> bool:
    """Whether no value of a table is BAD; nested values are not looked at."""
    return not any(value is BAD for value in values.values())


def line_of(problem: Problem, name: str = "") -> str:
    """A problem as one line: `edge.toml:12  sensor "boiler": unknown key "windw"; did you mean "window"?`.

    Names in a file, and that of the file, may be anybody's: nothing in the line controls a terminal.
    """
    place = name if problem.line is None or not name else f"{name}:{problem.line}"
    at = problem.at.rpartition(".")[0] if problem.why.startswith(UNKNOWN) else problem.at  # the key's table
    where = _where(at)
    got = json.dumps(problem.got, ensure_ascii=False)
    shown = "" if problem.got is None or got in problem.why else f" = {short(got)}"
    said = f"{where}{shown}: {problem.why}" if where else f"{problem.why}"
    return printable(
        "".join([f"{place}  " if place else "", said, f"; {advice(problem.hint)}" if problem.hint else ""])
    )


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The word of `names` most similar to `name`; '' if none is. cutoff: least similarity, 1 is equal."""
    from difflib import get_close_matches  # here, because it is only needed for mistakes

    by_fold = {word.lower(): word for word in names}
    near = get_close_matches(name.lower(), by_fold, n=1, cutoff=cutoff)
    return by_fold[near[0]] if near else ""


def dotted(path: Path) -> str:
    """A path as text: `query.x.aggregates[1].fn`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{short(part)}" for part in path).lstrip(".")


def plain(value: object) -> object:
    """The value in a short, JSON-able form, for Problem.got."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return short(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return short(json.dumps(value, ensure_ascii=False, default=str))


def type_of(value: object) -> str:
    """The name of a value's type in messages, with article."""
    names = ((bool, "true or false"), (int, "a number"), (float, "a number"), (str, "text"), (Mapping, "a table"))
    if isinstance(value, list | tuple):
        return "a list"
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def one_of(got: str, words: Sequence[str], others: str = "") -> str:
    """A hint for an unknown word: the most similar word, else all words. others: text to append to all words."""
    listed = f"one of {', '.join(words)}" if len(words) <= LISTED else f"one of {len(words)} in docs/configure.md"
    return nearest(got, words) or listed + others


def _where(at: str) -> str:
    head, _, rest = at.partition(".")
    if head in {"sensor", "query"} and rest:
        item, _, inner = rest.partition(".")
        return f'{head} "{item}"{f", {inner}" if inner else ""}'
    return at


def short(text: str) -> str:
    """The first SHOWN characters of a foreign text."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _example(key: Key) -> str:
    return f"add {key.name} = ...: {key.doc}" if key.doc else f"add {key.name} = ..."
