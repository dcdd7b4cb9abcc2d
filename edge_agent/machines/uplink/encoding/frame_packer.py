"""Packs the parts of one step into frames, as many as the size limit needs (docs/protocol.md 2.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from edge_agent.algebra.frame import (
    MAX_FRAME_BYTES,
    MOST_SECTIONS,
    Birth,
    Define,
    Flush,
    Frame,
    GroupPart,
    Leaf,
    Members,
    Plan,
    Section,
    Serving,
)
from edge_agent.algebra.partials import row_splitting
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.query import Group
from edge_agent.machines.uplink.encoding import size_bounds

LISTED_BYTES: Final = 104  # usual largest size of a leaf with its exception, or of a serving range


@dataclass(slots=True)
class DraftFrame:
    """An unfinished frame. parts: group number -> (sections on time, late sections). size_bytes: an upper estimate.

    sections: how many there are in `parts`.
    """

    keys: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    groups: list[tuple[int, Group]] = field(default_factory=list)
    plans: list[tuple[int, int, Plan]] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    sensors: list[str] = field(default_factory=list)
    parts: dict[int, tuple[list[Section], list[Section]]] = field(default_factory=dict)
    members: list[Members] = field(default_factory=list)
    size_bytes: int = 0
    sections: int = 0

    def define(self, keys: Mapping[str, int], nodes: Mapping[str, int]) -> Define | None:
        """Its definitions; None if there are none. keys, nodes: text -> number in the epoch."""
        if not (self.keys or self.nodes or self.groups or self.plans or self.queries or self.sensors):
            return None
        return Define(
            (_first(keys, self.keys), tuple(self.keys)),
            (_first(nodes, self.nodes), tuple(self.nodes)),
            tuple(self.groups),
            tuple(self.plans),
            tuple(self.queries),
            tuple(self.sensors),
        )


class FramePacker:
    """Adds each part to the last frame, or to a new one if it does not fit."""

    def __init__(self, frame_bytes: int = MAX_FRAME_BYTES) -> None:
        """frame_bytes: the size limit of a frame. Parts fill three quarters of it, the rest is reserved for headers."""
        self._all = [DraftFrame()]
        self._budget_bytes = frame_bytes * 3 // 4

    def _fit(self, size_bytes: int) -> DraftFrame:
        """Reserve size_bytes in the last draft, or in a new one if they do not fit. Returns the draft."""
        last = self._all[-1]
        if last.size_bytes and last.size_bytes + size_bytes > self._budget_bytes:
            last = DraftFrame()
            self._all.append(last)
        last.size_bytes += size_bytes
        return last

    def exceeds(self, size_bytes: int) -> bool:
        """Whether so many bytes exceed the quarter reserved for headers, or the last draft together with them."""
        third = self._budget_bytes // 3
        last_bytes = self._all[-1].size_bytes
        room = third if last_bytes <= self._budget_bytes else third - third // 16  # beside a part above the budget
        return size_bytes > third or last_bytes + size_bytes > self._budget_bytes + room

    def end_frame(self) -> None:
        """Begin a new frame with the next part."""
        if self._all[-1].size_bytes:
            self._all.append(DraftFrame())

    # --- definitions --------------------------------------------------------------------------------------------

    def define_key(self, text: str) -> None:
        self._fit(len(text.encode()) + 3).keys.append(text)

    def define_node(self, text: str) -> None:
        self._fit(len(text.encode()) + 3).nodes.append(text)

    def define_group(self, number: int, group: Group) -> None:
        """Add the definition of a group and its number."""
        self._fit(size_bounds.of_group(group)).groups.append((number, group))

    def define_plan(self, number: int, group_number: int, plan: Plan) -> None:
        """Add the definition of a plan, its number and that of its group."""
        self._fit(size_bounds.of_plan(plan)).plans.append((number, group_number, plan))

    def add_text(self, kind: Literal["queries", "sensors"], text: str) -> None:
        getattr(self._fit(len(text.encode()) + 5), kind).append(text)

    # --- members and rows --------------------------------------------------------------------------------------

    def list_leaves(self, number: int, leaves: Sequence[Leaf], *, excepted: bool = False) -> None:
        """Add leaves of the group `number`. excepted: reserve room to state each leaf as an exception too (2.3)."""

        def size_of(leaf: Leaf) -> int:
            return size_bounds.of_leaf(leaf.node, excepted=excepted)

        for some in size_bounds.chunks(leaves, lambda leaf: max(size_of(leaf), LISTED_BYTES), self._budget_bytes):
            self._fit(sum(map(size_of, some))).members.append(Members(number, some))

    def list_serving(self, number: int, serving: Sequence[Serving]) -> None:
        """Add serving ranges of queries of the group `number`."""
        size_of = size_bounds.of_serving
        for some in size_bounds.chunks(serving, lambda each: max(size_of(each), LISTED_BYTES), self._budget_bytes):
            self._fit(sum(map(size_of, some))).members.append(Members(number, (), (), some))

    def add_rows(self, number: int, plan_number: int, plan: Plan, rows: Partials, *, late: bool) -> None:
        """Add rows of a plan of the group `number`, with keys and nodes already numbered for the epoch."""
        row_bytes = size_bounds.of_row(plan.basis)
        if row_splitting.is_cut(plan.basis):
            value_bytes = size_bounds.of_value(rows)
            rows = row_splitting.cut(rows, plan.basis, plan.scale, max(self._budget_bytes // 2 // value_bytes, 1))
            upto = np.cumsum(row_bytes + value_bytes * row_splitting.sizes(rows))
        else:
            upto = np.arange(row_bytes, row_bytes * (len(rows) + 1), row_bytes)
        upto += np.cumsum(size_bounds.of_bounded(rows))
        done, done_bytes = 0, 0
        while done < len(rows):
            draft = self._all[-1]
            room = self._budget_bytes - draft.size_bytes
            last = int(np.searchsorted(upto, done_bytes + room, side="right"))
            if (last <= done and draft.size_bytes) or draft.sections == MOST_SECTIONS:
                self._all.append(DraftFrame())
                continue
            last = max(last, done + 1)  # a row above the budget gets a frame of its own; its real size is smaller
            chunk = rows if last - done == len(rows) else rows.take(slice(done, last))
            draft.size_bytes += int(upto[last - 1]) - done_bytes + 16
            draft.sections += 1
            done, done_bytes = last, int(upto[last - 1])
            on_time, tardy = draft.parts.setdefault(number, ([], []))
            (tardy if late else on_time).append(Section.of(plan_number, plan, chunk))

    def last_sections(self, number: int) -> Iterable[Section]:
        """The sections of the group `number` in the last frame so far."""
        on_time, late = self._all[-1].parts.get(number, ([], []))
        return (*on_time, *late)

    def frames(
        self,
        epoch: int,
        seq: int,
        keys: Mapping[str, int],
        nodes: Mapping[str, int],
        *,
        birth: Birth | None = None,
        flush: Flush | None = None,
    ) -> list[Frame]:
        """Make all frames, numbered from seq. keys, nodes: text -> number in the epoch. birth: of the first frame."""
        out = []
        birth = None if birth is None else replace(birth, frames=len(self._all))
        for i, draft in enumerate(self._all):
            parts = tuple(GroupPart(n, None, tuple(rows), tuple(late)) for n, (rows, late) in draft.parts.items())
            define, members = draft.define(keys, nodes), tuple(draft.members)
            out.append(Frame(epoch, seq + i, birth if i == 0 else None, define, members, parts, flush=flush))
        return out


def _first(known: Mapping[str, int], texts: list[str]) -> int:
    return known[texts[0]] if texts else 0
