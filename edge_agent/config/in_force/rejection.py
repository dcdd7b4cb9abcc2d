"""The reason why the newest definition of an id is not in force. `state` reports it; the spool keeps it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from edge_agent.config.checking import foreign_json
from edge_agent.config.checking.documents import MAX_BYTES
from edge_agent.config.definitions.definitions import MOST_REVISION, Definition, parse_definition
from edge_agent.errors import Problem

MOST_ERRORS: Final = 8  # per item in `state`: enough to correct it, and small enough for a retained message
SHOWN: Final = 200  # characters shown of a wrong value


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why the newest definition of a slot is not in force.

    waiting: it may come into force without a new publication. unsupported: all problems are words that are not
    supported yet. definition: set if it waits because a limit is reached.
    """

    revision: int | None
    problems: tuple[Problem, ...]
    waiting: bool = False
    unsupported: bool = False
    definition: Definition | None = None

    def plain(self) -> list[object]:
        """Plain values for the spool; `of_plain` reads them."""
        problems = [[p.at, p.got, p.why, p.hint, p.line] for p in self.problems]
        return [self.revision, problems, self.waiting, self.unsupported, self.definition and self.definition.text]

    @classmethod
    def of_plain(cls, kind: str, item: str, values: Sequence[Any]) -> Rejection:
        """From the values of `plain`. Raises: ConfigError if another version wrote the definition."""
        revision, problems, waiting, unsupported, text = values
        definition = None if text is None else parse_definition(kind, item, text)
        return cls(revision, tuple(Problem(*p) for p in problems), bool(waiting), bool(unsupported), definition)


def state_item(
    chosen: Definition | None, refused: Sequence[Rejection], missing: Problem | None, warnings: Sequence[Problem]
) -> dict[str, Any]:
    """The entry of one id in `state`.

    chosen: the definition in force. refused: rejections of the id, node scope first. missing: problem of a query whose
    sensor is missing. warnings: problems that do not prevent the definition.
    """
    errors = [problem for refusal in refused for problem in refusal.problems] + ([missing] if missing else [])
    entry: dict[str, Any] = {"ok": not errors, "revision": refused[0].revision if refused else None}
    if chosen is not None:
        entry["revision"] = refused[0].revision if refused else chosen.revision
        if refused and not chosen.removed:
            entry["in_force"] = chosen.revision
        if chosen.removed:
            entry["removed"] = True
    if errors:
        entry["errors"] = [problem_fields(problem) for problem in errors[:MOST_ERRORS]]
    if missing or (refused and all(refusal.waiting for refusal in refused)):
        entry["waiting"] = True
    if refused and all(refusal.unsupported for refusal in refused):
        entry["unsupported"] = True
    if warnings:
        entry["warnings"] = [problem_fields(problem) for problem in warnings]
    return entry


def kept(problem: Problem) -> Problem:
    """The problem with its texts cut to a length that can be stored and published."""
    text = json.dumps(problem.got, ensure_ascii=False, default=str)
    short = replace(problem, at=problem.at[:SHOWN], why=problem.why[: 4 * SHOWN], hint=problem.hint[: 4 * SHOWN])
    return short if len(text) <= SHOWN else replace(short, got=text[:SHOWN] + "…")


def problem_fields(problem: Problem) -> dict[str, Any]:
    """A problem as an object of `state`."""
    fields: dict[str, Any] = {"at": problem.at, "got": problem.got, "why": problem.why, "hint": problem.hint}
    return {**fields, "line": problem.line} if problem.line is not None else fields


def revision_in(payload: bytes | str) -> int | None:
    """The revision in a refused payload; None if it cannot be found."""
    text = payload if isinstance(payload, str) else payload.decode("utf-8", "replace")
    try:
        number = foreign_json.parse(text).get("revision")
    except (ValueError, AttributeError):
        found = re.search(r"^[ \t]*+revision[ \t]*+=[ \t]*+(\d{1,16})[ \t\r]*+$", text[:MAX_BYTES], re.MULTILINE)
        number = int(found[1]) if found else None
    whole = isinstance(number, int) and not isinstance(number, bool)
    return number if whole and 0 <= number <= MOST_REVISION else None
