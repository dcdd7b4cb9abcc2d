"""Writes the files published with an image: a bill of materials (CycloneDX 1.6) and a Raspberry Pi Imager entry."""

import argparse
import csv
import hashlib
import json
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def bill_of_materials(version: str, packages: list[list[str]], stamp: str) -> dict[str, Any]:
    """The image's bill of materials. packages: rows of (name, version, architecture, homepage), from dpkg-query. stamp:
    time of the build, ISO 8601.
    """
    components = [
        {
            "type": "library",
            "name": name,
            "version": number,
            "purl": f"pkg:deb/debian/{name}@{number}?arch={architecture}&distro=trixie",
            "bom-ref": f"{name}@{number}",
        }
        | ({"externalReferences": [{"type": "website", "url": page}]} if page else {})
        for name, number, architecture, page in sorted(packages)
        if name != "headwater-agent"
    ]
    seed = hashlib.sha256(json.dumps(components).encode()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, seed)}",
        "version": 1,
        "metadata": {
            "timestamp": stamp,
            "component": {"type": "operating-system", "name": "headwater-gateway", "version": version},
        },
        "components": [{"type": "application", "name": "headwater-agent", "version": version}, *components],
    }


def imager_entry(name: str, image: Path, raw_size: int, raw_sum: str, stamp: str) -> dict[str, Any]:
    """A repository for `rpi-imager --repo FILE` with this image alone. raw_size, raw_sum: bytes and SHA-256 of the
    uncompressed image.
    """
    return {
        "os_list": [
            {
                "name": "Headwater gateway",
                "description": "Aggregates sensor streams at the edge (arm64, Debian trixie); set up by gateway.toml",
                "url": image.resolve().as_uri(),
                "extract_size": raw_size,
                "extract_sha256": raw_sum,
                "image_download_size": image.stat().st_size,
                "image_download_sha256": hashlib.sha256(image.read_bytes()).hexdigest(),
                "release_date": stamp[:10],
                "init_format": "none",  # no customisation by Imager: this image is set up by gateway.toml
                "devices": ["pi3-64bit", "pi4-64bit", "pi5-64bit"],
            }
        ]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--raw-size", type=int, required=True)
    parser.add_argument("--raw-sum", required=True)
    args = parser.parse_args()
    stamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with (args.folder / "packages.tsv").open(newline="") as file:
        packages = list(csv.reader(file, delimiter="\t"))
    for suffix, content in (
        ("cdx.json", bill_of_materials(args.version, packages, stamp)),
        (
            "imager.json",
            imager_entry(args.name, args.folder / f"{args.name}.img.xz", args.raw_size, args.raw_sum, stamp),
        ),
    ):
        (args.folder / f"{args.name}.{suffix}").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
