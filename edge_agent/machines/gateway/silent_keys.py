"""Frees the memory of silent keys after a burst of labels: in the tables of groups and the epoch's numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edge_agent.machines.gateway.group_state import GroupState
from edge_agent.machines.slicing.key_index import FEW_KEYS
from edge_agent.machines.uplink.epoch_encoder import EpochEncoder

TURN_US: Final = 20_000_000  # a key that is silent for that long, where most are, is said again when it comes again
FEW_FRAMES: Final = 100  # that are not receipted: a parent that is away gets no epoch after the other


class SilentKeys:
    """given_back: tables that were replaced, for those who have to release references to them."""

    __slots__ = ("_epoch_for", "_tidied", "_turn_us", "given_back")

    def __init__(self) -> None:
        self.given_back = 0
        self._tidied = 0
        self._epoch_for = 0
        self._turn_us: int | None = None

    def forget(self, groups: Iterable[GroupState], now_us: int) -> None:
        """From time to time replace tables of which few of many keys had readings. Their open rows leave as deltas."""
        began_us = self._turn_us
        if began_us is not None and 0 <= now_us - began_us < TURN_US:
            return
        self._turn_us = now_us
        if began_us is None or now_us < began_us:  # what was silent is not known yet: a start, or a clock set back
            return
        for state in groups:
            table = state.slicer.keys
            if len(table) > FEW_KEYS:
                state.rows += state.slicer.forget_keys()
                if state.slicer.keys is not table:
                    state.changed = True
                    self.given_back += 1

    def tidy(self, encoder: EpochEncoder) -> None:
        """Release the old tables, after a commit's rows have been encoded."""
        if self.given_back != self._tidied:
            self._tidied = self.given_back
            encoder.forget_tables()

    def wants_epoch(self, numbered: int, groups: Iterable[GroupState], spooled: int) -> bool:
        """Whether most of the epoch's many numbered keys are gone (2.4), once all that it has sent is settled."""
        if self.given_back == self._epoch_for or spooled > FEW_FRAMES:
            return False
        self._epoch_for = self.given_back
        return numbered > FEW_KEYS and sum(len(state.slicer.keys) for state in groups) <= numbered // 2
