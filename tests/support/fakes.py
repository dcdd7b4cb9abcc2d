"""A clock that a test sets, and a real Mosquitto on a free port of this host."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

BEGIN_US = 1_800_000_000_000_000  # 2027-01-15: a time that every check accepts


@dataclass(slots=True)
class FakeClock:
    """Stands still; `pass_s` moves it."""

    us: int = BEGIN_US
    booted_us: int = BEGIN_US - 60_000_000
    synced: bool = True

    def now_us(self) -> int:
        return self.us

    def boot_us(self) -> int:
        return self.us - self.booted_us

    def pass_s(self, seconds: float) -> int:
        self.us += int(seconds * 1e6)
        return self.us


def free_port() -> int:
    """A port nobody listens on now; taken at once, it stays free."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def find_mosquitto() -> str | None:
    """The broker's program; Debian keeps it where an ordinary PATH does not look."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Mosquitto:
    """One broker process. Without queue limits, as a gateway's local broker is set up; `extra` lines are added."""

    def __init__(self, folder: Path, *extra: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.folder = folder
        self.log = folder / f"mosquitto-{self.port}.log"
        self._config = folder / f"mosquitto-{self.port}.conf"
        user = ["user root"] if os.geteuid() == 0 else []  # or it would give up the right to write its folder
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "max_queued_messages 0",
            "max_inflight_messages 0",
            *user,
            *extra,
        ]
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        program = find_mosquitto()
        assert program is not None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([program, "-c", str(self._config)], stdout=log, stderr=log)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, self.log.read_text()
                time.sleep(0.02)
        raise AssertionError(f"mosquitto does not answer: {self.log.read_text()}")

    def _end(self, kill: bool) -> None:
        if self._process is not None:
            if kill:
                self._process.kill()
            else:
                self._process.terminate()
            self._process.wait(10)
            self._process = None

    def stop(self) -> None:
        """An orderly end: it saves sessions and retained messages."""
        self._end(kill=False)

    def kill(self) -> None:
        """kill -9: nothing is saved."""
        self._end(kill=True)
