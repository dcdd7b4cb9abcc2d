"""Clocks: a step is told once, a drift never."""

from __future__ import annotations

import time

import pytest

from edge_agent.ports.clock import SystemClock


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
