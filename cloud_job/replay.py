"""Runs the frames of recordings through the job in a temporary folder, and returns the rows that it writes.

All recordings of a call share the micro-batches, so that several hundred take little longer than one. There are two
micro-batches, so that late readings revise rows that are already in the table.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloud_job import spark_session
from cloud_job.delta import tables
from cloud_job.ingest.landing_loop import LandingLoop
from cloud_job.spark.job import Job, JobSettings
from edge_agent.config import topics
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.root.numpy.rows import ReplayedRow
from edge_agent.wire import landing
from edge_agent.wire.landing import SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

BATCHES: Final = 2  # in each, Spark plans all functions, which takes seconds
OF_REVISIONS: Final = 6  # batches with revisions: more batches show more of the rows that a running job would replace
MEMORY_GB: Final = (2, 8)  # least and most memory of the JVM; in between half of the machine's
ENDLESS_US: Final = 10**17  # grace and horizon: no child is left out, and no reading is too late
PARENT: Final = "root"

Sent = Sequence[tuple[str, bytes]]  # the messages of one recording in their order: (node, payload)


def run(
    recordings: Sequence[Sent],
    received_us: int,
    journal: int,
    spark: SparkSession | None = None,
    *,
    revisions: bool = False,
) -> list[ReplayedRow]:
    """Returns the rows of gold.results after all messages. Ids of nodes and queries must differ between recordings.

    received_us: receive time of all messages, no earlier than any frontier in them. journal: as in the births of the
    recordings. spark: None: start a session. revisions: also return replaced rows, all in order of appearance.
    Raises: PortError.
    """
    started = spark_session.start("headwater-replay", driver_memory=_memory()) if spark is None else spark
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-replay-") as folder:
            batches = OF_REVISIONS if revisions else BATCHES
            place = _work(started, Path(folder), recordings, received_us, journal, batches=batches)
            rows = _revisions(started, place) if revisions else place.read(started, tables.RESULTS).collect()
            return [ReplayedRow(**{name: row[name] for name in ReplayedRow.__slots__}) for row in rows]
    finally:
        if spark is None:
            spark_session.stop(started)


def _memory() -> str:
    least, most = MEMORY_GB
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return f"{min(max(half >> 30, least), most)}g"


def _work(
    spark: SparkSession, folder: Path, recordings: Sequence[Sent], received_us: int, journal: int, *, batches: int
) -> tables.Place:
    place = tables.place(str(folder / "tables"))
    files = folder / "landing"
    files.mkdir()
    for number in range(batches):
        shares = [sent[len(sent) * number // batches : len(sent) * (number + 1) // batches] for sent in recordings]
        _write(files, number, shares, received_us + number, journal)
    limits = RootLimits(revise_every_us=0, horizon_us=ENDLESS_US)
    job = Job(spark, place, JobSettings(str(files), ENDLESS_US, limits))
    job.open()
    LandingLoop(job, once=True, max_bytes=1).run()
    return place


def _revisions(spark: SparkSession, place: tables.Place) -> Iterator[Row]:
    """Every row that was ever in the table, once: read from all versions of the table, one per commit."""
    history, uri, seen = f"DESCRIBE HISTORY {place.sql(tables.RESULTS)}", place.uri(tables.RESULTS), set()
    for (version,) in spark.sql(history).select("version").orderBy("version").collect():
        for row in spark.read.format("delta").option("versionAsOf", version).load(uri).collect():
            one = (row["query"], row["node"], row["key"], row["start"], row["end"], row["revision"])
            if one not in seen:
                seen.add(one)
                yield row


def _write(folder: Path, number: int, shares: Sequence[Sent], received_us: int, journal: int) -> None:
    """Write the landing file of one batch. shares: its messages of each recording."""
    records = [landing.encode_tick(received_us, journal, connected=True)]
    for share in shares:
        records += [landing.encode(topics.frames(node, PARENT), received_us, payload) for node, payload in share]
    (folder / f"{number:08d}{SUFFIX}").write_bytes(b"".join(records))
