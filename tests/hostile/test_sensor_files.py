"""Definitions of file sensors that come over MQTT: what they may read, and what of it is ever shown."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.algebra.query.query import Sensor
from edge_agent.config.definitions.definitions import parse_sensor
from edge_agent.config.node_file.settings import load
from edge_agent.errors import PortError
from edge_agent.ports.sensors.file import BLOCK_BYTES, FileSensor
from edge_agent.ports.sensors.file_access import FileAccess, paths_of
from edge_agent.ports.sensors.node_sensors import Sensors
from edge_agent.runtime.build import file_access
from tests.support.fakes import FakeClock

SECRET = "correct-horse-battery-staple"


def sensor(path: Path | str, **keys: object) -> Sensor:
    return parse_sensor("s", {"driver": "file", "path": str(path), "speed": "max", **keys})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "good.csv"
    path.write_text("time,value\n1000,1\n2000,2\n")
    return path


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "/dev/tty", "/proc", "a\0b", "x" * 5_000])
def test_what_is_no_regular_file_is_refused_at_once(path: str, form: str, clock: FakeClock) -> None:
    """None of them ever ends, or ever begins."""
    with pytest.raises(PortError):
        FileSensor(replace(sensor("x"), options=(("path", path), ("format", form))), None, clock)


def test_a_pipe_is_refused_at_once(pipe: Path, clock: FakeClock) -> None:
    with pytest.raises(PortError, match="not a regular file"):
        FileSensor(sensor(pipe), None, clock)


CONTENTS = {
    "CR line ends": f"time,value\r1,{SECRET}\r2,3\r".encode(),
    "SQLite": b"SQLite format 3\0" + SECRET.encode() * 100,
    "a key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n".encode(),
    "a password": f"{SECRET}\n".encode(),
    "a password file": f"root:{SECRET}:20000:0:99999:7:::\n".encode(),
    "an open quote": b'"time,value\n1,2\n' + SECRET.encode(),
    "one long line": SECRET.encode() * (BLOCK_BYTES // 10),
    "nothing": b"",
    "a long cell": b"time,value\n1," + b"9" * 10_000 + b"\n" + SECRET.encode() + b",7\n",
    "JSON": b'{"time":1,"value":"' + SECRET.encode() + b'"}\n{"password":"' + SECRET.encode() + b'"}\n',
    "brackets": b"[" * 100_000 + SECRET.encode(),
}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("name", CONTENTS)
def test_no_content_of_a_file_is_in_an_error_and_its_neighbours_go_on(
    name: str, form: str, tmp_path: Path, recording: Path, clock: FakeClock
) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(CONTENTS[name])
    sensors = Sensors(clock)
    foreign, good = sensor(path, format=form), replace(sensor(recording), id="good")
    sensors.configure([foreign, good], {})
    reads = [read for _ in range(20) for read in sensors.poll(clock.now_us(), everything=True)]
    assert sum(len(read.batch.value) for read in reads if read.sensor == "good") == 2
    assert not sum(len(read.batch.value) for read in reads if read.sensor == "s" and name != "a long cell")
    notes = sensors.notes()
    sensors.close()
    assert SECRET not in repr(notes)
    assert SECRET[:12] not in repr(notes)


def test_a_large_file_without_a_reading_costs_a_bounded_time_a_poll(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # 1 GiB of zero bytes without a line end
    running = FileSensor(sensor(path), None, clock)
    running.poll(clock.now_us())
    assert running._file.tell() <= 2 * BLOCK_BYTES
    running.close()


def test_only_files_below_allowed_folders_are_read_links_followed(tmp_path: Path, recording: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    inside, link = allowed / "in.csv", allowed / "link.csv"
    inside.write_text("time,value\n")
    link.symlink_to(recording)
    access = FileAccess((str(allowed),))
    access.check(sensor(inside))
    for path in (recording, link, allowed / ".." / "good.csv", Path("/etc/passwd"), Path("good.csv")):
        with pytest.raises(PortError, match="does not allow it"):
            access.check(sensor(path))
    FileAccess(named=paths_of([sensor(recording)])).check(sensor(recording))


def test_links_in_a_circle_are_a_file_that_cannot_be_read(tmp_path: Path, clock: FakeClock) -> None:
    circle = tmp_path / "circle.csv"
    circle.symlink_to(circle)
    FileAccess((str(tmp_path),)).check(sensor(circle))
    with pytest.raises(PortError, match="Too many levels"):
        FileSensor(sensor(circle), None, clock)
    with pytest.raises(PortError, match="does not allow it"):
        FileAccess((str(tmp_path / "other"),)).check(sensor(circle))


def test_a_secret_is_read_by_no_sensor_by_whatever_name(tmp_path: Path) -> None:
    """Not even where the node's own file allows its folder."""
    (tmp_path / "password").write_text(SECRET)
    os.link(tmp_path / "password", tmp_path / "again.csv")
    (tmp_path / "node.toml").write_text(
        '[node]\nid = "g"\n[uplink]\nbroker = "mqtts://b:1"\nuser = "g"\npassword_file = "password"\n'
        '[files]\nfolders = ["."]\n'
    )
    settings = load(tmp_path / "node.toml")
    assert settings.files.folders == (str(tmp_path / "."),)
    access = file_access(settings)
    (tmp_path / "good.csv").write_text("time,value\n")
    access.check(sensor(tmp_path / "good.csv"))
    for name in ("password", "again.csv"):
        with pytest.raises(PortError, match="contains secrets of this node"):
            access.check(sensor(tmp_path / name))


def test_files_that_the_node_writes_are_read_by_no_sensor(tmp_path: Path) -> None:
    """Readings also lie in the spool's log and in damaged spools set aside, and foreign messages in the quarantine."""
    (tmp_path / "node.toml").write_text('[node]\nid = "g"\n[uplink]\nbroker = "mqtt://b:1"\n[files]\nfolders = ["."]\n')
    names = [f"spool.db{tail}" for tail in ("", "-wal", "-shm", ".lock", ".reserve", ".corrupt-1", ".corrupt-1-wal")]
    names += ["quarantine.jsonl", "quarantine.jsonl.1", "starts.json"]
    access = file_access(load(tmp_path / "node.toml"))
    for name in ("good.csv", "old-spool.db", "starts.csv"):
        access.check(sensor(tmp_path / name))
    for name in names:
        with pytest.raises(PortError, match="this node keeps its own data in it"):
            access.check(sensor(tmp_path / name))
        (tmp_path / name).write_text(SECRET)
    (tmp_path / "link.csv").symlink_to(tmp_path / "spool.db-wal")
    os.link(tmp_path / "spool.db-wal", tmp_path / "again.csv")
    for name in ("link.csv", "again.csv"):
        with pytest.raises(PortError, match="this node keeps its own data in it"):
            access.check(sensor(tmp_path / name))


def test_a_sensor_that_may_not_read_says_so_and_its_neighbour_goes_on(recording: Path, clock: FakeClock) -> None:
    sensors = Sensors(clock, access=FileAccess(named=frozenset([str(recording)])))
    good = replace(sensor(recording), id="good")
    sensors.configure([sensor("/etc/shadow"), good], {})
    assert sum(len(read.batch.value) for read in sensors.poll(clock.now_us(), everything=True)) == 2
    (note,) = sensors.notes()
    sensors.close()
    assert note.name == "sensor.not_started"
    assert "/etc/shadow may not be read" in str(note.fields["why"])
