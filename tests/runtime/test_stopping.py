"""A process that is told to stop ends, whatever it is doing at that moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.cli.support.serving import stopped_by_signal
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime.guard import Guard, Service
from edge_agent.runtime.quarantine import QuarantineFile


class Turns:
    """A loop that turns until it is stopped, or a thousand times; at its first turn it fails if told so."""

    handling: tuple[str, bytes] | None = None
    guard: Guard | None = None
    turned = False

    def __init__(self, fails: bool = False) -> None:
        self.stopping, self.turns, self.fails = False, 0, fails
        self.clock, self.waiter = SystemClock(), Waiter()

    def run(self, until: Callable[[], bool] | None = None) -> None:
        try:
            while not self.stopping and self.turns < 1000:
                self.turns += 1
                if self.fails:
                    raise OSError("a disk")
        finally:
            self.waiter.close()

    def stop(self) -> None:
        self.stopping = True
        self.waiter.wake()


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    return Guard(QuarantineFile(tmp_path / "quarantine.jsonl"))


def test_a_stop_while_the_loop_is_made_is_obeyed(guard: Guard) -> None:
    """SIGTERM while a spool of gigabytes is opened was lost, and systemd killed the process 90 s later."""
    made: list[Turns] = []

    def make(_: Guard) -> Turns:
        service.stop()
        made.append(Turns())
        return made[-1]

    service = Service(make, guard)
    service.run()
    assert [loop.turns for loop in made] == [0]


def test_a_stop_between_a_failed_loop_and_the_next_is_obeyed(guard: Guard) -> None:
    made: list[Turns] = []

    def make(_: Guard) -> Turns:
        if made:
            service.stop()  # the failed loop has closed its pipe
        made.append(Turns(fails=not made))
        return made[-1]

    service = Service(make, guard)
    service.run()
    assert [loop.turns for loop in made] == [1, 0]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_is_an_order_to_stop_also_when_the_terminal_closes(name: str) -> None:
    stops: list[str] = []
    number = signal.Signals[name]
    before = signal.signal(number, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        with stopped_by_signal(lambda: stops.append(name)):
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert stops == [name]


def test_under_nohup_the_end_of_the_terminal_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stops: list[str] = []
    try:
        with stopped_by_signal(lambda: stops.append("SIGHUP")):
            signal.raise_signal(signal.SIGHUP)
        assert (stops, signal.getsignal(signal.SIGHUP)) == ([], signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_wake_after_the_end_writes_to_no_other_file() -> None:
    waiter = Waiter()
    waiter.close()
    reads, writes = os.pipe()
    try:
        waiter.wake()
        os.set_blocking(reads, False)
        with pytest.raises(BlockingIOError):
            os.read(reads, 1)
    finally:
        os.close(reads)
        os.close(writes)
