"""Downloads the seven Delta jars that Spark needs into a cache, once: `python -m cloud_job.jars`.

delta-spark depends on 34 jars. All except these seven are in pyspark's own folder in a newer version, and Spark breaks
if it also gets the old ones. Each jar is compared with its checksum in jars.sha256. Maven is preferred, because Spark's
own resolver (Ivy) fails if the local Maven repository contains a POM without its jar, and then reports only that the
Java gateway exited.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from edge_agent.errors import PortError

DELTA_VERSION: Final = "4.4.0"  # the newest whose jars are published; pairs with pyspark 4.2.0 only
DELTA_ARTIFACT: Final = "delta-spark_4.2_2.13"
COORDINATES: Final = f"io.delta:{DELTA_ARTIFACT}:{DELTA_VERSION}"
CHECKSUMS: Final = Path(__file__).with_name("jars.sha256")
POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headwater</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>io.delta</groupId><artifactId>{DELTA_ARTIFACT}</artifactId><version>{DELTA_VERSION}</version>
  </dependency></dependencies>
</project>
"""
RESOLVE_TIMEOUT_S: Final = 600  # 3 s on a fast line; a slow one needs minutes for up to 90 MB


def folder() -> Path:
    """The folder of the jars: $HEADWATER_JARS, else one in the user's cache."""
    named = os.environ.get("HEADWATER_JARS")
    return Path(named) if named else Path.home() / ".cache" / "headwater" / "jars" / DELTA_VERSION


def checksums() -> dict[str, str]:
    """File name -> SHA-256 of each jar, in the version with which Headwater is tested."""
    return {name: digest for digest, name in map(str.split, CHECKSUMS.read_text("ascii").splitlines())}


def found(place: Path | None = None) -> tuple[Path, ...]:
    """The seven jars in `place` (default: folder()), or () if one of them is missing.

    Raises: PortError if a checksum is wrong. Reading all 13 MB takes some 10 ms.
    """
    place = place or folder()
    jars = {place / name: digest for name, digest in checksums().items()}
    if not all(jar.is_file() for jar in jars):
        return ()
    for jar, digest in jars.items():
        _check(jar, digest)
    return tuple(jars)


def _check(jar: Path, wanted: str) -> None:
    with jar.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wanted:
        raise PortError(f"{jar} is not the published jar: its SHA-256 is {digest}, expected {wanted}; delete the file")


def resolve(say: Callable[[str], None] = print) -> tuple[Path, ...]:
    """The seven jars; downloads them into folder() if they are missing. Raises: PortError with what to do."""
    place = folder()
    if jars := found(place):
        return jars
    place.mkdir(parents=True, exist_ok=True)
    wanted = checksums()
    with tempfile.TemporaryDirectory(prefix="headwater-jars-") as scratch:
        maven = shutil.which("mvn")
        if maven:
            say(f"resolving {COORDINATES} with Maven into {place}")
            fetched = _with_maven(maven, Path(scratch))
        else:
            say(f"resolving {COORDINATES} with Spark's own resolver into {place}")
            fetched = _with_ivy(Path(scratch))
        for jar in fetched:
            name = jar.name.removeprefix("io.delta_").removeprefix("io.unitycatalog_")  # Ivy adds the group
            if name in wanted:
                _check(jar, wanted[name])
                part = place / f".{name}.part"  # so that a half-copied jar never has the final name
                shutil.copyfile(jar, part)
                part.rename(place / name)
    if jars := found(place):
        return jars
    raise PortError(f"some Delta jars are missing in {place}; copy them there by hand ({', '.join(wanted)})")


def _with_maven(maven: str, scratch: Path) -> list[Path]:
    (scratch / "pom.xml").write_text(POM)
    _run(
        [maven, "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars"], scratch
    )
    return sorted((scratch / "jars").glob("*.jar"))


def _with_ivy(scratch: Path) -> list[Path]:
    script = (
        "from pyspark.sql import SparkSession as S; "
        "S.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        f".config('spark.jars.packages', '{COORDINATES}').config('spark.jars.ivy', '{scratch}/ivy')"
        ".getOrCreate().stop()"
    )
    _run([sys.executable, "-c", script], scratch)
    return sorted((scratch / "ivy" / "jars").glob("*.jar"))


def _run(command: Sequence[str], cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as err:
        raise PortError(
            f"{Path(command[0]).name} did not fetch the jars within {RESOLVE_TIMEOUT_S} s; check the network"
        ) from err
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "not found" in line]
        raise PortError(
            f"{Path(command[0]).name} could not fetch {COORDINATES}: "
            f"{lines[0].strip() if lines else 'no reason given'}; "
            "set HEADWATER_JARS to a folder with the jars, or configure a mirror"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Download the jars if needed, and print their folder. Exit code 3 if they cannot be downloaded."""
    argparse.ArgumentParser(prog="python -m cloud_job.jars", description=__doc__).parse_args(argv)
    try:
        jars = resolve(lambda line: print(line, file=sys.stderr))
    except PortError as err:
        print(err, file=sys.stderr)
        return 3
    print(jars[0].parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
