"""Clocks: a step is told once, a drift never."""

from __future__ import annotations

import ctypes
import struct
import time
from pathlib import Path

import pytest

from edge_agent.ports import clock as clock_port
from edge_agent.ports.clock import JudgedClock, SystemClock


def test_both_clocks_move_together_and_the_wall_clock_can_be_right() -> None:
    clock = SystemClock()
    wall, boot = clock.now_us(), clock.boot_us()
    time.sleep(0.02)
    assert abs((clock.now_us() - wall) - (clock.boot_us() - boot)) < 20_000
    assert clock.synced
    assert clock.step_us() == 0


def test_a_step_is_told_once_with_its_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.1: a backward step begins a new epoch."""
    clock = SystemClock()
    offset = 0
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + offset)
    assert clock.step_us() == 0
    for step_s in (-3, 86_400, -50 * 365 * 86_400):
        offset += step_s * 10**9
        assert abs(clock.step_us() - step_s * 10**6) < 10_000
        assert clock.step_us() == 0
    assert not clock.synced  # 1976


def test_slow_drift_below_half_a_second_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 400_000_000)
    assert clock.step_us() == 0


def test_the_time_of_a_node_does_not_follow_a_step_that_nobody_vouches_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """protocol 4.3"""
    monkeypatch.setattr("edge_agent.ports.clock.vouched", lambda run: None)
    clock = JudgedClock(trust="auto", max_error_us=2_000_000, run=tmp_path)
    before, real = clock.now_us(), time.time_ns
    assert clock.state.known
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600 * 10**9)
    assert clock.use(clock.judge.look(clock.reading())) == 0
    assert not clock.synced
    assert abs(clock.now_us() - before) < 10_000_000


def test_a_service_that_runs_and_has_not_said_so_does_not_vouch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """protocol 4.3: the kernel's word first, then the traces of a service."""
    status = [clock_port.UNSYNCED]

    class Kernel:
        def adjtimex(self, buffer: ctypes.Array[ctypes.c_char]) -> int:
            struct.pack_into("@Illlli", buffer, 0, 0, 0, 0, 0, 0, status[0])
            return 5

    monkeypatch.setattr(clock_port, "_adjtimex", lambda: Kernel().adjtimex)
    assert clock_port.vouched(tmp_path) is None
    (tmp_path / "chrony").mkdir()
    assert clock_port.vouched(tmp_path) is False
    status[0] = 0
    assert clock_port.vouched(tmp_path) is True
