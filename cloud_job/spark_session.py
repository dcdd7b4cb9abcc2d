"""Starts the root's Spark session: on a laptop with Delta's jars and local settings; on Databricks uses its session."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloud_job import jars
from edge_agent.errors import PortError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headwater.root")
LEAST_JAVA: Final = 17  # Spark 4 requires it
LOG_CONFIG: Final = Path(__file__).with_name("log4j2.xml").as_uri()
DEFAULT_MASTER: Final = "local[2]"
DEFAULT_DRIVER_MEMORY: Final = "2g"  # the size of a batch is limited (landing_loop.MAX_BYTES), Delta's state is small

# Delta writes the numbers in names of files with the digits of the language, and finds only names with 0 to 9: a commit
# of an Arabic or Persian machine would be in no table
LANGUAGE: Final = "-Duser.language=en -Duser.country=US"

MARK: Final = "headwater"  # in every commit of our sessions, to tell them from those of others

# Settings on which rows depend, whoever starts the session
ROWS_CONF: Final[Mapping[str, str]] = {
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # labels of a key from a child may repeat; an error would end the batch
}
# Settings for speed, and the time zone. None changes a result.
LOCAL_CONF: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",  # as many as cores
    # Batches, a start and upkeep of all tables have some 300 generated classes. The default of 100 compiled them again
    "spark.sql.codegen.cache.maxEntries": "500",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "256",  # a row is a part of a frame, up to 128 kB
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # tasks of VACUUM; the default is 10 000
    "spark.databricks.delta.commitInfo.userMetadata": MARK,
    "spark.databricks.delta.snapshotPartitions": "1",  # the default of 50 takes 3 s per write on two cores
    # OPTIMIZE merges files and cubes of clustered tables up to these sizes. The defaults (1 GB and 100 GB) would stop
    # batches for minutes
    "spark.databricks.delta.optimize.maxFileSize": f"{32 * 1024 * 1024}",
    "spark.databricks.delta.optimize.minFileSize": f"{16 * 1024 * 1024}",
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": f"{32 * 1024 * 1024}",
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": f"{64 * 1024 * 1024}",
    "spark.databricks.delta.optimize.batchSize": str(16 * 1024 * 1024),  # commit after so much; upkeep may stop there
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",  # [root] keep_versions sets the retention
    "spark.databricks.delta.vacuum.logging.enabled": "false",  # it would add two commits per VACUUM
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def on_databricks() -> bool:
    """Whether this runs on Databricks, whose clusters have their own session, jars and settings."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def start(
    app: str = "headwater",
    master: str | None = None,
    driver_memory: str = DEFAULT_DRIVER_MEMORY,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session that reads and writes Delta tables. Raises: PortError, with what to do, if it does not start.

    master: default $HEADWATER_SPARK_MASTER, else local[2]. extra: further settings, which override ours.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as err:
        raise PortError("pyspark is not installed; in a checkout of Headwater: pip install '.[cloud]'") from err
    if on_databricks():
        return _for_rows(SparkSession.builder.appName(app).getOrCreate())
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers start another python3, without pyarrow
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if sys.flags.utf8_mode:  # the locale is C: Python takes names of files for UTF-8, and the JVM would refuse them
        os.environ["LC_ALL"] = "C.UTF-8"
    builder = SparkSession.builder.appName(app).master(
        master or os.environ.get("HEADWATER_SPARK_MASTER") or DEFAULT_MASTER
    )
    options = f"-Dlog4j2.configurationFile={LOG_CONFIG} {LANGUAGE}"
    settings = {
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": options,
        **ROWS_CONF,
        **LOCAL_CONF,
        **_delta_jars(),
        **(extra or {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _stdout_as_stderr():
            return builder.getOrCreate()
    except Exception as err:  # whatever the JVM or its launcher raised
        raise PortError(f"Spark did not start: {_reason(err)}") from err


def stop(session: SparkSession) -> None:
    """End a session of `start`. One of Databricks goes on: it may be that of the whole cluster, with others' work."""
    if not on_databricks():
        session.stop()


def _for_rows(session: SparkSession) -> SparkSession:
    """Set ROWS_CONF on a session of others. If that is refused, as on serverless compute, the rows that need it are
    left out and declared.
    """
    for name, value in ROWS_CONF.items():
        try:
            session.conf.set(name, value)
        except Exception as err:  # whatever the JVM or Spark Connect raises
            log.warning(
                "root.setting_refused", extra={"setting": name, "why": (str(err).splitlines() or [""])[0][:200]}
            )
    return session


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """Redirect stdout to stderr for processes started within: the JVM prints what each VACUUM deletes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def check_java() -> None:
    """Raises: PortError if Java is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = f"install Java {LEAST_JAVA} or later (Debian: apt-get install openjdk-17-jre-headless)"
    if java is None or not Path(java).exists():
        raise PortError(f"no Java found{f' at JAVA_HOME={home}' if home else ''}; {hint}")
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r'version "(\d+)', printed.stderr + printed.stdout)
    if found is None or int(found.group(1)) < LEAST_JAVA:
        version = f"version {found.group(1)}" if found else "of an unknown version"
        raise PortError(f"{java} is {version}, Spark needs Java {LEAST_JAVA} or later; {hint}")


def _delta_jars() -> dict[str, str]:
    """The setting with the Delta jars. Their checksums are verified, which Spark's own resolver does not do."""
    if "HEADWATER_JARS" in os.environ and not jars.found():
        place = os.environ["HEADWATER_JARS"]
        raise PortError(f"HEADWATER_JARS={place} does not contain the Delta jars ({', '.join(jars.checksums())})")
    found = jars.resolve(lambda line: print(line, file=sys.stderr))
    return {"spark.jars": ",".join(str(jar) for jar in found)}


def _reason(err: Exception) -> str:
    """One line from an error of py4j."""
    text = str(err)
    if "JAVA_GATEWAY_EXITED" in text:
        return "the JVM ended at once: too little memory, or JAVA_HOME is not a complete JRE"
    return next((line.strip() for line in text.splitlines() if line.strip()), type(err).__name__)
