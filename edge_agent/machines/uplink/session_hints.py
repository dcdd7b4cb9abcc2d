"""The hints of open sessions as the frames of an epoch have sent them: the parent's registers.

Rules (docs/protocol.md): a register is a key's earliest open start, sent when it changes; a partial of the key clears
it (5.2); of several frames of one step only the last changes registers (2.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edge_agent.algebra.frame import Frame, Section
from edge_agent.algebra.partials.arrays import Ints, distinct
from edge_agent.algebra.partials.sessions import NO_HINT

Registers = tuple[tuple[int, int | None], ...]  # key number and its earliest start, None: cleared


class SessionHints:
    """The registers of one epoch, by group number. unsaved: a frame changed some since the owner last reset it."""

    def __init__(self, sent: Iterable[tuple[int, Sequence[int]]] = ()) -> None:
        """sent: (group number, starts by key number), as `snapshot` returns them."""
        self.unsaved = False
        self._sent: dict[int, Ints] = {number: np.array(starts_us, np.int64) for number, starts_us in sent}
        self._wanted: dict[int, Ints] = {}

    def updates(self, number: int, wanted: Ints, sections: Iterable[Section]) -> Registers:
        """The registers that the last frame of a step sends.

        number: of the group. wanted: start by key number, NO_HINT for none. sections: of that frame.
        """
        have = _grown(self._sent.get(number), len(wanted))
        for section in sections:  # a partial clears the register of its key, here and at the parent
            have[section.partials.key] = NO_HINT
        changed = np.flatnonzero(wanted != have)
        self._wanted[number] = wanted
        return _registers(changed, wanted)

    def split(self, number: int, most: int) -> tuple[Registers, Registers]:
        """Registers of the step that lower a bound, and `most` of those that raise or clear one, for a last frame
        without rows; of the others the present ones stay.
        """
        wanted = self._wanted.get(number)
        if wanted is None:
            return (), ()
        have = _grown(self._sent.get(number), len(wanted))
        lowered, raised = np.flatnonzero(wanted < have), np.flatnonzero(wanted > have)
        wanted[raised[most:]] = have[raised[most:]]
        return _registers(lowered, wanted), _registers(raised[:most], wanted)

    def unchanged(self, frame: Frame) -> Frame:
        """A frame before the last of its step, with the registers that its own partials clear sent again (2.3)."""
        parts = []
        for part in frame.groups:
            have = self._sent.get(part.group)
            sections = (*part.sections, *part.late)
            if have is not None and sections:
                keys = distinct(np.concatenate([section.partials.key for section in sections]))
                keys = keys[keys < len(have)]
                keys = keys[have[keys] < NO_HINT]
                part = replace(part, registers=tuple(zip(keys.tolist(), have[keys].tolist(), strict=True)))
            parts.append(part)
        return replace(frame, groups=tuple(parts))

    def sent(self, registers: Mapping[int, Registers]) -> None:
        """The frames of the step are made. registers: of its last frame, by group number."""
        self.unsaved = self.unsaved or any(registers.values())
        self._sent.update(self._wanted)

    def snapshot(self) -> dict[int, list[int]]:
        """Starts by key number, by group number."""
        return {number: starts_us.tolist() for number, starts_us in self._sent.items()}


def _registers(keys: Ints, starts_us: Ints) -> Registers:
    starts = starts_us[keys].tolist()
    return tuple((k, None if s == NO_HINT else s) for k, s in zip(keys.tolist(), starts, strict=True))


def _grown(starts_us: Ints | None, size: int) -> Ints:
    """A copy with room for all keys."""
    have = np.full(size, NO_HINT, np.int64)
    if starts_us is not None:
        have[: len(starts_us)] = starts_us
    return have
