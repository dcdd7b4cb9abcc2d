"""Explains for `headwater status` how far a gateway is behind, and why. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edge_agent.algebra.frame import NEVER_US

if TYPE_CHECKING:
    from edge_agent.machines.gateway.gateway import Gateway

USUAL_US: Final = 10_000_000  # a smaller lag is normal: commits and reports of sensors are seconds apart


def standing(gateway: Gateway, now_us: int) -> tuple[int | None, str]:
    """Returns (least frontier of all groups, None before the first promise; why it is behind, '' if it is not)."""
    if gateway.outbox.journal is None:
        return None, "waits for its parent: no receipt so far"
    if not gateway.groups:
        return None, "waits for definitions: no query of a sensor here"
    group, state = min(gateway.groups.items(), key=lambda each: each[1].frontier_us)
    reached_us = None if state.frontier_us <= NEVER_US else state.frontier_us
    source = gateway.sources.get(group.source)
    if source is None or source.ended:
        return reached_us, ""
    sensor, quiet_us = source.sensor, now_us - source.heard_us
    if source.newest_us <= NEVER_US:
        return reached_us, f"sensor {sensor.id}: no reading for {quiet_us // 1_000_000} s"
    lag_us = now_us - state.frontier_us - group.lateness_us - sensor.delay_us
    if lag_us < USUAL_US:
        return reached_us, ""
    if source.own_clock:  # such as a file that is replayed: it may be years behind, for ever or for minutes
        behind_s = (now_us - source.clock_us) // 1_000_000
        return reached_us, f"sensor {sensor.id}: its {sensor.driver} has a clock of its own, {behind_s} s behind"
    if source.newest_us < now_us - quiet_us - USUAL_US:
        return reached_us, f"sensor {sensor.id}: its readings are {(now_us - source.newest_us) // 1_000_000} s old"
    timeout_s = sensor.timeout_us // 1_000_000
    return (
        reached_us,
        f"sensor {sensor.id}: silent for {quiet_us // 1_000_000} s, counts as idle after {timeout_s} s (timeout)",
    )
