"""A sensor whose driver fails is an alarm in the status and a warning in `state`, for as long as it fails."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from edge_agent.cli.fleet.status import report
from edge_agent.config import topics
from edge_agent.config.node_file.settings import load
from edge_agent.log import PLAIN
from edge_agent.machines.events import Note
from edge_agent.runtime.action_executor import log_note
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.status_and_commands import MOST_SENSORS, NodeStatus
from tests.hostile.stand_ins import TEXTS, Broker, Process
from tests.support.fakes import BEGIN_US


def shown(broker: Broker) -> dict[str, Any]:
    """What a gateway has published last of itself, as `headwater status` reads it."""
    found = {name: payload for name, payload in broker.published if payload}
    return {what: json.loads(found[of("g")]) for what, of in (("status", topics.status), ("state", topics.state))}


def test_a_missing_file_is_shown_until_the_sensor_works(tmp_path: Path) -> None:
    broker, path = Broker(), tmp_path / "later.csv"
    process = Process("gateway", tmp_path, broker)
    text = f'{TEXTS["gateway"]}[sensor.f]\ndriver = "file"\npath = "{path}"\nspeed = "max"\n'
    (tmp_path / "headwater.toml").write_text(text)
    process.settings = load(tmp_path / "headwater.toml")
    seen: list[dict[str, Any]] = []

    def each_turn() -> None:
        if any(name == topics.state("g") for name, _ in broker.published):
            seen.append(shown(broker))
        if len(seen) == 5:
            path.write_text("time,value\n1700000000,5\n")

    process.each_turn = each_turn
    process.run(150)
    fails, works = seen[1], seen[-1]
    assert "later.csv" in fails["status"]["alarms"]["sensor f"]
    item = fails["state"]["items"]["sensor/f"]
    assert item["ok"]
    assert item["warnings"][0]["why"].startswith("fails: cannot read")
    assert report("g", fails, BEGIN_US).wrong
    assert any("ALARM: sensor f: cannot read" in line for line in report("g", fails, BEGIN_US).red)
    assert "alarms" not in works["status"]
    assert "warnings" not in works["state"]["items"]["sensor/f"]
    assert sum(fails["state"]["hash"] == each["state"]["hash"] for each in seen) == len(seen)


def test_of_many_failing_sensors_the_status_names_a_few_and_counts_the_others(tmp_path: Path) -> None:
    broker = Broker()
    process = Process("gateway", tmp_path, broker)
    process.run(2)
    assert process.loop is not None
    status: NodeStatus = process.loop.status  # type: ignore[attr-defined]
    status.failing_sensors = {f"s{n}": "gone" for n in range(MOST_SENSORS + 7)}
    alarms: Any = status.card(process.loop.machine, process.loop.clock)["alarms"]  # type: ignore[attr-defined]
    assert len(alarms) == MOST_SENSORS + 1
    assert alarms["sensors"] == "7 more fail"


def test_a_note_may_have_any_field(caplog: pytest.LogCaptureFixture) -> None:
    """The logging module refuses the names of its own fields; a driver of a package ended the gateway with one."""
    log_note(Note("sensor.odd", {**dict.fromkeys(PLAIN, 1), "sensor": "a"}))
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "sensor.odd")


def test_refused_values_add_up_over_the_starts_of_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 9.1: a driver that is started again counts from 0."""
    process = Process("gateway", tmp_path, Broker())
    loop = process._made(process.guard)
    assert isinstance(loop, GatewayLoop)
    found = list[object]()
    for many in (5, 7, 2, 2, 4):
        monkeypatch.setattr(loop.sensors, "counters", lambda many=many: {"s": {"bad_value": many, "readings": 9}})
        found.append(loop.book()["refused"])
    loop.close()
    assert found == [5, 7, 9, 9, 11]


def test_refused_values_before_and_after_a_change_of_their_sensor_count(tmp_path: Path) -> None:
    """protocol 9.1: a changed sensor counts from 0. Those before were counted only if the books came between."""
    process = Process("gateway", tmp_path, Broker())
    loop = process._made(process.guard)
    assert isinstance(loop, GatewayLoop)
    for revision in (1, 2):
        sensor = {"driver": "mqtt", "topic": "a", "unit": f"u{revision}", "revision": revision}
        loop.registry.take("all", "sensor", "s", json.dumps(sensor))
        loop._configure(BEGIN_US)
        loop.sensors.feed([("a", b"bad", 0, 0)] * 3, BEGIN_US)
    assert loop.book()["refused"] == 3, "three wait for the next poll"
    for read in loop.sensors.poll(BEGIN_US, everything=True):
        loop.feed(read, BEGIN_US)
    assert loop.book()["refused"] == 6
    loop.close()
