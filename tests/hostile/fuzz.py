"""`make hostile`: damaged frames and texts by the hundred thousand, with good ones in between; all of those must count.

    python -m tests.hostile.fuzz --frames 200000 --texts 70000 --seed 1

Frames go through a merger that commits, and whatever it sends is read as its parent reads it. Texts go through every
reader of texts. Any exception ends the programme with the seed and the bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import cbor2

from edge_agent.algebra.frame import Frame
from edge_agent.config import topics
from edge_agent.config.checking import foreign_json
from edge_agent.config.definitions.definitions import parse_sensor, query_of, sensor_of
from edge_agent.config.in_force.registry import DefinitionRegistry
from edge_agent.config.in_force.revision_numbering import RevisionNumberer
from edge_agent.errors import ConfigError, WireError
from edge_agent.machines.checkpoint.slots import REGISTRY
from edge_agent.machines.events import Arrived, Tick
from edge_agent.ports.sensors import payloads
from edge_agent.ports.sensors.convert import Converter
from edge_agent.runtime.region import heard
from edge_agent.runtime.status_and_commands import marker_of, parse_command
from edge_agent.wire import frames, heads, landing, readings, receipts, snapshot
from tests.hostile.fed_region import COUNTED, NOW_US, Region, S, counted

BAD_CHILDREN: Final = 20
BATCH: Final = 200  # messages of one arrival, bad and good by turns
SPICE: Final[tuple[Any, ...]] = (
    *(None, True, False, -1, 0, 1, 2**16, 2**31, 2**53, 2**61, 2**62, 2**63, 2**64, -(2**62), -(2**64), 2**127, 1.5),
    *(float("nan"), float("inf"), "", "x", "good", "\ud800"[:0], b"", b"x" * 40, [], [1], [[]], [0, 2**61]),
    *(cbor2.CBORTag(64, b"\x01\x02"), cbor2.CBORTag(79, b"\xff" * 16), cbor2.CBORTag(2, b"\xff" * 9)),
)
WORDS: Final = (
    *('{"', '":', "[", "]", "}", ",", "null", "true", "1e400", "-0", "1" * 50, "1" * 500, "\\ud800", "\0", "\ufeff"),
    *("'''", '"""', "= ", "\n[a", "a.b.", "#", "revision", "removed", "window", "nodes", "*" * 40, "é", "\u2028"),
)
SENSOR: Final = {"driver": "mqtt", "topic": "a/+/b", "value": "/v", "labels": {"n": "{topic[1]}"}, "revision": 1}
WINDOW: Final = {"type": "sliding", "length": "10m", "slide": "1m"}
QUERY: Final = {"source": "s", "window": WINDOW, "aggregates": ["avg"], "where": "value > 1", "revision": 1}
VALUES: Final[tuple[object, ...]] = (
    *(SENSOR, {"id": "s", **SENSOR}, QUERY, {**QUERY, "id": "q", "nodes": ["a-*", "!b"]}),
    *({"removed": True, "revision": 3}, {"items": {"query/q": {"revision": 3}}}),
    {"cmd": "mark", "id": "m1", "kind": "start", "at": "2026-11-21T06:00:00Z"},
    {"online": True, "parent": "m", "clock": {"asked": 5}},
    *({"v": [1.5, {"w": "2026-01-01"}], "n": "x"}, 17.25),
)
TEXTS: Final = (
    *map(json.dumps, VALUES),
    'driver = "mqtt"\ntopic = "x"\n[labels]\na = "b"\n',
    'source = "s"\nwindow = {type = "tumbling", length = "1s"}\n',
    "nan",
)


@dataclass
class Figures:
    """What a run came to. rate: messages a second; clean: the same without bad ones."""

    bad: int = 0
    good: int = 0
    rate: float = 0.0
    clean: float = 0.0


