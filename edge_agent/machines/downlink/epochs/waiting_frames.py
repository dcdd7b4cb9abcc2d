"""Counts the waiting frames of each child and limits their number and size (docs/protocol.md 2.2)."""

from __future__ import annotations

from typing import Final

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.partials.cell_bytes import held_bytes
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.events import BadFrame

MOST_FRAMES: Final = 10_000  # of one child, which publishes at most a tenth of this without a receipt
MOST_BYTES: Final = 16 << 20  # memory of the waiting frames of one child
MOST_BIRTH_BYTES: Final = 256 << 20  # of one child whose next birth has begun: 10 000 leaves in 100 groups need 100 MB
FRAME_BYTES: Final = 500  # memory of a frame without rows and texts
SECTION_BYTES: Final = 1_000  # of a section without rows: an array object for each column
GAP_BYTES: Final = 120
DEFINITION_BYTES: Final = 500  # of a group or plan without its texts
TEXT_BYTES: Final = 60  # of a text without its characters
EPOCH_BYTES: Final = 40  # of an epoch that a birth lists


class WaitingFrames:
    """The counts of all children. changed: (epoch, seq) of frames stored or removed since `take_changed`."""

    def __init__(self, most_frames: int = MOST_FRAMES, most_bytes: int = MOST_BYTES) -> None:
        """most_frames, most_bytes: of one child."""
        self.most_frames, self.most_bytes = most_frames, most_bytes
        self.changed: dict[tuple[EpochKey, int], None] = {}
        self._frames: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def room(self, node: str) -> bool:
        """Whether one more frame of a child may wait."""
        return self._frames.get(node, 0) < self.most_frames and self._bytes.get(node, 0) < self.most_bytes

    def room_of_birth(self, node: str) -> bool:
        """Whether one more frame of the birth that takes effect next may wait: others cannot be taken before it."""
        return self._bytes.get(node, 0) < MOST_BIRTH_BYTES

    def add(self, key: EpochKey, message: Frame | BadFrame) -> None:
        self._count(key, message, 1)

    def remove(self, key: EpochKey, message: Frame | BadFrame) -> None:
        self._count(key, message, -1)

    def _count(self, key: EpochKey, message: Frame | BadFrame, by: int) -> None:
        self._frames[key.node] = self._frames.get(key.node, 0) + by
        self._bytes[key.node] = self._bytes.get(key.node, 0) + by * size_bytes(message)
        self.changed[key, message.seq] = None

    def take_changed(self) -> list[tuple[EpochKey, int]]:
        """The frames stored or removed since the last call."""
        changed, self.changed = list(self.changed), {}
        return changed


def size_bytes(message: Frame | BadFrame) -> int:
    """Estimated memory of a message in bytes."""
    if isinstance(message, BadFrame):
        return FRAME_BYTES + len(message.payload)
    size = FRAME_BYTES
    if message.birth is not None:
        size += EPOCH_BYTES * len(message.birth.held or ())
    for members in message.members:
        size += 100 * (len(members.leaves) + len(members.serving) + len(members.dropped))
        size += sum(TEXT_BYTES + len(each.query) + len(each.node) for each in members.serving)
    for part in message.groups:
        size += 50 * len(part.registers) + 100 * (len(part.exceptions or ()) + len(part.more) + len(part.ended))
        for section in (*part.sections, *part.late):
            rows = section.partials
            size += SECTION_BYTES + held_bytes(rows)
            size += sum(column.nbytes for column in (rows.start, rows.end, rows.key, *rows.states.values()))
    for gap in message.gaps:
        size += GAP_BYTES + len(gap.reason) + len(gap.detail) + TEXT_BYTES * len(gap.nodes)
        size += sum(map(_group_bytes, gap.groups))
    define = message.define
    if define is not None:
        texts = (*define.keys[1], *define.nodes[1], *define.queries, *define.sensors)
        size += TEXT_BYTES * len(texts) + sum(map(len, texts)) + sum(_group_bytes(group) for _, group in define.groups)
        for _, _, plan in define.plans:
            texts = (*plan.basis, *(query for query, _ in plan.queries))
            size += DEFINITION_BYTES + 2 * TEXT_BYTES * len(texts) + sum(map(len, texts))
    return size


def _group_bytes(group: Group) -> int:
    texts = (group.source, group.where, *group.by, group.node, group.cut.text)
    return DEFINITION_BYTES + TEXT_BYTES * len(group.by) + sum(map(len, texts))
