"""Rows, frames, and cuts: what of a gateway's line has been sent upward (docs/protocol.md 3.8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

SLIDE, WINDOWS, GAP, LATENESS = 5, (10, 20), 10, 3
NEVER, EVER = -(10**6), 10**6

Ids = tuple[int, ...]  # readings, by number
SliceRow = tuple[int, str, Ids]  # start, key: one slide long
Piece = tuple[str, int, int, Ids]  # key, first, last: of a session
LineKey = tuple[str, str]  # gateway, its parent
Cut = tuple[tuple[int, int], ...]  # (index, end): of frames up to index all rows that end at or before end


def slice_end(row: SliceRow) -> int:
    """The frontier that a merger must reach before it sends the row."""
    return row[0] + SLIDE


def piece_end(piece: Piece) -> int:
    """The same of a piece of a session: its last reading and the gap lie below the frontier."""
    return piece[2] + GAP + 1


def in_cut(cut: Cut, index: int, end: int) -> bool:
    """Whether a row of the frame with that index was sent."""
    return any(index <= upto and end <= limit for upto, limit in cut)


def united(*cuts: Cut) -> Cut:
    """What one of the cuts contains, without pairs that another one covers."""
    out: list[tuple[int, int]] = []
    for upto, limit in sorted({pair for cut in cuts for pair in cut}, reverse=True):
        if not out or limit > out[-1][1]:
            out.append((upto, limit))
    return tuple(out)


def limited(cut: Cut, end: int) -> Cut:
    """The part of a cut that ends at or before `end`."""
    return united(tuple((upto, min(limit, end)) for upto, limit in cut))


def fuse(pieces: Iterable[Piece], piece: Piece) -> list[Piece]:
    """Pieces of one key with one more, those within a gap of it joined to one."""
    key, first, last, ids = piece
    apart = []
    for other in pieces:
        if first - other[2] <= GAP and other[1] - last <= GAP:
            first, last, ids = min(first, other[1]), max(last, other[2]), ids + other[3]
        else:
            apart.append(other)
    return [*apart, (key, first, last, ids)]


def fused(pieces: Iterable[Piece]) -> list[Piece]:
    """All pieces, those of one key within a gap of each other joined."""
    by_key: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_key[piece[0]] = fuse(by_key.get(piece[0], ()), piece)
    return [piece for joined in by_key.values() for piece in joined]


@dataclass(frozen=True)
class Rows:
    """What a step sends. raw: readings that every tier passes on at once."""

    slices: tuple[SliceRow, ...] = ()
    pieces: tuple[Piece, ...] = ()
    raw: Ids = ()

    def __bool__(self) -> bool:
        return bool(self.slices or self.pieces or self.raw)

    @property
    def end(self) -> int:
        """The frontier at which all of them have been sent."""
        return max([NEVER, *map(slice_end, self.slices), *map(piece_end, self.pieces)])

    @property
    def ids(self) -> set[int]:
        return {i for rows in (self.slices, self.pieces) for row in rows for i in row[-1]} | set(self.raw)


@dataclass(frozen=True)
class Leave:
    """The end of a gateway's line at a parent (1.5). before: the epoch before the move that began this line."""

    leaf: str
    successor: int
    frontier: int
    epoch: int
    before: int | None


@dataclass(frozen=True)
class Loss:
    """A gap record: readings dropped by a quota, and (leaf, start, end) of the windows concerned."""

    ids: frozenset[int]
    marks: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Statement:
    """What the last frame of a step says of the sender. registers: those that changed, None cleared.

    leaves: leaf -> (epoch, epoch before its last move). exceptions: leaf -> (frontier, bound).
    """

    frontier: int
    registers: dict[str, int | None]
    leaves: dict[str, tuple[int, int | None]]
    exceptions: dict[str, tuple[int, int]]
    left: frozenset[Leave] = frozenset()
    cut: dict[LineKey, Cut] = field(default_factory=dict)
    birth: bool = False
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True)
class Frame:
    """own: the sender's journal, of a merger. index: counts the frames of a line at one parent, across epochs.

    journal: the parent's that it was written for, of a gateway. said: None of all frames of a step but the last.
    """

    node: str
    own: int
    to: str
    epoch: int
    index: int
    journal: int | None
    rows: Rows
    said: Statement | None
    leave: Leave | None = None


@dataclass(frozen=True)
class Beat:
    """A heartbeat. last: index of the last frame; held: of the first that the sender still has."""

    node: str
    own: int
    epoch: int
    last: int
    frontier: int
    held: int


@dataclass(frozen=True)
class Ask:
    """A merger with a new journal asks its parent what arrived of the old one."""

    node: str
    own: int


@dataclass(frozen=True)
class Answer:
    """What arrived: frontier, registers, leaves with exceptions, and the cut of every line below."""

    own: int
    frontier: int
    registers: dict[str, int]
    leaves: dict[str, tuple[int, int | None]]
    exceptions: dict[str, tuple[int, int]]
    cut: dict[LineKey, Cut]


@dataclass(frozen=True)
class Receipt:
    """received: (all below, those above). settled: what the root decided on. refused: a journal that was fenced."""

    source: str
    journal: int
    own: int
    received: tuple[int, frozenset[int]]
    settled: dict[LineKey, Cut]
    refused: bool = False


Message = Frame | Beat | Ask | Answer | Receipt
