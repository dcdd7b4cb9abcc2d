"""What a gateway cannot hear from its local broker is declared (protocol 3.1), and that it cannot hear it is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.config import topics
from edge_agent.config.node_file.settings import load
from edge_agent.machines.checkpoint.slots import COMMITTED
from edge_agent.machines.events import Commit
from edge_agent.ports.mqtt.link import Confirmed, Down, Messages, Report, Up
from edge_agent.ports.sensors.local_outages import LocalOutages
from edge_agent.ports.spool import Spool
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime.links import SENSOR_READ_EVERY_S
from edge_agent.wire import frames
from tests.hostile.stand_ins import TEXTS, TURN_S, Broker, Connected, Process
from tests.support.fakes import BEGIN_US, FakeClock
from tests.support.ports.sensor_hub import sensor
from tests.support.runtime.scripted import ScriptedClock

LOST = Down("closed by the broker", 1.0, was_up=True)
REFUSED = Down("Connection refused", 1.0, was_up=False)
HEARD = Messages([("s/1", b"5", 0, 0)])
KEPT, FORGOTTEN = Up(session_present=True), Up(session_present=False)


class LocalBroker(Broker):
    """Keeps the connection to the local broker, on which nothing happens by itself."""

    local: Connected
    read_every_s = 0.0

    def connect(self, client: str) -> Connected:
        made = super().connect(client)
        if client == "g-sensors":
            made.arrives, self.local = [], made
            made.link = replace(made.link, read_every_s=self.read_every_s)
        return made


class Gateway:
    """Lives of a gateway with one sensor. Times are counted in turns since the first life began."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, qos: int) -> None:
        self.folder, self.qos, self.clock = folder, qos, ScriptedClock()
        self.gaps: list[tuple[str, int, int]] = []
        self.cut_short: tuple[int, ...] = ()  # turns of connections that end before the broker reads the subscriptions
        commit = Spool.commit

        def noted(spool: Spool, what: Commit) -> None:
            self.gaps += [
                (gap.reason, self.turn(gap.start_us), self.turn(gap.end_us))
                for each in what.frames
                for gap in each.gaps
            ]
            commit(spool, what)

        monkeypatch.setattr(Spool, "commit", noted)
        monkeypatch.setattr(Waiter, "since_poll_us", lambda _: 0)  # the clock of these turns is another than its own

    @staticmethod
    def turn(us: int) -> int:
        return round((us - BEGIN_US) / 1e6 / TURN_S)

    def live(self, turns: int, reports: Mapping[int, Report]) -> list[tuple[str, int, int]]:
        """One life. reports: turn of this life -> report of the local connection. Returns its new losses."""
        broker, before, now = LocalBroker(), len(self.gaps), 0
        process = Process("gateway", self.folder, broker)
        text = f'[sensor.s]\ndriver = "mqtt"\ntopic = "s/+"\nqos = {self.qos}\n[query.q]\nsource = "s"\n'
        window = 'window = { type = "tumbling", length = "1s" }\naggregates = ["count"]\nlateness = "0s"\n'
        (self.folder / "headwater.toml").write_text(TEXTS["gateway"] + text + window)
        process.settings, process.clock = load(self.folder / "headwater.toml"), self.clock

        def each_turn() -> None:
            nonlocal now
            now += 1
            report = reports.get(now)
            broker.local.arrives += [] if report is None else [report]
            broker.local.arrives += [Confirmed(())] if isinstance(report, Up) and now not in self.cut_short else []

        self.published = broker.published
        process.each_turn = each_turn
        process.run(turns)
        return [gap for gap in self.gaps[before:] if gap[0] != "began"]


@pytest.mark.parametrize(
    ("qos", "session", "want"),
    [
        (1, KEPT, []),
        (1, FORGOTTEN, [("stopped", 8, 20)]),
        (0, KEPT, [("stopped", 0, 1), ("stopped", 8, 20)]),
        (0, FORGOTTEN, [("stopped", 0, 1), ("stopped", 8, 20)]),
    ],
)
def test_a_lost_connection_is_a_loss_from_the_last_message_on_unless_the_broker_kept_the_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qos: int, session: Up, want: list[tuple[str, int, int]]
) -> None:
    gateway = Gateway(tmp_path, monkeypatch, qos)
    assert gateway.live(30, {1: KEPT, 8: HEARD, 10: LOST, 12: REFUSED, 20: session}) == want


def test_a_connection_that_was_silent_is_a_loss_since_it_was_certainly_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the keepalive interval of 30 s: the broker's host may have lost its power long before that is noticed."""
    gateway = Gateway(tmp_path, monkeypatch, 1)
    turns = round(60 / TURN_S)
    assert gateway.live(turns + 30, {1: KEPT, turns + 10: LOST, turns + 20: FORGOTTEN}) == [("stopped", 10, turns + 20)]


