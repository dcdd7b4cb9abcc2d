"""A node without brokers, to be run under strace: `python -m tests.faults.traced ROLE FOLDER SEED STEPS`.

The product's own loop, spool, journal and landing folder; connections are written to FOLDER/wire, one line each, so
that a trace shows what was said before and after every write and fsync. It ends like a kill, without closing anything.
Lines: `P TOPIC HEX` a publish, `A TOKEN...` acknowledgements, `F TOKEN CHILD EPOCH SEQ READINGS` a frame that comes in.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from edge_agent.algebra.frame import Frame, Receipt
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.config import topics
from edge_agent.config.node_file.settings import parse
from edge_agent.machines.region.merger import Merger
from edge_agent.ports.mqtt.link import Messages, Taken
from edge_agent.runtime.build import build
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.lander import LanderLoop
from edge_agent.runtime.region import RegionLoop
from edge_agent.wire import frames, receipts
from tests.faults.contents import readings_of
from tests.support.machines.scripted_child import SUM, Sender
from tests.support.runtime.scripted import ScriptedClock, ScriptedConnection, without_brokers

PARENT_JOURNAL: Final = 4711
S: Final = 1_000_000
CLOCK: Final = ScriptedClock()
BROKER: Final = "mqtt://127.0.0.1:9"
NODES: Final = {
    "gateway": (
        f'[node]\nid = "gw"\n[uplink]\nbroker = "{BROKER}"\nparent = "root"\n[local]\nbroker = "{BROKER}"\n'
        '[spool]\npath = "spool.db"\n'
        '[sensor.s]\ndriver = "mqtt"\ntopic = "s/+"\nqos = 1\nresolution = 1.0\n'
        'labels = {k = "{topic[1]}"}\ntimeout = "5s"\n'
        '[query.q]\nsource = "s"\nby = ["k"]\nwindow = {type = "tumbling", length = "2s"}\n'
        'aggregates = ["count", "sum"]\nlateness = "200ms"\n'
    ),
    "region": (
        f'[node]\nid = "m"\nrole = "region"\n[uplink]\nbroker = "{BROKER}"\nparent = "root"\n'
        f'[lower]\nbroker = "{BROKER.replace("9", "10")}"\n[spool]\npath = "spool.db"\n'
    ),
    "lander": f'[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "{BROKER}"\n[lander]\nfolder = "landing"\n',
}
SUMS: Final = Query("sums", 1, "door", Tumbling(S), SUM, by=("k",))


class Wire(ScriptedConnection):
    """Writes what leaves to a file, at once. The broker takes everything; `held`: the parent's receipts to come."""

    file = -1

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.held: dict[int, set[int]] = {}

    def say(self, line: str) -> None:
        os.write(Wire.file, line.encode() + b"\n")

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, expiry_s: int | None = None
    ) -> int:
        token = super().publish(topic, payload, qos=qos, retain=retain, expiry_s=expiry_s)
        self.say(f"P {topic} {payload.hex()}")
        self.arrives.append(Taken(token, 0, ""))
        parsed = topics.parse(topic)
        if parsed is not None and parsed.what == "frame":
            envelope = frames.envelope(payload)
            seqs = self.held.setdefault(envelope.epoch, set())
            if envelope.seq is not None:
                seqs.add(envelope.seq)
        return token

    def ack(self, tokens: Iterable[int]) -> None:
        """Acknowledgements of QoS 1."""
        given = [token for token in tokens if token]
        super().ack(given)
        if given:
            self.say("A " + " ".join(map(str, given)))

    def receipt(self, node: str, chance: random.Random) -> None:
        """The parent's receipts, some of the time: what it has of each epoch so far."""
        for epoch, seqs in self.held.items():
            if chance.random() < 0.4:
                upto = next(n for n in range(len(seqs) + 1) if n not in seqs)
                above = tuple((n, n) for n in sorted(seqs) if n > upto)[:20]
                self.message(topics.ack(node), receipts.encode(Receipt(epoch, PARENT_JOURNAL, upto, above)))


