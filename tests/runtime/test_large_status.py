"""A broker that accepts small packets only: a status that is too large is shortened, and the process serves on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from edge_agent.algebra.frame import Heartbeat, Receipt
from edge_agent.config import topics
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.config.node_file.settings import parse
from edge_agent.machines.events import Beat, Restored, SendReceipt
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.ports.mqtt.connection import RAISE
from edge_agent.ports.mqtt.link import Down, TooLargeError, Up
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.lander import LanderLoop
from edge_agent.runtime.region import RegionLoop
from edge_agent.runtime.status_and_commands import retired_fields
from tests.support.fakes import BEGIN_US
from tests.support.runtime.scripted import ScriptedConnection, parts


class Narrow(ScriptedConnection):
    """The broker accepts payloads of so many bytes."""

    most_bytes = 1_000

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, expiry_s: int | None = None
    ) -> int:
        if len(payload) > self.most_bytes:
            raise TooLargeError(f"{topic}: {len(payload)} bytes")
        return super().publish(topic, payload)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayLoop]:
    settings = NodeSettings("g", parents=("region-1", "region-2"))
    made, spool = parts(Gateway(settings, Random(1), Restored({})), tmp_path, "region-1")
    made = replace(made, up=Narrow("g"), others={"region-2": Narrow("g")})
    loop = GatewayLoop(made, restored={}, limits=LimitsTable(), definitions=())
    loop.status.sensors = tuple(f"sensor-{n:04}" for n in range(300))
    loop.status.refused = {"bad": {"count": 1, "example": "x" * 2_000}}
    yield loop
    loop.waiter.close()
    spool.close()


def test_a_status_that_its_brokers_do_not_accept_is_published_without_its_long_lists(
    gateway: GatewayLoop, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headwater"):
        for connection in gateway.ways:
            gateway._hear(connection, BEGIN_US)
        gateway._settle(BEGIN_US)
    assert {record.message for record in caplog.records} == {"status.not_published"}
    assert "bytes" in caplog.records[0].__dict__["why"]
    for connection in gateway.ways:
        assert isinstance(connection, Narrow)
        (status, *_) = map(json.loads, connection.sent(topics.status("g")))
        assert status["online"]
        assert not status.keys() & {"sensors", "refused", "failing"}
    before = len(caplog.records)
    gateway.publish_status(BEGIN_US)
    assert len(caplog.records) == before, "an unchanged status is not tried again"


def test_a_process_serves_on_though_not_even_a_short_status_or_answer_is_accepted(gateway: GatewayLoop) -> None:
    connection = gateway.up
    assert isinstance(connection, Narrow)
    connection.most_bytes = 60
    connection.message(topics.commands("g"), b'{"cmd": "diagnose", "id": "x"}')
    gateway._hear(connection, BEGIN_US)
    gateway._settle(BEGIN_US)
    assert connection.sent(topics.status("g")) == connection.sent(topics.answer("g", "x")) == []


def test_of_a_state_that_its_broker_does_not_accept_as_much_is_published_as_fits(
    gateway: GatewayLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway ended, or left good definitions out: what is beside the entries may exceed the limit too."""
    connection = gateway.up
    assert isinstance(connection, Narrow)
    connection.maximum_packet_bytes, connection.most_bytes = 600, 450  # some of the packet is head and topic
    for n in range(9):
        gateway.registry.take("all", "sensor", f"vibration-{n}", b'driver = "mqtt"\ntopic = "a"\nrevison = 7\n')
    gateway._report(BEGIN_US)
    gateway._report(BEGIN_US)
    (state,) = map(json.loads, connection.sent(topics.state("g")))
    assert 0 < len(state["items"]) == 9 - state["left_out"]
    said = [record for record in caplog.records if record.message == "state.not_published"]
    assert len(said) == 1
    gateway.registry.take("all", "sensor", "another", b"no = TOML")
    connection.most_bytes = 90
    gateway._report(BEGIN_US)
    head = json.loads(connection.sent(topics.state("g"))[-1])
    assert (head["items"], head["left_out"]) == ({}, 10)
    gateway.registry.take("all", "sensor", "one-more", b"no = TOML")
    connection.most_bytes = 9
    gateway._report(BEGIN_US)
    assert len(connection.sent(topics.state("g"))) == 2, "it serves on"


