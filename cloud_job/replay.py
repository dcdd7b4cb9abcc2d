"""Frames of recordings through the job: landing files in a temporary folder, a few micro-batches, the rows it wrote.

All recordings of a call share the micro-batches, so that several hundred take little more than one. Two batches
rather than one, so that what comes late in a recording revises rows that stand in the table.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloud_job import session, tables
from cloud_job.decision.complete import Limits
from cloud_job.job import Job, Settings
from cloud_job.lander import SUFFIX
from cloud_job.stream import Stream
from edge_agent.config import topics
from edge_agent.wire import landing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES: Final = 2  # each costs Spark a plan of all functions: seconds
ENDLESS_US: Final = 10**17  # grace and horizon: nothing in a recording is left out or beyond them
PARENT: Final = "root"

Sent = Sequence[tuple[str, bytes]]  # the messages of one recording in their order: (node, payload)


@dataclass(frozen=True, slots=True)
class Result:
    """One row of gold.results, as far as a recording is told of it."""

    query: str
    node: str
    labels: Mapping[str, str]
    start: int
    end: int
    values: Mapping[str, float | None]
    details: str | None
    readings: int
    revision: int
    withdrawn: bool


def run(recordings: Sequence[Sent], received_us: int, journal: int, spark: SparkSession | None = None) -> list[Result]:
    """What stands in gold.results after all messages. Ids of nodes and queries differ between recordings.

    received_us: no earlier than any frontier in them. journal: of the births. spark: left out, one is started for it.
    Raises: PortError.
    """
    started = session.start("headwater-replay") if spark is None else spark
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-replay-") as folder:
            return _run(started, Path(folder), recordings, received_us, journal)
    finally:
        if spark is None:
            started.stop()


def _run(spark: SparkSession, folder: Path, recordings: Sequence[Sent], received_us: int, journal: int) -> list[Result]:
    place = tables.place(str(folder / "tables"))
    files = folder / "landing"
    files.mkdir()
    for number in range(BATCHES):
        _write(files, number, recordings, received_us + number, journal)
    limits = Limits(revise_every_us=0, horizon_us=ENDLESS_US)
    job = Job(spark, place, Settings(str(files), str(folder / "checkpoint"), ENDLESS_US, limits))
    job.open()
    Stream(job, once=True, max_bytes=1).run()
    rows = place.read(spark, tables.RESULTS).collect()
    return [Result(**{name: row[name] for name in Result.__slots__}) for row in rows]


def _write(folder: Path, number: int, recordings: Sequence[Sent], received_us: int, journal: int) -> None:
    """One file with an equal share of the messages of each recording. Its time of change gives the files an order."""
    records = [landing.encode_tick(received_us, journal, connected=True)]
    for sent in recordings:
        share = sent[len(sent) * number // BATCHES : len(sent) * (number + 1) // BATCHES]
        records += [landing.encode(topics.frames(node, PARENT), received_us, payload) for node, payload in share]
    path = folder / f"{number:08d}{SUFFIX}"
    path.write_bytes(b"".join(records))
    os.utime(path, (number + 1, number + 1))