def test_after_a_start_the_loss_begins_at_the_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(tmp_path, monkeypatch, 1)
    assert gateway.live(10, {1: KEPT, 5: HEARD}) == []
    gateway.clock.pass_s(60)
    assert gateway.live(10, {2: KEPT}) == []
    end = gateway.turn(gateway.clock.us)
    gateway.clock.pass_s(60)
    start = gateway.turn(gateway.clock.us)
    assert gateway.live(10, {2: FORGOTTEN}) == [("stopped", end, start + 2)]
    assert gateway.live(10, {2: KEPT}) == []


def test_a_connection_that_ended_before_the_subscriptions_were_read_has_heard_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one then finds the session that this one began."""
    gateway = Gateway(tmp_path, monkeypatch, 1)
    gateway.cut_short = (20,)
    assert gateway.live(40, {1: KEPT, 8: HEARD, 10: LOST, 20: FORGOTTEN, 21: LOST, 30: KEPT}) == [("stopped", 8, 30)]


@pytest.mark.parametrize("lost", [True, False])
def test_a_loss_of_an_earlier_process_is_declared_if_that_never_met_the_broker_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    gateway = Gateway(tmp_path, monkeypatch, 1)
    assert gateway.live(20, {1: KEPT, 7: HEARD, **({10: LOST} if lost else {})}) == []
    end = 7 if lost else gateway.turn(gateway.clock.us)
    assert gateway.live(20, {3: REFUSED}) == []
    assert gateway.live(20, {3: REFUSED}) == []
    start = gateway.turn(gateway.clock.us)
    assert gateway.live(20, {2: FORGOTTEN}) == [("stopped", end, start + 2)]


def test_what_was_missed_before_the_first_connection_is_declared_after_another_start_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway whose password at the local broker is wrong, until somebody corrects it and restarts it."""
    gateway = Gateway(tmp_path, monkeypatch, 1)
    assert gateway.live(20, {3: REFUSED}) == []
    start = gateway.turn(gateway.clock.us)
    assert gateway.live(20, {2: FORGOTTEN}) == [("stopped", 0, start + 2)]


def test_a_loss_that_waits_for_the_time_is_not_forgotten_by_the_next_start() -> None:
    """Its gap record is made once the clock is known; the process may end before."""
    clock, one = FakeClock(synced=False), replace(sensor("s", "s/+", qos=1), rereadable=True)
    before = LocalOutages(clock, 30)
    before.up(session=False)
    assert before.hears([one]) is not None
    after = LocalOutages(clock, 30, before.save())
    after.up(session=True)
    assert after.hears([one]) is not None
    clock.synced = True
    assert after.save() == "", "the commit that asks contains its record"


def test_a_local_broker_that_is_away_is_an_alarm_of_its_sensors_until_it_is_up_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status said that all was well."""
    gateway = Gateway(tmp_path, monkeypatch, 1)
    gateway.live(60, {1: KEPT, 3: LOST, 10: KEPT, 12: LOST, 14: REFUSED, 40: KEPT})
    why = {"sensor s": "no connection to the local broker: Connection refused"}
    assert alarms(gateway) == [{}, why]
    state = json.loads(dict(gateway.published)[topics.state("g")])
    assert (
        state["items"]["sensor/s"]["warnings"][0]["why"]
        == "fails: no connection to the local broker: Connection refused"
    )
    gateway.live(60, {})
    assert alarms(gateway) == [{}, {"sensor s": "no connection to the local broker: no answer"}]
    gateway.live(160, {20: KEPT})
    assert alarms(gateway) == [{}, {"sensor s": "no connection to the local broker: no answer"}, {}]


def alarms(gateway: Gateway) -> list[dict[str, str]]:
    """The alarms that the gateway showed while it was online, each once in a row."""
    cards = [json.loads(payload) for topic, payload in gateway.published if topic == topics.status("g")]
    shown = [card.get("alarms", {}) for card in cards if card["online"]]
    return [each for before, each in zip([None, *shown], shown, strict=False) if each != before]


@pytest.mark.parametrize("read_every_s", [0.0, SENSOR_READ_EVERY_S])
def test_a_commit_contains_no_message_that_may_not_be_read_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_every_s: float
) -> None:
    """protocol 3.1: small messages are read together, so its time is that of the poll before, less that interval."""
    gateway = Gateway(tmp_path, monkeypatch, 0)
    monkeypatch.setattr(LocalBroker, "read_every_s", read_every_s)
    found = list[int]()
    for polled_us in (0, 7_000):
        monkeypatch.setattr(Waiter, "since_poll_us", lambda _, us=polled_us: us)
        gateway.live(20, {1: KEPT, 8: HEARD})
        (path,) = tmp_path.glob("*.db")
        spool = Spool(path, "g", frames.encode)
        committed_us = COMMITTED.read(spool.open().state)
        spool.close()
        assert committed_us is not None
        found.append(gateway.clock.now_us() - committed_us)
    assert found == [read_every_s * 1e6, read_every_s * 1e6 + 7_000]
