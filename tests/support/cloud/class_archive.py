"""Makes an archive of the classes that a root's JVM loads: `python -m tests.support.cloud.class_archive FILE`.

Half of the processor time of a session's start is spent on reading and verifying ten thousand classes. The JVMs of the
tests map them from the archive instead (-XX:SharedArchiveFile, scripts/test). Java ignores an archive that was made by
another Java or from other jars, and starts as without one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

OPTIONS: Final = "SPARK_SUBMIT_OPTS"
DUMP_S: Final = 600.0  # the JVM writes the archive when it ends: ten seconds on an idle machine


def make(archive: Path) -> None:
    """Run a batch and a revision, and let the JVM write the archive at its end. Raises: PortError, OSError,
    subprocess.TimeoutExpired."""
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    os.environ[OPTIONS] = f"{os.environ.get(OPTIONS, '')} -XX:ArchiveClassesAtExit={part} -Xlog:cds*=off"
    from pyspark import SparkContext

    from cloud_job import spark_session

    spark = spark_session.start("headwater-classes")
    with tempfile.TemporaryDirectory(prefix="headwater-classes-") as folder:
        _work(spark, Path(folder))
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait(DUMP_S)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(archive)  # whole or not at all: one that is cut short ends every JVM with a bus error


def _work(spark: Any, folder: Path) -> None:
    from cloud_job.delta import tables
    from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
    from tests.support.cloud.jobs import Roots

    tables.create(spark, tables.place(str(folder / "empty")))
    root, child = Roots(spark, folder, folder / "empty"), Child("gw-1", (query(),))
    rows = child.birth(), child.rows(START + SECOND, np.array([START]), np.array([1.0]))
    root.take(tick(START + SECOND), *(record(child, START, each) for each in rows))
    late = child.rows(START + SECOND, np.array([START]), np.array([3.0]), length_us=1, late=True)
    root.take(tick(START + 2 * SECOND), record(child, START, late))
    root.job.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.cloud.class_archive", description=__doc__)
    parser.add_argument("file", type=Path)
    make(parser.parse_args(argv).file.absolute())
    return 0


if __name__ == "__main__":
    sys.exit(main())
