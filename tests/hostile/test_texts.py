"""Texts that cost minutes or end a parser: each is refused with a reason, quickly."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from edge_agent.config.checking import foreign_json
from edge_agent.config.checking.documents import read
from edge_agent.config.definitions.definitions import query_of
from edge_agent.config.in_force.registry import DefinitionRegistry
from edge_agent.config.in_force.rejection import revision_in
from edge_agent.config.in_force.revision_numbering import RevisionNumberer
from edge_agent.config.node_file.settings import parse
from edge_agent.errors import ConfigError
from edge_agent.machines.checkpoint.slots import REGISTRY
from edge_agent.ports.mqtt.dial import Dial
from edge_agent.ports.mqtt.link import Link
from edge_agent.ports.sensors import payloads
from edge_agent.runtime.status_and_commands import marker_of, parse_command
from edge_agent.wire import snapshot
from tests.support.waiting import eventually

QUICK_S = 3.0  # of processor time: none takes a tenth of that, what is not linear takes ten times as much

JSON_BOMBS = {
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "brackets behind a text": b'{"a":"' + b"[" * 50_000 + b'","b":' + b"[" * 50_000,
    "a key twice among 60 000": b"{" + b",".join(b'"k%d":1' % n for n in range(60_000)) + b',"k1":1}',
    "a text without an end": b'{"a":"' + b'\\"' * 200_000,
    "a long integer": b'{"a":' + b"1" * 100_000 + b"}",
    "an integer of 400 digits": b'{"a":' + b"1" * 400 + b"}",
    "a number beyond a double": b'{"a":1e999999999}',
    "half a surrogate pair": b'{"a":"\\ud800"}',
    "a name that is half a surrogate pair": b'{"\\udc00":1}',
    "NaN": b'{"a":NaN}',
    "no UTF-8": b'{"a":"\xff"}',
    "more than a megabyte": b'{"a":"' + b"x" * 1_000_000 + b'"}',
    "nothing": b"",
}
TOML_BOMBS = {
    "a dotted key": "a" + ".a" * 30_000 + " = 1",
    "a dotted header over many keys": "[a" + ".a" * 14_000 + "]\n" + "\n".join(f"b{n} = 1" for n in range(4_000)),
    "dots behind quotes": 'x = {y = """a"b""", z' + ".c" * 20_000 + " = 1}",
    "dots behind a comment": "# it's\na" + ".a" * 30_000 + " = 1",
    "brackets": "a = " + "[" * 60_000,
    "line ends": "\n" * 60_000 + "x",
    "blanks": " " * 60_000 + "x",
    "an integer of 400 digits": "a = " + "1" * 400,
    "quotes": '"' * 60_000,
    "quotes in a comment": "a = 1 # " + '"\\' * 29_000 + "\nb = ",
    "a megabyte": "a = 1\n" * 200_000,
}


@contextmanager
def quickly() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < QUICK_S


@pytest.mark.parametrize("name", JSON_BOMBS)
def test_a_text_of_json_that_would_cost_much_is_refused(name: str) -> None:
    with quickly():
        with pytest.raises(ValueError, match=r"."):
            foreign_json.parse(JSON_BOMBS[name])
        assert foreign_json.table(JSON_BOMBS[name]) == {}


def test_a_text_of_json_that_is_none_of_these_is_read_as_the_library_reads_it() -> None:
    text = json.dumps(
        {"a": [1, 2.5, None, True, "[[[[{{{{", {"ü": -7}], "b": {"c": {"d": 10**39}}, "e": "\ud83d\ude00"}
    )
    assert foreign_json.parse(text) == foreign_json.parse(text.encode()) == json.loads(text)
    assert foreign_json.depth('[{"a":"]]}"},[]]') == 2


@pytest.mark.parametrize("name", [*JSON_BOMBS, *TOML_BOMBS])
def test_a_definition_that_would_cost_much_is_refused_and_kept_as_a_reason(name: str) -> None:
    """What a node then says of it can be stored and published."""
    payload = JSON_BOMBS.get(name) or TOML_BOMBS.get(name, "").encode() or b" "
    with quickly():
        with pytest.raises(ConfigError):
            read(payload)
        registry, numberer = DefinitionRegistry("g"), RevisionNumberer()
        registry.take("all", "sensor", "s", payload)
        revision_in(payload)
        numberer.hear("hw/1/all/cfg/sensor/s", payload, 0)
        numberer.hear_state(payload)
        numberer.due(10_000_000)
    assert registry.refused()
    again = REGISTRY.read(snapshot.loads(snapshot.dumps(REGISTRY.write(registry.snapshot()))))
    assert DefinitionRegistry("g", state=again).refused().keys() == registry.refused().keys()
    json.dumps(registry.state(), ensure_ascii=False).encode()


