"""Value types of keys: texts, words, numbers, addresses. Each checks a value and writes it back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from edge_agent.config.checking.checker import Report, nearest, one_of, short, type_of
from edge_agent.config.checking.documents import Path


class AsWritten:
    """Base of value types without a unit. `write` returns the value that was read, unless it is overridden."""

    __slots__ = ()
    suffix: ClassVar[str] = ""

    def write(self, value: Any) -> object:
        return value


def no_float(number: int, at: Path, report: Report) -> Any:
    """Reports an integer to which no float is equal, where readings are compared with floats. Returns BAD."""
    return report.wrong(at, number, "is beyond 2^53 and no float", f"the nearest one is {int(float(number))}")


@dataclass(frozen=True, slots=True)
class Anything(AsWritten):
    """Any value, unchecked; for keys whose type is not known."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class Text(AsWritten):
    """A text. what: its name in messages, with article. pattern: regular expression for the whole text.

    secret: a password or the like, which messages about mistakes do not repeat.
    """

    what: str = "a text"
    pattern: str = ""
    hint: str = ""
    longest: int = 1000
    empty: bool = False
    secret: bool = False

    def read(self, value: Any, at: Path, report: Report) -> Any:
        got = None if self.secret else value
        if not isinstance(value, str):
            return report.wrong(at, got, f"wanted {self.what}, got {type_of(value)}", self.hint)
        if len(value) > self.longest or (not value and not self.empty) or any(c < " " for c in value):
            long = len(value) > self.longest
            why = f"longer than {self.longest} characters" if long else "is empty or not printable"
            return report.wrong(at, got, why, self.hint)
        if self.pattern and value and not re.fullmatch(self.pattern, value):
            return report.wrong(at, got, f"is not {self.what}", self.hint or f"must match {self.pattern}")
        return value


@dataclass(frozen=True, slots=True)
class FilePath(Text):
    """A path. In the local file of a node, relative paths start at the folder of that file."""

    what: str = "a path"


@dataclass(frozen=True, slots=True)
class Choice(AsWritten):
    """One of a set of words.

    later: known words that this version does not support. what: name of the words in messages. absent: text after
    the message about an unknown word. meant: (word of another tool, hint for it). others: text after the list of words
    in the hint. of_packages: words of installed packages, which are valid but not in the documentation.
    """

    words: tuple[str, ...]
    later: tuple[str, ...] = ()
    what: str = "word"
    absent: str = ""
    meant: tuple[tuple[str, str], ...] = ()
    others: str = ""
    of_packages: tuple[str, ...] = ()

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if not isinstance(value, str):
            return report.wrong(at, value, f"wanted one of {', '.join(self.words)}, got {type_of(value)}")
        if value in self.words or value in self.of_packages:
            return value
        if value in self.later:
            return report.unsupported(at, value, f'{self.what} "{value}"', f"this version has {', '.join(self.words)}")
        near = dict(self.meant).get(value) or nearest(value, (*self.words, *self.later, *self.of_packages))
        others = f", or of an installed package: {', '.join(self.of_packages)}" if self.of_packages else self.others
        hint = near or one_of(value, (*self.words, *self.later), others)
        return report.wrong(at, value, f'unknown {self.what} "{short(value)}"{self.absent}', hint)


BROUGHT: Final = ", or a word of an installed package"


def left_out(refused: Mapping[str, str]) -> str:
    """Text about packages that could not be used, for the message about an unknown word. refused: package -> why."""
    return "".join(f"; package {name} cannot be used ({why})" for name, why in refused.items())


@dataclass(frozen=True, slots=True)
class Pick(AsWritten):
    """One of a set of values of different types. 1, 1.0 and true are different values."""

    choices: tuple[str | int | float | bool, ...]

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if any(value == choice and type(value) is type(choice) for choice in self.choices):
            return value
        said = short(json.dumps(value, ensure_ascii=False, default=str))
        listed = ", ".join(json.dumps(choice) for choice in self.choices)
        return report.wrong(at, value, f"{said} is none of {listed}", nearest(str(value), map(str, self.choices)))


@dataclass(frozen=True, slots=True)
class Flag(AsWritten):
    """True or false."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if isinstance(value, bool):
            return value
        return report.wrong(at, value, f"wanted true or false, got {type_of(value)}")


@dataclass(frozen=True, slots=True)
class Number(AsWritten):
    """A number within [low, high]. whole: only integers."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    above: bool = False  # low itself is not allowed
    hint: str = ""  # the allowed numbers, for people
    share: bool = False  # a share from 0 to 1: greater numbers may be meant as percent

    def read(self, value: Any, at: Path, report: Report) -> Any:
        """Read an int or a finite float; if `whole`, an int only."""
        wanted = "a whole number" if self.whole else "a number"
        if isinstance(value, bool) or not isinstance(value, int | float):
            hint = "write it without quotes" if isinstance(value, str) and _numeric(value) else self.hint
            return report.wrong(at, value, f"wanted {wanted}, got {type_of(value)}", hint)
        if not math.isfinite(value):
            return report.wrong(at, str(value), f"wanted {wanted}", "a finite number")
        if self.whole and value != int(value):
            return report.wrong(at, value, f"wanted {wanted}", f"try {round(value)}")
        if value < self.low or (self.above and value == self.low):
            least = f"must be {'more than' if self.above else 'at least'} {self.low:.12g}"
            return report.wrong(at, value, least, self.hint)
        if value > self.high:
            percent = f"{value / 100:.12g}" if self.share and 2 <= value < 100 else self.hint
            return report.wrong(at, value, f"must be at most {self.high:.12g}", percent)
        return int(value) if self.whole else value


@dataclass(frozen=True, slots=True)
class Url(AsWritten):
    """The address of a broker, mqtt://host[:port] or mqtts://host[:port]; read with the port."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        got = without_credentials(value)
        hint = 'like "mqtt://127.0.0.1:1883" or "mqtts://broker.example:8883"'
        if not isinstance(value, str):
            return report.wrong(at, got, f"wanted the address of a broker, got {type_of(value)}", hint)
        try:
            url = urlsplit(value)
            port = url.port
        except ValueError:
            return report.wrong(at, got, "not the address of a broker: the port must be 1 to 65535", hint)
        if url.scheme not in {"mqtt", "mqtts"} or not url.hostname:
            return report.wrong(at, got, "not the address of a broker", hint)
        if ":" not in url.hostname and not all(
            0 < len(part) < 64 for part in url.hostname.removesuffix(".").split(".")
        ):
            return report.wrong(at, got, "not a host name: each part between dots must have 1 to 63 characters", hint)
        if url.username is not None or url.password is not None:
            return report.wrong(at, got, "an address must not contain credentials", "use user and password_file")
        if url.path not in {"", "/"} or url.query or url.fragment or port == 0:
            return report.wrong(at, got, "an address has only scheme, host and port", hint)
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        return f"{url.scheme}://{host}:{port or (8883 if url.scheme == 'mqtts' else 1883)}"


def without_credentials(value: object) -> object:
    """An address as messages may show it: its scheme only, if it may contain a password."""
    if not isinstance(value, str) or "@" not in value:
        return value
    scheme, mark, _ = value.partition("://")
    return f"{scheme}://…" if mark and "@" not in scheme else "…"


def _numeric(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None
