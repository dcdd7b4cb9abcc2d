"""Power cuts: `python -m tests.faults.powercut` (`make powercut CUTS=200`).

Each store is written by the product under strace, in several runs that end like kills. Then its folder is made anew as
a cut may have left it, at many points, and opened by the product's own code. What had been acknowledged before the cut
must be there, and nothing twice. Exit code 1 when something is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.query.key import EpochKey
from edge_agent.config import topics
from edge_agent.config.node_file.settings import parse
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.region.merger import Merger
from edge_agent.runtime.build import build
from edge_agent.runtime.lander import LanderLoop
from edge_agent.runtime.node_loop import NodeLoop
from edge_agent.wire import frames, landing, receipts
from tests.faults.contents import readings_of
from tests.faults.disk_image import Disk
from tests.faults.trace import Moved, Named, Operation, Said, Sync, SyncFolder, Traced, run_traced, strace
from tests.faults.traced import NODES
from tests.support.runtime.scripted import ScriptedClock, ScriptedConnection, without_brokers

RUNS: Final = 3
FrameId = tuple[str, int, int]  # node, epoch, seq


@dataclass(slots=True)
class Saw:
    """What others saw before a cut. published: payloads of our own frames. receipted, acked: frames of children."""

    published: dict[tuple[int, int], bytes] = field(default_factory=dict)
    receipted: set[FrameId] = field(default_factory=set)
    acked: set[FrameId] = field(default_factory=set)
    tokens: int = 0  # acknowledgements of a local broker's messages
    readings: dict[FrameId, int] = field(default_factory=dict)
    _tokens: dict[str, FrameId] = field(default_factory=dict)

    def line(self, line: str) -> None:
        match line.split(" "):
            case ["F", token, child, epoch, seq, readings]:
                frame = (child, int(epoch), int(seq))
                self._tokens[token], self.readings[frame] = frame, int(readings)
            case ["A", *tokens]:
                self.tokens += len(tokens)
                self.acked.update(self._tokens[token] for token in tokens if token in self._tokens)
            case ["P", topic, payload]:
                self._published(topics.parse(topic), bytes.fromhex(payload))

    def _published(self, topic: topics.Topic | None, payload: bytes) -> None:
        if topic is not None and topic.what == "frame":
            envelope = frames.envelope(payload)
            if envelope.seq is not None:
                self.published[envelope.epoch, envelope.seq] = payload
        elif topic is not None and topic.what == "ack":
            receipt = receipts.decode(payload)
            above = [seq for low, high in receipt.above for seq in range(low, high + 1)]
            self.receipted.update((topic.node, receipt.epoch, seq) for seq in (*range(receipt.upto), *above))


def missing(role: str, store: Path, saw: Saw) -> list[str]:
    """What the product's code does not find in an image, though it was acknowledged; or finds twice."""
    with _product(store) as clock:
        if role == "lander":
            return _lander(LanderLoop(parse(NODES[role]), "0"), saw)
        loop = build(parse(NODES[role]), "0")
        try:
            loop.start()
            loop.turn(0.0)
            clock.pass_s(1.0)
            loop.turn(0.0)
            return _node(loop, saw)
        finally:
            loop.close()


@contextlib.contextmanager
def _product(store: Path) -> Iterator[ScriptedClock]:
    """The product in a folder, without brokers, later than all that was traced."""
    clock, before = ScriptedClock(), Path.cwd()
    clock.pass_s(1_000.0 * RUNS)
    os.chdir(store)
    try:
        with without_brokers(clock, ScriptedConnection):
            yield clock
    finally:
        os.chdir(before)


def _lander(loop: LanderLoop, saw: Saw) -> list[str]:
    landed: set[FrameId] = set()
    try:
        for path in loop.folder.folder.glob(f"[0-9]*{landing.SUFFIX}"):
            for topic, _, payload in landing.iterate(path.read_bytes()):
                parsed = topics.parse(topic)
                if parsed is not None:
                    envelope = frames.envelope(payload)
                    landed.add((parsed.node, envelope.epoch, envelope.seq or 0))
        claimed = {
            (key.node, key.epoch, seq)
            for key, received in loop.machine.received.items()
            for seq in (*range(received.next), *(seq for low, high in received.above for seq in range(low, high + 1)))
        }
    finally:
        loop.close()
    out = [f"receipted and in no file: {frame}" for frame in sorted(saw.receipted - landed)]
    out += [f"acknowledged and in no file: {frame}" for frame in sorted(saw.acked - landed)]
    return out + [f"received, it says, and in no file: {frame}" for frame in sorted(claimed - landed)]


