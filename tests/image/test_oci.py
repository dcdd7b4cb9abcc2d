"""The recipe of the OCI images; `make oci-test` builds them and runs a gateway in its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

IMAGE: Final = Path(__file__).resolve().parents[2] / "gateway_image"
RECIPE: Final = (IMAGE / "oci" / "Containerfile").read_text()
STAGES: Final = dict(re.findall(r"^FROM \S+ AS (\w+)\n((?:(?!^FROM ).*\n)*)", RECIPE, re.MULTILINE))


def test_no_registry_is_asked() -> None:
    assert set(re.findall(r"^FROM (\S+)", RECIPE, re.MULTILINE)) == {"scratch", "node"}


@pytest.mark.parametrize("role", ["gateway", "region", "lander", "root"])
def test_each_role_runs_what_its_unit_runs_as_the_same_user(role: str) -> None:
    (verb,) = re.findall(r'^CMD \["(\w+)", "/etc/headwater/headwater.toml"\]$', STAGES[role], re.MULTILINE)
    unit = (IMAGE / "units" / f"headwater-{role}.service").read_text()
    assert re.search(rf"^ExecStart=/usr/bin/headwater {verb} ", unit, re.MULTILINE)
    users = re.findall(r"^USER (\w+)$", STAGES["node"] + STAGES[role], re.MULTILINE)
    assert users[-1] == "headwater"
    assert re.search(r"^User=headwater$", unit, re.MULTILINE)


def test_the_root_installs_pinned_archives_only() -> None:
    calls = re.findall(r"pip install[^&\n]*", STAGES["root"])
    assert len(calls) == 2
    assert all("--require-hashes" in call and "--no-deps" in call for call in calls)


def test_images_are_built_without_a_repository(tmp_path: Path) -> None:
    """As from an unpacked archive of the sources, or in a checkout of another user, which git refuses to read."""
    top, out, tools = tmp_path / "top", tmp_path / "out", tmp_path / "tools"
    shutil.copytree(IMAGE, top / "gateway_image")
    (top / "LICENSE").touch()
    for package in ("edge_agent", "cloud_job"):
        (top / package).mkdir()
        (top / package / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (out / "context").mkdir(parents=True)
    (out / "context" / "base.tar").touch()
    tools.mkdir()
    (tools / "buildah").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{tmp_path}/called\n')
    (tools / "buildah").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    words = [str(top / "gateway_image" / "build-oci"), str(out), "gateway"]
    subprocess.run(words, env=environment, check=True, capture_output=True)
    called = (tmp_path / "called").read_text().splitlines()
    assert called[called.index("--timestamp") + 1].isdecimal()


@pytest.mark.parametrize("script", ["build-oci", "test-oci", "build-libs"])
def test_the_scripts_are_sound(script: str) -> None:
    subprocess.run(["shellcheck", "-x", "--severity=warning", script], cwd=IMAGE, check=True)
