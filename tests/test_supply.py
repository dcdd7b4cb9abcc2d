"""What comes from outside: pinned with hashes, under known licences, listed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib import resources
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

import jsonschema
import pytest
from packaging.utils import canonicalize_name
from referencing import Registry, Resource

from cloud_job import jars
from tests.support.published import bill_of_materials
from tests.support.published.licences import ALLOWED, closure, is_allowed, licence_of

ROOT: Final = Path(__file__).resolve().parents[1]
STAMP: Final = datetime(2027, 1, 15, tzinfo=UTC)
LISTS: Final = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("file", LISTS, ids=lambda path: path.stem)
def test_each_pin_has_hashes_and_names_no_server(file: Path) -> None:
    hashes = bill_of_materials.locked_hashes(file)
    assert hashes
    assert not [name for name, digests in hashes.items() if not digests]
    assert not re.search(r"https?:|--(extra-)?index-url|--find-links", file.read_text())


def test_compiled_pins_have_an_archive_for_each_python_and_machine() -> None:
    """Six wheels at least: 3.11 to 3.13, x86-64 and aarch64. `make lock` tries each; this guards edits by hand."""
    hashes = bill_of_materials.locked_hashes()
    for name in ("cbor2", "numpy", "pandas", "contourpy", "kiwisolver", "matplotlib", "mypy", "rpds-py", "wrapt"):
        assert len(hashes[name]) >= 6, name


def test_pip_takes_no_archive_without_its_hash(tmp_path: Path) -> None:
    """The options of set-up, on a list whose hash is wrong: nothing is fetched from outside for it."""
    package = tmp_path / "one"
    package.mkdir()
    (package / "setup.py").write_text("from setuptools import setup; setup(name='one', version='1')\n")
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run(command, cwd=package, check=True, capture_output=True)
    (archive,) = tmp_path.glob("one-1.tar.gz")
    wanted = tmp_path / "list.txt"
    wanted.write_text(f"{archive.as_uri()} --hash=sha256:{'0' * 64}\n")
    words = re.findall(r"--no-deps|--require-hashes|--no-build-isolation", (ROOT / "scripts/setup").read_text())
    assert {"--no-deps", "--require-hashes", "--no-build-isolation"} == set(words)
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", *sorted(set(words)), "-r", str(wanted)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_every_pinned_distribution_that_is_installed_has_an_allowed_licence() -> None:
    pinned = set(bill_of_materials.locked_hashes())
    found = {name: each for each in map(Distribution.from_name, pinned) if (name := canonicalize_name(each.name))}
    assert found.keys() == pinned, "set-up installs all of them"
    unknown = {name: licence_of(each) for name, each in found.items() if not is_allowed(licence_of(each))}
    assert not unknown, "look at these licences, then add them to ALLOWED or do without the package"


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("EPL-2.0 OR BSD-3-Clause", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only", False),
        ("", False),
        ("(MIT OR GPL-2.0-only) AND Zlib", True),
        ("Proprietary", False),
    ],
)
def test_an_expression_is_allowed_if_its_terms_are(expression: str, allowed: bool) -> None:
    assert is_allowed(expression) == allowed
    assert "GPL-3.0-only" not in ALLOWED


def test_a_gateway_needs_what_the_project_says_and_no_more() -> None:
    assert [each.name for each in closure()] == ["cbor2", "numpy", "paho-mqtt", "tzdata"]


@pytest.mark.parametrize("name", bill_of_materials.BILLS)
def test_a_bill_of_materials_is_valid_and_the_same_each_time(name: str) -> None:
    text = bill_of_materials.bill(name, STAMP)
    assert bill_of_materials.bill(name, STAMP) == text
    found = json.loads(text)
    schemas = resources.files("cyclonedx.schema") / "_res"
    registry: Registry[object] = Registry()
    for each in ("spdx", "jsf-0.82"):
        content = json.loads((schemas / f"{each}.SNAPSHOT.schema.json").read_text("utf-8"))
        uri = f"http://cyclonedx.org/schema/{each}.SNAPSHOT.schema.json"
        registry = registry.with_resource(uri, Resource.from_contents(content))
    schema = json.loads((schemas / "bom-1.6.SNAPSHOT.schema.json").read_text("utf-8"))
    jsonschema.Draft7Validator(schema, registry=registry).validate(found)
    refs = {each["bom-ref"] for each in found["components"]}
    assert {other for each in found["dependencies"] for other in each.get("dependsOn", ())} == refs, "all have a reason"
    packages = [each for each in found["components"] if each.get("purl", "").startswith("pkg:pypi/")]
    assert all(each.get("licenses") and (each.get("hashes") or each.get("properties")) for each in packages)


@pytest.mark.spark
def test_the_bill_of_the_cloud_lists_the_jars() -> None:
    found = json.loads(bill_of_materials.bill("cloud", STAMP))
    files = {each["bom-ref"]: each for each in found["components"] if each["bom-ref"].startswith("jar:")}
    for name, digest in jars.checksums().items():
        assert files[f"jar:{name}"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
        assert files[f"jar:{name}"]["purl"].startswith("pkg:maven/io.")
    assert any(ref.startswith("jar:spark-core_2.13-4.2.0") for ref in files)
