"""The lander as a process on a real broker: durable before receipted, once in effect, whoever dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.algebra.frame import Birth, Frame, Heartbeat
from edge_agent.config import topics
from edge_agent.config.node_file.settings import parse
from edge_agent.errors import ConfigError, PortError
from edge_agent.runtime.lander import LanderLoop
from edge_agent.wire import frames, landing, receipts
from tests.support.fakes import Mosquitto
from tests.support.ports.small_disk import small_disk
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker
EPOCH = 77


def settings_for(folder: Path, broker: Mosquitto, flush: str = "100ms") -> Any:
    text = (
        f'[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "{broker.url}"\n'
        f'[lander]\nfolder = "{folder}"\nflush_interval = "{flush}"\n'
    )
    return parse(text)


@contextmanager
def landing_in(folder: Path, broker: Mosquitto, flush: str = "100ms") -> Iterator[LanderLoop]:
    loop = LanderLoop(settings_for(folder, broker, flush), "0.1.0")
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        eventually(lambda: loop.hearing)
        yield loop
    finally:
        loop.stop()
        thread.join(10)
        assert not thread.is_alive()


class Child:
    """A child on paho: what it published, and the receipts it got."""

    def __init__(self, broker: Mosquitto, node: str = "gw-1") -> None:
        self.node = node
        self.receipts: list[Any] = []
        self.retained: dict[str, bytes] = {}
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, node, protocol=mqtt.MQTTv5)
        self.client.on_message = self._message
        self.client.connect("127.0.0.1", broker.port)
        self.client.subscribe([(topics.ack(node), 1), ("hw/1/all/cfg/#", 1)])
        self.client.loop_start()

    def _message(self, _client: object, _data: object, message: Any) -> None:
        if message.topic == topics.ack(self.node):
            self.receipts.append(receipts.decode(message.payload))
        else:
            self.retained[message.topic] = message.payload

    def send(self, payload: bytes) -> None:
        self.client.publish(topics.frames(self.node, "root"), payload, qos=1).wait_for_publish(10)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def child(mosquitto: Mosquitto) -> Iterator[Child]:
    made = Child(mosquitto)
    yield made
    made.close()


def frame(seq: int, journal: int = 1) -> bytes:
    birth = Birth(EPOCH << 32, journal, None, "0.1.0") if seq == 0 else None
    return frames.encode(Frame(EPOCH, seq, birth))


def landed(folder: Path) -> list[tuple[str, bytes]]:
    out = []
    for path in sorted(folder.glob("*.cborseq")):
        out += [(topic, payload) for topic, _, payload in landing.iterate(path.read_bytes())]
    return out


def landed_frames(folder: Path) -> list[bytes]:
    return [payload for topic, payload in landed(folder) if topic == topics.frames("gw-1", "root")]


def test_a_receipt_comes_after_the_file_that_holds_the_frame(
    mosquitto: Mosquitto, child: Child, tmp_path: Path
) -> None:
    """protocol 3.2"""
    with landing_in(tmp_path, mosquitto) as loop:
        for seq in (0, 1, 2, 5):
            child.send(frame(seq))
        eventually(lambda: any(r.upto == 3 and r.above == ((5, 5),) for r in child.receipts))
        assert landed_frames(tmp_path) == [frame(seq) for seq in (0, 1, 2, 5)]
        assert {r.journal for r in child.receipts} == {loop.journal.id}


def test_a_duplicate_is_receipted_again_and_not_landed(mosquitto: Mosquitto, child: Child, tmp_path: Path) -> None:
    """protocol 3.2, 3.4"""
    with landing_in(tmp_path, mosquitto):
        child.send(frame(0))
        eventually(lambda: len(child.receipts) == 1)
        child.send(frame(0))
        eventually(lambda: len(child.receipts) == 2)
        assert landed_frames(tmp_path) == [frame(0)]


def test_ranges_and_journal_survive_a_restart(mosquitto: Mosquitto, child: Child, tmp_path: Path) -> None:
    """protocol 3.4, 3.7"""
    with landing_in(tmp_path, mosquitto) as loop:
        child.send(frame(0))
        eventually(lambda: len(child.receipts) == 1)
        journal = loop.journal.id
    child.send(frame(1))  # nobody is there: the session keeps it
    with landing_in(tmp_path, mosquitto) as loop:
        eventually(lambda: any(r.upto == 2 for r in child.receipts))
        child.send(frame(0))
        eventually(lambda: len(child.receipts) >= 3)
        assert loop.journal.id == journal
    assert landed_frames(tmp_path) == [frame(0), frame(1)]


def test_a_child_that_comes_online_or_asks_gets_a_receipt(mosquitto: Mosquitto, child: Child, tmp_path: Path) -> None:
    """protocol 3.2, 3.7: with an unknown epoch the empty receipt tells the journal."""
    with landing_in(tmp_path, mosquitto) as loop:
        child.send(frames.encode_heartbeat(Heartbeat(EPOCH, -1, ())))
        eventually(lambda: len(child.receipts) > 0)
        assert (child.receipts[0].upto, child.receipts[0].journal) == (0, loop.journal.id)
        before = len(child.receipts)
        child.client.publish(topics.status("gw-1"), b'{"online":true,"parent":"root"}', 1, True).wait_for_publish(10)
        eventually(lambda: len(child.receipts) > before)


def test_bad_envelopes_land_and_the_line_goes_on(mosquitto: Mosquitto, child: Child, tmp_path: Path) -> None:
    """protocol 3.6"""
    with landing_in(tmp_path, mosquitto):
        child.send(b"\xff garbage")
        child.send(frame(0))
        eventually(lambda: len(child.receipts) > 0)
    assert landed_frames(tmp_path) == [b"\xff garbage", frame(0)]


def test_of_heartbeats_the_newest_of_a_flush_lands_and_a_tick_when_idle(
    mosquitto: Mosquitto, child: Child, tmp_path: Path
) -> None:
    """protocol 2.5, 8.1"""
    with landing_in(tmp_path, mosquitto, "2s") as loop:
        eventually(lambda: loop.connection.up and loop.files > 0)
        for seq in range(5):
            child.send(frames.encode_heartbeat(Heartbeat(EPOCH, seq, ())))
        eventually(lambda: len(landed_frames(tmp_path)) > 0)
        assert landed_frames(tmp_path) == [frames.encode_heartbeat(Heartbeat(EPOCH, 4, ()))]
        files = loop.files
        eventually(lambda: loop.files > files)
        ticks = [landing.tick(payload) for topic, payload in landed(tmp_path) if topic == landing.TICK_TOPIC]
        assert (ticks[-1].journal, ticks[-1].connected) == (loop.journal.id, True)


def test_a_definition_without_revision_is_published_again_with_the_next_number(
    mosquitto: Mosquitto, child: Child, tmp_path: Path
) -> None:
    topic = "hw/1/all/cfg/query/boiler-10m"
    with landing_in(tmp_path, mosquitto):
        child.client.publish(topic, b'{"source":"boiler"}', 1, True).wait_for_publish(10)
        eventually(lambda: b'"revision":1' in child.retained.get(topic, b""))


def test_two_landers_on_one_folder_are_refused(mosquitto: Mosquitto, tmp_path: Path) -> None:
    with landing_in(tmp_path, mosquitto), pytest.raises(PortError, match=r"the landing folder .* is in use by process"):
        LanderLoop(settings_for(tmp_path, mosquitto), "0.1.0")


def test_a_folder_of_another_root_is_refused(mosquitto: Mosquitto, tmp_path: Path) -> None:
    with landing_in(tmp_path, mosquitto):
        pass
    other = parse(
        f'[node]\nid = "other"\nrole = "root"\n[lower]\nbroker = "{mosquitto.url}"\n[lander]\nfolder = "{tmp_path}"\n'
    )
    with pytest.raises(ConfigError, match="belongs to root 'root'"):
        LanderLoop(other, "0.1.0")


def test_an_unusable_journal_is_set_aside_and_a_new_one_begins(mosquitto: Mosquitto, tmp_path: Path) -> None:
    (tmp_path / ".lander.db").write_bytes(b"no database" * 100)
    with landing_in(tmp_path, mosquitto) as loop:
        assert loop.journal.id > 0
    assert (tmp_path / ".lander.db.unusable-1").exists()


def test_a_full_disk_ends_no_lander_and_what_it_could_not_land_is_not_receipted(
    mosquitto: Mosquitto, child: Child, tmp_path: Path
) -> None:
    """protocol 3.2: definitions are heard meanwhile; with room, everything lands once and is receipted."""
    topic = "hw/1/all/cfg/query/boiler-10m"
    with small_disk(tmp_path / "disk", 512 * 1024) as disk, landing_in(disk.folder, mosquitto) as loop:
        child.send(frame(0))
        eventually(lambda: any(r.upto == 1 for r in child.receipts))
        disk.fill()
        child.client.publish(topic, b'{"source":"boiler"}', 1, True).wait_for_publish(10)
        eventually(lambda: b'"revision":1' in child.retained.get(topic, b""))
        for seq in range(1, 4):
            child.send(frame(seq))
        files, turns = loop.files, loop.attempts
        eventually(lambda: loop.attempts >= turns + 3)
        assert loop.files == files
        assert {r.upto for r in child.receipts} == {1}
        disk.make_room()
        eventually(lambda: any(r.upto == 4 for r in child.receipts))
        assert landed_frames(disk.folder) == [frame(seq) for seq in range(4)]
        assert not list(disk.folder.glob("*unusable*"))
