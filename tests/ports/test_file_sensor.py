"""Recorded files: replayed by their own clock, read again from a position, bad lines counted and passed over."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.algebra.query.query import Sensor
from edge_agent.errors import PortError
from edge_agent.machines.events import Read
from edge_agent.ports.sensors import file as module
from edge_agent.ports.sensors.file import FileSensor
from edge_agent.ports.sensors.node_sensors import RETRY_US, TURN_US, Sensors
from edge_agent.ports.sensors.quality import FEW_SERIES
from tests.support.effort import examples
from tests.support.fakes import FakeClock

T0 = 1_700_000_000  # s


def sensor(path: Path, *, labels: dict[str, str] | None = None, scale: int | None = None, **options: Any) -> Sensor:
    given_ = {"path": str(path), "speed": 0.0, **options}
    return Sensor("rec", 1, "file", tuple(given_.items()), labels=tuple((labels or {}).items()), scale=scale)


def drain(driver: FileSensor, clock: FakeClock) -> list[Read]:
    reads: list[Read] = []
    while not (reads and reads[-1].ended):
        reads += driver.poll(clock.us)
    assert driver.poll(clock.us) == []
    return reads


def of(reads: list[Read]) -> list[tuple[int, float, dict[str, str]]]:
    return [
        (int(t), v.item(), dict(read.batch.labels[s]))
        for read in reads
        for t, v, s in zip(read.batch.time_us, read.batch.value, read.batch.series, strict=True)
    ]


def counts(driver: FileSensor) -> dict[str, int]:
    return {kind: n for kind, n in driver.counters().items() if n}


def test_a_csv_file_with_labels_quotes_and_a_byte_order_mark(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(
        b"\xef\xbb\xbfunit,time,value\r\n"
        b'"north, hall",2023-11-14T22:13:20Z,20.5\r\n'
        b"south,1700000001,21\r\n"
        b"south,1700000002500,22.25"
    )
    driver = FileSensor(sensor(path, labels={"u": "{/unit}", "site": "a"}), None, clock)
    assert of(drain(driver, clock)) == [
        (T0 * 10**6, 20.5, {"site": "a", "u": "north, hall"}),
        ((T0 + 1) * 10**6, 21.0, {"site": "a", "u": "south"}),
        ((T0 + 2) * 10**6 + 500_000, 22.25, {"site": "a", "u": "south"}),
    ]
    driver.close()


def test_json_lines_with_pointers(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "r.jsonl"
    lines = [{"at": {"t": T0 + n}, "m": [{"temp": 200 + n}]} for n in range(3)]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    driver = FileSensor(sensor(path, time="/at/t", value="/m/0/temp", scale=0), None, clock)
    reads = drain(driver, clock)
    assert [(t, v) for t, v, _ in of(reads)] == [((T0 + n) * 10**6, 200 + n) for n in range(3)]
    driver.close()


BAD = b"""time,value
1700000000,1
yesterday,2
1700000001,ON
1700000001
1700000001,5,6
,7
1700000002,
1700000002,"8
1700000003,nan
\xff\xfe,1
1700000004,9
"""


def test_bad_lines_are_counted_by_kind_and_the_others_read(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(BAD)
    driver = FileSensor(sensor(path), None, clock)
    assert [(t // 10**6 - T0, v) for t, v, _ in of(drain(driver, clock))] == [(0, 1.0), (4, 9.0)]
    assert counts(driver) == {"readings": 2, "bad_value": 4, "bad_time": 3, "absent": 1, "nan": 1}
    assert {note.name for note in driver.notes()} == {"sensor.bad_value", "sensor.bad_time"}
    driver.close()


@pytest.mark.parametrize("speed", [0.0, 1.0])
@pytest.mark.parametrize("bad", ["yesterday,1\n" * 12, "", "9" * 130, "9" * 130 + "\n"])
def test_a_part_without_readings_takes_a_turn_a_block_and_is_not_read_again_after_a_restart(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, bad: str, speed: float
) -> None:
    """The other sensors get their turns; a file that is read at each start from its beginning would never end."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 120)
    path = tmp_path / "r.csv"
    path.write_text("time,value\n" + bad * 10 + "\n" + "".join(f"{T0},{n}\n" for n in range(3)) + bad * 10)
    position: object = None
    found: list[float] = []
    for _ in range(40):
        driver = FileSensor(sensor(path, speed=speed), position, clock)
        begin = driver._file.tell()
        reads = driver.poll(clock.us)
        blocks = 1 + sum(len(read.batch.value) > 0 for read in reads)
        end = driver._file.tell()
        driver.close()
        found += [v for _, v, _ in of(reads)]
        assert end <= begin + blocks * 120
        assert reads[-1].position != position or reads[-1].ended
        position = reads[-1].position
        if reads[-1].ended:
            break
    assert found == [0.0, 1.0, 2.0]
    assert reads[-1].ended


