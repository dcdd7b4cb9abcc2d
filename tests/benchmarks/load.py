"""What the process benchmarks share: a publisher in a process of its own that costs little, and processes measured."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from edge_agent.demo.processes import Broker, free_ports
from tests.support.processes.broker_clients import ask

CHUNK: Final = 256 * 1024
CONNECT: Final = b"\x10\x18\x00\x04MQTT\x04\x02\x00\x3c\x00\x0cbench-source"
DISCONNECT: Final = b"\xe0\x00"


def packet(topic: str, payload: bytes, number: int = 0) -> bytes:
    """A PUBLISH packet of MQTT 3.1.1: QoS 0, or QoS 1 with a packet id from 1."""
    name = topic.encode()
    body = struct.pack(">H", len(name)) + name + (struct.pack(">H", number) if number else b"") + payload
    size, length = len(body), b""
    while True:
        size, digit = size >> 7, size & 127
        length += bytes([digit | (128 if size else 0)])
        if not size:
            return bytes([0x32 if number else 0x30]) + length + body


def publish_file(port: int, file: Path, per_s: float = 0.0, packets: int = 0) -> None:
    """Send finished packets from a file; per_s: at that pace (packets of equal size), 0: as fast as it is taken.

    Returns when the broker has taken everything: an acknowledged last message follows the others.
    """
    data = file.read_bytes()
    size = len(data) // packets if packets else CHUNK
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(CONNECT)
        assert sock.recv(4)[:1] == b"\x20"
        reader = threading.Thread(target=_swallow, args=(sock,), daemon=True)
        if per_s:
            began, sent = time.monotonic(), 0
            while sent < packets:
                due = min(packets, int((time.monotonic() - began) * per_s) + 1)
                if due > sent:
                    sock.sendall(data[sent * size : due * size])
                    sent = due
                time.sleep(0.001)
        else:
            reader.start()  # acknowledgements of QoS 1 must not fill the pipe
            sock.sendall(data)
        sock.sendall(DISCONNECT)
        sock.shutdown(socket.SHUT_WR)
        if reader.is_alive():
            reader.join(60)


def _swallow(sock: socket.socket) -> None:
    while sock.recv(CHUNK):
        pass


def start_publisher(port: int, file: Path, per_s: float = 0.0, packets: int = 0) -> subprocess.Popen[bytes]:
    """The same in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.load", str(port), str(file), str(per_s), str(packets)]
    )


@contextmanager
def one_broker() -> Iterator[tuple[Broker, Path]]:
    """A broker without limits, and a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
        folder = Path(name)
        broker = Broker("broker", folder / "broker", free_ports(1)[0], inflight=0)
        broker.start()
        try:
            yield broker, folder
        finally:
            broker.stop()


def diagnose(broker: Broker, node: str) -> dict[str, Any]:
    """What a node says of itself."""
    said: dict[str, Any] = ask(broker.url, node, json.dumps({"cmd": "diagnose", "id": "bench"}), "bench")
    return said


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Resident memory of a process now, in MB of 10^6 bytes."""
    return _memory_mb(pid, "VmRSS:")


def peak_mb(pid: int) -> float:
    """The greatest resident memory that a process ever had, in MB of 10^6 bytes."""
    return _memory_mb(pid, "VmHWM:")


def _memory_mb(pid: int, kind: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(kind):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


if __name__ == "__main__":
    publish_file(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
