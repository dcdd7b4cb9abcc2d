"""Value types that contain other value types: lists and tables with free names. Writes tables of declared keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_agent.algebra.partials.units import fits_float
from edge_agent.config.checking.checker import BAD, Key, Report, ValueType, is_secret, type_of
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.value_types import AsWritten, Number, Text, no_float


@dataclass(frozen=True, slots=True)
class ListOf(AsWritten):
    """A list of `least` to `most` values of one type; read as a tuple. unique: no value may occur twice."""

    kind: ValueType
    least: int = 0
    most: int = 1000
    unique: bool = True

    @property
    def secret(self) -> bool:
        """As of the values."""
        return is_secret(self.kind)

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if not isinstance(value, list | tuple):
            got = None if self.secret else value
            return report.wrong(at, got, f"wanted a list, got {type_of(value)}", "write it in brackets: [...]")
        if not self.least <= len(value) <= self.most:
            return report.wrong(at, len(value), f"wanted {self.least} to {self.most} entries, got {len(value)}")
        read = [self.kind.read(item, (*at, n), report) for n, item in enumerate(value)]
        if any(item is BAD for item in read):
            return BAD
        if self.unique:
            for n, item in enumerate(read):
                if item in read[:n]:
                    got = None if self.secret else value[n]
                    return report.wrong((*at, n), got, "is in the list twice", "delete one")
        return tuple(read)

    def write(self, value: Any) -> object:
        return [self.kind.write(item) for item in value]


@dataclass(frozen=True, slots=True)
class Rising(AsWritten):
    """A list of 1 to `most` numbers in rising order; read as a tuple of floats."""

    number: Number
    most: int

    def read(self, value: Any, at: Path, report: Report) -> Any:
        read = ListOf(self.number, 1, self.most, unique=False).read(value, at, report)
        if read is BAD:
            return BAD
        for n, item in enumerate(read):
            if not fits_float(item):
                return no_float(item, (*at, n), report)
        for n in range(1, len(read)):
            if not read[n] > read[n - 1]:
                return report.wrong(
                    (*at, n), value[n], f"is not greater than {value[n - 1]}", "write them in rising order"
                )
        return tuple(float(item) for item in read)

    def write(self, value: Any) -> object:
        return list(value)


@dataclass(frozen=True, slots=True)
class MapOf(AsWritten):
    """A table with free names; read as a tuple of (name, value), sorted by name."""

    name: Text
    kind: ValueType
    most: int = 64

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if not isinstance(value, Mapping):
            return report.wrong(at, value, f"wanted a table, got {type_of(value)}")
        if len(value) > self.most:
            return report.wrong(at, len(value), f"{len(value)} entries, at most {self.most}")
        pairs = [(self.name.read(n, (*at, n), report), self.kind.read(v, (*at, n), report)) for n, v in value.items()]
        return BAD if any(BAD in pair for pair in pairs) else tuple(sorted(pairs))

    def write(self, value: Any) -> object:
        return {name: self.kind.write(item) for name, item in value}


def write_table(keys: Sequence[Key], values: Mapping[str, Any]) -> dict[str, object]:
    """The table to write for `values`, without those that equal their default. values: by Key.inside."""
    return {
        key.name: key.kind.write(values[key.inside])
        for key in keys
        if key.inside in values and values[key.inside] != key.default
    }
