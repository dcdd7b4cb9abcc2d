"""Lander and numpy root: landing files, as bytes, survive a crash; the root reads them in batches."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from edge_agent.algebra.frame import HORIZON_US, Birth, Flush, Frame, Heartbeat, Receipt
from edge_agent.config import topics
from edge_agent.errors import WireError
from edge_agent.machines.events import BadEnvelope, BadFrame, SendReceipt, Tick
from edge_agent.machines.lander import Land, Landed, Lander, LanderMessage, LanderSettings, MessagesArrived
from edge_agent.root.completeness import Decider
from edge_agent.runtime.region import heard, pack, unpack
from edge_agent.wire import frames, landing, late_starts, receipts, snapshot
from tests.support.simulation.failpoints import MS, SECOND, CrashError
from tests.support.simulation.network import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.simulation.world import World

COPY_EVERY = 8  # landing files between copies of the journal that may come back
parsed = cache(topics.parse)  # a world has few topics
Landing = tuple[int, bytes]  # the lander's time, the file's content
Record = tuple[str, Frame | Heartbeat | BadFrame, int]  # child, message, time of receipt


class RootHost:
    """The top of the tree. files: what landed; rows: all that the root gave, in order."""

    def __init__(self, world: World, build: Callable[[int], Any], *, horizon_us: int = HORIZON_US) -> None:
        self.world, self.name, self.down_until_us = world, "root", 0
        self.horizon_us = horizon_us
        self.journal = world.random.getrandbits(60) | 1
        self.landed: list[Landing] = []
        self.received: dict[str, Any] = {}
        self.offset_us = self._right_us = 0  # of the lander's clock, and when it is set
        self.damaged = 0  # files that could not be read to their end
        self._newest_us = 0  # the time of the lander's last record
        self._older: list[dict[str, Any]] = []  # what a journal may come back as
        self._copies: list[dict[str, Any]] = []  # and from how long ago
        self.unacknowledged: list[Message] = []
        self.turns: tuple[int, int] | None = None  # its clock, with all others: by how much, until when
        self.lander: Lander | None = None
        self._build = build
        self.root: Any = build(self.journal)
        self.read_files = 0
        self.rows: list[Any] = []
        self.revised: dict[str, list[int]] = {}  # query -> times of the batches in which rows of it were revised

    def take_journal(self, journal: int) -> None:
        """Begin with this journal. Called before the world runs."""
        self.journal, self.root = journal, self._build(journal)
        self.start(0)

    @property
    def files(self) -> list[tuple[int, tuple[Record, ...]]]:
        """Landing files with their messages decoded."""
        return [(at_us, tuple(records(content))) for at_us, content in self.landed]

    # --- the lander -------------------------------------------------------------------------------------------------

    def start(self, now_us: int) -> None:
        del now_us
        faults = self.world.faults
        if self._older and faults.happens("journal.unsynced"):
            self.received = faults.stream("journal.unsynced").choice(self._older)
        if self._copies and faults.happens("journal.older"):
            self.received = faults.stream("journal.older").choice(self._copies)
        rebuilt = bool(self.landed) and faults.happens("journal.wiped")
        if rebuilt:
            self.received = {}
        if self.landed and faults.happens("journal.new"):
            self.journal, self.received = faults.stream("journal.new").getrandbits(60) | 1, {}
        settings = LanderSettings(flush_us=300 * MS, horizon_us=self.horizon_us)
        self.lander = Lander(self.journal, settings, copy.deepcopy(self.received), rebuilt=rebuilt)

    def do(self, event: Any, now_us: int) -> None:
        if self.lander is None:
            return
        try:
            for action in self.lander.handle(event, now_us):
                self.world.may_crash(self, type(action).__name__)
                match action:
                    case Land():
                        self._land(action)
                        self.do(Landed(), now_us)
                    case SendReceipt(node, receipt):
                        self.world.network.publish(
                            topics.ack(node), receipts.encode(receipt), self.world.now_us, "root"
                        )
                    case _:
                        pass
        except CrashError:
            self.down(self.world.now_us + 2 * SECOND)

    def down(self, until_us: int) -> None:
        """The process dies, and is started again at that time."""
        self.lander, self.down_until_us = None, until_us
        self.world.lives.died(self.name)
        self.world.given_back(self)

    @property
    def listens(self) -> bool:
        """Whether frames reach it."""
        return self.lander is not None

    def heal(self) -> None:
        """Its clock is right from now on."""
        self._right_us = self.world.now_us

    def _land(self, land: Land) -> None:
        found = [record for record in land.objects if isinstance(record, bytes)]
        tick = landing.encode_tick(land.now_us, self.journal, found, land.statement, connected=True)
        content = b"".join([tick, *found])
        self.world.lives.landed(self.name, content)
        if self.world.faults.happens("landing.cut"):  # found by the root: it was whole when it was receipted
            content = content[: self.world.faults.stream("landing.cut").randrange(1, len(content))]
        if self.world.faults.happens("landing.lost"):
            content = b""
        self.landed.append((land.now_us, content))
        self.unacknowledged.clear()
        self.world.may_crash(self, "AfterLand")
        if self.world.faults.on("journal.unsynced"):
            self._older = [*self._older[-5:], self.received]
        if self.world.faults.on("journal.older") and len(self.landed) % COPY_EVERY == 0:
            self._copies = [*self._copies[-4:], self.received]
        kept = {**self.received, **land.received}  # the lander makes its values anew, and gets copies at a start
        self.received = {slot: value for slot, value in kept.items() if value is not None}

    def deliver(self, message: Message, now_us: int) -> None:
        if self.lander is not None:
            self.world.lives.heard(self.name, message.payload)
        if self.world.faults.on("broker.held"):
            self.unacknowledged.append(message)
        now_us += self.offset_us
        record = landing.encode(message.topic, now_us, message.payload)
        epoch: int | None = None
        seq: int | None = None
        earliest_us: int | None = None
        birth: Birth | None = None
        flush: Flush | None = None
        run = 1
        try:
            envelope = frames.envelope(message.payload)
            epoch, seq = envelope.epoch, envelope.seq
            run, earliest_us = frames.run_of(envelope), late_starts.earliest_of(envelope)
            flush = frames.flush_of(envelope)
            first = frames.decode_body(envelope) if seq == 0 else None
            birth = first.birth if isinstance(first, Frame) else None
        except WireError:
            pass
        size = len(message.payload)
        came = LanderMessage(message.address.sender, epoch, seq, record, size, None, run, earliest_us, birth, flush)
        self.do(MessagesArrived((came,)), now_us)

    def tick(self, now_us: int) -> None:
        self._turn_clock(now_us)
        self.do(Tick(), now_us + self.offset_us)
        if self.world.random.random() < 0.5:
            self.batch()

    def _turn_clock(self, now_us: int) -> None:
        if self.turns is not None:
            (self.offset_us, self._right_us), self.turns = self.turns, None
        elif self.world.faults.happens("clock.lander"):
            random = self.world.faults.stream("clock.lander")
            self.offset_us = random.choice((-30, -3, 3, 30, 3_600, 30 * 86_400)) * SECOND
            self._right_us = now_us + random.choice((1, 5, 20)) * SECOND
        elif now_us >= self._right_us:
            self.offset_us = 0

    # --- the root ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """The rows that were put off."""
        self.rows += self.root.step(self.landed[-1][0] if self.landed else 0, flush=True)

    def batch(self) -> None:
        """One micro-batch of the root over the files that came since."""
        files = self.landed[self.read_files :]
        if not files:
            return
        self.read_files = len(self.landed)
        for _, content in files:
            self._read(content)
        at_us = files[-1][0]
        rows = self.root.step(at_us)
        for query in {row.query for row in rows if row.revision}:
            self.revised.setdefault(query, []).append(at_us)
        self.rows += rows
        if self.world.faults.happens("root.killed"):
            self._go_on_from_the_last_decision()

    def _go_on_from_the_last_decision(self) -> None:
        """As the root does after a restart: what it knows comes from the decision's row, as bytes."""
        decider = self.root.decider
        children = decider.parent.children
        fresh = Decider(self.journal, children.grace_us, children.named)
        fresh.restore(snapshot.loads(snapshot.dumps(decider.snapshot(pack))), unpack)
        fresh.parent.inbox.journal = decider.parent.inbox.journal
        self.root.decider = fresh

    def _read(self, content: bytes) -> None:
        """A landing file, as far as it can be read."""
        decider = self.root.decider
        stated: tuple[tuple[str, Receipt], ...] = ()
        try:
            for topic, received_us, payload in landing.iterate(content):
                if topic == landing.TICK_TOPIC:
                    tick = landing.tick(payload)
                    stated = tick.received
                    decider.change_journal(tick.journal)
                    decider.tick(received_us, self._newest_us or None, connected=tick.connected)
                    self._newest_us = received_us
                    continue
                found, message = parsed(topic), heard(payload)
                if found is not None and not isinstance(message, BadEnvelope):
                    self.root.take(found.node, message, min(received_us, self._newest_us))
        except WireError:
            self.damaged += 1
        decider.stated(stated, self._newest_us)


def records(content: bytes) -> list[Record]:
    """The children's messages of a landing file that can be read."""
    out: list[Record] = []
    for topic, received_us, payload in landing.iterate(content):
        found, message = topics.parse(topic), heard(payload)
        if topic != landing.TICK_TOPIC and found is not None and not isinstance(message, BadEnvelope):
            out.append((found.node, message, received_us))
    return out
