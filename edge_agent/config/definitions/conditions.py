"""Conditions on a reading, in the language of algebra/query/where.py: filters of queries, and ends of state windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from edge_agent.algebra.query import where_parser
from edge_agent.config.checking.checker import BAD, Report
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.value_types import AsWritten, Text
from edge_agent.errors import ConfigError

MOST_FILTER: Final = 4000  # characters; conditions are sent in frames


@dataclass(frozen=True, slots=True)
class Condition(AsWritten):
    """A condition on a reading. It is read as its canonical text, which does not depend on how it was written.

    what: its name in messages, with article. empty: whether it may be empty.
    """

    what: str = "a filter"
    empty: bool = True

    def read(self, value: Any, at: Path, report: Report) -> Any:
        text = Text(self.what, longest=MOST_FILTER, empty=self.empty).read(value, at, report)
        if text is BAD or not str(text).strip():
            return BAD if text is BAD else ""
        try:
            canonical = str(where_parser.parse(str(text)))
            where_parser.parse(canonical)  # nodes parse this text; with its brackets it may be nested too deep
        except ConfigError as err:
            return report.wrong(at, value, str(err), "like \"value > 0 and site = 'a'\"")

        if len(canonical) > MOST_FILTER:
            return report.wrong(at, value, f"its canonical text is longer than {MOST_FILTER} characters", "shorten it")
        return canonical
