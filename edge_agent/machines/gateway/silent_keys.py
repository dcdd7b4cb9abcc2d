"""Frees the memory of keys without recent readings after a burst of labels: key tables of groups, and key numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edge_agent.machines.gateway.group_state import GroupState
from edge_agent.machines.slicing.key_index import FEW_KEYS
from edge_agent.machines.uplink.encoding.epoch_encoder import EpochEncoder

TURN_US: Final = 20_000_000  # if most keys have no reading in a turn, all are forgotten and numbered again on return
FEW_FRAMES: Final = 100  # with more unreceipted frames no new epoch begins: the parent is probably away


class SilentKeys:
    """Replaces key tables in which most keys are silent. given_back: number of replaced tables so far."""

    __slots__ = ("_epoch_for", "_tidied", "_turn_us", "given_back")

    def __init__(self) -> None:
        self.given_back = 0
        self._tidied = 0
        self._epoch_for = 0
        self._turn_us: int | None = None

    def forget(self, groups: Iterable[GroupState], now_us: int) -> None:
        """Once per turn replace key tables in which few of many keys had readings. Their open rows leave as deltas."""
        began_us = self._turn_us
        if began_us is not None and 0 <= now_us - began_us < TURN_US:
            return
        self._turn_us = now_us
        if began_us is None or now_us < began_us:  # after a start or a step back of the clock no turn is complete
            return
        for state in groups:
            table = state.slicer.keys
            if len(table) > FEW_KEYS:
                state.rows += state.slicer.forget_keys()
                if state.slicer.keys is not table:
                    state.changed = True
                    self.given_back += 1

    def tidy(self, encoder: EpochEncoder) -> None:
        """Release the encoder's references to replaced tables. Call it once the rows of a commit are encoded."""
        if self.given_back != self._tidied:
            self._tidied = self.given_back
            encoder.forget_tables()

    def wants_epoch(self, numbered: int, groups: Iterable[GroupState], spooled: int) -> bool:
        """Whether a new epoch should begin because tables have been replaced and most key numbers are unused (2.4).

        numbered: keys numbered in the epoch. spooled: frames without a receipt.
        """
        if self.given_back == self._epoch_for or spooled > FEW_FRAMES:
            return False
        self._epoch_for = self.given_back
        return numbered > FEW_KEYS and sum(len(state.slicer.keys) for state in groups) <= numbered // 2
