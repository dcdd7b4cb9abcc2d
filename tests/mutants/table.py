"""Reads the mutants of tests/mutants/*.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One break: in `file`, `find` (it occurs once) becomes `instead`.

    rule: the number in docs/protocol.md that is broken, or "security" for what SECURITY.md promises. tests: a pytest
    selection; at least one of them must fail.
    """

    name: str
    rule: str
    file: str
    find: str
    instead: str
    tests: tuple[str, ...]

    def broken(self, text: str) -> str:
        """The text of its file with the break. Raises: ValueError unless `find` occurs exactly once."""
        found = text.count(self.find)
        if found != 1:
            raise ValueError(f"{self.name}: its text occurs {found} times in {self.file}, not once: {self.find!r}")
        return text.replace(self.find, self.instead)


def mutants() -> list[Mutant]:
    """All of them, in the order of the files."""
    entries = [
        each for path in sorted(HERE.glob("*.toml")) for each in tomllib.loads(path.read_text("utf-8"))["mutant"]
    ]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
