"""A small random tree, its network and its faults, all from one seed."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from random import Random

from tests.model.checks import Checks
from tests.model.gateway import Gateway, Reading, Source
from tests.model.merger import Merger
from tests.model.parent import BrokenRuleError
from tests.model.root import Root
from tests.model.rows import Answer, Ask, Beat, Frame, Message, Receipt

CALM, END = 190, 460  # faults end, everything must have arrived


@dataclass(frozen=True)
class Rules:
    """Rules of docs/protocol.md 3.8 that a control switches off."""

    settled: bool = True
    fence: bool = True
    cut: bool = True
    whole_steps: bool = True


@dataclass(frozen=True)
class Faults:
    """Chances a tick. lost: the journal of a merger; both: that all mergers lose theirs then."""

    crash: float = 0.006
    move: float = 0.003
    quota: float = 0.0
    lost: float = 0.004
    both: float = 0.3
    partition: float = 0.004
    lander: float = 0.004


class World:
    """One run."""

    def __init__(self, seed: int, rules: Rules = Rules(), faults: Faults = Faults()) -> None:
        random = self.random = Random(seed)
        self.rules, self.faults = rules, faults
        self.now, self.chaos = 0, True
        self.queue: list[tuple[int, int, str, Message]] = []
        self.sent = 0
        self.committed: dict[int, tuple[int, str, str, bool]] = {}
        self.dropped: set[int] = set()
        self.happened: Counter[str] = Counter()
        self.cut_off: dict[str, int] = {}
        self.checks = Checks(self)
        self.drop, self.double = random.choice([0, 0.1, 0.4]), random.choice([0, 0.1, 0.3])
        self.span = random.choice([2, 6, 15])
        self.root = Root(self)
        top = "root"
        self.mergers: dict[str, Merger] = {}
        for tier in range(random.choice([0, 0, 1, 1, 2])):
            self.mergers[f"T{tier}"] = Merger(self, f"T{tier}", top, 50 - 5 * tier)
            top = f"T{tier}"
        self.edge = [f"M{i}" for i in range(random.randint(1, 2))]
        self.mergers |= {name: Merger(self, name, top, 35) for name in self.edge}
        self.gateways: dict[str, Gateway] = {}
        number = 0
        for i in range(random.randint(2, 4)):
            begin = random.randint(60, 120) if random.random() < 0.2 else random.randint(0, 10)
            lag = random.choice([0, 0, 0, 14])
            ts, readings = begin, list[Reading]()
            while ts < 160:
                ts += random.choice([0, 1, 1, 2, 3, 4, 9, 10, 11, 30])
                late = random.randint(8, 50) if random.random() < 0.06 else 0
                readings.append((ts + lag + random.randint(0, 3) + late, ts, random.choice("xyz"), number))
                number += 1
            parent = random.choice(self.edge)
            source = Source(sorted(readings), lag + 4, begin if begin > 20 else 0)
            self.gateways[f"G{i}"] = Gateway(self, f"G{i}", parent, source)
        self.nodes: dict[str, Gateway | Merger | Root] = {"root": self.root, **self.mergers, **self.gateways}

    def count(self, what: str) -> None:
        self.happened[what] += 1

    def send(self, to: str, message: Message) -> None:
        """Messages are lost, doubled, late and out of order while there are faults."""
        random, copies = self.random, 1
        if self.chaos:
            if random.random() < self.drop:
                return
            copies += random.random() < self.double
        for _ in range(copies):
            delay = random.randint(1, self.span) if self.chaos else 1
            if self.chaos and random.random() < 0.02:
                delay += 60
            self.sent += 1
            heapq.heappush(self.queue, (self.now + delay, self.sent, to, message))

    def _deliver(self) -> None:
        while self.queue and self.queue[0][0] <= self.now:
            _, _, to, message = heapq.heappop(self.queue)
            node = self.nodes[to]
            if node.down_until > self.now:
                if self.random.random() < 0.5:  # a broker held it
                    self.sent += 1
                    heapq.heappush(self.queue, (node.down_until + 1, self.sent, to, message))
                continue
            source = message.node if isinstance(message, Frame | Beat | Ask) else ""
            if self.cut_off.get(source, 0) > self.now or self.cut_off.get(to, 0) > self.now:
                continue
            match node, message:
                case ((Merger() | Root()), Frame()):
                    node.on_frame(message, self.now)
                case ((Merger() | Root()), Beat()):
                    node.on_beat(message, self.now)
                case ((Merger() | Root()), Ask()):
                    node.on_ask(message, self.now)
                case Merger(), Answer():
                    node.on_answer(message, self.now)
                case ((Merger() | Gateway()), Receipt()):
                    node.on_receipt(message, self.now)
                case _:
                    raise BrokenRuleError(f"{to} got {message}")

    def tick(self) -> None:
        """One step of time."""
        random, now = self.random, self.now
        self._deliver()
        nodes: list[Gateway | Merger] = [*self.gateways.values(), *self.mergers.values()]
        for node in nodes:
            if isinstance(node, Gateway) and not node.started:
                if now < node.begin:
                    continue
                node.started = True
                node.restart()
            if node.down_until > now:
                continue
            if node.down_until:
                node.down_until = 0
                node.restart()
            if self.chaos and self._fault(node):
                continue
            if random.random() < 0.4 or not self.chaos:
                node.step(now)
            node.publish()
        if self.chaos and random.random() < self.faults.lander:
            self.root.lose_lander()
            self.count("lander journal made again")
        if random.random() < 0.3:
            self.root.batch(now)
        self.now += 1

    def _fault(self, node: Gateway | Merger) -> bool:
        """Whether the node stops now."""
        random, faults = self.random, self.faults
        if random.random() < faults.partition:
            self.cut_off[node.name] = self.now + random.choice([10, 40, 80])
        if random.random() < faults.crash:
            node.down_until = self.now + random.choice([1, 5, 20, 60])
            self.count("crash")
            return True
        if isinstance(node, Gateway):
            others = [name for name in self.edge if name != node.parent]
            if others and random.random() < faults.move:
                node.move(random.choice(others))
                self.count("move")
            if random.random() < faults.quota:
                node.drop_by_quota()
        elif random.random() < faults.lost:
            everyone = random.random() < faults.both
            for merger in self.mergers.values() if everyone else (node,):
                merger.begin_anew()
                merger.down_until = self.now + random.choice([1, 10])
                self.count("journal lost")
            return True
        return False

    def run(self) -> World:
        """All of it; the violations are in `checks.found`."""
        try:
            while self.now < CALM:
                self.tick()
            self.chaos, self.cut_off = False, {}
            for node in self.nodes.values():
                node.down_until = min(node.down_until, self.now + 1)
            while self.now < END:
                self.tick()
            self.checks.final()
        except BrokenRuleError as err:
            self.checks.bad(str(err), None)
        return self
