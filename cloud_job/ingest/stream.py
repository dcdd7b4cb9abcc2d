"""The streaming query: hands new landing files to the job, in micro-batches."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloud_job.spark.job import Job
from edge_agent.errors import PortError
from edge_agent.wire.landing import SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA: Final = "path string, modificationTime timestamp, length long, content binary"  # streaming wants it said
MAX_BYTES: Final = 64 * 1024 * 1024  # of one batch: it passes through the driver, some three times over
POLL_S: Final = 0.5
MAX_AGE: Final = (
    "1000000d"  # Spark passes over files older than the newest by more: one wrong time would hide all others
)
MOST_FILES: Final = 100_000  # after so many the query begins anew: Spark remembers each, some 200 B, here and on disk


class LandingStream:
    """Runs a job until `stop`, or (`once`) until the files that are there are done."""

    def __init__(
        self,
        job: Job,
        *,
        once: bool = False,
        trigger_us: int = 1_000_000,
        max_bytes: int = MAX_BYTES,
        most_files: int = MOST_FILES,
    ) -> None:
        """trigger_us: between the starts of two micro-batches. max_bytes: of one, at least one file."""
        self.most_files = most_files
        self.job, self.once, self.trigger_us, self.max_bytes = job, once, trigger_us, max_bytes
        self._stopping = threading.Event()
        self._busy = threading.Lock()
        self._failed: BaseException | None = None
        self._seen = 0  # files since the query began
        self._query = 0  # how many have ended

    def stop(self) -> None:
        """End after the batch under way; may be called from a signal handler."""
        self._stopping.set()

    def run(self, alive: Callable[[], None] = lambda: None) -> None:
        """Run, then write deferred revisions. alive: is called about every POLL_S, but not during a batch.

        Raises: PortError.
        """
        query = self.start()
        while query.isActive and not self._stopping.is_set():
            self._stopping.wait(POLL_S)
            if not self._busy.locked():
                alive()
            if self._seen >= self.most_files and not self.once and self._failed is None:
                query = self._anew(query)
        with self._busy:
            query.stop()
            if self._failed is not None:
                raise self._failed
            if (error := query.exception()) is not None and not self._stopping.is_set():
                raise PortError(f"the streaming query ended: {str(error).splitlines()[0][:300]}")
            self.job.finish()

    def _anew(self, query: StreamingQuery) -> StreamingQuery:
        """End the query after the batch under way, and begin one that remembers no file.

        Files that still lie there and stand in the last decision are passed over by the job.
        """
        with self._busy:
            self._query += 1  # a batch that the end has interrupted must not go on beside the new query
            query.stop()
            self._seen = 0
            if "://" not in self.job.settings.checkpoint:
                shutil.rmtree(self.job.settings.checkpoint, ignore_errors=True)
            return self.start()

    def start(self) -> StreamingQuery:
        """Start the query. `run` calls it once; a second call continues where the first one ended."""
        landing, checkpoint = self.job.settings.landing, self.job.settings.checkpoint
        if "://" not in landing:
            Path(landing).mkdir(parents=True, exist_ok=True)
        files = (
            self.job.spark.readStream.format("binaryFile")
            .schema(SCHEMA)
            .option("pathGlobFilter", f"*{SUFFIX}")
            .option("maxBytesPerTrigger", self.max_bytes)
            .option("maxFileAge", MAX_AGE)
            .load(landing)
        )
        writer = files.writeStream.foreachBatch(partial(self._process, self._query)).option(
            "checkpointLocation", checkpoint
        )
        writer = (
            writer.trigger(availableNow=True)
            if self.once
            else writer.trigger(processingTime=f"{max(self.trigger_us // 1000, 0)} milliseconds")
        )
        return writer.start()

    def _process(self, query: int, files: DataFrame, spark_batch: int) -> None:
        with self._busy:
            if self._stopping.is_set() or query != self._query:
                raise PortError("stopping")  # a batch that returns counts as done, and this one is not
            try:
                self._seen += self.job.process(files, spark_batch)
            except BaseException as err:
                self._failed = err
                raise
