"""`headwater root`: landing files to Delta tables, with Spark."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Final

from edge_agent.cli.support.serving import add_config, settings_of, stopped_by_signal
from edge_agent.errors import ConfigError

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
    from cloud_job.delta import tables
    from cloud_job.delta.lease import Lease
    from cloud_job.delta.retention import kept_of
    from cloud_job.delta.upkeep import Upkeep
    from cloud_job.ingest.landing_loop import LandingLoop
    from cloud_job.spark.batch_guard import BatchGuard
    from cloud_job.spark.job import Job, JobSettings
    from cloud_job.warmup import warm
    from edge_agent.ports.service_manager import ServiceManager
    from edge_agent.root.decision.root_state import UNPUBLISHED_OVERLAP, RootLimits
    from edge_agent.runtime.root_report import RootReport
    from edge_agent.runtime.start_record import NAME, SETTLED_S, StartRecord

    log = logging.getLogger("headwater.root")
    for name in ("py4j", "pyspark"):  # they log every call
        logging.getLogger(name).setLevel(logging.ERROR)
    catalog = settings.root.catalog
    place = tables.Place(f"{catalog}.", named=True, guarded=True) if catalog else tables.place(settings.root.tables)
    if spark_session.on_databricks() and not place.guarded:
        raise ConfigError(
            f"on Databricks the folder {place.root} is on the driver's disk, which ends with the cluster: set [root] "
            "catalog, or let tables name a URI (s3://..., dbfs:/...)"
        )
    Lease(place, "", settings.lander.folder).release()  # another root is named at once, not after Spark's start
    begin = time.monotonic()
    if sys.stderr.isatty():
        print("headwater: starting Spark and warming it up; the first rows take half a minute", file=sys.stderr)
    spark = spark_session.start("headwater-root", args.master, args.driver_memory)
    lower = settings.lower
    job_settings = JobSettings(
        settings.lander.folder,
        settings.grace_us,
        RootLimits(settings.root.revise_every_us, settings.root.horizon_us, UNPUBLISHED_OVERLAP),
        lower.members if lower is not None else (),
        lower.retired if lower is not None else (),
    )

    def begin_run() -> Job:
        job = Job(spark, place, job_settings)
        job.open(starts.begin)  # not before: the root that has the lock has its own record
        return job

    landing = Path(settings.lander.folder)
    starts = StartRecord(landing / f"root.{NAME}", SAME_STARTS, begun=False)
    report = RootReport(landing)
    guard = BatchGuard(begin_run, report.note, starts)
    upkeep = Upkeep(kept_of(settings.root), settings.root.upkeep_us, note=report.upkeep_failed)
    loop = LandingLoop(
        guard, once=args.once, trigger_us=settings.root.trigger_us, between=lambda: upkeep.between(guard.job)
    )
    if not (args.once or place.guarded):  # a folder of this machine may be no use to the executors of a cluster
        warm(spark)
    log.info("root.ready", extra={"tables": place.root, "after_s": round(time.monotonic() - begin, 1)})
    systemd = ServiceManager()
    systemd.ready()

    settled = False

    def alive() -> None:
        nonlocal settled
        systemd.alive()
        if not settled and time.monotonic() - begin > SETTLED_S:
            settled = True
            starts.settled()

    try:
        with stopped_by_signal(loop.stop):
            loop.run(alive)
        starts.settled()
    finally:
        starts.close()
        spark_session.stop(spark)
    return 0
