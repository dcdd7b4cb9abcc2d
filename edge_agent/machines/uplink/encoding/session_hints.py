"""Tracks the registers of open sessions that the parent has from the frames of an epoch.

Rules (docs/protocol.md): a register is the earliest open start of a key, sent when it changes; a partial of the key
clears it (5.2). In a step of several frames only the last changes registers (2.3). Registers of the epoch before stay
in force at the parent until the new epoch states a frontier (1.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from edge_agent.algebra.frame import GroupPart, Section
from edge_agent.algebra.partials.arrays import Ints, distinct
from edge_agent.algebra.partials.sessions import NO_HINT

UNKNOWN: Final = -(2**62)  # the parent's register is unknown, so it must be stated
Registers = tuple[tuple[int, int | None], ...]  # (key number, earliest start; None: cleared)
_CLEAR: Final = np.int64(NO_HINT).tobytes()  # bytes are compared, because numpy takes longer for the usual few keys


class SessionHints:
    """The registers of one epoch, by group number. unsaved: a frame has changed registers since the owner reset it."""

    def __init__(self, sent: Iterable[tuple[int, Sequence[int]]] = ()) -> None:
        """sent: (group number, starts by key number), as `snapshot` returns them."""
        self.unsaved = False
        self._sent: dict[int, Ints] = {number: np.array(starts_us, np.int64) for number, starts_us in sent}
        self._wanted: dict[int, Ints] = {}
        self._held: dict[int, Ints] = {}

    def updates(self, number: int, wanted: Ints, sections: Iterable[Section], held: Iterable[int] = ()) -> Registers:
        """The registers of a group that the last frame of a step must state.

        number: of the group. wanted: start by key number, NO_HINT for none. sections: rows of the group in that frame.
        held: keys for which the parent may have a start of the epoch before; these are always stated.
        """
        have = _grown(self._sent.get(number), len(wanted))
        self._held[number] = np.array(sorted(held), np.int64)
        have[self._held[number]] = UNKNOWN
        for section in sections:  # a partial clears the register of its key, here and at the parent
            have[section.partials.key] = NO_HINT
        changed = np.flatnonzero(wanted != have)
        self._wanted[number] = wanted
        return _registers(changed, wanted)

    def has(self, number: int, wanted: Ints) -> bool:
        """Whether the registers of a group are these. wanted: start by key number."""
        known = self._sent.get(number)
        return known is not None and known.tobytes() == wanted.tobytes()

    def has_none(self, number: int, keys: int) -> bool:
        """Whether all registers of a group are clear. keys: number of keys in the epoch."""
        known = self._sent.get(number)
        return known is not None and known.tobytes() == _CLEAR * keys

    def split(self, number: int, most: int) -> tuple[Registers, Registers]:
        """Returns (registers that lower a bound; up to `most` registers that raise or clear one).

        They are for frames without rows. Further raised registers keep their present value for now.
        """
        wanted = self._wanted.get(number)
        if wanted is None:
            return (), ()
        have = _grown(self._sent.get(number), len(wanted))
        ahead = wanted < have
        ahead[self._held[number]] = True
        lowered, raised = np.flatnonzero(ahead), np.flatnonzero((wanted > have) & ~ahead)
        wanted[raised[most:]] = have[raised[most:]]
        return _registers(lowered, wanted), _registers(raised[:most], wanted)

    def unchanged(self, part: GroupPart, before: Mapping[int, int]) -> GroupPart:
        """Add to a group's part of a frame, without a promise, the registers that its own partials clear.

        before: start by key number, from registers of the epoch before that the parent still has.
        """
        sections = (*part.sections, *part.late)
        if not sections or not (before or part.group in self._sent):
            return part
        keys = distinct(np.concatenate([section.partials.key for section in sections]))
        have = _grown(self._sent.get(part.group), max(int(keys[-1]) + 1, len(self._sent.get(part.group, ()))))
        for key in before.keys() & set(keys.tolist()):
            have[key] = min(before[key], have[key])
            self.unsaved = True
        self._sent[part.group] = have
        keys = keys[have[keys] < NO_HINT]
        return replace(part, registers=_registers(keys, have)) if len(keys) else part

    def sent(self, registers: Mapping[int, Registers]) -> None:
        """Note that the frames of the step are made. registers: those of its last frame, by group number."""
        self.unsaved = self.unsaved or any(registers.values())
        self._sent.update(self._wanted)
        self._wanted.clear()

    def snapshot(self) -> dict[int, list[int]]:
        """Group number -> start by key number."""
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
