"""Two threads and a lock of a file: one goes on once the other has ended or waits, however slow the machine is."""

from __future__ import annotations

import fcntl
import threading

import pytest

from tests.support.waiting import eventually


def locks_asked_for(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set once a thread other than the main one asks for a lock."""
    flock, asked = fcntl.flock, threading.Event()

    def asks(handle: int, how: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            asked.set()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", asks)
    return asked


def runs_or_waits(thread: threading.Thread, asked: threading.Event) -> None:
    """Return once the thread has ended, or waits for a lock."""
    eventually(lambda: asked.is_set() or not thread.is_alive(), timeout_s=60.0)
