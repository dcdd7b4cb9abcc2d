"""A job without Spark, for tests of decisions: its rows are kept in lists, and no results are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloud_job.spark import state_log
from cloud_job.spark.job import Job
from cloud_job.spark.prepared_batch import Decided
from edge_agent.root.decision.work import TableRow, Work


@dataclass
class Kept:
    """What runs of a job have written."""

    batches: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    store: Callable[[Sequence[str], list[dict[str, Any]]], None] = lambda names, rows: None  # before rows are stored


class ListJob(Job):
    """A job without Spark: it keeps its decisions in lists and computes no rows."""

    kept: Kept

    def open(self, owns: Callable[[], None] = lambda: None) -> None:
        rows = self._last()
        if rows:
            self.decider, self.state, self.parts = self._recalled(rows)
            self._read.resume(rows[-1]["files"])

    def _last(self) -> Any:
        if not self.kept.batches:
            return []
        last = self.kept.batches[-1]
        base = state_log.base_of(last["state"], last["number"])
        return [row for row in self.kept.batches if row["number"] >= base]

    def _write(self, made: Decided, row: TableRow, nodes: dict[str, list[object]] | None) -> None:
        rows = [] if made.stored is None else made.stored.to_pylist()
        self.kept.store(row["files"], rows)  # type: ignore[arg-type]
        self.kept.messages += rows
        self.kept.batches.append(dict(row))
        self.kept.works.append(made.work)
