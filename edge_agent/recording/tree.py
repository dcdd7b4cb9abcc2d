"""Runs a recording through gateways, mergers and a root: production machines with simulated time and links.

Messages are encoded and decoded as in production. No message is lost or delayed, and spools are dictionaries. In each
round every child reads a portion and commits, and all resulting messages reach the root before the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from random import Random
from typing import Final

from edge_agent.algebra.partials.arrays import NO_INTS
from edge_agent.algebra.partials.partial import Batch
from edge_agent.algebra.query.query import Sensor
from edge_agent.algebra.span import FAR_US
from edge_agent.algebra.windows import extent_us
from edge_agent.config.definitions.definitions import canonical_query
from edge_agent.errors import ProtocolError
from edge_agent.machines.events import (
    Ack,
    Action,
    Arrived,
    Beat,
    Commit,
    Committed,
    Configured,
    Event,
    LinkUp,
    LowerLink,
    Note,
    Publish,
    Read,
    Receipted,
    SendReceipt,
    Sent,
    Tick,
)
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.recording.parser import MS, Recording, names_of
from edge_agent.recording.schedule import Add, portions
from edge_agent.recording.streams import item_times
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from edge_agent.wire import frames, receipts

JOURNAL: Final = 1


@dataclass(frozen=True, slots=True)
class LandedMessage:
    """One message at the root, as recorded in a landing file."""

    received_us: int
    node: str
    payload: bytes


class Host:
    """A gateway or merger with a spool in memory.

    sent: messages that the parent has not taken yet. published: how many frames it has ever sent; heartbeats do not
    count. receipts: received receipts that are not handled yet.
    """

    def __init__(self, name: str, machine: Gateway | Merger) -> None:
        self.name, self.machine = name, machine
        self.spool: dict[tuple[int, int], bytes] = {}
        self.sent: list[bytes] = []
        self.published = 0
        self.receipts: list[bytes] = []

    def do(self, event: Event, now_us: int) -> list[SendReceipt]:
        """Handle one event and all actions that follow. Returns the receipts to send."""
        waiting: list[Action] = self.machine.handle(event, now_us)
        owed: list[SendReceipt] = []
        while waiting:
            action = waiting.pop(0)
            match action:
                case Commit():
                    for frame in (*action.frames, *action.replace):
                        self.spool[frame.epoch, frame.seq] = frames.encode(frame)
                    for key in action.forget:
                        self.spool.pop(key, None)
                    waiting += self.machine.handle(Committed(), now_us)
                case Publish(epoch, seq):
                    self.sent.append(self.spool[epoch, seq])
                    self.published += 1
                    waiting += self.machine.handle(Sent(epoch, seq), now_us)
                case Beat(heartbeat):
                    self.sent.append(frames.encode_heartbeat(heartbeat))
                case SendReceipt():
                    owed.append(action)
                case Ack() | Note():
                    pass
                case _:
                    raise ProtocolError(f"{self.name}: {action}")
        return owed

    def take_receipts(self, now_us: int) -> None:
        """Handle received receipts. Call it after the event of the round, so that the event causes the commit."""
        waiting, self.receipts = self.receipts, []
        for payload in waiting:
            self.do(Receipted(receipts.decode(payload)), now_us)

    def take_sent(self) -> list[bytes]:
        """Removes and returns the messages for the parent."""
        out, self.sent = self.sent, []
        return out


class Tree:
    """All nodes of a recording, from its children to the root."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.source = recording, recording.source
        times = [int(us.max()) for s in recording.streams for us in (item_times(s), s.mark_us) if len(us)]
        longest_us = max((extent_us(one.query.window) for one in recording.asked), default=0)
        self.end_us = max([0, *times]) + longest_us + self._most_late_us + MS  # a session ends past last + gap
        self.now_us = self.end_us  # clocks are after the last reading, so that no frontier waits for a clock
        self.names = names_of(recording)
        self.leaves = {stream.child: self._host(stream.child) for stream in recording.streams}
        self.mergers = {merger: self._host(merger) for merger in bottom_up(recording)}
        self._by_name = {host.name: host for host in (*self.leaves.values(), *self.mergers.values())}
        self.messages: list[LandedMessage] = []
        top = [self.names[node] for node in recording.root]
        self.root = NumpyRoot(JOURNAL, grace_us=FAR_US, named=top, horizon_us=FAR_US)

    def _host(self, name: str) -> Host:
        settings = NodeSettings(self.names[name], "replay", commit_interval_us=1, heartbeat_us=1, frontier_step_us=1)
        random = Random(self.names[name])
        if name not in self.recording.tree:
            return Host(self.names[name], Gateway(settings, random))
        children = [self.names[child] for child in self.recording.tree[name]]
        return Host(self.names[name], Merger(settings, random, grace_us=FAR_US, named=children))

    def run(self) -> Iterator[Row]:
        """Run the whole recording. Yields every row of the root when it appears."""
        configured = self._configured(0)
        for host in (*self.leaves.values(), *self.mergers.values()):
            host.do(LinkUp(), self.now_us)
        for host in self.mergers.values():
            host.do(LowerLink(up=True), self.now_us)
        yield from self._round(dict.fromkeys(self.leaves, configured))
        yield from self._until(self._all_known)
        streams = {s.child: portions(self.recording, s, self.source) for s in self.recording.streams}
        while True:
            events = {child: event for child, stream in streams.items() if (event := next(stream, None)) is not None}
            if not events:
                break
            yield from self._round(
                {child: self._configured(e.items) if isinstance(e, Add) else e for child, e in events.items()}
            )
        nothing = Batch(NO_INTS, self.recording.streams[0].value[:0], NO_INTS, self.recording.labels)
        last = Read(self.source, nothing, ended=True, mark_us=self.end_us)
        yield from self._round(dict.fromkeys(self.leaves, last))
        yield from self._until(self._all_closed)
        yield from self._last_frames()
        yield from self.root.step(self.now_us, flush=True)

    def _configured(self, items: int) -> Configured:
        sensor = Sensor(
            *(self.source, 1, "recording"),
            scale=self.recording.scale,
            timeout_us=FAR_US,
            rereadable=True,
            own_clock=True,  # a recording is read from its start, so its first windows are complete
        )
        queries = tuple(one.query for one in self.recording.asked if one.after_items <= items)
        return Configured((sensor,), queries, (), tuple(canonical_query(query) for query in queries))

    def _round(self, events: Mapping[str, Event]) -> list[Row]:
        """Handle one event of each child, then the resulting messages up to the root."""
        self.now_us += 1
        for child, event in events.items():
            self.leaves[child].do(event, self.now_us)
            self.leaves[child].take_receipts(self.now_us)
        for merger, host in self.mergers.items():
            sent = self._take_sent(self.recording.tree[merger])
            event = Arrived(tuple((name, frames.decode(payload), None) for name, payload in sent)) if sent else Tick()
            for action in host.do(event, self.now_us):
                self._by_name[action.node].receipts.append(receipts.encode(action.receipt))
            host.take_receipts(self.now_us)
        for name, payload in self._take_sent(self.recording.root):
            self.messages.append(LandedMessage(self.now_us, name, payload))
            message = frames.decode(payload)
            self.root.take(name, message, self.now_us)
            self._by_name[name].receipts.append(receipts.encode(self.root.receipt(name, message.epoch)))
        return self.root.step(self.now_us)

    def _take_sent(self, inputs: Iterable[str]) -> list[tuple[str, bytes]]:
        """Removes and returns (node id, message) for all messages that the inputs of a node have sent."""
        hosts = [self.leaves.get(node) or self.mergers[node] for node in inputs]
        return [(host.name, payload) for host in hosts for payload in host.take_sent()]

    def _until(self, done: Callable[[], bool]) -> Iterator[Row]:
        """Run rounds without readings until `done`. Each tier needs a few, since receipts arrive one round later."""
        for _ in range(3 * len(self.mergers) + 5):
            if done():
                return
            yield from self._round(dict.fromkeys(self.leaves, Tick()))
        raise ProtocolError(f"{self.recording.name}: {len(self.messages)} messages sent, but the tree did not settle")

    def _all_known(self) -> bool:
        """Whether the root knows the serving ranges of every child."""
        families = self.root.decider.parent.children.memberships
        nodes = [host.name for host in self.leaves.values()]
        groups = {one.query.group_at(node) for one in self.recording.asked if not one.after_items for node in nodes}
        return groups <= families.keys() and all(
            len(family.leaf_frontiers()) == (1 if group.node else len(nodes)) for group, family in families.items()
        )

    def _all_closed(self) -> bool:
        """Whether every frontier has passed the last window."""
        families = self.root.decider.parent.children.memberships.values()
        least_us = self.end_us - self._most_late_us
        return all(frontier >= least_us for f in families for frontier, _ in f.leaf_frontiers().values())

    def _last_frames(self) -> Iterator[Row]:
        """Run rounds without readings until a round of each tier has sent no frame.

        More hints of open sessions than one frame holds leave with several steps, after every frontier (protocol
        2.3). The heartbeats after the last frame say nothing new, so they are not among `messages`.
        """
        silent, last = 0, len(self.messages)
        while silent <= len(self.mergers):
            sent = self._published
            yield from self._round(dict.fromkeys(self.leaves, Tick()))
            if self._published == sent:
                silent += 1
            else:
                silent, last = 0, len(self.messages)
        del self.messages[last:]

    @property
    def _published(self) -> int:
        """How many frames all nodes have sent."""
        return sum(host.published for host in self._by_name.values())

    @property
    def _most_late_us(self) -> int:
        """The longest time by which a frontier stays behind the newest reading, in us."""
        return max([self.recording.late_by_us, *(one.query.lateness_us for one in self.recording.asked)])


def bottom_up(recording: Recording) -> list[str]:
    """The mergers in an order in which each comes after the mergers among its inputs."""
    return [node for node in TopologicalSorter(recording.tree).static_order() if node in recording.tree]
