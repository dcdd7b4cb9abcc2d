"""Power cuts of a root: `python -m tests.faults.powercut_root --cuts 200` (the end of `make powercut`).

A root works on landing files in this process. Between any two of its fsyncs and deletions its folders are made anew as
a cut may have left them: what was not fsynced is there, in part, or not at all. Every frame that had landed must be in
a landing file or in bronze.messages, every table readable, and its rows those of the last decision. Some of these
folders are taken up by a root, which must come to the same results.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from deltalake import DeltaTable

from cloud_job.audit.root_book import root_book
from cloud_job.delta import tables
from cloud_job.delta.integrity.torn_commits import repair
from edge_agent.config import topics
from edge_agent.wire import frames, landing
from tests.support.cloud.child_frames import SECOND, START, Child, query, record, tick
from tests.support.cloud.jobs import Roots, same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS: Final = ("site=a", "site=b")
LANDED: Final = "*.cborseq"
FrameId = tuple[str, int, int]  # node, epoch, seq


class Machine:
    """Knows what is durable below a folder, by this process's own fsyncs; files are written once, or replaced."""

    def __init__(self, base: Path, chance: random.Random, cut: Callable[[], None]) -> None:
        """cut: called before every fsync, sync and deletion."""
        self.base, self._chance, self._cut = base, chance, cut
        self._content: dict[Path, bytes] = {}
        self._names: dict[Path, set[str]] = {}
        self._former: dict[Path, bytes | None] = {}  # of files that were replaced, and their folder not fsynced since

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts, calls of this process are seen; what the JVM writes is not durable before one of them."""
        real = os.fsync, os.sync, Path.unlink, Path.replace

        def fsync(handle: int) -> None:
            self._cut()
            real[0](handle)
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if path.is_relative_to(self.base):
                self._synced(path)

        def sync() -> None:
            self._cut()
            real[1]()
            self.all_durable()

        def unlink(path: Path, missing_ok: bool = False) -> None:
            self._cut()
            real[2](path, missing_ok=missing_ok)

        def replace(path: Path, target: Path) -> Path:
            if path in self._content and path.is_relative_to(self.base):
                self._former[target], self._content[target] = self._content.get(target), self._content.pop(path)
            return real[3](path, target)

        os.fsync, os.sync, Path.unlink = fsync, sync, unlink  # type: ignore[assignment, method-assign]
        Path.replace = replace  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            os.fsync, os.sync, Path.unlink, Path.replace = real  # type: ignore[method-assign]

    def all_durable(self) -> None:
        for folder, _, files in os.walk(self.base):
            self._synced(Path(folder))
            for name in files:
                self._synced(Path(folder) / name)

    def durable(self, path: Path) -> None:
        """A file that others have fsynced with its folder."""
        self._synced(path)
        self._names.setdefault(path.parent, set()).add(path.name)

    def _synced(self, path: Path) -> None:
        if path.is_dir():
            self._names[path] = {each.name for each in path.iterdir()}
            self._former = {each: content for each, content in self._former.items() if each.parent != path}
        elif path.exists():
            self._content[path] = path.read_bytes()

    def image(self, target: Path, *, trust_fsync: bool = True) -> None:
        """One of the states that a cut may leave. trust_fsync: False, a disk that forgets every fsync (a control)."""
        names = {folder / name for folder, found in self._names.items() for name in found} if trust_fsync else set()
        there = {Path(folder) / name for folder, _, files in os.walk(self.base) for name in files}
        for path in sorted(there | names):
            if path not in (there & names) and self._chance.random() < 0.5:
                continue
            if path in there:
                content = self._after_cut(path, self._content.get(path) if trust_fsync else None)
            elif path in self._content:
                content = self._content[path]
            else:
                continue
            copy = target / path.relative_to(self.base)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)

    def _after_cut(self, path: Path, durable: bytes | None) -> bytes:
        content, former = path.read_bytes(), self._former.get(path)
        if durable == content:
            return content if former is None or self._chance.random() < 0.5 else former
        match self._chance.randrange(4):
            case 0:
                return b""
            case 1:
                return content[: self._chance.randint(0, len(content))]
            case 2:
                out = bytearray(content)
                for at in range(0, len(out), 512):
                    if self._chance.random() < 0.3:
                        out[at : at + 512] = bytes(len(out[at : at + 512]))
                return bytes(out)
        return content


class Cuts:
    """Cuts the power of a root at some of its moments."""

    def __init__(self, roots: Roots, scratch: Path, seed: int, share: float) -> None:
        """share: of the moments. scratch: where images are made."""
        self.roots, self._scratch, self._share = roots, scratch, share
        self._chance = random.Random(seed)
        self.machine = Machine(roots.base, self._chance, self._cut)
        self.machine.all_durable()
        self.landed: set[FrameId] = set()
        self.cuts = self.moments = 0
        self.missing: list[str] = []
        self.kept: list[tuple[int, Path]] = []  # landing files taken before the cut, image
        self._busy = False

    def land(self, content: Sequence[bytes]) -> None:
        """A landing file, durable as the lander leaves it, and a batch."""
        path = self.roots.land(*content)
        self.machine.durable(path)
        self.landed |= _frames(path)
        with self.machine.watching():
            self.roots.batch([path])

    def _cut(self) -> None:
        self.moments += 1
        if self._busy or self._chance.random() > self._share:
            return
        self._busy = True  # what the check does is no moment of the root
        try:
            with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
                self._check(Path(folder))
            if self._chance.random() < 0.05:
                image = self._scratch / f"kept-{self.cuts}"
                self.machine.image(image)
                self.kept.append((self.roots.files, image))
        finally:
            self._busy = False

    def _check(self, image: Path) -> None:
        self.cuts += 1
        self.machine.image(image)
        self.missing += [f"cut {self.cuts}: {text}" for text in missing(image, self.landed)]

    def forgetful(self) -> list[str]:
        """A control: what is missing after a cut now, on a disk that forgets every fsync."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            self.machine.image(Path(folder), trust_fsync=False)
            return missing(Path(folder), self.landed)


