"""The commands of the house: they parse, may be run, and hold what they promise about skips."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
SCRIPTS: Final = [
    path for path in (*sorted((ROOT / "scripts").iterdir()), *sorted((ROOT / ".ci").iterdir())) if path.is_file()
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_sound_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK) == script.read_text().startswith("#!")


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_a_skip_is_named_and_in_ci_it_is_a_failure(ci: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_a():\n    pytest.skip('no broker here')\ndef test_b():\n    pass\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.support.skips",
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            str(tmp_path),
        ],
        cwd=ROOT,
        env={**os.environ, "CI": ci, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert "test_it.py::test_a: Skipped: no broker here" in done.stdout
    assert ("1 skipped, and CI=true allows none" in done.stdout) == bool(code)
    assert "1 passed, 1 skipped" in done.stdout.splitlines()[-1]


def test_a_landing_tries_the_same_examples_whatever_else_is_loaded(tmp_path: Path) -> None:
    """By default Hypothesis draws new examples in every run, and constants of the modules that are loaded."""
    (tmp_path / "other.py").write_text(f"CONSTANTS = {list(range(10**6, 10**6 + 50))}\n")
    test = "from hypothesis import given, strategies as st\n@given(st.lists(st.integers()))\ndef test_it(i): print(i)\n"
    outputs = set()
    for first in ("", "import other\n"):
        (tmp_path / "test_it.py").write_text(first + test)
        line = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
        line += ["-c", "/dev/null", str(tmp_path)]
        done = subprocess.run(line, cwd=ROOT, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, check=True)
        outputs.add(done.stdout[: done.stdout.index(b"1 passed")])
    assert len(outputs) == 1


def test_set_up_without_rights_prints_one_line_to_run_and_stops(tmp_path: Path) -> None:
    """What is missing is found before anything is changed; nothing prompts."""
    scripts, programs = tmp_path / "checkout" / "scripts", tmp_path / "bin"
    scripts.mkdir(parents=True)
    programs.mkdir()
    for name in ("setup", "env"):  # as they are, but blind to what this machine has installed
        text = (ROOT / "scripts" / name).read_text().replace("/usr/lib/", "/nowhere/").replace(":/usr/sbin:/sbin", "")
        (scripts / name).write_text(text)
    for name in ("bash", "dirname", "sed", "head", "xargs", "echo"):
        found = shutil.which(name)
        assert found is not None, name
        (programs / name).symlink_to(found)
    for name, text in {"id": "echo 1000", "sudo": "exit 1", "apt-get": "echo never; exit 9", "java": "exit 1"}.items():
        (programs / name).write_text(f"#!{programs}/bash\n{text}\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        [str(programs / "bash"), str(scripts / "setup"), "system"],
        env={"PATH": str(programs), "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    missing = "mosquitto strace openssl shellcheck systemd-analyze mtools sfdisk faketime java python"
    assert line.startswith(f"setup: missing: {missing}; run this line, then again: sudo apt-get update && ")
    packages = "mosquitto mosquitto-clients strace openssl shellcheck systemd mtools fdisk libfaketime"
    assert line.endswith(f"install -y {packages} default-jre-headless python3 python3-venv")


@pytest.mark.spark
@pytest.mark.parametrize("content", ["", "made by another Java"])
def test_java_ignores_an_archive_of_classes_that_is_not_there_or_does_not_fit(content: str, tmp_path: Path) -> None:
    """scripts/test names one: without it, the JVMs of the tests only start slower."""
    options = re.search(r'SPARK_SUBMIT_OPTS\+=" -XX:SharedArchiveFile=\S+ (\S+)"', (ROOT / "scripts/test").read_text())
    assert options
    archive = tmp_path / "headwater.jsa"
    if content:
        archive.write_text(content)
    java = str(Path(os.environ["JAVA_HOME"], "bin/java")) if "JAVA_HOME" in os.environ else "java"
    words = [java, f"-XX:SharedArchiveFile={archive}", options[1], "-version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == ""
