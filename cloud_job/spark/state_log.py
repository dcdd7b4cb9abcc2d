"""Stores the state of the decision in ops.batches: now and then the whole state, in between the input of each batch.

The state of a large tree takes megabytes, and a batch changes little of it. A decision follows from the previous state
and the input of its batch: landing files, records that are left out, and lengths of sessions read from the tables. So
most rows contain only this input. A new run decides again from the last whole state on, and compares each decision with
its row; if they differ, it stops before it writes.

A row contains the whole state at the start and the orderly end of a run, and whenever the inputs since the last whole
state would exceed its size, or deciding them again would take long. Rows of earlier versions are all whole.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from cloud_job.ingest.intake import NOTHING, Intake, Leave, LeftOut
from cloud_job.spark import decision_checkpoint
from cloud_job.spark.prepared_batch import decided
from edge_agent.algebra.query.key import EpochKey, QueryPlace
from edge_agent.errors import PortError, WireError
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.work import Work
from edge_agent.wire import snapshot
from edge_agent.wire.heads import Parts

log = logging.getLogger("headwater.root")

VERSION: Final = 1
MARK: Final = b"told"  # prefix of an input; a whole state begins with other bytes, those of zlib
RESTORE: Final = "restore ops.batches from a version or a backup that has them"
AGAIN_S: Final = 10.0  # longest time that a start may need to decide again
File = tuple[str, bytes]


class Rules(NamedTuple):
    """The settings of a run that decisions depend on; see JobSettings."""

    limits: RootLimits
    grace_us: int
    members: tuple[str, ...] = ()


class BatchInput(NamedTuple):
    """The input of a batch. files: (name, content).

    idle: files of earlier decisions that changed no table. flush: deferred revisions are due. Read from the tables
    since the last decision are: longest: (query, longest session in us); gone: epochs without rows, removed from the
    state; unnumbered: epochs of which only the numbers were removed; rows_from: the first batch that still has rows.
    """

    files: tuple[File, ...] = ()
    idle: tuple[tuple[File, ...], ...] = ()
    left_out: Leave = NOTHING
    flush: bool = False
    longest: tuple[tuple[QueryPlace, int], ...] = ()
    gone: tuple[EpochKey, ...] = ()
    unnumbered: tuple[EpochKey, ...] = ()
    rows_from: int = 0


@dataclass(slots=True)
class StateLog:
    """Chooses the content of the column `state` during one run.

    base: number of the last row with a whole state, -1 if none. whole_bytes: size of this state. since_bytes, since_s:
    size of the later rows, and time to decide them again.
    """

    rules: Rules
    base: int = -1
    whole_bytes: int = 0
    since_bytes: int = 0
    since_s: float = 0.0
    _longest: list[tuple[QueryPlace, int]] = field(default_factory=list)
    _gone: list[EpochKey] = field(default_factory=list)
    _unnumbered: list[EpochKey] = field(default_factory=list)
    _rows_from: int = 0

    @property
    def behind(self) -> bool:
        """Whether a run that starts now would have to decide again."""
        return self.since_bytes > 0

    def longest(self, place: QueryPlace, longest_us: int) -> None:
        """Record for the next decision the length of a query's longest session, read from the tables."""
        self._longest.append((place, longest_us))

    def forgotten(self, lines: Iterable[EpochKey], *, stored: bool = False) -> None:
        """Record for the next decision that these epochs were removed from the state. stored: see `forget`."""
        if stored:
            self._unnumbered += lines
        else:
            self._gone += lines

    def without_rows(self, before: int) -> None:
        """Record for the next decision that the tables have no rows of batches before `before`."""
        self._rows_from = before

    def take(
        self, number: int, given: BatchInput, took_s: float, whole: Callable[[], bytes], *, last: bool = False
    ) -> bytes:
        """The column `state` of a batch's row. took_s: time that the decision took. whole: returns the whole state.
        last: this is the orderly end of the run.
        """
        gone, unnumbered = tuple(self._gone), tuple(self._unnumbered)
        given = given._replace(
            longest=tuple(self._longest), gone=gone, unnumbered=unnumbered, rows_from=self._rows_from
        )
        for noted in (self._longest, self._gone, self._unnumbered):
            noted.clear()
        self._rows_from = 0
        if not last and self.since_s + took_s <= AGAIN_S and _size(given) <= 4 * self.whole_bytes:
            content = self._encode(given)
            if self.since_bytes + len(content) <= self.whole_bytes:
                return self._counted(content, took_s)
        try:
            content = whole()
        except Exception:  # a value from an earlier batch cannot be encoded; this batch itself is fine
            if self.base < 0:
                raise
            log.exception("root.state", extra={"batch": number, "whole": self.base})
            return self._counted(self._encode(given), took_s)
        self.base, self.whole_bytes, self.since_bytes, self.since_s = number, len(content), 0, 0.0
        return content

    def _counted(self, content: bytes, took_s: float) -> bytes:
        """Count a row that contains the input of a batch only, so that a whole state is due. Returns the row."""
        self.since_bytes += len(content)
        self.since_s += took_s
        return content

    def _encode(self, given: BatchInput) -> bytes:
        limits = self.rules.limits
        plain = {
            "version": VERSION,
            "base": self.base,
            "rules": [limits.revise_every_us, limits.horizon_us, self.rules.grace_us, list(self.rules.members)],
            **({} if limits.overlap is None else {"overlap": limits.overlap}),
            "files": [list(file) for file in given.files],
            "idle": [[list(file) for file in files] for files in given.idle],
            "left_out": [
                [[record] if isinstance(record, str) else list(record), out.why, out.settled]
                for record, out in given.left_out.items()
            ],
            "flush": given.flush,
            "longest": [[*place, us] for place, us in given.longest],
            "gone": [list(line) for line in given.gone],
            "unnumbered": [list(line) for line in given.unnumbered],
            "rows_from": given.rows_from,
        }
        return MARK + zlib.compress(snapshot.dumps(plain), 1)


