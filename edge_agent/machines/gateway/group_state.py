"""The state of one group at a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from edge_agent.algebra.frame import NEVER_US, Serving
from edge_agent.machines.checkpoint.slots import GroupSlots
from edge_agent.machines.slicing.slicer import Slicer
from edge_agent.machines.uplink.step import StepRows


@dataclass(slots=True)
class GroupState:
    """One group at this gateway.

    frontier_us: the promise of the last commit. serving: ranges of its queries; sent: ranges sent upward, None: not
    even the leaf was. rows: closed by a restart or a change of scale, for the next step. changed: since the last
    commit.
    """

    slicer: Slicer
    slots: GroupSlots
    frontier_us: int = NEVER_US
    serving: tuple[Serving, ...] = ()
    sent: tuple[Serving, ...] | None = None
    rows: list[StepRows] = field(default_factory=list)
    changed: bool = True

    def serves(self, serving: tuple[Serving, ...]) -> None:
        """Set the ranges that it serves from now on."""
        self.serving = (*serving, *withdrawn(self.sent or (), serving))

    def take_rows(self) -> list[StepRows]:
        rows, self.rows = self.rows, []
        return rows


def withdrawn(sent: Sequence[Serving], serving: Sequence[Serving]) -> tuple[Serving, ...]:
    """Ends for ranges that were sent upward and removed before they began (6.3)."""
    known = {each.key for each in serving}
    ended = (each for each in sent if each.key not in known and each.start_until_us is None)
    return tuple(replace(each, end_until_us=max(each.from_us, 0)) for each in ended if each.end_until_us is None)