@pytest.mark.parametrize("value", [10**39, -(10**39), 1e308, "x" * 30_000, [[1]] * 1_000, {"a": {"b": [10**20] * 99}}])
def test_a_wrong_value_of_a_definition_is_shown_short(value: object) -> None:
    registry = DefinitionRegistry("g")
    registry.take("all", "sensor", "s", json.dumps({"driver": "mqtt", "topic": value, "revision": value}))
    snapshot.dumps(REGISTRY.write(registry.snapshot()))
    assert len(json.dumps(registry.state())) < 5_000


def test_a_definition_that_was_refused_is_forgotten_with_its_topic_also_after_a_restart() -> None:
    registry = DefinitionRegistry("g")
    registry.take("all", "query", "q", b"[" * 100_000)
    registry = DefinitionRegistry("g", state=registry.snapshot())
    assert registry.refused()
    registry.take("all", "query", "q", b"")
    assert not registry.refused()


def test_the_canonical_text_of_a_definition_is_json() -> None:
    """Frames carry it: nobody's root parses TOML of a node."""
    with quickly(), pytest.raises(ConfigError, match="JSON"):
        query_of("a" + ".a" * 30_000 + " = 1")


def test_a_state_of_ten_thousand_refusals_fits_in_a_packet() -> None:
    registry = DefinitionRegistry("g")
    for n in range(10_020):
        registry.take("all", "query", f"query-{n}", b"{}")
    state = registry.state()
    assert len(json.dumps(state).encode()) < 1_000_000
    assert state["left_out"] == 10_000 - len(state["items"])
    assert registry.state(2_000)["left_out"] > state["left_out"]


@pytest.mark.parametrize("payload", [b"1" * 40_000, b"1" * 1_000_000, b" " * 40_000 + b"x", b"1." + b"1" * 40_000])
def test_a_number_of_many_digits_is_none(payload: bytes) -> None:
    with quickly():
        assert payloads.numbers([payload]) is None
        with pytest.raises(payloads.BadPayloadError):
            payloads.number(payload)


@pytest.mark.parametrize(
    "read_it", [payloads.moment, lambda found: payloads.moments([found]) or payloads.moment(found)]
)
@pytest.mark.parametrize("found", [10**400, -(10**400), 1e308, "9" * 100_000, "\ud800", [], None, True])
def test_a_time_that_is_none_is_refused(found: object, read_it: Callable[[object], object]) -> None:
    with quickly(), pytest.raises(payloads.BadPayloadError):
        read_it(found)


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'{"v":' * 100_000, b"1" * 100_000, b'"' + b"\\" * 100_001])
def test_a_payload_of_json_that_would_cost_much_is_refused(payload: bytes) -> None:
    with quickly(), pytest.raises(payloads.BadPayloadError):
        payloads.document(payload)


@pytest.mark.parametrize("kind", [[], {}, [["start"]], 1, True, "begin"])
def test_a_mark_with_a_kind_that_is_no_text_is_answered(kind: object) -> None:
    command = parse_command(json.dumps({"cmd": "mark", "id": "m1", "kind": kind}).encode())
    assert command.named
    assert isinstance(marker_of(command, 1), str)


@pytest.mark.parametrize("payload", [b"{" * 1_024, b'{"cmd":' + b"[" * 900, b'{"cmd":"x","id":' + b"1" * 900 + b"}"])
def test_a_command_that_is_none_has_no_name_of_its_own(payload: bytes) -> None:
    assert not parse_command(payload).named


@pytest.mark.parametrize("host", ["broker..example", ".example", "a" * 64 + ".example"])
def test_a_broker_whose_name_no_resolver_takes_is_refused_and_a_dial_says_why(host: str) -> None:
    with pytest.raises(ConfigError, match="host name"):
        parse(f'[node]\nid = "g"\n[uplink]\nbroker = "mqtt://{host}"\n')
    dial = Dial(Link(f"mqtts://{host}:1", "g"))
    eventually(lambda: dial.done)
    assert dial.take() is None
    assert host in dial.why


def test_a_dial_ends_with_a_word_whatever_the_resolver_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> socket.socket:
        raise UnicodeError("label empty or too long")

    monkeypatch.setattr(socket, "create_connection", broken)
    dial = Dial(Link("mqtt://127.0.0.1:1", "g"))
    eventually(lambda: dial.done)
    assert dial.take() is None
    assert "label empty" in dial.why