class Failing(io.BytesIO):
    """A file of which a part cannot be read."""

    def __init__(self, content: bytes, bad: int) -> None:
        """bad: offset of the first byte that cannot be read."""
        super().__init__(content)
        self._bad = bad

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() + (size or 0) > self._bad:
            raise OSError(errno.EIO, "input/output error")
        return super().read(size)


def test_readings_before_a_read_error_are_delivered_and_only_those_behind_it_wait(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 150)
    path = tmp_path / "r.csv"
    path.write_text("time,value\n" + "".join(f"{T0 + n},{n}\n" for n in range(60)))
    sensors = Sensors(clock)
    with monkeypatch.context() as patch:
        patch.setattr(module, "opened", lambda path: Failing(path.read_bytes(), 400))
        sensors.configure([sensor(path)], {})
    found = [v for _, v, _ in of(sensors.poll(clock.us))]
    assert found == [float(n) for n in range(len(found))]
    assert len(found) > 10
    assert sensors.poll(clock.us) == []
    assert [note.name for note in sensors.notes()] == ["sensor.failed"]
    clock.pass_s(RETRY_US / 1e6)
    for _ in range(20):
        found += [v for _, v, _ in of(sensors.poll(clock.pass_s(1)))]
    assert found == [float(n) for n in range(60)]
    sensors.close()


@pytest.mark.parametrize("time", ["90000000000000000", "9999-12-31T00:00:00Z", "-9e16"])
def test_an_absurd_time_in_a_file_is_refused_and_does_not_set_the_files_clock(
    tmp_path: Path, clock: FakeClock, time: str
) -> None:
    path = tmp_path / "r.csv"
    path.write_text(f"time,value\n{time},1\n{T0},2\n{time},3\n{T0 + 1},4\n")
    driver = FileSensor(sensor(path), None, clock)
    reads = drain(driver, clock)
    assert [v for _, v, _ in of(reads)] == [2.0, 4.0]
    assert reads[-1].clock_us == (T0 + 1) * 10**6
    assert counts(driver)["bad_time"] == 2
    driver.close()


def test_a_line_without_end_is_skipped_and_what_follows_is_read(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 200)
    path = tmp_path / "r.csv"
    path.write_bytes(
        b"time,value\n" + b"".join(b"%d,%d\n" % (T0 + n, n) if n != 7 else b"9" * 1000 + b"\n" for n in range(60))
    )
    driver = FileSensor(sensor(path), None, clock)
    assert [v for _, v, _ in of(drain(driver, clock))] == [float(n) for n in range(60) if n != 7]
    assert counts(driver)["bad_value"] == 1
    driver.close()


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(-5, 20), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=12),
    st.sampled_from([1.0, 4.0, 0.0]),
)
def test_replay_at_any_pace_with_restarts_gives_every_line_once_in_order(
    tmp_path: Path, gaps: list[int], steps: list[tuple[int, bool]], speed: float
) -> None:
    """protocol 3.1: a restart reads files again from the committed position; protocol 4.1: the file's own clock."""
    path = tmp_path / "r.csv"
    times = [T0 + sum(gaps[: n + 1]) for n in range(len(gaps))]
    path.write_text("time,value\n" + "".join(f"{t},{n}\n" for n, t in enumerate(times)))
    clock = FakeClock()
    found: list[float] = []
    position: object = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", 40 + len(gaps) * 3)
        driver = FileSensor(sensor(path, speed=speed), None, clock)
        for step, restart in [*steps, (10**6, False)]:
            if restart:
                driver.poll(clock.us)  # read, never committed
                driver.close()
                driver = FileSensor(sensor(path, speed=speed), position, clock)
            clock.pass_s(step)
            for read in driver.poll(clock.us):
                found += read.batch.value.tolist()
                position = read.position
                assert read.clock_us is not None
                assert read.clock_us >= max(read.batch.time_us.tolist(), default=0)
        while not driver._reported_end:
            for read in driver.poll(clock.pass_s(10**6)):
                found += read.batch.value.tolist()
        driver.close()
    assert found == [float(n) for n in range(len(times))]


