"""peek and status at a real broker."""

from __future__ import annotations

import json
import threading
import time

import pytest

from edge_agent.cli.main import main
from edge_agent.config import topics
from edge_agent.config.in_force.registry import DefinitionRegistry
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link, Messages, Taken
from edge_agent.ports.waiter import Waiter
from tests.support.fakes import Mosquitto, free_port

pytestmark = pytest.mark.broker

ONLINE = b'{"online":true,"role":"gateway","parent":"region-1","version":"0.1.0","epoch":"0000abcd"}'
REFUSED = json.dumps(
    {
        "version": 7,
        "items": {
            "query/x": {
                "ok": False,
                "revision": 3,
                "errors": [{"at": "window.slide", "got": "11m", "why": "longer than length 10m", "hint": "10m"}],
            }
        },
    }
).encode()


def publish(broker: Mosquitto, messages: dict[str, bytes]) -> None:
    """Retained, and taken by the broker when this returns."""
    connection, waiter = Connection(Link(broker.url, "publisher")), Waiter()
    connection.open()
    waiting: dict[str, bytes] = dict(messages)
    taken = 0
    while taken < len(messages):
        waiter.wait([connection], 0.1)
        taken += sum(isinstance(report, Taken) for report in connection.take())
        if connection.up:
            for topic, payload in waiting.items():
                connection.publish(topic, payload, retain=True)
            waiting = {}
    connection.close()
    waiter.close()


def test_status_lists_nodes_and_says_what_they_refuse(mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]) -> None:
    publish(mosquitto, {topics.status("press-1"): ONLINE, topics.state("press-1"): REFUSED})
    assert main(["status", "--broker", mosquitto.url]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "1 gateway; 0 frames in spools"
    columns = [
        "node",
        "role",
        "parent",
        "state",
        "lag",
        "spool",
        "heard",
        "version",
        "epoch",
        "configuration",
        "refused",
    ]
    assert out[1].split() == columns
    assert out[2].split() == ["press-1", "gateway", "region-1", "online", "0.1.0", "0000abcd", "7", "1"]
    assert out[3] == "press-1: query/x: window.slide: '11m': longer than length 10m; did you mean \"10m\"?"


def test_status_says_at_the_top_who_is_behind_and_then_why(
    mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    now_us = time.time_ns() // 1000
    why = "sensor power: no reading for 40 s"
    late = {"at_us": now_us - 5_000_000, "frontier_us": now_us - 65_500_000, "why": why, "spool": {"frames": 12}}
    well = {"at_us": now_us, "frontier_us": now_us - 2_500_000, "why": "", "spool": {"frames": 1}}
    publish(mosquitto, {topics.status(name): ONLINE for name in ("press-1", "press-2")})
    publish(
        mosquitto,
        {topics.books("press-1"): json.dumps(late).encode(), topics.books("press-2"): json.dumps(well).encode()},
    )
    assert main(["status", "--broker", mosquitto.url]) == 0
    out = capsys.readouterr().out.splitlines()
    most = "2 gateways; most behind: press-1 by 60 s; 13 frames in spools; longest not heard: press-1, "
    assert out[0].startswith(most)
    assert out[2].split()[4:9] == ["60", "s", "12", out[2].split()[7], "s"]
    assert out[4:] == [f"press-1: {why}"]


def test_status_says_which_functions_of_packages_fail(mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]) -> None:
    failing = {"function": "load", "package": "plant 1.0", "step": "lift", "why": "ValueError: no", "queries": ["x"]}
    said = {**json.loads(ONLINE), "failing": [failing, 7]}
    publish(mosquitto, {topics.status("press-1"): json.dumps(said).encode()})
    assert main(["status", "--broker", mosquitto.url]) == 1
    assert capsys.readouterr().out.splitlines()[3:] == ["press-1: lift of load (plant 1.0): ValueError: no; queries x"]


def test_status_is_content_when_all_are_online_and_nothing_is_refused(
    mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--broker", mosquitto.url]) == 0
    out = capsys.readouterr().out
    assert "no node has published its status" in out
    assert "or this user may not read it" in out
    publish(mosquitto, {topics.status("press-1"): ONLINE})
    assert main(["status", "--broker", mosquitto.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"node": "press-1", "status": json.loads(ONLINE)}
    publish(mosquitto, {topics.status("press-2"): b'{"online":false}'})
    assert main(["status", "--broker", mosquitto.url]) == 1


def test_status_of_a_node_that_mqtt_sensors_do_not_concern_has_one_note_and_exit_code_0(
    mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = DefinitionRegistry("press-1", local_broker=False)
    for name in ("a", "b", "c", "d"):
        registry.take("all", "sensor", name, b'{"driver": "mqtt", "topic": "a", "revision": 1}')
    state = json.dumps(registry.state()).encode()
    publish(mosquitto, {topics.status("press-1"): ONLINE, topics.state("press-1"): state})
    assert main(["status", "--broker", mosquitto.url]) == 0
    (note,) = capsys.readouterr().out.splitlines()[3:]
    why = "this node has no [local] broker, so it ignores mqtt sensors; to read them here, add [local]"
    assert note.startswith(f"press-1: note: sensor/a, sensor/b, sensor/c and 1 more: {why}")


def test_peek_prints_what_is_retained_and_what_comes(mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]) -> None:
    publish(mosquitto, {topics.status("press-1"): ONLINE, topics.status("boiler-1"): ONLINE})
    coming = threading.Timer(0.5, publish, [mosquitto, {topics.frames("press-1", "top"): b"\xff"}])
    coming.start()
    assert main(["peek", "--broker", mosquitto.url, "--node", "press-*", "--count", "2", "--seconds", "20"]) == 0
    coming.join()
    first, second = capsys.readouterr().out.splitlines()
    assert "press-1          status     " in first
    assert "press-1          bad        1 B: " in second


def test_peek_as_json_gives_one_object_a_message(mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]) -> None:
    publish(mosquitto, {topics.status("press-1"): ONLINE, "hw/1/what": b"x"})
    assert main(["peek", "--broker", mosquitto.url, "--json", "--only", "foreign", "--count", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == {"kind": "foreign", "topic": "hw/1/what", "bytes": 1, "text": "x"}


def test_a_broker_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peek", "--broker", f"mqtt://127.0.0.1:{free_port()}"]) == 3
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    assert "no broker: " in err[0]


def test_status_says_that_its_time_ended_before_all_was_read(
    mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of a fleet must not look like all of it."""
    publish(mosquitto, {topics.status("press-1"): ONLINE})
    monkeypatch.setattr("edge_agent.cli.support.broker_listener.TURN_S", 1.0)
    received, sleep = Connection.take, time.sleep

    def slowly(connection: Connection) -> object:
        found = received(connection)
        sleep(3.1 * any(isinstance(report, Messages) for report in found))
        return found

    monkeypatch.setattr(Connection, "take", slowly)
    assert main(["status", "--broker", mosquitto.url, "--seconds", "3"]) == 3
    said = capsys.readouterr()
    assert "press-1" in said.out
    assert said.err == f"headwater: not all was read from {mosquitto.url} within 3 s; use a larger --seconds\n"


def test_what_nodes_publish_meanwhile_does_not_delay_status(
    mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(mosquitto, {topics.status("press-1"): ONLINE})
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.05):
            publish(mosquitto, {topics.status("press-1"): ONLINE})

    fleet = threading.Thread(target=live)
    fleet.start()
    began = time.monotonic()
    code = main(["status", "--broker", mosquitto.url, "--seconds", "30"])
    over.set()
    fleet.join()
    assert code == 0
    assert time.monotonic() - began < 15
