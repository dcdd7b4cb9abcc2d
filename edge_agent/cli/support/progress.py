"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

WIDTH: Final = 30
EVERY_S: Final = 0.1  # between two updates


class Progress:
    """`with Progress("replaying", total) as bar: bar.at(done, "text")`. Silent unless standard error is a terminal."""

    def __init__(self, what: str, total: float) -> None:
        self._what = what
        self._total = total
        self._shown_s = 0.0
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._terminal and self._shown_s:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def at(self, done: float, text: str = "") -> None:
        """Show that `done` of the total is done. text: shown after the bar."""
        now_s = time.monotonic()
        if not self._terminal or now_s - self._shown_s < EVERY_S:
            return
        self._shown_s = now_s
        share = min(1.0, done / self._total) if self._total else 1.0
        filled = round(share * WIDTH)
        sys.stderr.write(f"\r{self._what} [{'#' * filled}{'.' * (WIDTH - filled)}] {share:4.0%} {text}\x1b[K")
        sys.stderr.flush()
