"""The systemd units: sound, locked down, and used by the processes as they say."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from edge_agent.cli.main import VERBS, main

ROOT: Final = Path(__file__).resolve().parents[2]
UNITS: Final = ROOT / "gateway_image" / "units"
SERVICES: Final = sorted(path.name for path in UNITS.glob("*.service"))
NODES: Final = [name for name in SERVICES if name != "headwater-enrol.service"]  # those that run for ever
SCRIPTS: Final = [  # what a shell runs: of the image, and of the house
    path
    for folder in (ROOT / "gateway_image", ROOT / "scripts")
    for path in sorted(folder.rglob("*"))
    if path.is_file() and path.read_bytes().startswith((b"#!/bin/sh", b"#!/usr/bin/env bash"))
]
MOST_EXPOSED: Final = 16  # tenths, as systemd-analyze takes its threshold: 1.6 of 10, also with devices


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with our units and those of systemd that they name."""
    folder = tmp_path / "usr/lib/systemd/system"
    folder.mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/headwater").write_text("#!/bin/sh\n")
    (tmp_path / "usr/bin/headwater").chmod(0o755)
    for name in ("sysinit", "basic", "network", "shutdown", "multi-user", "timers"):
        (folder / f"{name}.target").write_text("[Unit]\nDescription=a stand-in\n")
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.timer")):
        shutil.copy(unit, folder)
    return tmp_path


def analyze(*words: str | Path) -> str:
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    return done.stdout + done.stderr


def test_units_have_no_mistake_that_systemd_finds(root: Path) -> None:
    units = [root / "usr/lib/systemd/system" / name for name in (*SERVICES, "headwater-enrol.timer")]
    assert analyze("verify", f"--root={root}", "--man=no", *units) == ""


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_little(root: Path, name: str) -> None:
    analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", f"--root={root}", name)


def test_a_gateway_with_devices_may_do_little(root: Path) -> None:
    folder = root / "usr/lib/systemd/system/headwater-gateway.service.d"
    folder.mkdir()
    shutil.copy(UNITS / "devices.conf", folder)
    said = analyze(
        "security", "--offline=true", f"--threshold={MOST_EXPOSED}", f"--root={root}", "headwater-gateway.service"
    )
    assert "char-i2c" in said, "the drop-in counts"


def read(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser["Service"]


@pytest.mark.parametrize("name", NODES)
def test_a_service_is_watched_and_bounded(name: str) -> None:
    service = read(name)
    assert service["Type"] == "notify"
    assert service["WatchdogSec"]
    assert service["MemoryMax"]
    assert service["Restart"] == "always"
    words = service["ExecStart"].split()
    assert words[0] == "/usr/bin/headwater"
    assert words[1] in VERBS


def test_a_gateway_starts_before_network_and_time() -> None:
    """Readings of a gateway without network wait in its spool; docs/protocol.md 4.3 says what a wrong clock does."""
    text = (UNITS / "headwater-gateway.service").read_text()
    assert "network-online.target" not in text
    assert "time-sync.target" not in text


class Manager:
    """The end of NOTIFY_SOCKET that systemd has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(120.0)  # a busy machine imports numpy in that

    def hear(self) -> str:
        return self._socket.recv(4096).decode()

    def close(self) -> None:
        self._socket.close()


def test_a_node_whose_id_begins_with_a_hyphen_enrols(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such an id is allowed everywhere, and must not be taken for an option."""
    text = (UNITS / "headwater-enrol.service").read_text()
    (line,) = re.findall(r"^ExecStart=/usr/bin/headwater (.+)$", text, re.MULTILINE)
    for name, value in (
        ("${NODE_ID}", "-x"),
        ("${CA_URL}", "https://ca"),
        ("/var/lib/headwater-identity", str(tmp_path)),
    ):
        line = line.replace(name, value)
    assert main(line.split()) == 2
    assert "ca.pem does not exist" in capsys.readouterr().err


def test_a_first_certificate_does_not_wait_for_the_timer() -> None:
    """Its random delay is longer than the life of a token, and systemd applies it to the first run as well."""
    text = (ROOT / "gateway_image" / "README.md").read_text()
    assert "systemctl start headwater-enrol && systemctl enable --now headwater-enrol.timer" in text


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.close()


def test_a_gateway_says_that_it_is_ready_alive_and_stopping(tmp_path: Path, manager: Manager) -> None:
    """It runs as its unit runs it: settings that it may only read, the spool in the state directory, no broker."""
    settings, state = tmp_path / "etc" / "headwater.toml", tmp_path / "state"
    settings.parent.mkdir()
    state.mkdir()
    subprocess.run([sys.executable, "-m", "edge_agent", "init", "--id", "g", str(settings)], cwd=ROOT, check=True)
    text = re.sub(r"mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:9", settings.read_text())
    settings.write_text(text)
    settings.parent.chmod(0o555)
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(manager.path),
        "WATCHDOG_USEC": "200000",
        "STATE_DIRECTORY": str(state),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_agent", "run", str(settings)], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL
    )
    try:
        assert manager.hear() == "READY=1"
        assert [manager.hear() for _ in range(3)] == ["WATCHDOG=1"] * 3
        process.send_signal(signal.SIGTERM)
        said = manager.hear()
        while said == "WATCHDOG=1":
            said = manager.hear()
        assert said == "STOPPING=1"
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
    assert [path.name for path in settings.parent.iterdir()] == ["headwater.toml"]
    assert (state / "g.db").is_file()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_passes_shellcheck(script: Path) -> None:
    """SC2164: scripts that go on after a failure begin with `cd "$(dirname "$0")/.."`, which cannot fail."""
    words = ["shellcheck", "--severity=warning", "--exclude=SC2164", str(script)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
