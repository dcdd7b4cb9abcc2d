"""Bad messages at the brokers of a running tree, between its good ones: `python -m tests.faults.fuzz --seconds 300`.

A client that may publish anything sends mutated copies of real frames, heartbeats, receipts, statuses and definitions,
and texts made to break parsers. No message is one that its reader would take, and none is in the name of a node's own
frames, where what cannot be read counts as lost: so the rows must be those without them. Exit code 1 when a process
ends or raises, its memory grows, or a row differs from the readings.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import psutil

from edge_agent.config import topics
from edge_agent.errors import WireError
from edge_agent.machines.events import BadEnvelope
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link, Messages
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime.region import heard
from edge_agent.runtime.status_and_commands import parse_command
from edge_agent.wire import receipts
from tests.faults.landed_root import LandedRoot
from tests.faults.soak import MB
from tests.faults.storm import DRAIN_S, LONGEST_START_S, Outcome, compare, settled
from tests.faults.tree import SECOND, Plan, Tree
from tests.support.processes.background import Background

SMALL: Final = Plan(regions=1, gateways=1, keys=40, tick_s=1.0, rhythm="200ms")
EACH_S: Final = 0.1
KEPT: Final = 1_000  # messages that are written down where something went wrong
MAY_GROW: Final = 40 * MB  # a message of the largest size, parsed several times
COMMANDS: Final = frozenset(("rebirth", "resend", "reload", "diagnose", "mark"))
TEXTS: Final = (
    b"",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"\xff\xfe\x00",
    b"null",
    b"[]",
    b"0",
    b'"online"',
    b'{"online":1,"parent":["region-1"],"clock":{"asked":-1}}',
    b'{"online":true,"parent":"region-1","clock":{"asked":1e400}}',
    b'{"id":"x","revision":' + b"9" * 5_000 + b"}",
    b'{"items":{"query/few-1s":{"revision":"9007199254740993"}}}',
    b'{"items":[' + b"1," * 10_000 + b"1]}",
    b'id = "x"\n' + b"[a]\n" * 20_000,
    b"x = " + b"[" * 10_000,
    b"x = 1e" + b"9" * 40_000,
    b"\xa1" * 60_000,
    b"\x9f" * 60_000,
    b"\xdb" + b"\x7f" * 8 + b"x",
    b"\x81" * 5_000 + b"\x00",
    bytes(1_000_000),
)


class Attacker(Background):
    """Publishes to brokers of a tree, in a thread of its own."""

    def __init__(self, tree: Tree, seed: int) -> None:
        super().__init__()
        self.sent = 0
        self.last: deque[tuple[float, str, bytes]] = deque(maxlen=KEPT)  # time, topic, payload
        self.real: dict[str, list[bytes]] = {}  # of each kind of topic, payloads heard
        self._chance = random.Random(seed)
        self._children = [*tree.gateways, *tree.mergers]
        self._links = [Connection(Link(broker.url, "test-attacker")) for broker in tree.brokers]

    def _run(self) -> None:
        waiter = Waiter()
        for link in self._links:
            link.subscribe({f"{topics.PREFIX}/#": 0})
            link.open()
        while not self._over.is_set():
            waiter.wait(self._links, EACH_S)
            for link in self._links:
                self._hear(link.take())
                for _ in range(5) if link.up else ():
                    topic, payload = self.message()
                    self.last.append((time.time(), topic, payload))
                    self.sent += link.publish(topic, payload, qos=self._chance.randrange(2)) is not None
        for link in self._links:
            link.close()
        waiter.close()

    def _hear(self, reports: Iterable[object]) -> None:
        for report in reports:
            for name, payload, _, _ in report.messages if isinstance(report, Messages) else ():
                topic = topics.parse(name)
                if topic is not None and topic.node in self._children:
                    kept = self.real.setdefault(topic.what, [])
                    kept.append(payload)
                    del kept[:-200]

    def message(self) -> tuple[str, bytes]:
        """(topic, payload) that nobody may take for a good one."""
        victim, stranger = self._chance.choice(self._children), f"fz-{self._chance.randrange(50)}"
        parent = self._chance.choice(("root", *self._children))
        kinds: tuple[tuple[str, str, Callable[[bytes], bool]], ...] = (
            ("frame", topics.frames(stranger, parent), lambda payload: not isinstance(heard(payload), BadEnvelope)),
            ("ack", topics.ack(victim), _is_receipt),
            ("status", topics.status(stranger), _never),
            ("state", topics.state(stranger), _never),
            ("books", topics.books(stranger), _never),
            ("cmd", topics.commands(victim), _is_command),
            ("cmd", topics.commands_to_all(), _is_command),
            (
                "definition",
                topics.definition(self._chance.choice(topics.KINDS), f"fz{self._chance.randrange(9)}"),
                _never,
            ),
            ("frame", f"{topics.PREFIX}/up/{'x' * self._chance.randrange(60)}/f/{parent}/y", _never),
        )
        what, topic, is_good = self._chance.choice(kinds)
        while True:
            payload = self._payload(what)
            if not is_good(payload):
                return topic, payload

    def _payload(self, what: str) -> bytes:
        real = self.real.get(what)
        if not real or self._chance.random() < 0.3:
            return self._chance.choice(TEXTS)
        return mutated(self._chance.choice(real), self._chance)


def mutated(payload: bytes, chance: random.Random) -> bytes:
    """Bits, bytes and pieces of it changed, in one to four places."""
    out = bytearray(payload)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(5):
            case 0 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                out[at : at + chance.randint(1, 8)] = chance.randbytes(chance.randint(0, 8))
            case 2:
                del out[at:]
            case 3:
                out[at:at] = out[: chance.randrange(len(out) + 1)]
            case _:
                out += chance.randbytes(chance.randint(1, 9))
    return bytes(out[:200_000])


def _is_receipt(payload: bytes) -> bool:
    try:
        receipts.decode(payload)
    except WireError:
        return False
    return True


def _is_command(payload: bytes) -> bool:
    return parse_command(payload).name in COMMANDS


def _never(_payload: bytes) -> bool:
    return False


def fuzz(folder: Path, seconds: float, seed: int) -> tuple[Outcome, int, list[str]]:
    """(how the rows compare, messages sent, what is wrong with the processes)."""
    outcome, wrong = Outcome(), list[str]()
    with Tree(folder, SMALL) as tree:
        root, until = LandedRoot(tree.landing), time.monotonic() + LONGEST_START_S
        while not root.rows and time.monotonic() < until:
            time.sleep(0.2)
            root.turn()
        memory = {child.name: _memory(child.pid) for child in tree.processes}
        with Attacker(tree, seed) as attacker:
            time.sleep(seconds)
        goal_us = (int(time.time()) // 10 + 1) * 10 * SECOND
        until = time.monotonic() + DRAIN_S
        while not settled(root, goal_us) and time.monotonic() < until and all(each.alive for each in tree.processes):
            time.sleep(0.3)
            root.turn()
        for child in tree.processes:
            if not child.alive:
                wrong.append(f"{child.name} ended with {child.code}: {child.tail(2)}")
            elif (grown := _memory(child.pid) - memory[child.name]) > MAY_GROW:
                wrong.append(f"{child.name}: memory grew by {grown / MB:.0f} MB")
            if "Traceback" in child.tail(100_000):
                wrong.append(f"{child.name}: a traceback in {child.log}")
    compare(outcome, tree, root, goal_us)
    if wrong:
        lines = [json.dumps([at, topic, payload[:4_000].hex()]) for at, topic, payload in attacker.last]
        (folder / "attacker.jsonl").write_text("\n".join(lines))
    return outcome, attacker.sent, wrong


def _memory(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print what is wrong; the logs stay then."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="headwater-fuzz-"))
    outcome, sent, wrong = fuzz(folder, args.seconds, args.seed)
    for line in wrong:
        print(f"fuzz: {line}")
    print(outcome.summary().splitlines()[-1].replace("storm: 0 kills", f"fuzz: seed {args.seed}, {sent} bad messages"))
    if outcome.exact and not wrong:
        shutil.rmtree(folder)
        return 0
    print(f"fuzz: folders and logs: {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
