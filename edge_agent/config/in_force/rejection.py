"""Why the last word on a definition did not come into force: kept, told in `state`, and put by for a restart."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.config.definitions.definitions import Definition, parse_definition
from edge_agent.errors import Problem

MOST_ERRORS: Final = 8  # of one item in `state`: enough to correct it, small enough to retain


@dataclass(frozen=True, slots=True)
class Rejection:
    """The last word on a slot, where it did not come into force.

    waiting: it may, without another word. definition: what waits for room under a limit of the node.
    """

    revision: int | None
    problems: tuple[Problem, ...]
    waiting: bool = False
    unsupported: bool = False
    definition: Definition | None = None

    def plain(self) -> list[object]:
        """For the spool; of_plain gives it back."""
        problems = [[p.at, p.got, p.why, p.hint, p.line] for p in self.problems]
        return [self.revision, problems, self.waiting, self.unsupported, self.definition and self.definition.text]

    @classmethod
    def of_plain(cls, kind: str, item: str, values: Sequence[Any]) -> Rejection:
        """The twin of plain."""
        revision, problems, waiting, unsupported, text = values
        definition = None if text is None else parse_definition(kind, item, text)
        return cls(revision, tuple(Problem(*p) for p in problems), bool(waiting), bool(unsupported), definition)


def told(
    chosen: Definition | None, refused: Sequence[Rejection], missing: Problem | None, warnings: Sequence[Problem]
) -> dict[str, Any]:
    """What `state` says of one item: chosen is what counts here, refused what did not come into force.

    missing: the sensor that a query waits for. warnings: what is no mistake but worth a look.
    """
    errors = [problem for refusal in refused for problem in refusal.problems] + ([missing] if missing else [])
    said: dict[str, Any] = {"ok": not errors, "revision": refused[0].revision if refused else None}
    if chosen is not None:
        said["revision"] = refused[0].revision if refused else chosen.revision
        if refused and not chosen.removed:
            said["in_force"] = chosen.revision
        if chosen.removed:
            said["removed"] = True
    if errors:
        said["errors"] = [said_of(problem) for problem in errors[:MOST_ERRORS]]
    if missing or (refused and all(refusal.waiting for refusal in refused)):
        said["waiting"] = True
    if refused and all(refusal.unsupported for refusal in refused):
        said["unsupported"] = True
    if warnings:
        said["warnings"] = [said_of(problem) for problem in warnings]
    return said


def said_of(problem: Problem) -> dict[str, Any]:
    """The problem as `state` has it."""
    said: dict[str, Any] = {"at": problem.at, "got": problem.got, "why": problem.why, "hint": problem.hint}
    return {**said, "line": problem.line} if problem.line is not None else said


def revision_in(payload: bytes | str) -> int | None:
    """The revision of a payload that was refused, if it can be seen."""
    text = payload if isinstance(payload, str) else payload.decode("utf-8", "replace")
    try:
        number = json.loads(text).get("revision")
    except (ValueError, AttributeError, RecursionError):
        found = re.search(r"^\s*revision\s*=\s*(\d{1,16})\s*$", text, re.MULTILINE)
        number = int(found[1]) if found else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None
