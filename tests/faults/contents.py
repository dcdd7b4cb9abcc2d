"""How many readings a frame holds."""

from __future__ import annotations

from edge_agent.algebra.frame import Frame


def readings_of(frame: Frame) -> int:
    """The sum of the counts of its rows: of every basis the first column, which has no name in a decoded frame."""
    sections = [section for part in frame.groups for section in (*part.sections, *part.late)]
    return sum(int(next(iter(section.partials.states.values())).sum()) for section in sections)
