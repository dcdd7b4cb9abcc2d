"""The numbers of the present epoch in slots of the spool, so that a restart continues the epoch.

A commit writes only what has changed: keys are many and only added, registers belong to single groups.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge_agent.machines.checkpoint import slots
from edge_agent.machines.checkpoint.append_only import AppendOnlyTable
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder

PREFIX = f"{slots.REGISTERS}/"  # of the slots of registers, before the number of a group


class SpooledNumbers:
    """What the spool has of an encoder."""

    def __init__(self, state: Mapping[str, object]) -> None:
        """state: the slots of the spool at start."""
        self._epoch_id: int | None = None  # the epoch whose numbers are in the spool; unknown at start
        self._keys = AppendOnlyTable(slots.KEYS, state)
        self._hints = {number: AppendOnlyTable(f"{PREFIX}{number}", state) for number in _groups(state)}

    def changes(self, encoder: EpochEncoder, epoch_id: int) -> dict[str, object]:
        """The slots to write for the encoder of this epoch."""
        state = dict[str, object]()
        anew, self._epoch_id = epoch_id != self._epoch_id, epoch_id
        if anew or len(encoder.keys) > self._keys.length:
            state |= self._keys.changes(list(encoder.keys), anew=anew)
        if anew or encoder.hints.unsaved:
            sent, encoder.hints.unsaved = encoder.hints.snapshot(), False
            for number in {*sent, *self._hints}:
                table = self._hints.setdefault(number, AppendOnlyTable(f"{PREFIX}{number}"))
                state |= table.changes(sent.get(number, ()), anew=True)
        if anew or encoder.unsaved:
            encoder.unsaved = False
            state |= slots.NUMBERS.write(encoder.snapshot())
        return state


def restored(state: Mapping[str, object], *, frame_bytes: int, max_keys: int) -> EpochEncoder | None:
    """The encoder whose numbers are in the slots; None if there are none. frame_bytes, max_keys: see EpochEncoder."""
    known = slots.NUMBERS.read(state)
    if known is None:
        return None
    hints = [(number, AppendOnlyTable.read(f"{PREFIX}{number}", state)) for number in sorted(_groups(state))]
    keys = AppendOnlyTable.read(slots.KEYS, state)
    return EpochEncoder.restore(known, keys, hints, frame_bytes=frame_bytes, max_keys=max_keys)


def _groups(state: Mapping[str, object]) -> set[int]:
    """The numbers of groups with registers in the slots."""
    return {int(row.split("/")[1]) for row in state if row.startswith(PREFIX)}