def test_a_heartbeat_and_a_receipt_that_a_broker_does_not_accept_end_nothing(
    gateway: GatewayLoop, caplog: pytest.LogCaptureFixture
) -> None:
    connection = gateway.up
    assert isinstance(connection, Narrow)
    connection.most_bytes = 1
    gateway.executor.lower = connection
    assert gateway.executor.perform(Beat(Heartbeat(1, 2, ())), BEGIN_US) == []
    assert gateway.executor.perform(SendReceipt("a", Receipt(1, 2, 3)), BEGIN_US) == []
    assert [record.message for record in caplog.records] == ["heartbeat.not_published", "receipt.not_published"]


def test_a_lander_shortens_its_status_too(tmp_path: Path) -> None:
    text = '[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://127.0.0.1:9"\n'
    loop, up = LanderLoop(parse(f'{text}[lander]\nfolder = "{tmp_path}"\n'), "0"), Narrow("root")
    loop.connection, loop.connections = up, [up]
    loop._of_root = {"omitted": "x" * 2_000}
    loop._on_up(up, Up(session_present=True), BEGIN_US)
    (status,) = map(json.loads, up.sent(topics.status("root")))
    assert (status["online"], "omitted" in status, "retired" in status) == (True, False, False)
    loop.close()


def test_a_status_names_some_retired_nodes_and_counts_the_others(tmp_path: Path) -> None:
    names = [f"press-{n}" for n in range(25)]
    text = '[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "mqtt://127.0.0.1:9"\n'
    loop = LanderLoop(parse(f'{text}retired = {json.dumps(names)}\n[lander]\nfolder = "{tmp_path}"\n'), "0")
    status = json.loads(loop._status(online=True))
    assert (status["retired"], status["retired_more"]) == (names[:20], 5)
    assert "retired" not in json.loads(loop._status(online=False))
    loop.close()
    made, spool = parts(Merger(NodeSettings("m"), Random(1), grace_us=1), tmp_path, "root", "region")
    region = RegionLoop(made, restored={}, lower=Narrow("m"), retired=names[:2])
    assert region.status.card(region.machine, region.clock)["retired"] == names[:2]
    region.waiter.close()
    spool.close()
    assert retired_fields(names[:20]) == {"retired": names[:20]}
    assert retired_fields(()) == {}


def test_a_broker_whose_limit_is_too_small_for_frames_is_an_alarm_until_it_is_raised(
    gateway: GatewayLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """It was seen in single lines of the log only, or as a connection that ended again and again."""
    connection = gateway.up
    assert isinstance(connection, Narrow)
    name = f"broker {connection.link.url}"
    for most_bytes, alarm in ((150, True), (150, True), (None, False), (150, True), (1 << 20, False)):
        connection.maximum_packet_bytes = most_bytes
        gateway._on_up(connection, Up(session_present=True), BEGIN_US)
        alarms = gateway.status.card(gateway.machine, gateway.clock).get("alarms", {})
        assert isinstance(alarms, dict)
        assert (name in alarms) == alarm
    assert [record.message for record in caplog.records].count("broker.small_packets") == 2
    gateway._on_down(connection, Down("reset", 1.0, was_up=False), BEGIN_US)
    assert not gateway.status.small
    gateway._on_down(connection, Down(f"reset; {RAISE}", 1.0, was_up=False), BEGIN_US)
    assert gateway.status.small == {name: f"reset; {RAISE}"}


def test_a_region_passes_on_what_its_lower_broker_accepts_and_serves_on(tmp_path: Path) -> None:
    made, spool = parts(Merger(NodeSettings("m"), Random(1), grace_us=1), tmp_path, "root", "region")
    lower = Narrow("m")
    loop = RegionLoop(made, restored={}, lower=lower)
    lower.most_bytes = 9
    loop.fleet.wait(b'{"cmd": "mark", "id": "x"}', BEGIN_US)
    loop._publish(BEGIN_US)
    assert lower.sent(topics.commands_to_all()) == []
    loop.waiter.close()
    spool.close()
