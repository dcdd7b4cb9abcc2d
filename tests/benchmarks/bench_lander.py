"""The lander as a process: frames of 1 kB from a broker to fsynced files, with journal and receipts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from edge_agent.algebra.frame import Birth, Frame, GroupPart, Section
from edge_agent.algebra.partials.partial import Partials
from edge_agent.config import topics
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link
from edge_agent.ports.waiter import Waiter
from edge_agent.wire import frames
from tests.benchmarks.bench import bench, record
from tests.support.fakes import Mosquitto

FRAMES, CHILDREN, BYTES = 150_000, 10, 1_000
EPOCH = 5
ROWS = 122  # of 8 bytes
START = np.full(ROWS, 1_000_000_000, np.int64)
SUMS = np.arange(ROWS, dtype=np.float64) / 7
SECTION = Section(0, Partials(START, START + 10_000_000, np.arange(ROWS), {"sum": SUMS}))


def payload(seq: int) -> bytes:
    """A frame of 1 kB, with rows: the lander looks for late ones."""
    birth = Birth(EPOCH << 32, 1, None, "x" * 40) if seq == 0 else None
    return frames.encode(Frame(EPOCH, seq, birth, groups=(GroupPart(0, 1_010_000_000, (SECTION,)),)))


def publish(broker: Mosquitto) -> None:
    """All frames into the lander's waiting session."""
    connection, waiter = Connection(Link(broker.url, "bench-children")), Waiter()
    connection.open()
    while not connection.up:
        waiter.wait([connection], 0.1)
    seq = 0
    while seq < FRAMES // CHILDREN:
        for child in range(CHILDREN):
            connection.publish(topics.frames(f"gw-{child}", "root"), payload(seq))
        seq += 1
        if seq % 100 == 0:
            waiter.wait([connection], 0.0)
            connection.take()
    until = time.monotonic() + 60
    while time.monotonic() < until and (connection.wants_write or connection.unread):
        waiter.wait([connection], 0.1)
        connection.take()
    connection.close()


@bench("lander_frames", budget_s=240)
def lander() -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
        folder = Path(name)
        broker = Mosquitto(folder)
        config = folder / "root.toml"
        config.write_text(
            f'[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "{broker.url}"\n[lander]\nfolder = "landing"\n'
        )
        words = [sys.executable, "-m", "edge_agent", "land", str(config)]
        try:
            process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
            time.sleep(2)  # the session and its subscription are there; the frames then wait for a lander
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            publish(broker)
            process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
            rate = drained(folder / "landing", process)
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        finally:
            process.kill()
            broker.stop()
    print(f"{FRAMES} frames: {rate:,.0f} frames/s")
    record(
        "lander_frames",
        rate,
        "frames/s",
        f"`headwater land` from a broker on loopback, {FRAMES} frames of {BYTES} B of {CHILDREN} children that wait in "
        "its session, to fsynced files with journal, receipts and acknowledgements; first file to last",
    )


def drained(landing: Path, process: subprocess.Popen[bytes]) -> float:
    """Frames a second, from the first file that is there to the last."""
    first, before = 0.0, 0
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None
        size = sum(entry.stat().st_size for entry in os.scandir(landing) if entry.name.endswith(".cborseq"))
        if not first and size > BYTES:
            first, before = time.monotonic(), size
        if size >= FRAMES * BYTES:
            return (size - before) / BYTES / (time.monotonic() - first)
        time.sleep(0.02)
    raise AssertionError("the frames did not all land")
