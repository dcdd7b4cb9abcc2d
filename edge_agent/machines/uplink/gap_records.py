"""Makes the gap record that replaces one frame that is given up (docs/protocol.md 3.5, 3.6)."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.algebra.frame import NEVER_US, Frame, Gap, GroupPart
from edge_agent.machines.uplink.epoch_encoder import EpochEncoder


def promises_of(frame: Frame) -> tuple[GroupPart, ...]:
    """The parts of a frame without their rows: frontiers, exceptions and registers remain."""
    return tuple(replace(part, sections=(), late=()) for part in frame.groups)


def gap_of(frame: Frame, encoder: EpochEncoder, reason: str) -> Gap:
    """The gap record for a frame's rows (3.5). detail 'sha256': the runtime replaces it by the hash of the bytes."""
    by_number = {n: g for g, n in encoder.groups.items()}
    groups, start, end, readings = [], 2**62, NEVER_US, 0
    for part in frame.groups:
        for section in (*part.sections, *part.late):
            rows = section.partials
            if len(rows):
                start, end = min(start, int(rows.start.min())), max(end, int(rows.end.max()))
                counts = next(iter(rows.states.values()))  # of every basis the first; in the spool it has no name
                readings += int(counts.sum())
        if part.group in by_number and (part.sections or part.late):
            groups.append(by_number[part.group])
    if end < start:
        start = end = 0
    return Gap(tuple(groups), start, end, readings, (), reason, 1, "sha256")
