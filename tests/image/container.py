"""Runs the units of the gateway image in a container, without emulation: `make container-test`, as root.

systemd of Debian trixie starts the gateway with its sandbox; a broker, a merger and a lander stand around it. What is
tried is updates: one that is kept, one that dies, some that are refused, and power cuts in between. boot.py tries the
same in the whole image, in QEMU, and all that a container does not have.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_agent import __version__
from edge_agent.demo.processes import Broker, ChildProcess, free_ports
from edge_agent.ports.service_manager import parent_answers
from tests.image.boot_updates import GATEWAY, GOOD, STATUS, Bundles, Gateway, bundles, updates

NODE: Final = "gw-test"
LONGEST_S: Final = 600.0
# Its own /proc/sys, for the host name; control groups as the image has them, whatever this machine uses.
ENVIRONMENT: Final = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "yes"}


class FailedError(Exception):
    """Something did not come in time."""


class Container:
    """The image's root file system with systemd in it."""

    def __init__(self, root: Path, console: Path) -> None:
        self._root, self._console = root, console
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        words = [
            "systemd-nspawn",
            "--register=no",
            "--keep-unit",
            "--quiet",
            "--boot",
            "--console=pipe",
            f"--directory={self._root}",
        ]
        with self._console.open("ab") as log:
            self._process = subprocess.Popen(
                words, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def cut(self) -> None:
        """A power cut, as far as processes go: all of them end at once."""
        if self._process is not None:
            with suppress(FailedError, ProcessLookupError):
                os.kill(int(self._first()), signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()
            self._process.wait()

    def run(self, command: str) -> str:
        done = self._inside(command, b"")
        return done.stdout.decode(errors="replace").strip()

    def put(self, file: Path) -> None:
        assert self._inside(f"cat > /var/tmp/{file.name}", file.read_bytes()).returncode == 0

    def _inside(self, command: str, content: bytes) -> subprocess.CompletedProcess[bytes]:
        words = ["nsenter", "-t", self._first(), "-m", "-u", "-i", "-p", "--", "/bin/sh", "-c", command]
        return subprocess.run(words, input=content, capture_output=True, timeout=LONGEST_S, check=False)

    def _first(self) -> str:
        """The process that is the container's first: a child of nspawn's, or of its child's."""
        assert self._process is not None
        children = [str(self._process.pid)]
        for _ in range(2):
            children = [found for parent in children for found in _children(parent)]
            for each in children:
                if Path(f"/proc/{each}/comm").read_text().strip() in ("systemd", "init"):
                    return each
        raise FailedError("no systemd in the container")


def _children(process: str) -> list[str]:
    return subprocess.run(["pgrep", "-P", process], capture_output=True, text=True, check=False).stdout.split()


class Report:
    """Checks, as they come."""

    def __init__(self) -> None:
        self.begin, self.failed = time.monotonic(), list[str]()

    def check(self, what: str, right: object, found: object = "") -> None:
        print(f"[{time.monotonic() - self.begin:6.1f} s] {'ok    ' if right else 'FAILED'} {what}: {found}", flush=True)
        if not right:
            self.failed.append(what)

    def until(self, what: str, condition: Callable[[], object]) -> object:
        """Raises: FailedError."""
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            with suppress(FailedError, OSError, subprocess.SubprocessError):
                if found := condition():
                    self.check(what, True)
                    return found
            time.sleep(1.0)
        raise FailedError(f"{what}: not within {LONGEST_S:.0f} s")


def scenario(report: Report, container: Container, files: Bundles) -> None:
    container.boot()
    report.until(
        "the parent answers the copy in the image", lambda: parent_answers(__version__) in container.run(GATEWAY)
    )
    failed = container.run("systemctl --failed --plain --no-legend")
    report.check("no unit has failed", failed == "", failed)
    updates(Gateway(container.run, container.put, report.until, report.check), files)
    container.cut()
    container.boot()
    report.until("after a power cut the version in force runs", lambda: parent_answers(GOOD) in container.run(GATEWAY))
    report.check("and nothing is on trial", "on trial" not in (said := container.run(STATUS)), said)
    container.run("headwater update back")
    report.until("back to the copy in the image", lambda: parent_answers(__version__) in container.run(GATEWAY))
    container.put(files.good)
    container.run(f"headwater update install --again /var/tmp/{files.good.name}; systemctl stop headwater-gateway")
    container.cut()
    container.boot()
    report.until("a trial goes on after a power cut", lambda: f"in force: {GOOD}" in container.run(STATUS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="of gateway_image/container-tree")
    root: Path = parser.parse_args().root
    folder = Path(tempfile.mkdtemp(prefix="headwater-container-"))
    report = Report()
    low, top = (Broker(name, folder / name, port) for name, port in zip(("low", "top"), free_ports(2), strict=True))
    settings = {
        "region": f'[uplink]\nbroker = "{top.url}"\nparent = "root"\n[lower]\nbroker = "{low.url}"\n',
        "root": f'[lower]\nbroker = "{top.url}"\n',
    }
    processes: list[ChildProcess] = [low, top]
    for (role, tables), verb in zip(settings.items(), ("merge", "land"), strict=True):
        file = folder / role / f"{role}.toml"
        file.parent.mkdir()
        file.write_text(f'[node]\nid = "{role}"\nrole = "{role}"\n{tables}')
        processes.append(ChildProcess(role, [sys.executable, "-m", "edge_agent", verb, str(file)], file.parent))
    files = bundles(folder)
    tables = f'[uplink]\nbroker = "{low.url}"\nparent = "region"\n[update]\nkeys = ["{files.public}"]\n'
    (root / "boot" / "firmware" / "gateway.toml").write_text(f'[node]\nid = "{NODE}"\n{tables}')
    container = Container(root, folder / "console.log")
    try:
        for process in processes:
            process.start()
        scenario(report, container, files)
    except FailedError as err:
        report.check("the whole scenario", False, err)
        print(container.run("journalctl -b --no-pager | tail -n 60"))
    finally:
        container.cut()
        for process in reversed(processes):
            process.kill()
    print(f"container-test: {'FAILED: ' + '; '.join(report.failed) if report.failed else 'ok'}; logs: {folder}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