def gateway(loop: GatewayLoop, chance: random.Random, run: int, steps: int) -> None:
    """Readings of a local broker, whose acknowledgements must stand on the spool."""
    up, local = loop.up, loop.local
    assert isinstance(up, Wire)
    assert isinstance(local, Wire)
    loop.start()
    for step in range(steps):
        for n in range(chance.randrange(6)):
            token = 1 << 16 | (run * 20_000 + step * 10 + n + 1)
            local.arrives.append(Messages([(f"s/{chance.randrange(400)}", b"%d" % chance.randrange(99), token, 0)]))
        turn(loop, up, "gw", chance)


def region(loop: RegionLoop, chance: random.Random, run: int, steps: int) -> None:
    """Frames of two children, some of them twice, too early, or in another order."""
    up, lower, merger = loop.up, loop.lower, loop.machine
    assert isinstance(up, Wire)
    assert isinstance(lower, Wire)
    assert isinstance(merger, Merger)
    children = [Sender(f"c{n}-{run}", SUMS) for n in range(2)]
    waiting: list[tuple[str, Frame]] = []
    for child in children:
        child.outbox.journal = merger.journal
        waiting.append((child.node, child.birth(CLOCK.us - 60 * S)))
    loop.start()
    token = 1 << 16 | run * 20_000
    for _ in range(steps):
        for child in children:
            at_us = CLOCK.us // S * S
            rows = [(at_us, at_us + S, f"k={chance.randrange(300)}", 1.0) for _ in range(chance.randrange(1, 30))]
            frontier_us = at_us - 5 * S if chance.random() < 0.3 else None
            waiting.append((child.node, child.send(*{row[2]: row for row in rows}.values(), frontier_us=frontier_us)))
        chance.shuffle(waiting)
        for node, frame in waiting[: len(waiting) // 2 + 1]:
            token += 1
            lower.say(f"F {token} {node} {frame.epoch} {frame.seq} {readings_of(frame)}")
            lower.message(topics.frames(node, "m"), frames.encode(frame), token)
        keep = [pair for pair in waiting[: len(waiting) // 2 + 1] if chance.random() < 0.2]  # these come again
        waiting = waiting[len(waiting) // 2 + 1 :] + keep
        turn(loop, up, "m", chance)


def lander(loop: LanderLoop, chance: random.Random, run: int, steps: int) -> None:
    """Frames of two children, some of them twice."""
    wire = loop.connection
    assert isinstance(wire, Wire)
    loop.start()
    token, sent = 1 << 16 | run * 20_000, list[tuple[str, int]]()
    for step in range(steps):
        for n in range(chance.randrange(8)):
            pair = (f"c{n % 2}", step * 10 + n)
            sent.append(chance.choice(sent) if sent and chance.random() < 0.2 else pair)
            node, seq = sent[-1]
            token += 1
            wire.say(f"F {token} {node} {run + 1} {seq} 0")
            wire.message(topics.frames(node, "root"), frames.encode(Frame(run + 1, seq)), token)
        CLOCK.pass_s(0.4)
        loop.turn(0.0)


def turn(loop: GatewayLoop | RegionLoop, up: Wire, node: str, chance: random.Random) -> None:
    if not up.held:
        up.message(topics.ack(node), receipts.encode(Receipt(0, PARENT_JOURNAL, 0)))
    up.receipt(node, chance)
    CLOCK.pass_s(0.35)
    loop.turn(0.0)


def main(role: str, folder: Path, seed: int, steps: int) -> None:
    """Go on in a folder, or begin in an empty one."""
    begun = folder / "runs"
    run = len(begun.read_text()) if begun.exists() else 0
    begun.write_text("x" * (run + 1))
    CLOCK.pass_s(1_000.0 * run)
    (folder / "store").mkdir(exist_ok=True)
    os.chdir(folder / "store")
    Wire.file = os.open(folder / "wire", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    chance = random.Random(seed * 100 + run)
    settings = parse(NODES[role])
    with without_brokers(CLOCK, Wire):
        if role == "lander":
            lander(LanderLoop(settings, "0"), chance, run, steps)
        else:
            loop = build(settings, "0")
            if isinstance(loop, GatewayLoop):
                gateway(loop, chance, run, steps)
            else:
                region(loop, chance, run, steps)
    print(json.dumps({"role": role, "steps": steps}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
