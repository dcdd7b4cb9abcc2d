"""Finds the parts of a decision that cannot be carried out, because computing their rows raises.

A decision in ops.batches must be carried out before the next one is taken, so one window whose rows raise would stop
the root at each start. Such windows are found by trying, logged and left out: they get no rows, and ops.gaps declares
this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from edge_agent.algebra.query.key import QueryKey
from edge_agent.errors import PortError, ProtocolError
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.work import Islands, Ordering, TableRow, TooLate, WindowRange, Work

GONE: Final = (  # texts of errors after the JVM has ended
    "An error occurred while trying to connect to the Java server",
    "Answer from Java side is empty",
    "Error while sending or receiving",
    "Error while receiving",
    "cannot call methods on a stopped SparkContext",
)
MEMORY: Final = "OutOfMemoryError"
WORLD: Final = (  # texts of errors from the JVM whose cause is outside the data
    "No space left on device",
    "Disk quota exceeded",
    MEMORY,
    "Read-only file system",
    "Input/output error",
    "Stale file handle",
    "Transport endpoint is not connected",
    "Too many open files",
    "Permission denied",
    "AccessDenied",
    "Access Denied",
    "403 Forbidden",
    "503 Service Unavailable",
    "SlowDown",
    "Unable to execute HTTP request",
    "java.net.",  # its exceptions: no host, no connection, no answer in time
    "javax.net.ssl.",
    "org.apache.http.",
    "DELTA_CONCURRENT",  # after all tries
    *GONE,
)
LOST: Final = "ExecutorLost"  # a process of a cluster has ended
STORES: Final = (  # texts of errors of files, stores, catalogs and clusters; not looked for in errors of Python workers
    LOST,
    "java.io.",
    "java.nio.file.",
    "org.apache.hadoop.",
    "org.apache.parquet.",
    "[FAILED_READ_FILE",
    "[PATH_NOT_FOUND]",
    "[TABLE_OR_VIEW_NOT_FOUND]",
    "[DELTA_",  # of the log, the protocol, other commits; but see OF_DATA
    "com.amazonaws.",
    "software.amazon.awssdk.",
    "com.google.cloud.",
    "GoogleJsonResponseException",
    "com.azure.",
    "com.microsoft.azure.",
    'Operation failed: "',  # Azure
    "io.unitycatalog.",
    "Status Code: ",
    "401 Unauthorized",
    "429 Too Many Requests",
    "SparkContext was shut down",
    "StatusCode.UNAVAILABLE",
)
# Of our own code on the driver: a key error has the key of a child as its text
OURS: Final = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError, ProtocolError)
PYTHON: Final = ("PythonException", "Python worker exited unexpectedly")  # our own code has failed in a worker
FRAME: Final = re.compile(r"\s+(at |\.\.\. \d+ more)")  # of the JVM's stack, which names packages in any error
OF_DATA: Final = (  # Spark's conditions whose texts contain values of the data, which may look like texts of WORLD
    "[DUPLICATED_MAP_KEY]",
    "[CAST_INVALID_INPUT]",
    "[CAST_OVERFLOW]",
    "[ARITHMETIC_OVERFLOW]",
    "[DELTA_CAST_OVERFLOW",
    "[DELTA_EXCEED_CHAR_VARCHAR",
    "[DELTA_MULTIPLE_SOURCE_ROW",
    "[DELTA_NOT_NULL",
    "[DELTA_REPLACE_WHERE_MISMATCH]",
    "[DELTA_VIOLATE",
)
PIECES: Final = ("closing", "revising", "islands", "ordering", "beyond", "refused")  # fields of Work: entries get rows
MOST_TRIES: Final = 100  # per field; entries that have not succeeded by then are left out
REASON: Final = "its rows could not be made"  # in ops.gaps
CAUSE: Final = "Caused by: "
SHOWN: Final = 200  # characters of an exception's text that are shown


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

    def row(self, state: RootState, number: int) -> TableRow:
        """The row of ops.gaps: for a window or session without its row, and for readings without theirs in ops.late or
        ops.quarantine.
        """
        piece = self.piece
        if isinstance(piece, WindowRange | Islands | Ordering):
            start_us, end_us = times_of(piece)
            query = state.query(QueryKey(piece.query, piece.revision))
            sources = [] if query is None else [query.source]
            node, about = piece.node, f"query {piece.query} revision {piece.revision}"
        else:
            start_us, end_us = 0, max(piece.before_us, 0) if isinstance(piece, TooLate) else 0
            sources = [piece.source] if isinstance(piece, TooLate) else []
            node, about = piece.node, self.name
        return {
            "node": "",
            "sources": sources,
            "start": start_us,
            "end": end_us,
            "readings": -1,
            "nodes": [node] if node else [],
            "reason": REASON,
            "detail": f"{about}: {self.why}",
            "batch": number,
        }


def about(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Which part a row of ops.gaps declares: what is in it without the exception, whose text may differ next time."""
    return row["start"], row["end"], tuple(row["nodes"]), row["detail"].partition(": ")[0]


def possible(work: Work, make: Callable[[Work], None]) -> tuple[Work, list[Impossible]]:
    """Split a work into (the work without the parts that raise, these parts).

    make: computes the rows of a work without writing them. Raises: errors outside the data.
    """
    none: dict[str, Any] = dict.fromkeys(PIECES, ())
    nothing = replace(work, unread=0, **none)
    impossible: list[Impossible] = []
    good: dict[str, Any] = {name: _good(name, getattr(work, name), nothing, make, impossible) for name in PIECES}
    return replace(work, **good), impossible


def _good(
    name: str, pieces: tuple[Any, ...], nothing: Work, make: Callable[[Work], None], impossible: list[Impossible]
) -> tuple[Any, ...]:
    """The entries of one field whose rows can be computed, found by halving. Adds the others to `impossible`."""
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
    """(start, end) of a piece's rows in event time, us."""
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
    """Raise the error again if its cause is outside the data: a disk, a store, a network, a cluster, the JVM.

    cause: an exception of our own code that it wraps; its text is not judged, because it may contain any value. Neither
    is that of an exception that only our own code raises.
    """
    if isinstance(cause or error, PortError | OSError):
        raise error
    if cause is not None or isinstance(error, OURS):
        return
    message = "\n".join(line for line in str(error).splitlines() if not FRAME.match(line))
    texts = WORLD if any(text in message for text in PYTHON) else (*WORLD, *STORES)
    if any(text in message for text in texts) and not any(text in message for text in OF_DATA):
        raise error


def jvm_is_gone(error: Exception) -> bool:
    """Whether the error says that the JVM has ended. Then every later call raises too: only a new process helps."""
    return isinstance(error, ConnectionError | EOFError) or any(text in str(error) for text in GONE)


def jvm_has_died(error: Exception) -> bool:
    """Whether a JVM has ended or has no memory: the data may be the cause, as of a process that was killed."""
    return jvm_is_gone(error) or any(text in str(error) for text in (MEMORY, LOST))


def text_of(error: Exception) -> str:
    """The first line of an error; of an error from the JVM, the line that names the last cause."""
    lines = str(error).splitlines() or [""]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    return causes[-1][:SHOWN] if causes else f"{type(error).__name__}: {lines[0][:SHOWN]}"
