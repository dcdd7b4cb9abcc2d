"""The protocol of sd_notify."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from edge_agent.errors import PortError
from edge_agent.ports.service_manager import ServiceManager


def test_outside_systemd_nothing_is_said() -> None:
    manager = ServiceManager({})
    manager.ready()
    manager.alive()
    manager.stopping()
    assert manager.every_s == 0


@pytest.mark.parametrize("name", ["path", "abstract"])
def test_a_service_says_that_it_is_alive_at_half_of_the_timeout(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "socket") if name == "path" else f"@headwater-test-{os.getpid()}"
    now_s = 100.0
    monkeypatch.setattr("edge_agent.ports.service_manager.time.monotonic", lambda: now_s)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs:
        theirs.bind(address.replace("@", "\0", 1))
        theirs.setblocking(False)
        manager = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000"})
        manager.ready()
        for after_s in (0, 1, 29, 31, 32, 59, 62):
            now_s = 100.0 + after_s
            manager.alive()
        heard = [theirs.recv(100) for _ in range(4)]
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
        manager.close()
    assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_a_watchdog_of_another_process_is_not_ours() -> None:
    assert ServiceManager({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}).every_s == 0


def test_a_systemd_that_cannot_be_told_is_one_line(tmp_path: Path) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none"), "WATCHDOG_USEC": "1000000"})
    with pytest.raises(PortError, match="cannot report readiness to systemd"):
        manager.ready()
    manager.alive()  # a service that works goes on
    manager.close()
