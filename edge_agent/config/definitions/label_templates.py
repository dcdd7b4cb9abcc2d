"""Label templates. `line-{topic[1]}` inserts a level of the reading's topic, `{/ids/unit}` a value of its payload."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.config.checking.checker import Report, type_of
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.value_types import AsWritten

POINTER: Final = r"(?:/(?:[^/~{}]|~0|~1)*)+"  # RFC 6901 without braces, because templates use braces
_HOLE: Final = re.compile(rf"\{{topic\[([0-9]{{1,2}})\]\}}|\{{({POINTER})\}}")
LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class LabelTemplate:
    """The parts of a label's text: str is literal, int a level of the topic (from 0), tuple a JSON pointer."""

    parts: tuple[str | int | tuple[str, ...], ...]


def parse(text: str) -> LabelTemplate:
    """Split a template into its parts. Raises: ValueError for braces outside known placeholders."""
    parts: list[str | int | tuple[str, ...]] = []
    at = 0
    for hole in _HOLE.finditer(text):
        parts += [text[at : hole.start()]] if hole.start() > at else []
        parts.append(int(hole[1]) if hole[1] else pointer(hole[2]))
        at = hole.end()
    parts += [text[at:]] if at < len(text) or not parts else []
    if any(isinstance(part, str) and ("{" in part or "}" in part) for part in parts):
        raise ValueError("braces may only contain {topic[n]} or {/json/pointer}")
    return LabelTemplate(tuple(parts))


def pointer(text: str) -> tuple[str, ...]:
    """The steps of a JSON pointer; () for ''. Source: RFC 6901 section 4."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])


@dataclass(frozen=True, slots=True)
class LabelText(AsWritten):
    """The value of a label: text, possibly with placeholders."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        """Check the text; a whole number is converted to text."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            return report.wrong(at, value, f"wanted text, got {type_of(value)}", "put it in quotes")
        if not value or len(value) > LONGEST or any(c < " " for c in value):
            return report.wrong(at, value, f"wanted 1 to {LONGEST} printable characters")
        try:
            parse(value)
        except ValueError as err:
            return report.wrong(at, value, str(err), 'like "{topic[1]}" or "{/ids/unit}"')
        return value
