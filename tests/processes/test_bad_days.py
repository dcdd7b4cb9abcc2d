"""Bad bytes, bad disks, bad files: a clear line each, nothing lost, the line goes on."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.config.node_file.settings import parse
from edge_agent.demo.processes import Broker, ChildProcess
from edge_agent.errors import PortError
from edge_agent.machines.events import Commit
from edge_agent.runtime.build import build
from tests.support.processes.broker_clients import ask, publish, retained
from tests.support.processes.tree import Top, commits, gateway, region
from tests.support.waiting import eventually

Begin = Callable[[ChildProcess], ChildProcess]
Brokers = Callable[[int], list[Broker]]

SENSOR = '[sensor.boiler]\ndriver = "simulated"\nrate = 50\nresolution = 0.1\n'
QUERY = (
    '[query.half]\nsource = "boiler"\nwindow = {type = "tumbling", length = "500ms"}\n'
    'aggregates = ["count"]\nlateness = "100ms"\n'
)


def headwater(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge_agent", *words], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.broker
def test_bad_messages_are_quarantined_and_the_line_goes_on(tmp_path: Path, ended: Begin, brokers: Brokers) -> None:
    """protocol 3.6: bad envelopes and bad bodies, foreign topics, and things that are no frames at all."""
    low, high = brokers(2)
    with Top(high.url) as top:
        merger = ended(region("region-1", tmp_path / "region-1", high.url, "root", low.url))
        ended(gateway("gw-1", tmp_path / "gw-1", low.url, "region-1", SENSOR + QUERY))
        eventually(top.results)
        hostile = {
            "hw/1/up/gw-1/f/region-1": (
                b"",
                b"\xff",
                b"\x9f" * 4000,
                b"\x84\x01\x05\x00\x41\xff",
                b"\x84\x63abc\x05\x00\x40",
            ),
            "hw/1/up/gw-2/f/region-1": (b"\x84\x01\x07\x00\x41\xff" + b"\x00" * 10, b"\x84\x18\x63\x07\x00\x41\x80"),
            "hw/1/up/UPPER/f/region-1": (b"x",),
            "hw/1/up/gw-3/status": (b"[", b"\xff\xfe"),
            "hw/1/down/gw-1/ack": (b"nonsense", b""),
            "hw/1/down/gw-1/cmd": (b"{", b"\xff", b'{"cmd": 5}'),
            "hw/1/all/cfg/sensor/x": (b"{" * 3000,),
            "hw/1/all/cfg/query/results": (b"{}",),
        }
        for topic, payloads in hostile.items():
            for payload in payloads:
                file = tmp_path / "payload"
                file.write_bytes(payload)
                port = str(low.port)
                subprocess.run(
                    ["mosquitto_pub", "-V", "5", "-p", port, "-q", "1", "-t", topic, "-f", str(file)], check=True
                )
        seen = max(row.start for row in top.results().values())
        eventually(lambda: max(row.start for row in top.results().values()) > seen + 2_000_000)
        starts = sorted(row.start for row in top.results().values())
        assert starts == list(range(starts[0], starts[-1] + 1, 500_000))
    lines = (merger.folder / "quarantine.jsonl").read_text().splitlines()
    kept = [json.loads(line) for line in lines]
    assert {entry["node"] for entry in kept} == {"gw-1", "gw-2"}
    assert any(bytes.fromhex(entry["hex"]) == b"\xff" for entry in kept)
    assert merger.alive


@pytest.mark.broker
def test_readings_of_one_time_that_come_over_many_commits_all_count(
    tmp_path: Path, ended: Begin, brokers: Brokers
) -> None:
    """protocol 3.1: what the broker of the sensors may repeat changes, and no reading is newer."""
    sensor = '[sensor.door]\ndriver = "mqtt"\ntopic = "door/+"\nqos = 1\nvalue = "/v"\ntime = "/at"\ntimeout = "2s"\n'
    query = '[query.second]\nsource = "door"\nwindow = {type = "tumbling", length = "1s"}\naggregates = ["count"]\n'
    (broker,) = brokers(1)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3))  # the first whole window
    with Top(broker.url, "region-1") as top:
        node = ended(
            gateway(
                "gw-1",
                tmp_path / "gw-1",
                broker.url,
                "region-1",
                f'[local]\nbroker = "{broker.url}"\n' + sensor + query,
            )
        )
        eventually(lambda: node.tail(100).count("link.up") == 2)
        for number in range(12):
            publish(broker.url, f"door/{number % 3}", json.dumps({"v": number, "at": at}), retain=False)
            if number % 3 == 2:
                commits(node, 1)
        (row,) = eventually(lambda: [row for row in top.results().values() if row.complete], 20)
        assert row.values["count"] == 12
    assert "left_out" not in node.tail(1000)
    assert not (tmp_path / "gw-1" / "quarantine.jsonl").exists()


@pytest.mark.broker
def test_a_frame_damaged_on_disk_becomes_a_gap_record_and_the_next_ones_arrive(
    tmp_path: Path, ended: Begin, brokers: Brokers
) -> None:
    """protocol 3.5, 3.6: a loss is declared where it stands."""
    (broker,) = brokers(1)
    agent = ended(gateway("gw-1", tmp_path / "gw-1", broker.url, "root", SENSOR + QUERY))
    with Top(broker.url) as top:
        eventually(top.results)
        broker.kill()
        commits(agent, 10)  # at least two windows end
        agent.kill()
        with sqlite3.connect(agent.folder / "spool.db") as spool:
            epoch, seq = spool.execute("SELECT epoch, seq FROM frames ORDER BY id LIMIT 1 OFFSET 1").fetchone()
            spool.execute("UPDATE frames SET payload = x'00' WHERE epoch = ? AND seq = ?", (epoch, seq))
        spool.close()
        broker.start()
        agent.start()
        goal_us = int(time.time() * 1e6)
        eventually(lambda: any(row.start > goal_us for row in top.results().values()), 30)
        gaps = [gap for _, gap in top.root.decider.gaps]
    assert [gap.reason for gap in gaps] == ["damaged"]
    assert gaps[0].detail.startswith("sha256 ")


@pytest.mark.broker
def test_a_spool_that_cannot_be_read_is_set_aside(tmp_path: Path, ended: Begin, brokers: Brokers) -> None:
    (broker,) = brokers(1)
    folder = tmp_path / "gw-1"
    folder.mkdir()
    (folder / "spool.db").write_bytes(b"no database" * 1000)
    agent = ended(gateway("gw-1", folder, broker.url, "root", SENSOR + QUERY))
    with Top(broker.url) as top:
        eventually(top.results)
    assert (folder / "spool.db.corrupt-1").exists()
    assert "spool.set_aside" in agent.tail(50)


def test_a_disk_that_refuses_a_commit_is_tried_again_and_nothing_is_published_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol 3.1: nothing goes ahead of its commit."""
    settings = parse(
        f'[node]\nid = "gw-1"\n[uplink]\nbroker = "mqtt://127.0.0.1:9"\n[spool]\npath = "{tmp_path / "spool.db"}"\n'
        f'commit_interval = "50ms"\n{SENSOR}{QUERY}'
    )
    loop = build(settings, "1")
    real, refused = loop.spool.commit, []

    def full(commit: Commit) -> None:
        refused.append(commit)
        raise PortError("disk full")

    monkeypatch.setattr("edge_agent.runtime.action_executor.RETRY_US", 100_000)
    monkeypatch.setattr(loop.spool, "commit", full)
    loop.start()
    for _ in range(20):
        loop.turn(0.02)
    assert len({id(commit) for commit in refused}) == 1  # the same one, again and again
    assert loop.spool.frames == 0
    monkeypatch.setattr(loop.spool, "commit", real)
    until = time.monotonic() + 10
    while loop.spool.frames < 2 and time.monotonic() < until:
        loop.turn(0.02)
    assert loop.spool.frames >= 2
    loop.close()


