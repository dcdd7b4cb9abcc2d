"""Reports failures of installed functions at the root, each once: in the log and in ops.gaps (docs/extend.md).

Spark's tasks write a failure only into `details` of the rows that they compute, where it would be overlooked.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from cloud_job.delta import driver_rows, tables
from edge_agent import packages
from edge_agent.algebra import aggregates
from edge_agent.algebra.frame import Gap
from edge_agent.root.decision import ops_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cloud_job.delta.tables import Place
    from edge_agent.algebra.query.query import Query

log = logging.getLogger("headwater")
FAILED: Final = "a function failed"  # reason in ops.gaps, the same as in the gap records of nodes
MOST: Final = 100  # reports in one run
_ROWS: Final = 20  # rows with failures that are read per batch, at most


class PluginFailures:
    """Reports each failure once in a run of the job."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self._spark, self._place = spark, place
        self._reported: set[tuple[str, str, str]] = set()  # query, aggregate, reason without its numbers

    def report(self, queries: Iterable[Query], batch: int) -> None:
        """Report new failures in the rows of a batch. Reads the rows only if a query uses an installed function."""
        for failure in packages.news():  # of functions that ran on the driver
            log.warning("package.failed", extra={"what": failure.text, "hint": failure.hint})
        groups = {q.id: q.group for q in queries if any(a.fn in aggregates.PLUGINS for a in q.aggregates)}
        if not groups or len(self._reported) >= MOST:
            return
        rows = self._place.read(self._spark, tables.RESULTS).where(F.col("batch") == batch)
        rows = rows.where(F.col("query").isin(*groups) & F.contains("details", F.lit('"failed": ')))
        gaps: list[tuple[str, Gap]] = []
        for query, start, end, details in rows.select("query", "start", "end", "details").limit(_ROWS).collect():
            for name, detail in json.loads(details).items():
                why = detail.get("failed") if isinstance(detail, dict) else None
                kind = (query, name, re.sub("[0-9]+", "", str(why)))
                if not isinstance(why, str) or kind in self._reported:
                    continue
                self._reported.add(kind)
                log.warning("package.failed", extra={"query": query, "aggregate": name, "why": why})
                detail = f"{name} of query {query}: {why}"  # the gap has 0 readings: only the result is lost
                gaps.append(("", Gap((groups[query],), start, end, 0, (), FAILED, detail=detail)))
        if gaps:
            rows = driver_rows.rows(self._spark, tables.GAPS, [*ops_rows.gaps(gaps, batch)])
            self._place.append(tables.GAPS, rows, "failures", batch)