def mutated(payload: bytes, draw: random.Random) -> bytes:
    """Bits flipped, bytes put in, taken out or repeated, an end cut off."""
    data = bytearray(payload)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                del data[at : at + draw.randrange(1, 9)]
            case 2:
                data[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 3:
                del data[at:]
            case _:
                data[at:at] = data[: draw.randrange(20)]
    return bytes(data)


def restructured(payload: bytes, draw: random.Random) -> bytes:
    """A frame whose body is well-formed, with items of another kind, range or place."""
    version, epoch, seq, body = cbor2.loads(payload)
    tree = cbor2.loads(body)
    for _ in range(draw.choice((1, 1, 2, 4))):
        places = list(_places(tree))
        if places:
            holder, at = draw.choice(places)
            match draw.randrange(4):
                case 0:
                    del holder[at]
                case 1:
                    holder.insert(at, _copy(holder[at]))
                case _:
                    holder[at] = _copy(draw.choice(SPICE))
    if not draw.randrange(8):
        epoch, seq = draw.choice(
            ((epoch, seq), (draw.randrange(2**32), 0), (epoch, 2**62), (2**32, seq), (epoch, None))
        )
    return cbor2.dumps([version, epoch, seq, cbor2.dumps(tree)])


def _copy(item: Any) -> Any:
    """The tree must stay a tree."""
    return cbor2.loads(cbor2.dumps(item))


def _places(item: Any) -> Any:
    for at, inner in enumerate(item) if isinstance(item, list) else ():
        yield item, at
        yield from _places(inner)


def fuzz_frames(count: int, seed: int) -> Figures:
    """Bad frames of many children through a merger, good ones of one child in between: all of them must count."""
    draw, region, figures = random.Random(seed), Region(), Figures()
    sources: dict[str, list[bytes]] = {}
    for n in range(BAD_CHILDREN):
        child = f"bad-{n}"
        first = region.birth(child, COUNTED)
        sources[child] = [frames.encode(frame) for frame in (first, counted(1, 3), counted(2, 4))]
        if n % 2:
            region.feed(Arrived(((child, heard(sources[child][0]), None),)))
    region.feed(Arrived((("good", heard(frames.encode(region.birth("good", COUNTED))), None),)))
    seq = 0
    started = time.perf_counter()
    while figures.bad < count:
        arrived = []
        for _ in range(BATCH // 2):
            child = draw.choice(tuple(sources))
            payload = draw.choice((mutated, restructured))(draw.choice(sources[child]), draw)
            try:
                _read_all(payload)
                arrived.append((child, heard(payload), None))
            except Exception as err:
                raise AssertionError(f"seed {seed}: {payload.hex()}") from err
            seq += 1
            arrived.append(("good", heard(frames.encode(counted(seq, 1))), None))
        figures.bad += BATCH // 2
        figures.good += BATCH // 2
        try:
            region.feed(Arrived(tuple(arrived)))
            region.now_us += 2 * S
            region.feed(Tick())
        except Exception as err:
            last = [(child, repr(message)[:300]) for child, message, _ in arrived if child != "good"]
            raise AssertionError(f"seed {seed}: one of {last}") from err
        region.sent.clear()
        region.quarantined.clear()
    figures.rate = (figures.bad + figures.good) / (time.perf_counter() - started)
    line = region.merger.parent.inbox.lines()["good"]
    assert line.readings == figures.good, f"seed {seed}: {line.readings} of {figures.good} good readings counted"
    assert line.applied.next == seq + 1
    return figures


DECODERS: Final[tuple[Callable[[bytes], object], ...]] = (
    frames.decode,
    lambda payload: heads.head(frames.envelope(payload)),
    receipts.decode,
    readings.decode,
    snapshot.loads,
    lambda payload: list(landing.iterate(payload)),
)


def _read_all(payload: bytes) -> None:
    """Every decoder: a value, which can be encoded again if it is a frame, or a WireError."""
    for decode in DECODERS:
        try:
            found = decode(payload)
        except WireError:
            continue
        if isinstance(found, Frame):
            frames.encode(found)


def spoilt(text: str, draw: random.Random) -> bytes:
    """A text with words of other texts in it, pieces gone or repeated; sometimes no UTF-8 at all."""
    for _ in range(draw.choice((1, 1, 2, 6))):
        at = draw.randrange(len(text) + 1)
        match draw.randrange(4):
            case 0:
                text = text[:at] + draw.choice(WORDS) * draw.choice((1, 1, 3, 300)) + text[at:]
            case 1:
                text = text[:at] + text[at + draw.randrange(1, 9) :]
            case 2:
                text = text[:at] + text[: draw.randrange(40)] + text[at:]
            case _:
                text = text[:at] + draw.choice(TEXTS) + text[at + 5 :]
    payload = text.encode("utf-8", "replace")
    return mutated(payload, draw) if not draw.randrange(4) else payload


def fuzz_texts(count: int, seed: int) -> Figures:
    """Bad texts through every reader of texts, good definitions in between: all of them must be in force."""
    draw, figures = random.Random(seed), Figures()
    registry, numberer = DefinitionRegistry("g"), RevisionNumberer(settle_us=0)
    converters = [Converter(parse_sensor("s", {**SENSOR, "format": form})) for form in ("auto", "json", "cbor")]
    converters.append(Converter(parse_sensor("s", {"driver": "mqtt", "topic": "x"})))
    registry.take("all", "sensor", "s", json.dumps(SENSOR))
    started = time.perf_counter()
    good: set[str] = set()
    while figures.bad < count:
        payload = spoilt(draw.choice(TEXTS), draw)
        figures.bad += 1
        try:
            _read_text(payload, registry, numberer, draw.choice(converters), draw)
        except Exception as err:
            raise AssertionError(f"seed {seed}: {payload!r}") from err
        if not figures.bad % 500:
            name = f"good-{len(good) % 50}"
            good.add(name)
            registry.take("all", "query", name, json.dumps({**QUERY, "revision": figures.bad}))
            figures.good += 1
            again = snapshot.loads(snapshot.dumps(REGISTRY.write(registry.snapshot())))
            registry = DefinitionRegistry("g", state=REGISTRY.read(again))
            json.dumps(registry.state(), ensure_ascii=False).encode()
    figures.rate = figures.bad / (time.perf_counter() - started)
    in_force = {query.id for query in registry.in_force()[1]}
    assert good <= in_force, f"seed {seed}: {sorted(good - in_force)} are not in force"
    return figures


def _read_text(
    payload: bytes, registry: DefinitionRegistry, numberer: RevisionNumberer, converter: Converter, draw: random.Random
) -> None:
    kind = draw.choice(topics.KINDS)
    topic = topics.definition(kind, f"x-{draw.randrange(50)}")
    registry.take(draw.choice(("all", "node")), kind, f"x-{draw.randrange(50)}", payload)
    numberer.hear(topic, payload, 0)
    numberer.hear_above(topic, payload)
    numberer.hear_state(payload, f"g-{draw.randrange(5)}")
    numberer.due(10)
    marker_of(parse_command(payload), 5)
    foreign_json.table(payload)
    for read in (query_of, sensor_of):
        try:
            read(payload.decode("utf-8", "replace"))
        except ConfigError:
            pass
    try:
        payloads.moment(payloads.document(payload))
    except payloads.BadPayloadError:
        pass
    converter.convert([payload, b"7"], ["a/x/b", "a/y/b"], [(2, NOW_US)], NOW_US)
    topics.parse(payload.decode("utf-8", "replace"))


def clean_rate(count: int) -> float:
    """Messages a second where all are good: as many of one arrival, and read as often, as in `fuzz_frames`."""
    region, seq = Region(), 0
    region.feed(Arrived((("good", heard(frames.encode(region.birth("good", COUNTED))), None),)))
    started = time.perf_counter()
    while seq < count:
        arrived = []
        for _ in range(BATCH):
            seq += 1
            payload = frames.encode(counted(seq, 1))
            if seq % 2:
                _read_all(payload)
            arrived.append(("good", heard(payload), None))
        region.feed(Arrived(tuple(arrived)))
        region.now_us += 2 * S
        region.feed(Tick())
        region.sent.clear()
    return seq / (time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--texts", type=int, default=70_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for what, run, count in (("frames", fuzz_frames, asked.frames), ("texts", fuzz_texts, asked.texts)):
        found = run(count, asked.seed)
        counted_all = f"{found.good} good ones all counted"
        print(f"{what}: {found.bad} bad, {counted_all}, {found.rate:.0f} a second, seed {asked.seed}")
        if what == "frames":
            found.clean = clean_rate(min(2 * count, 20_000))
            print(f"frames: {found.clean:.0f} a second where all are good")
            if found.rate < found.clean / 2:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
