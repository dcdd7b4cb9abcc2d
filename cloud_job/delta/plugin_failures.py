"""What functions of other packages failed in, at the root: told once, in the log and in ops.gaps (docs/extend.md).

The rows say it themselves, in `details`; nobody reads a million of these to see that a function is broken.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from cloud_job.delta import tables
from edge_agent import packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cloud_job.delta.tables import Place
    from edge_agent.algebra.query.query import Query

log = logging.getLogger("headwater")
FAILED: Final = "a function failed"  # reason in ops.gaps, as nodes give it
MOST: Final = 100  # told in the life of a run
_ROWS: Final = 20  # looked at in a batch


class PluginFailures:
    """Of one run of the job."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        """Nothing is read before `tell`."""
        self._spark, self._place = spark, place
        self._told: set[tuple[str, str, str]] = set()

    def tell(self, queries: Iterable[Query], number: int) -> None:
        """What is new in the rows that a batch wrote. Reads them only where a package's function is asked for."""
        for failure in packages.install().news():  # of what is computed here, beside Spark
            log.warning("package.failed", extra={"what": failure.text, "hint": failure.hint})
        foreign = packages.brought()
        sources = {q.id: q.source for q in queries if any(a.fn in foreign for a in q.aggregates)} if foreign else {}
        if not sources or len(self._told) >= MOST:
            return
        rows = self._place.read(self._spark, tables.RESULTS).where(F.col("batch") == number)
        rows = rows.where(F.col("query").isin(*sources) & F.contains("details", F.lit('"failed": ')))
        found = [
            {**one, "source": sources[row["query"]]}
            for row in rows.select("query", "start", "end", "details").limit(_ROWS).collect()
            for one in _failed(row["query"], row["start"], row["end"], row["details"])
        ]
        new = [one for one in found if self._new(one)]
        for one in new:
            log.warning("package.failed", extra={"query": one["query"], "aggregate": one["name"], "why": one["why"]})
        if new:
            told = [_row(one, number) for one in new]
            self._place.append(tables.GAPS, tables.rows(self._spark, tables.GAPS, told), "failures", number)

    def _new(self, one: dict[str, Any]) -> bool:
        kind = (one["query"], one["name"], re.sub("[0-9]+", "", one["why"]))
        if kind in self._told:
            return False
        self._told.add(kind)
        return True


def _failed(query: str, start: int, end: int, details: str) -> Iterable[dict[str, Any]]:
    """The aggregates of a row that failed, and why."""
    for name, told in json.loads(details).items():
        if isinstance(told, dict) and isinstance(told.get("failed"), str):
            yield {"query": query, "name": name, "why": told["failed"], "start": start, "end": end}


def _row(one: dict[str, Any], number: int) -> dict[str, Any]:
    """A row of ops.gaps: no reading is lost, answers are."""
    return {
        "node": "",
        "sources": [one["source"]],
        "start": one["start"],
        "end": one["end"],
        "readings": 0,
        "nodes": [],
        "reason": FAILED,
        "detail": f"{one['name']} of query {one['query']}: {one['why']}",
        "batch": number,
    }