@pytest.mark.broker
def test_run_once_ends_when_its_files_are_read_and_receipted(tmp_path: Path, brokers: Brokers) -> None:
    (broker,) = brokers(1)
    readings = "time,value\n" + "".join(f"{1_700_000_000 + n},{n}\n" for n in range(100))
    (tmp_path / "readings.csv").write_text(readings)
    config = (
        f'[node]\nid = "gw-1"\n[uplink]\nbroker = "{broker.url}"\n[sensor.boiler]\ndriver = "file"\n'
        'path = "readings.csv"\nspeed = "max"\n[query.ten]\nsource = "boiler"\n'
        'window = {type = "tumbling", length = "10s"}\naggregates = ["count"]\n'
    )
    file = tmp_path / "headwater.toml"
    file.write_text(config)
    with Top(broker.url) as top:
        done = headwater("run", "--once", str(file))
        assert done.returncode == 0, done.stderr
        eventually(lambda: sum(row.readings for row in top.results().values()) == 100)
    assert retained(broker.url, "hw/1/up/gw-1/status")["online"] is False


@pytest.mark.broker
def test_run_once_reads_all_of_a_second_file_of_the_same_sensor(tmp_path: Path, brokers: Brokers) -> None:
    """It ended behind the first readings: the spool says that the sensor's file, the first one, has been read."""
    (broker,) = brokers(1)
    config, hour_s = tmp_path / "headwater.toml", int(time.time()) - 3600  # late, but not beyond the horizon
    with Top(broker.url) as top:
        for name, begin_s in (("one.csv", hour_s), ("two.csv", hour_s + 400)):
            lines = "".join(f"{begin_s + n * 100},{n}\n" for n in range(4))
            (tmp_path / name).write_text(f"time,value\n{lines}")
            config.write_text(
                f'[node]\nid = "gw-1"\n[uplink]\nbroker = "{broker.url}"\n[sensor.boiler]\ndriver = "file"\n'
                f'path = "{name}"\nspeed = 100\n[query.ten]\nsource = "boiler"\n'
                'window = {type = "tumbling", length = "10s"}\naggregates = ["count"]\n'
            )
            done = headwater("run", "--once", str(config))
            assert done.returncode == 0, done.stderr
        eventually(lambda: sum(row.readings for row in top.results().values()) == 8)


