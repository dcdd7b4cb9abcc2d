"""Reports to systemd: ready, alive, stopping. Source: sd_notify(3), sd_watchdog_enabled(3).

With `Type=notify` a service counts as started once it reports READY. With `WatchdogSec=` systemd restarts a service
that has sent no WATCHDOG report for that long. Outside systemd every call does nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from edge_agent.errors import PortError


def parent_answers(version: str) -> str:
    """The status line of a process whose parent has answered. A trial of an update succeeds when this line appears."""
    return f"{version}: the parent answers"


class ServiceManager:
    """Sends reports to the socket that systemd names in the environment of this process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address  # @: the abstract namespace
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        timeout_us = environment.get("WATCHDOG_USEC", "0") if ours else "0"
        # Half of the timeout, as sd_watchdog_enabled(3) recommends; 0: no watchdog.
        self.every_s = int(timeout_us) / 2e6 if timeout_us.isdecimal() else 0.0
        self._alive_s = -self.every_s  # time.monotonic of the last WATCHDOG report
        self._socket: socket.socket | None = None

    def ready(self) -> None:
        """Report that the settings are in force and the service works.

        Raises: PortError if systemd waits for the report and cannot be reached; it would end the process after a
        timeout.
        """
        try:
            self._send("READY=1")
        except OSError as err:
            raise PortError(
                f"cannot report readiness to systemd: {err.strerror}; does the unit have NotifyAccess=main?"
            ) from err

    def alive(self) -> None:
        """Send the watchdog report if it is due. Call in every turn of the loop."""
        if self.every_s and (now_s := time.monotonic()) >= self._alive_s + self.every_s:
            self._alive_s = now_s
            self._try("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the status line that `systemctl status` shows."""
        self._try(f"STATUS={text}")

    def stopping(self) -> None:
        """Report that the process commits and sends for the last time."""
        self._try("STOPPING=1")

    def _try(self, text: str) -> None:
        try:
            self._send(text)
        except OSError:
            pass  # if reports keep failing, the watchdog restarts this process

    def _send(self, text: str) -> None:
        if not self._address:
            return
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)  # if systemd does not read, the gateway must go on
        self._socket.sendto(text.encode(), self._address)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