def missing(image: Path, landed: set[FrameId]) -> list[str]:
    """What is wrong in folders that a cut left."""
    try:
        return _missing(image, landed)
    except Exception as err:
        return [f"{type(err).__name__}: {str(err).splitlines()[0]}"]


def _missing(image: Path, landed: set[FrameId]) -> list[str]:
    place = tables.place(str(image / "tables"))
    repair(place)
    for table in tables.TABLES:
        DeltaTable(place.path(table)).to_pyarrow_table()
    stored = DeltaTable(place.path(tables.MESSAGES)).to_pyarrow_table(columns=["node", "epoch", "seq"]).to_pylist()
    there = {(row["node"], row["epoch"], row["seq"]) for row in stored}
    for path in (image / "landing").glob(LANDED):
        there |= _frames(path)
    out = [f"landed and nowhere: {frame}" for frame in sorted(landed - there)]
    book = root_book(place.root)
    out += [f"bronze.messages: {row} stands twice" for row in book.doubled]
    if book.applied is not None and {k: v for k, v in book.stored.items() if v} != {
        k: v for k, v in book.applied.items() if v
    }:
        out.append(f"applied {book.applied}, stored {book.stored}")
    return out


def _frames(path: Path) -> set[FrameId]:
    out = set()
    for topic, _, payload in landing.iterate(path.read_bytes()):
        parsed = topics.parse(topic)
        if parsed is not None:
            envelope = frames.envelope(payload)
            out.add((parsed.node, envelope.epoch, -1 if envelope.seq is None else envelope.seq))
    return {frame for frame in out if frame[2] >= 0}


def contents(batches: int, seed: int) -> list[list[bytes]]:
    """Landing files of two gateways: rows on time and late, each file with some seconds."""
    chance = np.random.default_rng(seed)
    children = [Child(name, (query(),), KEYS) for name in ("gw-1", "gw-2")]
    out = [[tick(START), *(record(child, START, child.birth()) for child in children)]]
    for batch in range(1, batches):
        now_us, records = START + 2 * batch * SECOND, list[bytes]()
        for child in children:
            for late in (False, *([True] if batch > 2 and chance.random() < 0.5 else [])):
                starts = np.array([now_us - (6 if late else 2) * SECOND, now_us - (5 if late else 1) * SECOND])
                rows = child.rows(now_us, starts, chance.normal(size=2), np.array([0, 1]), late=late)
                records.append(record(child, now_us, rows))
        out.append([tick(now_us), *records])
    return out


@dataclass(frozen=True, slots=True)
class Trial:
    """One root: landing files, of its moments the share that is cut, and how many of the images are taken up."""

    seed: int
    batches: int = 5
    share: float = 0.8
    takes: int = 3


def run(spark: SparkSession, folder: Path, empty: Path, trial: Trial) -> Cuts:
    """A root under cuts; then roots over what they left. Returns what was found, differences included."""
    seed = trial.seed
    (folder / "root").mkdir()
    (folder / "images").mkdir()
    files = contents(trial.batches, seed)
    cuts = Cuts(Roots(spark, folder / "root", empty), folder / "images", seed, trial.share)
    for content in files:
        cuts.land(content)
    wanted = cuts.roots.results()
    for taken, image in random.Random(seed).sample(cuts.kept, min(trial.takes, len(cuts.kept))):
        again = Roots.__new__(Roots)
        again.spark, again.base, again.landing, again.limits = spark, image, image / "landing", cuts.roots.limits
        again.landing.mkdir(exist_ok=True)
        again.place, again.files = tables.place(str(image / "tables")), taken
        try:
            _take_up(again, files[taken:])
        except Exception as err:
            reason = next((line for line in str(err).splitlines() if "Caused by" in line), str(err).splitlines()[0])
            cuts.missing.append(f"after a cut: {type(err).__name__}: {reason}")
        else:
            cuts.missing += [f"after a cut: {text}" for text in same(again.results(), wanted)]
            again.job.close()
    cuts.roots.job.close()
    return cuts


def _take_up(again: Roots, later: Sequence[Sequence[bytes]]) -> None:
    """A root over what a cut has left, and what lands later."""
    again.start()
    for path in sorted(again.landing.glob(LANDED)):
        if path.exists():  # a batch removes those of the one before
            again.batch([path])
    for content in later:
        again.take(*content)


def main(argv: Sequence[str] | None = None) -> int:
    """Cut so often; print what is missing."""
    from cloud_job import spark_session

    parser = argparse.ArgumentParser(prog="python -m tests.faults.powercut_root", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200, help="at least")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    spark = spark_session.start("headwater-powercut")
    cuts = differ = resumed = 0
    begun, seed = time.monotonic(), args.seed
    with tempfile.TemporaryDirectory(prefix="headwater-powercut-") as kept:
        tables.create(spark, tables.place(f"{kept}/empty"))
        while cuts < args.cuts:
            (folder := Path(kept) / str(seed)).mkdir()
            found = run(spark, folder, Path(kept) / "empty", Trial(seed))
            cuts, differ, seed = cuts + found.cuts, differ + len(found.missing), seed + 1
            resumed += min(3, len(found.kept))
            for line in found.missing[:20]:
                print(f"powercut: root, seed {seed - 1}: {line}", flush=True)
    spark.stop()
    took = f"{resumed} taken up, {time.monotonic() - begun:.0f} s"
    print(f"powercut: root: {cuts} cuts, {took}: acknowledged - recovered = {differ}", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
