"""Bills of materials (CycloneDX 1.6) of a gateway and of the cloud.

`python -m tests.support.published.bill_of_materials FOLDER` writes them. They list what is installed here, which is
what requirements/lock.txt pins, with the hashes of that list: those of all archives of a version. The jars of the
cloud, Spark's own and Delta's, have the checksum of the file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from cloud_job import jars
from edge_agent import __version__
from tests.support.published.licences import closure, direct_needs, licence_of

ROOT: Final = Path(__file__).resolve().parents[3]
LOCK: Final = ROOT / "requirements" / "lock.txt"
BILLS: Final = {"gateway": (), "cloud": ("cloud",)}  # name -> extras of headwater
DELTA_GROUPS: Final = {"delta": "io.delta", "unitycatalog": "io.unitycatalog"}
NAMED: Final = re.compile(r"(?P<name>.+?)-(?P<version>\d[\w.]*(?:-\w+)*)\.jar")


def bill(name: str, stamp: datetime) -> str:
    """The bill of BILLS[name], as JSON: the same for the same packages and stamp."""
    packages = closure(*BILLS[name])
    hashes = locked_hashes()
    made: dict[str, Component] = {canonicalize_name(each.name): _package(each, hashes) for each in packages}
    names = set(made)
    files = list(_jars(packages)) if "cloud" in BILLS[name] else []
    licence = [LicenseFactory().make_from_string("Apache-2.0")]
    headwater = Component(
        name="headwater",
        version=__version__,
        type=ComponentType.APPLICATION,
        bom_ref=f"headwater-{name}",
        licenses=licence,
    )
    found = Bom(components=[*made.values(), *files], version=1)
    found.metadata.component = headwater
    found.metadata.timestamp = stamp
    refs = "\n".join(sorted(str(each.bom_ref) for each in found.components))
    found.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{name}\n{__version__}\n{refs}")
    needed = {other for each in packages for other in direct_needs(each, names)}
    found.register_dependency(headwater, [*(made[each] for each in sorted(names - needed)), *files])
    for each in packages:
        needs = direct_needs(each, names)
        found.register_dependency(made[canonicalize_name(each.name)], [made[other] for other in needs])
    return JsonV1Dot6(found).output_as_string(indent=1) + "\n"


def locked_hashes(lock: Path = LOCK) -> dict[str, list[str]]:
    """Canonical name -> SHA-256 of each archive of the pinned version."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in lock.read_text("utf-8").splitlines():
        if pinned := re.match(r"([\w.-]+)==", line):
            name = canonicalize_name(pinned[1])
            found[name] = []
        elif digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            found[name].append(digest[1])
    return found


def pins(name: str) -> str:
    """The lines of requirements/lock.txt of the packages of BILLS[name]."""
    hashes = locked_hashes()
    found = ((canonicalize_name(each.name), each.version) for each in closure(*BILLS[name]))
    return "".join(
        " \\\n    ".join([f"{package}=={version}", *(f"--hash=sha256:{digest}" for digest in hashes[package])]) + "\n"
        for package, version in found
    )


def _package(of: Distribution, hashes: dict[str, list[str]]) -> Component:
    name = canonicalize_name(of.name)
    purl = PackageURL("pypi", name=name, version=of.version)
    expression = licence_of(of)
    archives = hashes.get(name, [])
    return Component(
        name=name,
        version=of.version,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseFactory().make_from_string(expression)] if expression else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=archives[0])] if len(archives) == 1 else [],
        properties=[Property(name="headwater:archive-sha256", value=" ".join(archives))] if len(archives) > 1 else [],
    )


def _jars(packages: Iterable[Distribution]) -> Iterator[Component]:
    spark = next(each for each in packages if canonicalize_name(each.name) == "pyspark")
    delta = jars.found()
    for file in sorted([*Path(str(spark.locate_file("pyspark/jars"))).glob("*.jar"), *delta]):
        named = NAMED.fullmatch(file.name)
        name, version = (named["name"], named["version"]) if named else (file.stem, "")
        group = DELTA_GROUPS[name.partition("-")[0]] if file in delta else _group(file, name)
        purl = PackageURL("maven", group, name, version) if group else None
        yield Component(
            name=name,
            version=version or None,
            group=group or None,
            purl=purl,
            bom_ref=f"jar:{file.name}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=_digest(file))],
        )


@cache
def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _group(file: Path, name: str) -> str:
    """Maven's group, as the jar says itself; '' if it does not."""
    with zipfile.ZipFile(file) as archive:
        told = [path for path in archive.namelist() if path.endswith(f"/{name}/pom.properties")]
    return told[0].split("/")[2] if told else ""


def stamp_of_sources() -> datetime:
    """The time of the last commit, or $SOURCE_DATE_EPOCH."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if seconds is None:
        shown = subprocess.run(
            ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        seconds = shown.stdout
    return datetime.fromtimestamp(int(seconds), UTC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/sbom"))
    parser.add_argument("--pins", choices=BILLS, help="print the pins of this bill with their hashes instead, for pip")
    args = parser.parse_args()
    if args.pins:
        print(pins(args.pins), end="")
        return
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in BILLS:
        path = folder / f"headwater-{name}-{__version__}.cdx.json"
        path.write_text(bill(name, stamp_of_sources()), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