@pytest.mark.broker
def test_a_node_that_is_not_ours_to_configure_is_told_so(tmp_path: Path, ended: Begin, brokers: Brokers) -> None:
    (broker,) = brokers(1)
    ended(region("region-1", tmp_path / "region-1", broker.url, "root"))
    eventually(lambda: retained(broker.url, "hw/1/up/region-1/status"))
    assert ask(broker.url, "region-1", "reload", "reload")["ok"] is False
    assert ask(broker.url, "region-1", "diagnose", "diagnose")["children"] == {}


@pytest.mark.broker
def test_two_devices_with_one_id_are_named_in_a_clear_line(tmp_path: Path, ended: Begin, brokers: Brokers) -> None:
    (broker,) = brokers(1)
    twins = [ended(gateway("gw-1", tmp_path / folder, broker.url, "root")) for folder in ("one", "two")]
    eventually(lambda: any("does another client use 'gw-1'?" in twin.tail(50) for twin in twins), 30)


def test_what_is_wrong_at_the_start_is_one_line_with_the_next_step(tmp_path: Path) -> None:
    file = tmp_path / "headwater.toml"
    done = headwater("run", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "headwater init" in done.stderr

    file.write_text('[node]\nid = "gw-1"\n[uplink]\nbroker = "mqtt://127.0.0.1:9"\n' + SENSOR + QUERY)
    done = headwater("merge", str(file))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1

    done = headwater("run", "--dry-run", str(file))
    assert done.returncode == 0
    assert "sensor boiler: simulated" in done.stdout
    assert not (tmp_path / "spool.db").exists()


def test_two_processes_on_one_spool_are_refused(tmp_path: Path, ended: Begin) -> None:
    agent = ended(gateway("gw-1", tmp_path, "mqtt://127.0.0.1:9", "root", SENSOR))
    eventually((tmp_path / "spool.db").exists)
    done = headwater("run", str(tmp_path / "headwater.toml"))
    assert done.returncode == 3
    assert f"in use by process {agent.pid}" in done.stderr
    assert agent.stop() == 0