def _node(loop: NodeLoop, saw: Saw) -> list[str]:
    machine, out = loop.machine, list[str]()
    ours = dict(saw.published)
    for key in list(machine.outbox.pending):
        payload = loop.spool.payload(*key)
        if ours.setdefault(key, payload) != payload:
            out.append(f"frame {key} was published with another content")
    sent = sum(readings_of(frame) for frame in map(frames.decode, ours.values()) if isinstance(frame, Frame))
    taken = 0
    if isinstance(machine, Gateway):
        taken = sum(source.readings for source in machine.sources.values())
        if taken < saw.tokens:
            out.append(f"{saw.tokens} messages acknowledged, {taken} recovered")
    elif isinstance(machine, Merger):
        inbox = machine.parent.inbox
        for node, epoch, seq in sorted(saw.receipted | saw.acked):
            if not inbox.received(node, epoch, seq):
                out.append(f"receipted and not recovered: {(node, epoch, seq)}")
        for (node, epoch, seq), readings in saw.readings.items():
            known = inbox.epochs.get(EpochKey(node, epoch))
            taken += readings if known is not None and seq < known.applied.next else 0
    if sent != taken:
        out.append(f"{taken} readings taken, {sent} in frames")
    return out


# --- a store -----------------------------------------------------------------------------------------------------


def traced(role: str, folder: Path, seed: int, steps: int) -> list[Operation]:
    """The operations of some runs of a role."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Traced(folder / "store", folder / "wire")
    for run in range(RUNS):
        output = folder / f"trace-{run}"
        words = [sys.executable, "-m", "tests.faults.traced", role, str(folder), str(seed), str(steps)]
        run_traced(words, output)
        found.read(output, Path.cwd())
        output.unlink()
    return found.operations


def cuts(operations: Sequence[Operation], count: int, chance: random.Random) -> list[int]:
    """Where to cut: around every fsync, name and word first, then anywhere."""
    edges = [n for n, each in enumerate(operations) if isinstance(each, Sync | SyncFolder | Named | Moved | Said)]
    around = sorted({n + step for n in edges for step in (0, 1)})
    chosen = set(chance.sample(around, min(len(around), count * 3 // 4)))
    rest = [n for n in range(len(operations) + 1) if n not in chosen]
    return sorted(chosen | set(chance.sample(rest, min(len(rest), count - len(chosen)))))


def replay(
    role: str, folder: Path, operations: Sequence[Operation], count: int, seed: int, *, trust_fsync: bool = True
) -> tuple[int, list[str]]:
    """Cut so often. Returns (cuts, what was missing)."""
    chance, out = random.Random(seed), list[str]()
    disk, saw, at = Disk(folder / "store", trust_fsync=trust_fsync), Saw(), 0
    points = cuts(operations, count, chance)
    for point in points:
        for operation in operations[at:point]:
            disk.apply(operation)
        at = point
        for line in disk.said:
            saw.line(line)
        disk.said.clear()
        with tempfile.TemporaryDirectory(dir=folder) as image:
            disk.image(Path(image), chance)
            try:
                found = missing(role, Path(image), saw)
            except Exception as err:
                found = [f"{type(err).__name__}: {err}"]
        out += [f"{role}, cut {point} of {len(operations)}: {line}" for line in found]
    return len(points), out


def main(argv: Sequence[str] | None = None) -> int:
    """Trace and cut every store; print what is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.powercut", description=__doc__)
    parser.add_argument("roles", nargs="*", default=list(NODES), metavar="ROLE", help=" ".join(NODES))
    parser.add_argument("--cuts", type=int, default=200, help="of each store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60, help="turns of each run")
    args = parser.parse_args(argv)
    if why := strace():
        print(f"powercut: {why}")
        return 2
    logging.disable(logging.CRITICAL)
    wrong = 0
    for role in args.roles:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="headwater-powercut-") as kept:
            folder = Path(kept)
            operations = traced(role, folder, args.seed, args.steps)
            count, found = replay(role, folder, operations, args.cuts, args.seed)
        wrong += len(found)
        for line in found[:20]:
            print(f"powercut: {line}")
        syncs = sum(isinstance(each, Sync | SyncFolder) for each in operations)
        took = f"{len(operations)} operations, {syncs} fsyncs, {time.monotonic() - begun:.0f} s"
        print(f"powercut: {role}: {count} cuts, {took}: acknowledged - recovered = {len(found)}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
