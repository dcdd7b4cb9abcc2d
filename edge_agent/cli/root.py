"""`headwater root`: landing files to Delta tables, with Spark."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_agent.cli.support.serving import add_config, settings_of, stopped_by_signal
from edge_agent.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cloud_job.delta.tables import Place
    from cloud_job.delta.upkeep import Upkeep
    from cloud_job.spark.batch_guard import BatchGuard
    from cloud_job.spark.job import JobSettings
    from edge_agent.config.node_file.settings import Settings

HELP = (
    "Turn landing files into Delta tables with Spark: a window is completed when every gateway has sent its part, and "
    "revised when late readings come."
)
EXAMPLES = """\
  headwater root root.toml                  # until SIGTERM or Ctrl-C
  headwater root --once root.toml           # process the files that exist, with all revisions, then end
  headwater root --dry-run root.toml
"""
SAME_STARTS: Final = 5  # a file is moved aside after so many killed starts in a row; fewer might be chance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--once", action="store_true", help="process the files that exist, then end")
    parser.add_argument("--master", help="Spark master (local[2], or $HEADWATER_SPARK_MASTER)")
    parser.add_argument("--driver-memory", default="2g", metavar="SIZE", help="memory of the driver (2g)")


def main(args: argparse.Namespace) -> int:
    settings = settings_of(args, "root")
    if args.dry_run:
        where = f"catalog {settings.root.catalog}" if settings.root.catalog else settings.root.tables
        print(f"root {settings.node.id}, landing files in {settings.lander.folder}, tables in {where}")
        print(f"a micro-batch every {settings.root.trigger_us / 1e6:g} s")
        return 0
    from cloud_job import spark_session
    from cloud_job.delta.lease import Lease

    for name in ("py4j", "pyspark"):  # they log every call
        logging.getLogger(name).setLevel(logging.ERROR)
    place = _place(settings)
    Lease(place, "", settings.lander.folder).release()  # another root is named at once, not after Spark's start
    begin_s = time.monotonic()
    if sys.stderr.isatty():
        print("headwater: starting Spark and warming it up; the first rows take half a minute", file=sys.stderr)
    spark = spark_session.start("headwater-root", args.master, args.driver_memory)
    try:
        _serve(settings, place, spark, begin_s, once=args.once)
    finally:
        spark_session.stop(spark)
    return 0


def _place(settings: Settings) -> Place:
    """Where the tables are. Raises: ConfigError if they would be on the disk of a cluster's driver."""
    from cloud_job import spark_session
    from cloud_job.delta import tables

    catalog = settings.root.catalog
    place = tables.Place(f"{catalog}.", named=True, guarded=True) if catalog else tables.place(settings.root.tables)
    if spark_session.on_databricks() and not place.guarded:
        raise ConfigError(
            f"on Databricks the folder {place.root} is on the driver's disk, which ends with the cluster: set [root] "
            "catalog, or let tables name a URI (s3://..., dbfs:/...)"
        )
    return place


def _serve(settings: Settings, place: Place, spark: SparkSession, begin_s: float, *, once: bool) -> None:
    """Work on landing files until a signal comes or, if once, none is left. begin_s: of the start, monotonic."""
    from cloud_job.delta.retention import kept_of
    from cloud_job.delta.upkeep import Upkeep
    from cloud_job.ingest.landing_loop import LandingLoop
    from cloud_job.spark.batch_guard import BatchGuard
    from cloud_job.spark.job import Job
    from cloud_job.warmup import warm
    from edge_agent.ports.service_manager import ServiceManager
    from edge_agent.runtime.root_report import RootReport
    from edge_agent.runtime.start_record import NAME, SETTLED_S, StartRecord

    job_settings, landing = _job_settings(settings), Path(settings.lander.folder)

    def begin_run() -> Job:
        job = Job(spark, place, job_settings)
        job.open(starts.begin)  # not before: the root that has the lock has its own record
        return job

    starts = StartRecord(landing / f"root.{NAME}", SAME_STARTS, begun=False)
    report = RootReport(landing)
    guard = BatchGuard(begin_run, report.note, starts)
    upkeep = Upkeep(kept_of(settings.root), settings.root.upkeep_us, note=report.upkeep_failed)
    # a folder of this machine may be no use to the executors of a cluster
    between = _between(guard, upkeep, None if once or place.guarded else partial(warm, spark))
    loop = LandingLoop(
        guard,
        once=once,
        trigger_us=settings.root.trigger_us,
        most_files=lambda: guard.most_files,
        between=between,
    )
    after_s = round(time.monotonic() - begin_s, 1)
    logging.getLogger("headwater.root").info("root.ready", extra={"tables": place.root, "after_s": after_s})
    systemd = ServiceManager()
    systemd.ready()
    ready_s, settled = time.monotonic(), False  # a start alone may take longer than SETTLED_S

    def alive() -> None:
        nonlocal settled
        systemd.alive()
        if not settled and time.monotonic() - ready_s > SETTLED_S:
            settled = True
            starts.settled()

    try:
        with stopped_by_signal(loop.stop):
            loop.run(alive)
        starts.settled()
    finally:
        starts.close()


def _job_settings(settings: Settings) -> JobSettings:
    from cloud_job.spark.job import JobSettings
    from edge_agent.root.decision.root_state import UNPUBLISHED_OVERLAP, RootLimits

    lower, root = settings.lower, settings.root
    return JobSettings(
        settings.lander.folder,
        settings.grace_us,
        RootLimits(root.revise_every_us, root.horizon_us, UNPUBLISHED_OVERLAP),
        lower.members if lower is not None else (),
        lower.retired if lower is not None else (),
    )


def _between(guard: BatchGuard, upkeep: Upkeep, warm: Callable[[], None] | None) -> Callable[[], None]:
    """What the loop does between batches. warm: is called first, unless files that waited have changed a table."""
    began, cold = guard.job.state.number, warm

    def between() -> None:
        nonlocal cold
        if cold is not None and guard.job.state.number == began:
            cold()
        cold = None
        upkeep.between(guard.job)

    return between
