"""Finds the part of a decision that can be carried out, if some of its rows cannot be made.

A decision in ops.batches must be carried out before the next one is taken, so one window whose rows raise would stop
the root at each start. The windows that raise are therefore found by trying, left out, logged and declared: they get no
rows, and ops.gaps says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from edge_agent.algebra.query.key import QueryKey
from edge_agent.errors import PortError
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import Islands, Ordering, TableRow, WindowRange, Work

GONE: Final = (  # what errors say where there is no JVM any more
    "An error occurred while trying to connect to the Java server",
    "Answer from Java side is empty",
    "Error while sending or receiving",
    "Error while receiving",
    "cannot call methods on a stopped SparkContext",
)
WORLD: Final = (  # what errors that come through the JVM say when nothing that was read is at fault
    "No space left on device",
    "OutOfMemoryError",
    "Read-only file system",
    "Input/output error",
    "Too many open files",
    "Permission denied",
    *GONE,
)
PIECES: Final = ("closing", "revising", "islands", "ordering", "beyond", "refused")  # of Work: each entry gets rows
MOST_TRIES: Final = 100  # of one field; then all that has not been made by then is left out
REASON: Final = "its rows could not be made"  # of a row of ops.gaps
CAUSE: Final = "Caused by: "
SHOWN: Final = 200  # characters of what an exception says


class Impossible(NamedTuple):
    """A part of a decision that raises. piece: an entry of one of PIECES."""

    piece: Any
    error: Exception

    @property
    def why(self) -> str:
        return text_of(self.error)

    @property
    def name(self) -> str:
        """A name for log lines."""
        if isinstance(self.piece, WindowRange | Islands | Ordering):
            start_us, end_us = times_of(self.piece)
            return f"query {self.piece.query} revision {self.piece.revision}, {start_us} to {end_us} us"
        return f"frame {self.piece.epoch:08x}/{self.piece.seq} of {self.piece.node}"

    def row(self, state: RootState, number: int) -> TableRow | None:
        """Its row of ops.gaps; None if no result lacks anything."""
        piece = self.piece
        if not isinstance(piece, WindowRange | Islands | Ordering):
            return None
        start_us, end_us = times_of(piece)
        query = state.query(QueryKey(piece.query, piece.revision))
        return {
            "node": "",
            "sources": [] if query is None else [query.source],
            "start": start_us,
            "end": end_us,
            "readings": -1,
            "nodes": [piece.node] if piece.node else [],
            "reason": REASON,
            "detail": f"query {piece.query} revision {piece.revision}: {self.why}",
            "batch": number,
        }


def possible(work: Work, make: Callable[[Work], None]) -> tuple[Work, list[Impossible]]:
    """Splits a work into (the work without the parts that raise, these parts).

    make: computes the rows of a work and writes none. Raises: errors outside the data.
    """
    none: dict[str, Any] = dict.fromkeys(PIECES, ())
    nothing = replace(work, unread=0, **none)
    impossible: list[Impossible] = []
    good: dict[str, Any] = {name: _good(name, getattr(work, name), nothing, make, impossible) for name in PIECES}
    return replace(work, **good), impossible


def _good(
    name: str, pieces: tuple[Any, ...], nothing: Work, make: Callable[[Work], None], impossible: list[Impossible]
) -> tuple[Any, ...]:
    """The entries of one field that can be made. Halves are tried, and of a half that raises its halves."""
    good: list[Any] = []
    waiting = [pieces] if pieces else []
    tries = 0
    error: Exception | None = None
    while waiting:
        some = waiting.pop()
        if tries >= MOST_TRIES and error is not None:
            impossible += (Impossible(piece, error) for piece in some)
            continue
        tries += 1
        try:
            only: dict[str, Any] = {name: some}
            make(replace(nothing, **only))
        except Exception as err:
            raise_if_of_the_world(err)
            error = err
            if len(some) == 1:
                impossible.append(Impossible(some[0], err))
            else:
                half = len(some) // 2
                waiting += (some[half:], some[:half])
        else:
            good += some
    return tuple(good)


def times_of(piece: WindowRange | Islands | Ordering) -> tuple[int, int]:
    """The range of event time of a piece's rows, in us."""
    match piece:
        case WindowRange():
            slide_us, after_us = max(piece.slide_us, 1), piece.low_us - piece.offset_us
            first_us = piece.low_us - after_us % -slide_us
            return first_us, piece.high_us - (piece.high_us - first_us) % slide_us + piece.length_us
        case Ordering():
            return piece.after_us, piece.upto_us
        case Islands():
            touched = [found for found in (piece.touch, *(key.touch for key in piece.keys)) if found is not None]
            starts = [start_us for start_us, _ in touched] + ([] if piece.low_us is None else [piece.low_us])
            return min(starts, default=piece.shut_us), max([piece.bound_us, *(end_us for _, end_us in touched)])


def raise_if_of_the_world(error: Exception, cause: BaseException | None = None) -> None:
    """Raise an error that no reading has caused: of a disk or the JVM. cause: of the error, if that only wraps it."""
    if isinstance(cause or error, PortError | OSError) or any(text in str(error) for text in WORLD):
        raise error


def jvm_is_gone(error: Exception) -> bool:
    """Whether the JVM has ended. Then every later call raises too, and only a new process helps."""
    return isinstance(error, ConnectionError | EOFError) or any(text in str(error) for text in GONE)


def text_of(error: Exception) -> str:
    """The first line of an error; of one that comes through the JVM, the line that names the cause."""
    lines = str(error).splitlines() or [""]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    return causes[-1][:SHOWN] if causes else f"{type(error).__name__}: {lines[0][:SHOWN]}"
