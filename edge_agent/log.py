"""Logs to standard error in logfmt: one line per event, with its name and key=value pairs.

Code logs events, not prose: `log.warning("slice.late", extra={"sensor": key, "late_by_s": 7.2})`, and no line per
reading or window. Of lines with equal event, level and node or sensor, 5 per 30 s are written; the first line after
these 30 s has the number that was left out. Errors are equal only if all their texts are, such as the reason: a new
one is always written. Of an error that goes on, as on a full disk, one line per 30 s follows the first 5.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

BURST: Final = 5  # lines per event that pass in a period: enough to see a pattern
PERIOD_S: Final = 30.0  # so that a stuck sensor cannot fill the disk; two periods of the slowest heartbeat
MAX_VALUE: Final = 500  # characters of one value, so that a payload in a line cannot fill the journal
MAX_EVENTS: Final = 1000  # distinct events that are counted at once
PLAIN: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "left_out"))


def _text(value: object) -> str:
    """A value as text: bare if it is a plain word, else quoted and escaped."""
    text = value if isinstance(value, str) else repr(value) if isinstance(value, bytes) else str(value)
    if len(text) > MAX_VALUE:
        text = f"{text[:MAX_VALUE]}…({len(text)})"
    if text and text.isprintable() and not any(sign in text for sign in ' "='):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + '"'


class Logfmt(logging.Formatter):
    """Formats lines like `2026-11-21T09:00:00.123Z warning slice.late sensor=boiler late_by_s=7.2`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, with a traceback as a value."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event = record.getMessage()
        words = [f"{stamp}.{int(record.msecs):03d}Z", record.levelname.lower()]
        words.append(event if event.isprintable() and " " not in event else f"{record.name} message={_text(event)}")
        words += [f"{name}={_text(value)}" for name, value in vars(record).items() if name not in PLAIN]
        if record.exc_info:
            words.append(f"traceback={_text(self.formatException(record.exc_info)[-MAX_VALUE:])}")
        left_out = getattr(record, "left_out", 0)
        if left_out:
            words.append(f"left_out={left_out}")
        return " ".join(words)


class Thin(logging.Filter):
    """Passes BURST lines per PERIOD_S with the same event, level and sensor or node.

    Of errors with the same texts too, and one per PERIOD_S as long as more come.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._seen: dict[tuple[object, ...], tuple[float, int, int]] = {}  # begin of the period, lines, most lines

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write this line."""
        is_error = record.levelno >= logging.ERROR
        key = (record.msg, record.levelno, _texts(record) if is_error else _about(record))
        now = self._now()
        began, count, most = self._seen.get(key, (now, 0, BURST))
        if now - began >= PERIOD_S:
            record.left_out = max(0, count - most)
            goes_on = is_error and count > most and now - began < 2 * PERIOD_S
            began, count, most = now, 0, 1 if goes_on else BURST
        if len(self._seen) >= MAX_EVENTS:
            self._seen.clear()
        self._seen[key] = (began, count + 1, most)
        return count < most


def _about(record: logging.LogRecord) -> object:
    return getattr(record, "sensor", getattr(record, "node", ""))


def _texts(record: logging.LogRecord) -> int:
    """A hash of the texts of a record, such as its reason, topic or file, and of the arguments of its message."""
    fields = ((name, value) for name, value in vars(record).items() if name not in PLAIN and isinstance(value, str))
    return hash((record.getMessage(), *fields))


def setup(level: str = "info", stream: TextIO | None = None) -> None:
    """Send all loggers of this process, including paho's, to one stream. level: debug, info, warning or error."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(Logfmt())
    handler.addFilter(Thin())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
