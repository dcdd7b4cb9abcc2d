"""The Delta jars: none but the published ones reaches Spark."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cloud_job import jars
from edge_agent.errors import PortError

NAMES = ("delta-storage-4.4.0.jar", "unitycatalog-client-0.6.0.jar")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for jars; two are wanted, whose content is their name."""
    folder = tmp_path / "jars"
    folder.mkdir()
    monkeypatch.setenv("HEADWATER_JARS", str(folder))
    listed = tmp_path / "jars.sha256"
    listed.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in NAMES))
    monkeypatch.setattr(jars, "CHECKSUMS", listed)
    return folder


def maven(folder: Path, monkeypatch: pytest.MonkeyPatch, contents: dict[str, str]) -> None:
    """A program of that name which delivers these files."""
    programs = folder.parent / "bin"
    programs.mkdir()
    lines = [f"printf %s '{content}' > jars/{name}" for name, content in contents.items()]
    (programs / "mvn").write_text("\n".join(["#!/bin/sh", "mkdir jars", *lines, ""]))
    (programs / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def test_the_jars_that_were_published_are_taken(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven(place, monkeypatch, {**{name: name for name in NAMES}, "guava-1.jar": "of no interest"})
    assert jars.resolve(lambda _line: None) == tuple(place / name for name in NAMES)
    assert sorted(path.name for path in place.iterdir()) == sorted(NAMES)


def test_a_changed_jar_from_the_repository_is_refused_in_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven(place, monkeypatch, {NAMES[0]: NAMES[0], NAMES[1]: "something else"})
    with pytest.raises(PortError, match=r"unitycatalog-client-0\.6\.0\.jar is not the published jar") as caught:
        jars.resolve(lambda _line: None)
    assert "\n" not in str(caught.value)
    assert not (place / NAMES[1]).exists()
    assert jars.found() == ()


def test_a_jar_that_was_changed_later_is_refused(place: Path) -> None:
    for name in NAMES:
        (place / name).write_text(name)
    assert len(jars.found()) == 2
    (place / NAMES[0]).write_text("something else")
    with pytest.raises(PortError, match="its SHA-256 is"):
        jars.found()
    with pytest.raises(PortError, match="its SHA-256 is"):
        jars.resolve(lambda _line: None)


def test_seven_jars_of_the_version_are_listed() -> None:
    assert len(jars.checksums()) == 7
    assert f"{jars.DELTA_ARTIFACT}-{jars.DELTA_VERSION}.jar" in jars.checksums()
