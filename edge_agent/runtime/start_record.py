"""Records which message a process was handling when it was killed: by its watchdog, lack of memory or a library fault.

The record is a small file beside the spool. A process that ended in order, or ran for a minute, marks it as closed.
Otherwise the next process handles messages one by one, and writes the name of each message here first. If three starts
in a row ended while they handled the same message, it is left out. There is no fsync, because the page cache survives a
killed process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any, Final

log = logging.getLogger("headwater")

NAME: Final = "starts.json"
SETTLED_S: Final = 60.0  # after this time of service, a failure is not a failed start
MOST_SAME: Final = 3  # starts that ended at the same message; kills at random moments never hit one message so often
SIZE_BYTES: Final = 4_096  # of the file; two names fit, with each character escaped
LONGEST: Final = 200  # characters of a recorded name; a topic may have 65 535
DEFINITIONS: Final = "definitions"  # recorded instead of a message while a gateway configures those of its last run


class StartRecord:
    """The record of one process. failed: starts in a row before this one that did not end in order."""

    def __init__(self, path: Path, most_same: int = MOST_SAME, *, begun: bool = True) -> None:
        """most_same: how many starts in a row may end with the same message.

        begun: False if another process may be serving here; nothing is written then until `begin`.
        """
        before = _read(path)
        self.failed = before["failed"] + 1 if before["open"] else 0
        same = before["same"] + 1 if before["what"] and before["what"] == before["last"] else 1
        self._last = before["what"] if self.failed else ""
        self._same = same if self._last else 0
        self.fatal = self._last if self._same >= most_same else ""  # the message to leave out
        self._what = ""
        self._path = path
        self._handle: int | None = None
        self._begun = False
        if begun:
            self.begin()

    def begin(self) -> None:
        """Record that this process begins to serve, once no other one can."""
        if not self._begun:
            self._begun = True
            self._write(is_open=True)

    @property
    def careful(self) -> bool:
        """Whether messages are to be handled one by one."""
        return self.failed > 0

    def handling(self, what: str) -> None:
        """Record the name of the message that is handled now; '': none."""
        self._what = short_form(what)
        self._write(is_open=True)

    def is_fatal(self, what: str) -> bool:
        """Whether the message of this name is the one to leave out."""
        return bool(self.fatal) and self.fatal == short_form(what)

    def settled(self) -> None:
        """Record that the process ended in order, or ran for long enough."""
        self.failed, self._what, self._last, self._same = 0, "", "", 0
        self._write(is_open=False)

    def _write(self, *, is_open: bool) -> None:
        if not self._begun:
            return
        record = {"open": is_open, "failed": self.failed, "what": self._what, "last": self._last, "same": self._same}
        text = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")
        try:
            if self._handle is None:
                self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
                self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._handle, text.ljust(SIZE_BYTES)[:SIZE_BYTES], 0)
        except OSError as err:  # a full disk: a failed start then counts as the first
            log.warning("start_record.failed", extra={"file": str(self._path), "why": err.strerror})

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def short_form(what: str) -> str:
    """A name as it is recorded and compared: of a long one the beginning, and a digest of the whole."""
    if len(what) <= LONGEST:
        return what
    digest = hashlib.blake2b(what.encode("utf-8", "replace"), digest_size=16).hexdigest()
    return f"{what[: LONGEST - len(digest) - 1]} {digest}"


def _read(path: Path) -> dict[str, Any]:
    """The record of the previous process; an empty record if there is none, or it is damaged."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # of a pipe nobody may ever write
        try:
            found = json.loads(os.read(handle, SIZE_BYTES))
        finally:
            os.close(handle)
        return {
            "open": found["open"] is True,
            **{name: int(found[name]) for name in ("failed", "same")},
            **{name: str(found[name]) for name in ("what", "last")},
        }
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {"open": False, "failed": 0, "same": 0, "what": "", "last": ""}
