"""What a parent holds of the sessions that are open below it, as the frames of an epoch have said it.

Rules (docs/protocol.md): a register is a key's earliest open start, stated when it changes; a partial of the key clears
it (5.2); of several frames of one step only the last changes registers (2.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edge_agent.algebra.frame import Frame, Section
from edge_agent.algebra.partials.arrays import Ints, distinct
from edge_agent.algebra.partials.sessions import NO_HINT

Stated = tuple[tuple[int, int | None], ...]  # key number and its earliest start, None: cleared


class SessionHints:
    """Those of one epoch, by the number of each group of sessions.

    times_said: how often a frame stated any: what a spool has of them is old then.
    """

    def __init__(self, said: Iterable[tuple[int, Sequence[int]]] = ()) -> None:
        """said: as `snapshot` tells them."""
        self.times_said = 0
        self._said: dict[int, Ints] = {number: np.array(starts_us, np.int64) for number, starts_us in said}
        self._wanted: dict[int, Ints] = {}

    def changed(self, number: int, wanted: Ints, sections: Iterable[Section]) -> Stated:
        """What the last frame of a step states. wanted: by key number, NO_HINT for none; sections: of that frame."""
        have = _grown(self._said.get(number), len(wanted))
        for section in sections:  # a partial clears the register of its key, here and at the parent
            have[section.partials.key] = NO_HINT
        changed = np.flatnonzero(wanted != have)
        self._wanted[number] = wanted
        starts = wanted[changed].tolist()
        return tuple((k, None if s == NO_HINT else s) for k, s in zip(changed.tolist(), starts, strict=True))

    def restated(self, frame: Frame) -> Frame:
        """A frame before the last of its step: the registers that its own partials clear stay as they were (2.3)."""
        parts = []
        for part in frame.groups:
            have = self._said.get(part.group)
            sections = (*part.sections, *part.late)
            if have is not None and sections:
                keys = distinct(np.concatenate([section.partials.key for section in sections]))
                keys = keys[keys < len(have)]
                keys = keys[have[keys] < NO_HINT]
                held = tuple(zip(keys.tolist(), have[keys].tolist(), strict=True))
                part = replace(part, registers=held)
            parts.append(part)
        return replace(frame, groups=tuple(parts))

    def said(self, stated: Mapping[int, Stated]) -> None:
        """The step is composed. stated: what its last frame states, by group number."""
        self.times_said += any(stated.values())
        self._said.update(self._wanted)

    def snapshot(self) -> dict[int, list[int]]:
        """As they were said, by group number, by the number of the key."""
        return {number: starts_us.tolist() for number, starts_us in self._said.items()}


def _grown(starts_us: Ints | None, size: int) -> Ints:
    """A copy with room for all keys."""
    have = np.full(size, NO_HINT, np.int64)
    if starts_us is not None:
        have[: len(starts_us)] = starts_us
    return have
