"""Child processes that end with this process, and Mosquitto brokers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edge_agent.errors import PortError
from edge_agent.identity.broker_files import Access, Listener, broker_files

DIE_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL")  # the kernel kills the child whenever this process ends
OPEN: Final = Access()
STOP_S: Final = 10.0  # for a last commit and frame; then the process is killed


def free_ports(count: int) -> list[int]:
    """Distinct free TCP ports on loopback."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def mosquitto() -> str:
    """Path of Mosquitto. Raises: PortError if it is not installed."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/sbin:/usr/local/sbin")
    if found is None:
        raise PortError("Mosquitto is not installed; run: apt install mosquitto")
    return found


class ChildProcess:
    """A process that may be killed and started again. Its output goes to a file. Start it from the main thread."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: dict[str, str] | None = None) -> None:
        """folder: working directory, created if missing. env: added to the environment."""
        self.name, self.folder = name, folder
        self.log = folder / f"{name}.log"
        self.starts = 0
        # Not with preexec_fn: Python would then run hooks in our own process after the fork, and lose a Ctrl+C that
        # arrives during one of them.
        self._command = [*(DIE_WITH_US if shutil.which(DIE_WITH_US[0]) else ()), *command]
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.alive:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.starts += 1

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id; 0 before the first start."""
        return self._process.pid if self._process is not None else 0

    @property
    def code(self) -> int | None:
        """The exit code; None while the process runs and before the first start."""
        return self._process.poll() if self._process is not None else None

    def kill(self) -> None:
        """Kill the process and its children at once, like a power cut."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self, timeout_s: float = STOP_S) -> int | None:
        """Send SIGTERM; after timeout_s kill the process. Returns the exit code."""
        self.ask_to_stop()
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._signal(signal.SIGKILL)  # children that are still running
        return self.code

    def ask_to_stop(self) -> None:
        if self.alive and self._process is not None:
            self._process.terminate()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def tail(self, lines: int = 20) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])


class Broker(ChildProcess):
    """A Mosquitto on loopback. It has the same port after a restart."""

    def __init__(
        self,
        name: str,
        folder: Path,
        port: int,
        inflight: int = 200,
        *,
        keys: Path | None = None,
        access: Access = OPEN,
    ) -> None:
        """inflight: most messages of QoS 1 in flight to one client; 0: no limit.

        keys: folder of the broker's certificate, for TLS; clients then need a certificate, and `access` lists what they
        may do. None: no TLS.
        """
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "mosquitto.conf"
        # user: the one who starts it, because the kernel forgets --pdeathsig when a process changes its user
        files = broker_files(
            Listener(port=port, files=keys),
            access,
            acl_file=folder / "acl",
            state=folder,
            in_flight=inflight,
            user="root" if os.geteuid() == 0 else None,
        )
        config.write_text(files.config)
        (folder / "acl").write_text(files.acl)
        super().__init__(name, [mosquitto(), "-c", str(config)], folder)
        self.port = port
        self.url = f"mqtt{'s' if keys else ''}://127.0.0.1:{port}"

    def start(self) -> None:
        """Start the broker and wait until it listens. Raises: PortError if it does not within 10 s."""
        super().start()
        until = time.monotonic() + 10.0
        while time.monotonic() < until and self.alive:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            time.sleep(0.02)
        raise PortError(f"broker {self.name} does not listen on port {self.port}: {self.tail(3)}")
