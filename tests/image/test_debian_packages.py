"""The Debian packages: what is in them, and that their parts are sound. `make deb-test` installs them in a trixie."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from edge_agent import __version__

ROOT: Final = Path(__file__).resolve().parents[2]
NAMES: Final = ("agent", "server")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("debs")
    build(made)
    return made


def build(folder: Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1800000000"}
    subprocess.run([ROOT / "gateway_image" / "build-deb", folder], check=True, env=environment, capture_output=True)


def deb(folder: Path, name: str) -> Path:
    return folder / f"headwater-{name}_{__version__}_all.deb"


def ask(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def files(folder: Path, name: str) -> dict[str, str]:
    """Path -> mode, owner."""
    lines = (line.split() for line in ask("dpkg-deb", "-c", deb(folder, name)).splitlines())
    return {words[5].removeprefix("."): f"{words[0]} {words[1]}" for words in lines}


def test_the_gateway_needs_no_spark_and_the_server_brings_the_root(folder: Path) -> None:
    agent, server = files(folder, "agent"), files(folder, "server")
    assert "/usr/lib/headwater/edge_agent/algebra/span.py" in agent
    assert not [path for path in agent if "cloud_job" in path]
    assert "/usr/lib/headwater/cloud_job/spark/job.py" in server
    assert not agent.keys() & {path for path in server if not path.endswith("/")}, "no file belongs to both"
    units = {path.rpartition("/")[2] for path in (*agent, *server) if path.endswith(".service")}
    assert units == {path.name for path in (ROOT / "gateway_image" / "units").glob("*.service")}


@pytest.mark.parametrize("name", NAMES)
def test_files_are_roots_and_nobody_else_writes_them(folder: Path, name: str) -> None:
    for path, about in files(folder, name).items():
        assert about.endswith("root/root"), path
        assert about[5] == "-", f"{path} is writable for its group"
        assert about[8] == "-", f"{path} is writable for all"
        assert "__pycache__" not in path


@pytest.mark.parametrize("name", NAMES)
def test_scripts_of_the_packages_are_sound(folder: Path, name: str, tmp_path: Path) -> None:
    ask("dpkg-deb", "-e", deb(folder, name), tmp_path)
    for script in ("postinst", "prerm", "postrm"):
        text = (tmp_path / script).read_text()
        assert "@" not in text, "a place that nothing has filled"
        ask("shellcheck", "--severity=warning", tmp_path / script)
    listed = {line.split()[1] for line in (tmp_path / "md5sums").read_text().splitlines()}
    assert {f"/{each}" for each in listed} == {path for path in files(folder, name) if not path.endswith("/")}
    control = (tmp_path / "control").read_text()
    assert f"Version: {__version__}\n" in control
    assert "Architecture: all\n" in control


def test_a_removal_is_not_lost_in_explanations() -> None:
    """`systemctl disable` explains in twelve lines what a unit without [Install] is for, as that of enrolment."""
    lines = (ROOT / "gateway_image" / "debian" / "prerm").read_text().splitlines()
    assert all("systemctl --quiet " in line for line in lines if "systemctl" in line)


def test_the_same_sources_give_the_same_packages(folder: Path, tmp_path: Path) -> None:
    build(tmp_path)
    for name in NAMES:
        assert deb(folder, name).read_bytes() == deb(tmp_path, name).read_bytes()


def test_what_the_package_wants_of_debian_is_what_pyproject_wants(folder: Path) -> None:
    """Trixie's own cbor2 is too old: the one of its backports fits."""
    depends = ask("dpkg-deb", "-f", deb(folder, "agent"), "Depends")
    pyproject = (ROOT / "pyproject.toml").read_text()
    for package, wanted in (
        ("python3-numpy (>= 1:2.2)", '"numpy>=2.2"'),
        ("python3-cbor2 (>= 5.9)", '"cbor2>=5.9,'),
        ("python3-paho-mqtt (>= 2.1)", '"paho-mqtt>=2.1,'),
    ):
        assert package in depends
        assert wanted in pyproject


def test_the_python_of_spark_gets_every_library_of_the_root() -> None:
    """On bookworm it sees Debian's libraries, which are too old, and not those of headwater-libs."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "gateway_image" / "README.md").read_text()
    (line,) = re.findall(r"/opt/headwater-spark/bin/pip install ((?:.*\\\n)*.*)\n", text)
    told = set(re.findall(r"'([^']+)'", line))
    assert told == {*needs["dependencies"], *needs["optional-dependencies"]["cloud"]} - {"tzdata>=2024.1"}


def test_bookworm_gets_the_pinned_libraries_for_headwater_alone(tmp_path: Path) -> None:
    """With a pip that makes what it is asked for. `make deb-test SUITE=bookworm` installs the package."""
    pip = tmp_path / "python"
    pip.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --target ]; do echo "$1"; shift; done >"$ASKED"\n'
        'mkdir -p "$2/numpy/tests" "$2/numpy-2.dist-info/licenses" "$2/bin"; touch "$2/numpy/core.py" "$2/bin/f2py"\n'
        'touch "$2/numpy/tests/test_core.py" "$2/numpy-2.dist-info/licenses/LICENSE.txt"\n'
        'cat "$4" >>"$ASKED"\n'
    )
    pip.chmod(0o755)
    asked = tmp_path / "asked"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1800000000", "PYTHON": str(pip), "ASKED": str(asked)}
    command = [str(ROOT / "gateway_image" / "build-libs"), str(tmp_path), "arm64"]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    words = asked.read_text().splitlines()
    assert {"--require-hashes", "--no-deps", "manylinux_2_28_aarch64", "3.11"} <= set(words)
    assert [line.partition("==")[0] for line in words if "==" in line] == ["cbor2", "numpy", "paho-mqtt"]
    made = tmp_path / f"headwater-libs_{__version__}_arm64.deb"
    listed = ask("dpkg-deb", "-c", made)
    assert "./usr/lib/headwater-libs/numpy/core.py" in listed
    assert "tests/" not in listed
    assert "f2py" not in listed
    assert ask("dpkg-deb", "-f", made, "Depends").strip() == "python3 (>= 3.11), python3 (<< 3.12)"


def test_the_command_prefers_those_libraries_to_debians(folder: Path) -> None:
    needs = ask("dpkg-deb", "-f", deb(folder, "agent"), "Depends")
    assert all(f"{name} | headwater-libs" in needs for name in ("(>= 1:2.2)", "(>= 5.9)", "(>= 2.1)"))
    text = (ROOT / "gateway_image" / "debian" / "headwater").read_text()
    assert text.index("sys.path[0] = PACKAGES") < text.index("sys.path.insert(1, LIBS)") < text.index("import main")


def test_what_needs_spark_runs_with_its_python_and_sparks_workers_find_the_code(tmp_path: Path) -> None:
    spark, command = tmp_path / "python", tmp_path / "headwater"
    spark.write_text("#!/bin/sh\necho $PYTHONPATH\n")
    spark.chmod(0o755)
    text = (ROOT / "gateway_image" / "debian" / "headwater").read_text()
    command.write_text(text.replace("/opt/headwater-spark/bin/python", str(spark)))
    for before, path in (("", "/usr/lib/headwater"), ("/elsewhere", "/usr/lib/headwater:/elsewhere")):
        done = subprocess.run(
            [sys.executable, command, "root"], env={"PYTHONPATH": before}, capture_output=True, text=True, check=True
        )
        assert done.stdout == path + "\n"
    for words in (["replay", "x.json", "--root", "spark"], ["replay", "--root=spark", "x.json"]):
        assert ask(sys.executable, command, *words).startswith("/usr/lib/headwater")
