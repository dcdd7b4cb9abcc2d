"""A day without a parent, a frame a second: what the backlog takes in memory and on disk, and how fast it drains."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from edge_agent.algebra.frame import Frame, Receipt
from edge_agent.machines.events import Commit
from edge_agent.machines.uplink.outbox import Outbox
from edge_agent.ports.spool import Spool
from tests.benchmarks.bench import bench, record

DAY, BYTES, EPOCH, JOURNAL = 86_400, 400, 1, 5


def encode(_frame: Frame) -> bytes:
    return os.urandom(BYTES)


def fill(path: Path, frames: int) -> None:
    """A spool with so many frames, closed."""
    spool = Spool(path, "gw-1", encode)
    spool.open()
    for first in range(0, frames, 1_000):
        spool.commit(Commit(frames=tuple(Frame(EPOCH, seq) for seq in range(first, min(first + 1_000, frames)))))
    spool.close()


def opened(path: Path) -> tuple[Spool, Outbox]:
    """As a node does at its start."""
    spool = Spool(path, "gw-1", encode)
    box = Outbox("gw-1", Random(1), version="1")
    box.journal = JOURNAL
    box.take_over(spool.open().frames)
    box.link(up=True)
    return spool, box


def drain(spool: Spool, box: Outbox, seconds: float) -> float:
    """Frames a second, read from the spool, receipted and deleted; a commit for every thousand."""
    sent, began = 0, time.monotonic()
    while box.spooled and time.monotonic() - began < seconds:
        spool.commit(Commit({"sent": sent}, forget=tuple(box.take_forgotten()), mark_sent=tuple(box.marks())))
        box.committed()
        while published := box.publish(sent):
            for each in published:
                sent += bool(spool.payload(each.epoch, each.seq))
                box.sent(each.epoch, each.seq)
        box.receipt(Receipt(EPOCH, JOURNAL, sent), Frame)
    return sent / (time.monotonic() - began)


def measured(path: Path) -> tuple[float, float]:
    """(greatest RSS [MB], frames/s drained) of a process that opens a spool and drains it for some seconds."""
    words = [sys.executable, "-m", "tests.benchmarks.bench_backlog", str(path)]
    rss_mb, rate = subprocess.run(words, check=True, capture_output=True, text=True, timeout=100).stdout.split()
    return float(rss_mb), float(rate)


@bench("backlog_rss_mb", "backlog_disk_share", "backlog_drain", budget_s=200)
def backlog() -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
        folder = Path(name)
        fill(folder / "empty.db", 1_000)
        fill(folder / "day" / "spool.db", DAY)
        size = sum(path.stat().st_size for path in (folder / "day").iterdir())
        before_mb, _ = measured(folder / "empty.db")
        rss_mb, rate = measured(folder / "day" / "spool.db")
    how = f"{DAY} frames of {BYTES} B in the spool, a day at one a second; "
    print(f"{rss_mb - before_mb:.1f} MB more, {size / DAY / BYTES:.2f} of the payload on disk, {rate:.0f} frames/s")
    record("backlog_rss_mb", rss_mb - before_mb, "MB", how + "greatest RSS while draining, over that with 1 000 frames")
    record("backlog_disk_share", size / DAY / BYTES, "1", how + "all files of the spool over the frames")
    record("backlog_drain", rate, "1", how + "spool and outbox without a broker, over real time")


if __name__ == "__main__":
    found = drain(*opened(Path(sys.argv[1])), 10.0)
    status = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
    print(int(peak) / 1024, found)
