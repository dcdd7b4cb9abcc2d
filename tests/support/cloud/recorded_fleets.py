"""Landing files of simulated fleets, with every fault of the network in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from edge_agent.algebra.frame import Frame, Heartbeat
from edge_agent.config import topics
from edge_agent.machines.events import BadFrame
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from edge_agent.wire import frames, landing
from tests.support.simulation.fleets import GRACE, Fleet
from tests.support.simulation.world import SECOND, Chaos, RootHost

File = tuple[int, tuple[tuple[str, Any, int], ...]]  # the lander's time, (child, message, receive time)


def fleet(seed: int, chaos: Chaos, *, changes: bool = False, sessions: bool = False) -> tuple[Fleet, list[File]]:
    """A fleet run to its end, and the files its lander wrote. changes: a query is added and one removed meanwhile."""
    made = Fleet(seed, chaos, changes=changes, sessions=sessions)
    assert made.run() == []
    root = made.world.hosts["root"]
    assert isinstance(root, RootHost)
    return made, [(at_us, tuple(objects)) for at_us, objects in root.files]


def grouped(files: Sequence[File], batches: int, random: Random) -> list[list[File]]:
    """Cut into micro-batches at random places, none empty."""
    cuts = sorted(random.sample(range(1, len(files)), batches - 1))
    return [list(files[a:b]) for a, b in zip([0, *cuts], [*cuts, len(files)], strict=True)]


def content(file: File, journal: int) -> bytes:
    """A landing file's bytes."""
    at_us, objects = file
    records = [landing.encode_tick(at_us, journal, connected=True)]
    for node, message, received_us in objects:
        payload = frames.encode_heartbeat(message) if isinstance(message, Heartbeat) else frames.encode(message)
        records.append(landing.encode(topics.frames(node, "root"), received_us, payload))
    return b"".join(records)


def write(files: Iterable[File], journal: int, folder: Path, first: int = 0) -> list[Path]:
    """Landing files with increasing names."""
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for number, file in enumerate(files, first):
        path = folder / f"{number:08d}.cborseq"
        path.write_bytes(content(file, journal))
        out.append(path)
    return out


def plain_rows(groups: Iterable[Sequence[File]], journal: int, **settings: Any) -> list[Row]:
    """The rows, every revision, of the plain-Python root over the same batches; nothing put off at the end."""
    root = NumpyRoot(journal, grace_us=GRACE, **settings)
    rows: list[Row] = []
    at_us = 0
    for group in groups:
        for at_us, objects in group:  # noqa: B007 - the last one counts
            for node, message, received_us in objects:
                assert isinstance(message, (Frame, Heartbeat, BadFrame))
                root.take(node, message, received_us)
        rows += root.step(at_us)
    return rows + root.step(at_us, flush=True)


__all__ = ["SECOND", "Chaos", "content", "fleet", "grouped", "plain_rows", "write"]


def wanted_of(rows: list[Any]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The last revision of each row of the plain root, as a row of gold.results."""
    return {
        (r.query, r.key, r.start): {
            "end": r.end,
            "values": dict(r.values),
            "details": r.details,
            "readings": r.readings,
            "revision": r.revision,
            "late": r.late,
            "expected": r.expected,
            "received": r.received,
            "complete": r.complete,
            "labels": dict(r.labels),
        }
        for r in rows
    }
