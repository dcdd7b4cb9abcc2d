"""Sensors and queries through retained topics, by mosquitto_pub, while everything runs; commands; status."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge_agent.demo.processes import Broker, ChildProcess
from tests.support.processes.broker_clients import ask, publish, retained
from tests.support.processes.tree import Top, commits, gateway, region
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker

Begin = Callable[[ChildProcess], ChildProcess]
Brokers = Callable[[int], list[Broker]]

SENSOR = {"driver": "simulated", "rate": 50, "resolution": 0.1, "labels": {"site": "a"}}
QUERY: dict[str, Any] = {
    "source": "boiler",
    "by": ["site"],
    "window": {"type": "tumbling", "length": "500ms"},
    "aggregates": ["avg", "max"],
    "lateness": "100ms",
}


def text(table: dict[str, Any], **more: Any) -> str:
    return json.dumps({**table, **more})


def item(broker: str, node: str, name: str) -> dict[str, Any]:
    """What `state` of a node says about one item."""
    state = retained(broker, f"hw/1/up/{node}/state") or {}
    said: dict[str, Any] = state.get("items", {}).get(name, {})
    return said


def refusal(broker: str, at: str) -> dict[str, Any]:
    """What is said of the query, once it refuses that place; an earlier refusal may still stand there."""
    said = item(broker, "gw-1", "query/half")
    wrong = said.get("ok") is False and any(error["at"] == at for error in said["errors"])
    return said if wrong else {}


def test_a_definition_without_revision_is_numbered_passed_on_below_and_comes_into_force(
    tmp_path: Path, ended: Begin, brokers: Brokers
) -> None:
    """protocol 6.4: the region is told nothing of sensors and queries; what it needs comes in the frames."""
    low, high = brokers(2)
    with Top(high.url) as top:
        ended(region("region-1", tmp_path / "region-1", high.url, "root", low.url))
        ended(gateway("gw-1", tmp_path / "gw-1", low.url, "region-1"))
        publish(high.url, "hw/1/all/cfg/sensor/boiler", text(SENSOR))
        publish(high.url, "hw/1/all/cfg/query/half", text(QUERY))
        eventually(lambda: len(top.results("half")) >= 2)
        assert retained(low.url, "hw/1/all/cfg/query/half")["revision"] == 1
        assert item(low.url, "gw-1", "query/half") == {"ok": True, "revision": 1}

        publish(low.url, "hw/1/down/gw-1/cfg/query/own", text(QUERY, aggregates=["count"]))  # one node, below
        eventually(lambda: len(top.results("own")) >= 2)
        assert all(row.readings == 25 for row in top.results("own").values())

        publish(high.url, "hw/1/all/cfg/query/half", "")  # an empty payload removes
        eventually(lambda: item(low.url, "gw-1", "query/half").get("removed"))
        assert retained(high.url, "hw/1/all/cfg/query/half") == {"removed": True, "revision": 2}
        removed_us = int(time.time() * 1e6)
        eventually(lambda: any(row.start > removed_us + 1_000_000 for row in top.results("own").values()))
        assert max(row.start for row in top.results("half").values()) <= removed_us


def test_a_bad_configuration_never_replaces_a_good_one_and_state_says_why(
    tmp_path: Path, ended: Begin, brokers: Brokers
) -> None:
    (broker,) = brokers(1)
    topic = "hw/1/all/cfg/query/half"
    with Top(broker.url) as top:
        ended(gateway("gw-1", tmp_path / "gw-1", broker.url, "root"))
        publish(broker.url, "hw/1/all/cfg/sensor/boiler", text(SENSOR, revision=1))
        publish(broker.url, topic, text(QUERY, revision=5))
        eventually(lambda: top.results("half"))
        bad = {
            "window.slide": text(QUERY, revision=6, window={"type": "sliding", "length": "10m", "slide": "11m"}),
            "": "{not json",
            "revision": text(QUERY, revision=4, aggregates=["count"]),
        }
        for at, payload in bad.items():
            publish(broker.url, topic, payload)
            said = eventually(partial(refusal, broker.url, at))
            assert said["in_force"] == 5
            grows(top)
        publish(broker.url, topic, text(QUERY, revision=6))
        eventually(lambda: item(broker.url, "gw-1", "query/half") == {"ok": True, "revision": 6})


def test_a_definition_that_cannot_be_read_and_is_deleted_is_gone_and_the_log_names_the_newest(
    tmp_path: Path, ended: Begin, brokers: Brokers
) -> None:
    (broker,) = brokers(1)
    agent = ended(gateway("gw-1", tmp_path / "gw-1", broker.url, "root"))
    publish(broker.url, "hw/1/all/cfg/sensor/outside", text({"driver": "mqtt", "topic": "a", "revision": 1}))
    for name in ("first", "second"):
        publish(broker.url, f"hw/1/all/cfg/query/{name}", "{not json")
        eventually(partial(logged, agent, "definitions.refused", f"item=query/{name}"))
    assert eventually(lambda: item(broker.url, "gw-1", "sensor/outside"))["ok"] is True
    assert eventually(lambda: logged(agent, "sensors.elsewhere", "sensor=outside"))
    publish(broker.url, "hw/1/all/cfg/query/first", "")
    publish(broker.url, "hw/1/all/cfg/query/second", text(QUERY, revision=1))
    eventually(lambda: item(broker.url, "gw-1", "query/second").get("waiting"))
    assert item(broker.url, "gw-1", "query/first") == {}


def logged(agent: ChildProcess, *words: str) -> bool:
    """Whether a line of the log of a process has all of the words."""
    return any(all(word in line for word in words) for line in agent.tail(200).splitlines())


def test_a_gateway_boots_without_its_broker_with_what_it_had_and_loses_nothing(
    tmp_path: Path, ended: Begin, brokers: Brokers
) -> None:
    (broker,) = brokers(1)
    with Top(broker.url) as top:
        agent = ended(gateway("gw-1", tmp_path / "gw-1", broker.url, "root"))
        publish(broker.url, "hw/1/all/cfg/sensor/boiler", text(SENSOR, revision=1))
        publish(broker.url, "hw/1/all/cfg/query/half", text(QUERY, revision=1))
        eventually(lambda: len(top.results("half")) >= 2)
        broker.kill()
        agent.kill()
        agent.start()  # no broker: it goes on from its spool
        commits(agent, 6)
        goal_us = int(time.time() * 1e6)
        broker.start()
        eventually(lambda: any(row.start > goal_us for row in top.results("half").values()), 30)
        starts = sorted(row.start for row in top.results("half").values())
        assert starts == list(range(starts[0], starts[-1] + 1, 500_000))
        whole = [row for row in top.results("half").values() if row.start != starts[0]]  # the sensor began in that one
        assert {row.readings for row in whole} == {25}


def test_an_absent_broker_at_the_first_start_is_waited_for(tmp_path: Path, ended: Begin, brokers: Brokers) -> None:
    (broker,) = brokers(1)
    broker.kill()
    config = f'[sensor.boiler]\ndriver = "simulated"\nrate = 50\n{local_query()}'
    agent = ended(gateway("gw-1", tmp_path / "gw-1", broker.url, "root", config))
    eventually(lambda: "link.down" in agent.tail(50), 30)  # on a busy machine a process takes its time to start
    commits(agent, 6)  # at least one window ends
    began_us = int(time.time() * 1e6)
    broker.start()
    with Top(broker.url) as top:
        eventually(lambda: len(top.results("half")) >= 4, 30)
        assert min(row.start for row in top.results("half").values()) < began_us  # spooled while it waited


def grows(top: Top) -> None:
    """Rows keep coming."""
    seen = len(top.results("half"))
    eventually(lambda: len(top.results("half")) > seen)


def local_query() -> str:
    return (
        '[query.half]\nsource = "boiler"\nwindow = {type = "tumbling", length = "500ms"}\n'
        'aggregates = ["count"]\nlateness = "100ms"\n'
    )


def test_two_tiers_on_one_broker_use_one_connection_each(tmp_path: Path, ended: Begin, brokers: Brokers) -> None:
    (broker,) = brokers(1)
    with Top(broker.url) as top:
        ended(region("region-1", tmp_path / "region-1", broker.url, "region-2"))
        ended(region("region-2", tmp_path / "region-2", broker.url, "root"))
        ended(gateway("gw-1", tmp_path / "gw-1", broker.url, "region-1"))
        publish(broker.url, "hw/1/all/cfg/sensor/boiler", text(SENSOR))
        publish(broker.url, "hw/1/all/cfg/query/half", text(QUERY))
        eventually(lambda: len(top.results("half")) >= 4)
        assert {row.received for row in top.results("half").values()} == {1}
        log = (broker.folder / "broker-0.log").read_text()
        assert log.count("as region-1 ") == log.count("as region-2 ") == 1


def test_a_node_says_who_it_is_answers_commands_and_says_goodbye(
    tmp_path: Path, ended: Begin, brokers: Brokers
) -> None:
    (broker,) = brokers(1)
    agent = ended(gateway("gw-1", tmp_path / "gw-1", broker.url, "root", local_query()))
    status = eventually(lambda: retained(broker.url, "hw/1/up/gw-1/status"))
    assert (status["online"], status["role"], status["parent"]) == (True, "gateway", "root")
    assert int(status["epoch"], 16)
    assert status["clock"]["synced"]

    said = {}
    for cmd in ("diagnose", "rebirth", "resend", "reload", "dance"):
        said[cmd] = ask(broker.url, "gw-1", json.dumps({"cmd": cmd, "id": f"id-{cmd}"}), f"id-{cmd}")
    assert said["diagnose"]["ok"] is True
    assert said["diagnose"]["epoch"] == status["epoch"]
    assert said["reload"] == {"cmd": "reload", "id": "id-reload", "ok": True, "definitions": 1}
    assert said["dance"]["ok"] is False

    assert ask(broker.url, "gw-1", "diagnose", "diagnose")["id"] == "diagnose"  # a bare word will do

    assert agent.stop() == 0
    assert retained(broker.url, "hw/1/up/gw-1/status")["online"] is False
    ended(agent)
    eventually(lambda: retained(broker.url, "hw/1/up/gw-1/status")["online"])
    agent.kill()
    eventually(lambda: not retained(broker.url, "hw/1/up/gw-1/status")["online"])  # the last will
