"""The recipe of the OCI images; `make oci-test` builds them and runs a gateway in its own."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("script", ["build-oci", "test-oci", "build-libs"])
def test_the_scripts_are_sound(script: str) -> None:
    subprocess.run(["shellcheck", "-x", "--severity=warning", script], cwd=IMAGE, check=True)
