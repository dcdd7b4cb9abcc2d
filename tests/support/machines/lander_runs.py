"""A lander whose files are always written, fed frame by frame."""

from __future__ import annotations

from edge_agent.algebra.frame import Birth
from edge_agent.machines.events import Tick
from edge_agent.machines.lander import Land, Landed, Lander, LanderMessage, LanderSettings, MessagesArrived

SECOND = 1_000_000


class Run:
    """A lander whose files are always written."""

    def __init__(self, restored: dict[str, object] | None = None, *, rebuilt: bool = False) -> None:
        self.lander, self.now_us = Lander(1, LanderSettings(), restored, rebuilt=rebuilt), 0
        self.landed: list[object] = []
        self.received: dict[str, object] = dict(restored or {})

    def take(self, epoch: int, *seqs: int, size: int = 100, run: int = 1, node: str = "gw") -> None:
        messages = tuple(LanderMessage(node, epoch, seq, (node, epoch, seq), size, run=run) for seq in seqs)
        self.do(MessagesArrived(messages))
        self.now_us += SECOND
        self.do(Tick())

    def born(
        self,
        epoch: int,
        predecessor: tuple[int, int] | str | None,
        *,
        journal: int = 1,
        node: str = "gw",
        held: tuple[int, ...] | None = None,
    ) -> bool:
        """The birth of an epoch comes. Returns whether it landed."""
        birth = Birth(epoch << 32, journal, predecessor, "test", held=held)
        self.do(MessagesArrived((LanderMessage(node, epoch, 0, (node, epoch, 0), 100, birth=birth),)))
        self.now_us += SECOND
        self.do(Tick())
        return (node, epoch, 0) in self.landed

    def do(self, event: object) -> None:
        for action in self.lander.handle(event, self.now_us):  # type: ignore[arg-type]
            if isinstance(action, Land):
                self.landed += action.objects
                kept = {**self.received, **action.received}
                self.received = {slot: value for slot, value in kept.items() if value is not None}
                self.do(Landed())