def _size(given: BatchInput) -> int:
    return sum(len(content) for files in (given.files, *given.idle) for _, content in files)


def base_of(state: bytes, number: int) -> int:
    """The number of the row with the whole state that a row builds on; its own number if it is whole. Raises:
    WireError.
    """
    return int(_decode(state)["base"]) if state.startswith(MARK) else number


def horizon_us(state: bytes) -> int:
    """The correction horizon of the root that wrote a row. state: column of the row. Raises: WireError."""
    return int(_decode(state)["rules"][1]) if state.startswith(MARK) else decision_checkpoint.horizon_us(state)


def _decode(state: bytes) -> dict[str, Any]:
    plain = decision_checkpoint.unpacked(state[len(MARK) :])
    if plain["version"] != VERSION:
        raise WireError(f"ops.batches has a row of version {plain['version']}; this root reads only version {VERSION}")
    return plain


def recall(rows: Sequence[Mapping[str, Any]], rules: Rules) -> tuple[Decider, RootState, Parts]:
    """The state after the last of these rows of ops.batches. rows: sorted by number, the first with a whole state.

    The next decision takes definitions that could not be read when they came; its row must contain the whole state.
    Raises: PortError if a row is missing, or if deciding again gives a different result than the row.
    """
    decider, state, parts = _recalled(rows, rules)
    decider.learn_again(state.queries)
    return decider, state, parts


def _recalled(rows: Sequence[Mapping[str, Any]], rules: Rules) -> tuple[Decider, RootState, Parts]:
    first, *more = rows
    numbers = [int(row["number"]) for row in rows]
    if numbers != list(range(numbers[0], numbers[0] + len(rows))):
        raise PortError(f"rows of ops.batches are missing between {numbers[0]} and {numbers[-1]}; {RESTORE}")
    if base_of(bytes(first["state"]), numbers[0]) != numbers[0]:
        raise PortError(f"the rows of ops.batches before {numbers[0]} are missing; {RESTORE}")
    if not more:
        return decision_checkpoint.loads(bytes(first["state"]), rules.limits, rules.grace_us, rules.members)
    given = _decode(bytes(more[0]["state"]))
    revise_every_us, horizon_us, grace_us, members = given["rules"]
    limits = RootLimits(revise_every_us, horizon_us, given.get("overlap"))  # not in rows of older versions
    decider, state, parts = decision_checkpoint.loads(bytes(first["state"]), limits, grace_us, members)
    for row in more:
        _again(decider, state, parts, row)
    if rules == (limits, grace_us, tuple(members)):
        return decider, state, parts
    content = decision_checkpoint.dumps(decider, state, parts)  # encode and decode, to apply the new rules
    return decision_checkpoint.loads(content, rules.limits, rules.grace_us, rules.members)


def idle_again(
    decider: Decider, state: RootState, parts: Parts, owner: str, idle: Iterable[Iterable[Sequence[Any]]]
) -> None:
    """Repeat the decisions that changed no table. idle: for each decision its files (name, content)."""
    for files in idle:
        intake = Intake(decider, parts, state.number + 1, owner, state.decided_us)
        for name, content in files:
            intake.read(content, name)
        decided(intake, state)
        state.number -= 1


def forget(decider: Decider, state: RootState, lines: Iterable[EpochKey], *, stored: bool = False) -> None:
    """Remove these epochs from the state: their numberings, and which of their frames took effect.

    stored: the tables still have rows of them, which no result needs. What took effect stays, for `headwater audit`.
    """
    for line in lines:
        for known in (decider.parent.dictionaries, state.extent, state.repeats, state.too_late):
            known.pop(line, None)
        state.sessions.forget(line)
        if not stored:
            state.applied.pop(line, None)


def _again(decider: Decider, state: RootState, parts: Parts, row: Mapping[str, Any]) -> None:
    given, number = _decode(bytes(row["state"])), int(row["number"])
    for *place, longest_us in given["longest"]:
        state.sessions.stretch(QueryPlace(*place), longest_us)
    forget(decider, state, [EpochKey(node, epoch) for node, epoch in given.get("gone", ())])
    # not in rows of older versions
    forget(decider, state, [EpochKey(node, epoch) for node, epoch in given.get("unnumbered", ())], stored=True)
    state.disown(given.get("rows_from", 0))
    left_out = {
        record[0] if len(record) == 1 else (record[0], record[1], record[2]): LeftOut(why, settled)
        for record, why, settled in given["left_out"]
    }
    idle_again(decider, state, parts, str(row["owner"]), given["idle"])
    intake = Intake(decider, parts, number, str(row["owner"]), state.decided_us, left_out=left_out)
    for name, content in given["files"]:
        intake.read(content, name)
    if not _same(decided(intake, state, flush=given["flush"]).work, bytes(row["work"])):
        raise PortError(
            f"batch {number}: deciding it again gives another result than ops.batches has. Start the version of "
            "headwater that wrote this batch again, and stop it with SIGTERM; then start this version"
        )


def _same(work: Work, stored: bytes) -> bool:
    """Whether a Work is the stored one. Earlier versions stored the keys of sessions in another order."""
    content = work.dumps()
    if content == stored:
        return True
    made, known = Work.loads(content), Work.loads(stored)
    return _in_order(made) == _in_order(known)


def _in_order(work: Work) -> Work:
    islands = (replace(each, keys=tuple(sorted(each.keys, key=lambda one: one.key))) for each in work.islands)
    return replace(work, islands=tuple(islands))