def test_a_file_with_more_series_than_allowed_is_limited_and_silent_series_make_room(
    tmp_path: Path, clock: FakeClock
) -> None:
    """protocol 2.4: [limits] keys holds for every sensor; readings that wait keep their labels."""
    most = FEW_SERIES + 100
    path = tmp_path / "r.csv"
    burst = "".join(f"{T0},{n},u{n}\n" for n in range(most + 5))
    path.write_text("time,value,unit\n" + burst + "".join(f"{T0 + n},{n},u{n}\n" for n in (50, 51, 1_200)))
    sensors = Sensors(clock, most_series=most)
    sensors.configure([sensor(path, labels={"u": "{/unit}"}, speed=1.0)], {})
    rows = of(sensors.poll(clock.us))
    assert len(rows) == most
    assert sensors.counters()["rec"]["too_many_keys"] == 5
    assert not sensors.give_back(clock.us)
    assert sensors.give_back(clock.pass_s(TURN_US / 1e6))
    rows = of(sensors.poll(clock.pass_s(2_000)))
    assert [(v, labels) for _, v, labels in rows] == [(50.0, {"u": "u50"}), (51.0, {"u": "u51"})]
    sensors.close()


def test_at_a_speed_no_line_comes_before_its_time(tmp_path: Path, clock: FakeClock) -> None:
    """protocol 4.1: first time + elapsed x speed; one that is out of order follows its neighbour."""
    path = tmp_path / "r.csv"
    path.write_text("time,value\n" + "".join(f"{T0 + t},{t}\n" for t in (0, 10, 5, 20, 30)))
    driver = FileSensor(sensor(path, speed=10.0), None, clock)
    out = []
    for _ in range(4):
        out.append([v for _, v, _ in of(driver.poll(clock.us))])
        clock.pass_s(1)
    assert out == [[0.0], [10.0, 5.0], [20.0], [30.0]]
    driver.close()


def test_the_next_line_is_due_when_the_files_clock_reaches_it(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "r.csv"
    path.write_text(f"time,value\n{T0},1\n{T0 + 60},2\n")
    driver = FileSensor(sensor(path, speed=60.0), None, clock)
    (read,) = driver.poll(clock.us)
    assert [v for _, v, _ in of([read])] == [1.0]
    assert not read.ended
    assert clock.us + 990_000 <= driver.due_us(clock.us) <= clock.us + 1_010_000
    clock.pass_s(1.01)
    (read,) = driver.poll(clock.us)
    assert read.ended
    assert driver.due_us(clock.us) > clock.us + 10**9
    driver.close()


def test_an_empty_file_ends_at_once(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "r.csv"
    path.write_text("time,value\n")
    driver = FileSensor(sensor(path, speed=1.0), None, clock)
    (read,) = driver.poll(clock.us)
    assert read.ended
    assert driver.position is None
    driver.close()


def test_a_file_that_is_not_there_or_lacks_a_column_is_one_clear_line(tmp_path: Path, clock: FakeClock) -> None:
    with pytest.raises(PortError, match="No such file"):
        FileSensor(sensor(tmp_path / "none.csv"), None, clock)
    path = tmp_path / "r.csv"
    path.write_text("t,value\n1,2\n")
    with pytest.raises(PortError, match=r"no column 'time' among its 2 columns"):
        FileSensor(sensor(path), None, clock)
    path.write_text("time,value,other,value,other\n1,2,3,4,5\n")
    with pytest.raises(PortError, match=r"2 columns 'value'; rename all but one"):
        FileSensor(sensor(path), None, clock)


def test_a_file_that_became_shorter_is_another_one_and_read_from_its_beginning(
    tmp_path: Path, clock: FakeClock
) -> None:
    path = tmp_path / "r.csv"
    path.write_text("time,value\n" + f"{T0},1\n" * 50)
    driver = FileSensor(sensor(path), None, clock)
    position = drain(driver, clock)[-1].position
    driver.close()
    path.write_text(f"time,value\n{T0},7\n")
    driver = FileSensor(sensor(path), position, clock)
    assert [v for _, v, _ in of(drain(driver, clock))] == [7.0]
    assert [note.name for note in driver.notes()] == ["sensor.another_file"]
    driver.close()


@pytest.mark.parametrize(("before", "after"), [(1.0, 60.0), (60.0, 1.0), (10.0, 0.0), (0.0, 10.0)])
def test_with_another_speed_a_file_goes_on_where_it_was(
    before: float, after: float, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was read from its beginning, and its readings counted twice."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 500)
    path = tmp_path / "r.csv"
    path.write_text("time,value\n" + "".join(f"{T0 + n},{n}\n" for n in range(9_000)))
    sensors = Sensors(clock)
    sensors.configure([sensor(path, speed=before)], {})
    found = [v for _, v, _ in of(sensors.poll(clock.us))]
    for _ in range(10):
        found += [v for _, v, _ in of(sensors.poll(clock.pass_s(1)))]
    found += [v for _, v, _ in of(sensors.configure([sensor(path, speed=after)], {}))]
    many = len(found)
    for _ in range(20):
        found += [v for _, v, _ in of(sensors.poll(clock.pass_s(1)))]
    assert found == [float(n) for n in range(len(found))]
    if after:
        assert 0 <= 20 * after - (len(found) - many) <= after
    assert len(found) > many
    sensors.close()
