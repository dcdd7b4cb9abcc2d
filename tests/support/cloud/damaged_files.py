"""Landing files of two children, as the lander writes them, and a root without Spark that reads them from a folder.

Reading, deciding, decoding and the guard are the product's; rows are kept in lists. `wrong` compares all rows with what
the children sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from cloud_job.delta import tables
from cloud_job.ingest.decode import READ, windows_of
from cloud_job.ingest.landing_loop import LandingLoop
from cloud_job.spark.batch_guard import BatchGuard
from cloud_job.spark.job import JobSettings
from edge_agent.algebra.frame import Frame
from edge_agent.config import topics
from edge_agent.machines.events import Ack, Tick
from edge_agent.machines.lander import Land, Landed, Lander, LanderMessage, LanderSettings, MessagesArrived
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.wire import frames, landing, late_starts
from tests.support.cloud.child_frames import JOURNAL, ROOT, SECOND, START, Child, at, query, starts
from tests.support.cloud.list_jobs import Kept, ListJob

GRACE_S = 3
CHILDREN = ("gw-a", "gw-b")
LAST_S = 30  # no child sends readings of later seconds
RESTART_S, LATE_S, AGAIN_S = 5, 7, 16  # gw-a begins a new epoch; gw-b sends a late reading; both begin a new epoch
File = tuple[str, bytes]


def flipped(content: bytes, bit: int) -> bytes:
    """The bytes with one bit changed."""
    out = bytearray(content)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def written() -> list[File]:
    """A landing file for each second up to LAST_S + 6: a birth in the first, then one reading of each child."""
    lander = Lander(JOURNAL, LanderSettings(flush_us=1, statement_us=2 * SECOND))
    children = {node: _born(node, 1) for node in CHILDREN}
    sent: list[tuple[Child, bytes]] = [(child, child.birth()) for child in children.values()]
    files = []
    for second in range(LAST_S + 6):
        ended = [node for node in CHILDREN if second == AGAIN_S or (second, node) == (RESTART_S, "gw-a")]
        for node in ended:
            old = children[node]
            children[node] = _born(node, old.epoch + 1)
            sent.append((children[node], children[node].birth((old.epoch, old.seq - 1), held=())))
        for node, child in children.items():
            if second == LATE_S and node == "gw-b":
                sent.append((child, child.rows(at(second), starts(2.5), length_us=1, late=True)))
            rows = [starts(second)] if second <= LAST_S else []
            sent.append((child, child.rows(at(second + 1), *rows)))
            sent.append((child, child.beat(at(second + 1))))
        files.append((f"{second:08d}{landing.SUFFIX}", _landed(lander, sent, at(second + 1))))
        sent = []
    return files


def _born(node: str, epoch: int) -> Child:
    return Child(node, (query(fns=("count",)),), keys=("site=a",), epoch=epoch)


def _landed(lander: Lander, sent: Iterable[tuple[Child, bytes]], now_us: int) -> bytes:
    """The file that a lander writes with these messages."""
    messages = []
    for child, payload in sent:
        envelope, topic = frames.envelope(payload), topics.frames(child.node, ROOT)
        frame = frames.decode(payload)
        about: dict[str, Any] = {"birth": frame.birth if isinstance(frame, Frame) else None}
        about |= {"earliest_us": late_starts.earliest_of(envelope), "flush": frames.flush_of(envelope)}
        record = landing.encode(topic, now_us, payload)
        messages.append(LanderMessage(child.node, envelope.epoch, envelope.seq, record, len(payload), **about))
    for action in (*lander.handle(MessagesArrived(tuple(messages)), now_us), *lander.handle(Tick(), now_us)):
        if isinstance(action, Land):
            records = [record for record in action.objects if isinstance(record, bytes)]
            lander.handle(Landed(), now_us)
            tick = landing.encode_tick(now_us, JOURNAL, records, action.statement, connected=True)
            return b"".join([tick, *records])
        assert not isinstance(action, Ack)
    raise AssertionError("nothing landed")


def wanted() -> Counter[int]:
    """Readings of each window, by its start: one of each child, and a late one."""
    return Counter({at(second): 2 + (second == 2) for second in range(LAST_S + 1)})


class _Job(ListJob):
    """A ListJob that decodes the rows of its windows. rows: start -> (readings, whether complete), newest revision."""

    rows: dict[int, tuple[int, bool]]

    def _write(self, made: Any, row: Any, nodes: Any) -> None:
        super()._write(made, row, nodes)
        spans = (*made.work.closing, *made.work.revising)
        if not spans:
            return
        stored = [{name: row[name] for name in READ} for row in self.kept.messages if row["kind"] == "frame"]
        table = pa.Table.from_pylist([{**row, "late": bool(row["late"])} for row in stored])
        found: Counter[tuple[int, int]] = Counter()
        lookup = self._lookups().of_windows(made.work, spans)
        for batch in windows_of(lookup)(iter(table.to_batches())):
            for each in batch.to_pylist():
                found[each["span"], each["start"]] += each["count"]
        for (number, start), count in found.items():
            self.rows[start] = count, spans[number].complete


class DamagedRoot:
    """A root that reads a folder. left_out: what its guard reported. rows: start -> (readings, whether complete)."""

    def __init__(
        self, folder: Path, *, kept: Kept | None = None, rows: dict[int, tuple[int, bool]] | None = None
    ) -> None:
        self.folder, self.kept, self.rows = folder, kept or Kept(), dict(rows or {})
        self.left_out: list[tuple[str, str]] = []
        self.guard = BatchGuard(self._run, lambda why, example: self.left_out.append((why, example)))
        self.loop = LandingLoop(self.guard)

    def _run(self) -> _Job:
        limits = RootLimits(0, horizon_us=3_600 * SECOND)
        settings = JobSettings(str(self.folder), GRACE_S * SECOND, limits, CHILDREN)
        job = _Job(None, tables.Place(str(self.folder)), settings)  # type: ignore[arg-type]
        job.kept, job.rows = self.kept, self.rows
        job.open()
        return job

    @property
    def decider(self) -> Decider:
        return self.guard.job.decider

    def read(self, files: Iterable[File], at_once: int = 1) -> None:
        """Write these files, and read the folder, `at_once` files at a time."""
        waiting = 0
        for name, content in files:
            (self.folder / name).write_bytes(content)
            waiting += 1
            if waiting >= at_once:
                self.turn()
                waiting = 0
        self.turn()

    def turn(self) -> None:
        while self.loop.turn():
            pass

    def twin(self, folder: Path) -> DamagedRoot:
        """Another root, in another folder, that goes on from the last decision of this one."""
        kept = Kept(list(self.kept.batches), list(self.kept.messages), list(self.kept.works))
        return DamagedRoot(folder, kept=kept, rows=self.rows)

    def wrong(self) -> list[str]:
        """Rows that have a reading twice, or are complete without all readings."""
        out, true = [], wanted()
        for start, (count, complete) in self.rows.items():
            if count > true[start] or (complete and count < true[start]):
                out.append(f"second {(start - START) / SECOND}: {count} of {true[start]}, complete {complete}")
        return out

    def lacking(self) -> list[int]:
        """Seconds whose row is not complete or not there."""
        there = {start for start, (_, complete) in self.rows.items() if complete}
        return sorted((start - START) // SECOND for start in wanted().keys() - there)

    def quarantined(self) -> list[str]:
        return [row["reason"] for row in self.kept.messages if row["kind"] != "frame"]

    def gaps(self) -> list[dict[str, Any]]:
        return [gap for work in self.kept.works for gap in work.gaps]


__all__ = ["LAST_S", "DamagedRoot", "File", "flipped", "wanted", "written"]
