"""Reports failures of other packages' functions at the root, once each: in the log and in ops.gaps (docs/extend.md).

Tasks of Spark write failures into `details` of the rows they compute; nobody reads a million rows to find one.
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
from edge_agent.algebra import aggregates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cloud_job.delta.tables import Place
    from edge_agent.algebra.query.query import Query

log = logging.getLogger("headwater")
FAILED: Final = "a function failed"  # reason in ops.gaps, as nodes give it
MOST: Final = 100  # reports in one run
_ROWS: Final = 20  # read of a batch


class PluginFailures:
    """Reports of one run of the job."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self._spark, self._place = spark, place
        self._reported: set[tuple[str, str, str]] = set()  # query, aggregate, reason without its numbers

    def report(self, queries: Iterable[Query], batch: int) -> None:
        """Report what is new in the rows of a batch. Reads them only if a query uses a function of a package."""
        for failure in packages.news():  # of functions that ran on the driver
            log.warning("package.failed", extra={"what": failure.text, "hint": failure.hint})
        sources = {q.id: q.source for q in queries if any(a.fn in aggregates.PLUGINS for a in q.aggregates)}
        if not sources or len(self._reported) >= MOST:
            return
        rows = self._place.read(self._spark, tables.RESULTS).where(F.col("batch") == batch)
        rows = rows.where(F.col("query").isin(*sources) & F.contains("details", F.lit('"failed": ')))
        gaps: list[dict[str, Any]] = []
        for query, start, end, details in rows.select("query", "start", "end", "details").limit(_ROWS).collect():
            for name, detail in json.loads(details).items():
                why = detail.get("failed") if isinstance(detail, dict) else None
                kind = (query, name, re.sub("[0-9]+", "", str(why)))
                if not isinstance(why, str) or kind in self._reported:
                    continue
                self._reported.add(kind)
                log.warning("package.failed", extra={"query": query, "aggregate": name, "why": why})
                gaps.append(
                    {
                        "node": "",
                        "sources": [sources[query]],
                        "start": start,
                        "end": end,
                        "readings": 0,  # none is lost: results are
                        "nodes": [],
                        "reason": FAILED,
                        "detail": f"{name} of query {query}: {why}",
                        "batch": batch,
                    }
                )
        if gaps:
            self._place.append(tables.GAPS, tables.rows(self._spark, tables.GAPS, gaps), "failures", batch)
