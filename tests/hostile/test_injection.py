"""An exception in any function that a message runs through: the process stays up, and what others said counts once.

The list of handlers is made by the test: each message is first handled as it is, and every function of the product that
ran meanwhile is one. Then each of them raises, once, while a copy of the message is handled.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import cbor2
import pytest

from edge_agent.algebra.frame import Frame, Heartbeat, Receipt
from edge_agent.config import topics
from edge_agent.config.checking.checker import REQUIRED
from edge_agent.config.definitions.definitions import parse_definition
from edge_agent.config.definitions.drivers import DRIVERS, FILES
from edge_agent.machines.region.merger import Merger
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.lander import LanderLoop
from edge_agent.wire import frames, landing, receipts
from tests.hostile.stand_ins import Broker, Process
from tests.support.fakes import BEGIN_US
from tests.support.machines.scripted_child import Sender

EVERY: Final = int(os.environ.get("HEADWATER_INJECT_EVERY", "64"))  # of the functions, in the short run; 1: all
PRODUCT: Final = str(Path(__file__).resolve().parents[2] / "edge_agent") + os.sep
NO_HANDLERS: Final = ("runtime/guard.py", "runtime/refusals.py", "runtime/quarantine.py", "log.py")
ERRORS: Final = (RecursionError, MemoryError, OverflowError, KeyError, ValueError, TypeError)
S: Final = 1_000_000
QUERY: Final = parse_definition(
    "query", "q", {"source": "s", "window": {"type": "tumbling", "length": "1s"}, "aggregates": ["sum"], "revision": 1}
)


@dataclass(frozen=True)
class Case:
    """One kind of message: topic and payload, for a client of the broker; made from the journal of the receiver."""

    role: str
    client: str
    topic: str
    payload: Callable[[int], bytes]


def child(node: str, journal: int) -> list[bytes]:
    """A birth and two windows of a child."""
    assert QUERY.value is not None
    sender = Sender(node, QUERY.value)  # type: ignore[arg-type]
    sender.outbox.journal = journal
    start = BEGIN_US // S * S
    made = [sender.birth(), *(sender.send((start + n * S, start + (n + 1) * S, "", 1.0 + n)) for n in range(2))]
    return [frames.encode(frame) for frame in made]


def constant(payload: bytes | dict[str, Any]) -> Callable[[int], bytes]:
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return lambda journal: text


DRIVER_FIELDS: Final[dict[str, dict[str, object]]] = {
    "mqtt": {"topic": "x/y"},
    "file": {"path": "/none.csv"},
    "host": {"metric": "cpu"},
    "simulated": {"rate": 10.0},
}


def fields_of(driver: str) -> dict[str, object]:
    """The fields of a sensor of this driver that it needs, and some more."""
    fields = DRIVER_FIELDS.get(driver, {})
    missing = {key.name for key in DRIVERS[driver].keys if key.default is REQUIRED} - fields.keys()
    assert not missing, f"driver {driver!r} needs {sorted(missing)}: add values to DRIVER_FIELDS"
    return fields


STATUS: Final = {"online": True, "parent": "m", "clock": {"asked": 5}}
STATE: Final = {"items": {"query/q": {"ok": True, "revision": 3}}}
BATCH: Final = cbor2.dumps([1, 2, 3])


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for role, above in (("gateway", "g"), ("region", "m")):
        receipt = receipts.encode(Receipt(1, 5, 0))
        found |= {
            f"{role}: receipt": Case(role, above, topics.ack(above), constant(receipt)),
            f"{role}: command": Case(role, above, topics.commands(above), constant({"cmd": "diagnose", "id": "d1"})),
            f"{role}: rebirth": Case(role, above, topics.commands(above), constant(b"rebirth")),
            f"{role}: command to all": Case(
                role, above, topics.commands_to_all(), constant({"cmd": "diagnose", "id": "d2"})
            ),
            f"{role}: foreign topic": Case(role, above, "hw/1/some/where", constant(b"x")),
        }
    found["gateway: mark"] = Case("gateway", "g", topics.commands("g"), constant({"cmd": "mark", "id": "m1"}))
    for name in FILES:
        text = {"driver": name, **fields_of(name), "revision": 1}
        found[f"gateway: sensor {name}"] = Case("gateway", "g", topics.definition("sensor", "t"), constant(text))
    query = {"source": "s", "window": {"type": "tumbling", "length": "2s"}, "aggregates": ["max"], "revision": 1}
    found["gateway: query"] = Case("gateway", "g", topics.definition("query", "p"), constant(query))
    found["gateway: removal"] = Case(
        "gateway", "g", topics.definition("query", "p"), constant({"removed": True, "revision": 9})
    )
    for what, payload in {"number": b"7", "JSON": b'{"v":7}', "CBOR": BATCH, "text": b"off"}.items():
        found[f"gateway: reading, {what}"] = Case("gateway", "g-sensors", "a/b", constant(payload))
    for role in ("region", "root"):
        for n, what in enumerate(("birth", "rows", "more rows")):
            found[f"{role}: {what}"] = Case(
                role,
                "m",
                topics.frames("bad", "m"),
                lambda journal, n=n: child("bad", journal)[n],  # type: ignore[misc]
            )
        beat = frames.encode_heartbeat(Heartbeat(5, 3, ((0, BEGIN_US),)))
        found |= {
            f"{role}: heartbeat": Case(role, "m", topics.frames("bad", "m"), constant(beat)),
            f"{role}: bad envelope": Case(role, "m", topics.frames("bad", "m"), constant(b"\xff\x00")),
            f"{role}: bad body": Case(
                role, "m", topics.frames("bad", "m"), constant(cbor2.dumps([1, 5, 0, b"\x80\x80"]))
            ),
            f"{role}: status": Case(role, "m", topics.status("bad"), constant(STATUS)),
            f"{role}: state": Case(role, "m", topics.state("bad"), constant(STATE)),
            f"{role}: definition": Case(role, "m", topics.definition("query", "x"), constant(query)),
        }
    return found


CASES: Final = _cases()


class Run:
    """One process: good messages, the message of a case, good messages. raising: the code that raises once."""

    def __init__(self, case: Case, raising: CodeType | None = None, error: type[Exception] = ValueError) -> None:
        self.case, self.raising, self.error = case, raising, error
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-inject-"))
        self.broker = Broker()
        self.process = Process(case.role, self.folder, self.broker)
        self.ran: dict[CodeType, None] = {}
        self.raised = False
        self._turn = 0
        self._watching = False
        self.broker.delivering = self._delivering
        self.process.each_turn = self._each_turn
        self._good_before()

    def journal(self) -> int:
        loop = self.process.loop
        if isinstance(loop, LanderLoop):
            return loop.machine.journal
        machine = getattr(loop, "machine", None)
        return machine.journal if isinstance(machine, Merger) else 1

    def _good_before(self) -> None:
        if self.case.role == "gateway":
            self.broker.send("g", topics.ack("g"), receipts.encode(Receipt(9, 5, 0)))
            sensor = {"driver": "mqtt", "topic": "a/b", "revision": 1}
            self.broker.send("g", topics.definition("sensor", "s"), json.dumps(sensor).encode())
            assert QUERY.value is not None
            self.broker.send("g", topics.definition("query", "q"), QUERY.text.encode())

    def _good(self, n: int) -> None:
        if self.case.role == "gateway":
            self.broker.send("g-sensors", "a/b", str(100 + n).encode())
        else:
            self.broker.send("m", topics.frames("good", "m"), child("good", self.journal())[n])

    def _each_turn(self) -> None:
        if self._watching:
            self._watching = False
            sys.setprofile(None)
        self._turn += 1
        if self._turn == 4:
            self._good(0)
        if self._turn == 7:
            self._good(1)
            self.broker.send(self.case.client, self.case.topic, self.case.payload(self.journal()))
        if self._turn == 14:
            self._good(2)

    def _delivering(self, topic: str) -> None:
        if topic == self.case.topic and self._turn >= 7 and not self.raised:
            self._watching = True
            sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PRODUCT) or code.co_filename.endswith(NO_HANDLERS):
            return
        if code is self.raising and not self.raised:
            self.raised = True
            sys.setprofile(None)
            self._watching = False
            raise self.error("injected")
        self.ran.setdefault(code)

    def go(self) -> Run:
        try:
            self.process.run(36)
        finally:
            sys.setprofile(None)
        return self

    def good_counted(self) -> list[int]:
        """Of each good message, how often it took effect."""
        if self.case.role == "gateway":
            loop = self.process.loop
            assert isinstance(loop, GatewayLoop)
            sent = [frames.decode(p) for t, p in self.broker.published if t == topics.frames("g", "m")]
            rows = {(f.epoch, f.seq): f.readings for f in sent if isinstance(f, Frame)}
            return [sum(rows.values())]
        if self.case.role == "root":
            folder = Path(self.process.settings.lander.folder)
            found = [
                record for path in folder.glob(f"*{landing.SUFFIX}") for record in landing.iterate(path.read_bytes())
            ]
            seqs = [frames.envelope(p).seq for t, _, p in found if t == topics.frames("good", "m")]
            return [seqs.count(n) for n in range(3)]
        machine = getattr(self.process.loop, "machine", None)
        assert isinstance(machine, Merger)
        line = machine.parent.inbox.lines()["good"]
        return [line.applied.next, line.readings or 0]

    def settled(self) -> bool:
        """Whether no message is left unacknowledged."""
        clients = {self.case.client, "g" if self.case.role == "gateway" else "m"}
        return not any(self.broker.open(client) for client in clients)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def named(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(PRODUCT)}:{code.co_qualname}"


# Raised in a generator that Python closes unfinished: it reports the error, and no handler can see it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", CASES)
def test_whatever_a_handler_raises_the_process_stays_up_and_the_others_count(name: str) -> None:
    case = CASES[name]
    clean = Run(case).go()
    expected, handlers = clean.good_counted(), [*clean.ran]
    assert clean.process.guard.restarts == 0
    assert clean.settled()
    clean.close()
    assert len(handlers) >= 3, "the message ran through nothing"
    first = sum(map(ord, name)) % EVERY
    for n, code in enumerate(handlers):
        if n % EVERY != first and n >= 2:
            continue
        run = Run(case, code, ERRORS[n % len(ERRORS)]).go()
        where = f"{ERRORS[n % len(ERRORS)].__name__} in {named(code)}"
        assert run.settled(), where
        counted = run.good_counted()
        if case.role == "gateway":  # the message itself may be a reading
            assert expected[0] - 1 <= counted[0] <= expected[0], where
        else:
            assert counted == expected, where
        if run.process.guard.restarts:
            assert run.process.guard.refusals.total, where
        run.close()
