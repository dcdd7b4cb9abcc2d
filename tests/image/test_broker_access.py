"""Who may do what at a broker of `headwater broker-config`: a real Mosquitto, certificates of a real authority.

Whatever is refused must also not arrive: a listener with every right hears all there is.
"""

from __future__ import annotations

import datetime
import os
import pwd
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_agent.cli.main import main
from edge_agent.config import topics
from edge_agent.demo.processes import ChildProcess, mosquitto
from edge_agent.identity.authority import Authority
from tests.support.fakes import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker

EARLIER: Final = datetime.timedelta(minutes=-1)  # a certificate of negative life is over
TAKEN, REFUSED = "taken", "Not authorized"


class Client:
    """One MQTT 5 connection with a certificate. heard: topics of what came."""

    def __init__(self, port: int, keys: Path | None, ca: Path, client_id: str = "any") -> None:
        self.heard: list[str] = []
        self.answers: list[str] = []
        self.connected = threading.Event()
        self.lost = threading.Event()
        self.failure: Exception | None = None
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)
        context = ssl.create_default_context(cafile=ca)
        if keys is not None:
            context.load_cert_chain(keys / "cert.pem", keys / "key.pem")
        client.tls_set_context(context)
        client.on_connect = lambda *_: self.connected.set()
        client.on_disconnect = lambda *_: self.lost.set()
        client.on_message = lambda _c, _u, message: self.heard.append(message.topic)
        client.on_publish = lambda _c, _u, _mid, reason, _p: self.answers.append(
            str(reason) if reason.is_failure else TAKEN
        )
        self.client = client
        try:
            client.connect("127.0.0.1", port, keepalive=30)
        except OSError as err:
            self.failure = err
            return
        client.loop_start()

    @property
    def refused(self) -> bool:
        """TLS 1.3 tells a client of a missing certificate after its own handshake has ended."""
        if self.failure is not None:
            return True
        assert self.lost.wait(10) or self.connected.is_set()
        return not self.connected.is_set()

    def subscribe(self, *filters: str) -> None:
        assert self.connected.wait(10)
        done = threading.Event()
        self.client.on_subscribe = lambda *_: done.set()
        self.client.subscribe([(each, SubscribeOptions(qos=1)) for each in filters])
        assert done.wait(10)

    def publish(self, topic: str, *, retain: bool = False) -> str:
        """TAKEN, or the broker's reason."""
        assert self.connected.wait(10)
        before = len(self.answers)
        self.client.publish(topic, b"x", qos=1, retain=retain)
        eventually(lambda: len(self.answers) > before)
        return self.answers[-1]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def dialect() -> str:
    """That of the Mosquitto which is installed: Debian trixie has 2.0, the next one 2.1."""
    said = subprocess.run([mosquitto(), "-h"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"mosquitto version (\d+)\.(\d+)", said)
    assert version is not None, said
    return "2.0" if (int(version[1]), int(version[2])) < (2, 1) else "2.1"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """An authority, keys, and a broker whose files `headwater broker-config` has written."""
    folder = tmp_path_factory.mktemp("site")
    authority = Authority.create(folder / "ca", "fleet")

    def issue(name: str, life: datetime.timedelta = datetime.timedelta(days=1), hosts: tuple[str, ...] = ()) -> Path:
        out = folder / "keys" / f"{name}{len(list(folder.glob('keys/*')))}"
        out.mkdir(parents=True)
        key, certificate = authority.key_pair(name, hosts, life)
        (out / "key.pem").write_bytes(key)
        (out / "cert.pem").write_bytes(certificate)
        return out

    broker = folder / "broker"
    assert main(["ca", "issue", str(folder / "ca"), "broker-1", "--host", "127.0.0.1", "--out", str(broker)]) == 0
    port = free_port()
    words = ["--address", "127.0.0.1", "--port", str(port), "--state", str(folder), "--user", "root"]
    words += ["--dialect", dialect()]
    assert main(["broker-config", str(broker), "--parent", "region-1", "--operator", "ops", *words]) == 0
    process = ChildProcess("broker", [mosquitto(), "-c", str(broker / "mosquitto.conf")], folder)
    process.start()
    site = SimpleNamespace(authority=authority, issue=issue, port=port, broker=broker, process=process)
    site.ca = folder / "ca" / "ca.pem"
    try:
        eventually(lambda: listens(port))
        yield site
    finally:
        process.kill()


@pytest.fixture
def connect(site: SimpleNamespace) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def connect(keys: Path | None, client_id: str = "any") -> Client:
        made.append(Client(site.port, keys, site.ca, client_id))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def everything(site: SimpleNamespace, connect: Callable[..., Client]) -> Client:
    """An operator: hears all topics of the fleet."""
    client = connect(site.issue("ops"))
    client.subscribe("hw/1/up/#", "hw/1/down/#", "hw/1/all/#")
    return client


def test_a_node_speaks_below_its_own_id_and_hears_what_is_for_it(
    site: SimpleNamespace, connect: Callable[..., Client], everything: Client
) -> None:
    node, parent = connect(site.issue("g1")), connect(site.issue("region-1"))
    node.subscribe(topics.ack("g1"), *topics.definitions_for("g1"))
    parent.subscribe(topics.frames_of_children("region-1"))
    assert node.publish(topics.frames("g1", "region-1")) == TAKEN
    assert parent.publish(topics.ack("g1")) == TAKEN
    assert everything.publish(topics.definition("query", "q1")) == TAKEN
    eventually(lambda: parent.heard and len(node.heard) == 2)
    assert node.heard == [topics.ack("g1"), topics.definition("query", "q1")]


def test_a_node_may_publish_every_topic_of_the_protocol(site: SimpleNamespace, connect: Callable[..., Client]) -> None:
    node = connect(site.issue("g1"))
    below = [topics.status("g1"), topics.state("g1"), topics.books("g1")]
    for topic in (topics.frames("g1", "region-1"), *below, topics.answer("g1", "shift-3")):
        assert node.publish(topic) == TAKEN


FORBIDDEN: Final = {
    "frames of another node": topics.frames("g2", "region-1"),
    "status of another node": topics.status("g2"),
    "receipts for another node": topics.ack("g2"),
    "receipts for itself": topics.ack("g1"),
    "a query for all": topics.definition("query", "q1"),
    "a sensor for itself": topics.definition("sensor", "s1", "g1"),
    "a command to all": topics.commands_to_all(),
    "another topic": "elsewhere/x",
    "another topic below its own id": "hw/1/up/g1/x",
    "a topic below its frames": topics.frames("g1", "region-1/x"),
    "a topic below its status": topics.status("g1") + "/x",
}


@pytest.mark.parametrize("topic", FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_node_may_publish_nowhere_else(
    site: SimpleNamespace, connect: Callable[..., Client], everything: Client, topic: str
) -> None:
    node = connect(site.issue("g1"))
    assert node.publish(topic, retain=True) == REFUSED
    assert node.publish(topics.status("g1")) == TAKEN
    eventually(lambda: everything.heard)
    assert everything.heard == [topics.status("g1")], "what came before it did not pass"


@pytest.mark.parametrize("asked", ["#", "hw/1/up/#", "hw/1/down/#", "hw/1/down/g2/#", "+/+/+/+/+", "$SYS/#"])
def test_a_node_hears_nothing_of_others(
    site: SimpleNamespace, connect: Callable[..., Client], everything: Client, asked: str
) -> None:
    """Mosquitto grants the subscription and filters later: only what arrives counts."""
    spy = connect(site.issue("g1"))
    spy.subscribe(asked, topics.ack("g1"))
    other = connect(site.issue("g2"))
    assert other.publish(topics.frames("g2", "region-1")) == TAKEN
    assert everything.publish(topics.ack("g2")) == TAKEN
    assert everything.publish(topics.definition("query", "q1", "g2"), retain=False) == TAKEN
    assert everything.publish(topics.ack("g1")) == TAKEN
    eventually(lambda: spy.heard)
    assert set(spy.heard) == {topics.ack("g1")}


def test_another_clients_id_is_not_to_be_had(site: SimpleNamespace, connect: Callable[..., Client]) -> None:
    """The id in CONNECT counts for nothing; the one with that name stays connected."""
    real = connect(site.issue("g2"))
    real.subscribe(topics.ack("g2"))
    thief = connect(site.issue("g1"), client_id="g2")
    assert thief.connected.wait(10)
    assert thief.publish(topics.status("g2")) == REFUSED
    assert thief.publish(topics.status("g1")) == TAKEN, "it is who its certificate says"
    assert real.publish(topics.status("g2")) == TAKEN
    assert not real.lost.is_set()


def test_a_certificate_that_is_over_is_refused(site: SimpleNamespace, connect: Callable[..., Client]) -> None:
    assert connect(site.issue("g1", EARLIER)).refused


def test_no_certificate_is_refused(site: SimpleNamespace, connect: Callable[..., Client]) -> None:
    assert connect(None).refused


def test_a_certificate_of_another_authority_is_refused(
    site: SimpleNamespace, connect: Callable[..., Client], tmp_path: Path
) -> None:
    key, certificate = Authority.create(tmp_path / "ca", "fleet").key_pair("g1")
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "cert.pem").write_bytes(certificate)
    assert connect(tmp_path).refused


def test_without_tls_nobody_gets_in(site: SimpleNamespace) -> None:
    refused = threading.Event()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.on_connect = lambda *_: pytest.fail("connected")
    client.on_disconnect = lambda *_: refused.set()
    client.connect("127.0.0.1", site.port)
    client.loop_start()
    assert refused.wait(10)
    client.loop_stop()


def test_a_revoked_certificate_is_refused_after_sighup(site: SimpleNamespace, connect: Callable[..., Client]) -> None:
    keys = site.issue("g9")
    assert connect(keys).publish(topics.status("g9")) == TAKEN
    assert site.authority.revoke("g9") == (1, 0)
    (site.broker / "crl.pem").write_bytes((site.ca.parent / "crl.pem").read_bytes())
    site.process._process.send_signal(signal.SIGHUP)
    eventually(lambda: connect(keys).refused)
    assert connect(site.issue("g1")).publish(topics.status("g1")) == TAKEN, "others still get in"


def test_both_dialects_say_the_same(tmp_path: Path) -> None:
    """2.1 reads the access list with a plugin; it stands behind the listener it belongs to in either."""
    for dialect, lines in (
        ("2.0", [f"acl_file {tmp_path}/acl"]),
        ("2.1", ["global_plugin /plugins/mosquitto_acl_file.so", f"plugin_opt_acl_file {tmp_path}/acl"]),
    ):
        assert main(["broker-config", str(tmp_path), "--dialect", dialect, "--plugins", "/plugins"]) == 0
        text = (tmp_path / "mosquitto.conf").read_text().splitlines()
        assert [line for line in text if "acl" in line] == lines
        for line in ("allow_anonymous false", "require_certificate true", "use_username_as_clientid true"):
            assert line in text


@pytest.fixture(params=[0o022, 0o077], ids=["022", "077"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """That of this process, as usual and as on a hardened machine."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_a_broker_that_root_starts_can_read_its_files(
    open_folder: Path, umask: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started by root, Mosquitto becomes another user. Started by anybody else, it stays who it is."""
    broker, state, port = open_folder / "broker", open_folder / "state", free_port()
    broker.mkdir()
    broker.chmod(0o755)
    assert main(["ca", "init", str(open_folder / "ca")]) == 0
    assert main(["ca", "issue", str(open_folder / "ca"), "b1", "--host", "127.0.0.1", "--out", str(broker)]) == 0
    capsys.readouterr()
    words = ["--address", "127.0.0.1", "--port", str(port), "--state", str(state), "--dialect", dialect()]
    assert main(["broker-config", str(broker), *words]) == 0
    said = capsys.readouterr().out
    if os.geteuid() == 0 and "mosquitto" in {each.pw_name for each in pwd.getpwall()}:
        assert "chown" not in said
        assert {file.name for file in broker.iterdir() if file.owner() == "mosquitto"} == {"acl", "key.pem"}
        assert state.owner() == "mosquitto"
        assert main(["broker-config", str(open_folder / "other"), "--state", str(open_folder)]) == 0
        assert f"chown mosquitto: {open_folder}" in capsys.readouterr().out, "what exists is not given away"
        assert open_folder.owner() == "root"
    else:
        assert f"chown mosquitto: {broker}/acl {broker}/key.pem" in said
    process = ChildProcess("broker", [mosquitto(), "-c", str(broker / "mosquitto.conf")], open_folder / "log")
    process.start()
    try:
        eventually(lambda: listens(port))
    finally:
        process.kill()


def test_without_the_user_of_the_broker_what_to_do_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker-config", str(tmp_path), "--user", "nobody-here"]) == 0
    assert f"chown nobody-here: {tmp_path}/acl\n" in capsys.readouterr().out


def test_relative_folders_are_those_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mosquitto would look for them in the folder where it starts."""
    monkeypatch.chdir(tmp_path)
    assert main(["broker-config", "b1", "--state", "sessions", "--plugins", "plugins", "--dialect", "2.1"]) == 0
    text = (tmp_path / "b1" / "mosquitto.conf").read_text()
    assert f"\npersistence_location {tmp_path}/sessions/\n" in text
    assert f"\nglobal_plugin {tmp_path}/plugins/" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="the folder is root's")
def test_a_folder_that_the_broker_cannot_enter_is_named(open_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user = pwd.getpwuid(65534).pw_name
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    words = ["--state", str(open_folder / "state"), "--user", user]
    assert main(["broker-config", str(closed / "b1"), *words]) == 0
    assert f"{user} cannot enter {closed}: chmod a+x {closed}, or use another folder\n" in capsys.readouterr().out
    closed.chmod(0o711)
    assert main(["broker-config", str(closed / "b1"), *words]) == 0
    assert "cannot enter" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--port", "99999"],
        ["--port", "-1"],
        ["--address", "0.0.0.0\nallow_anonymous true"],
        ["--address", ""],
        ["--state", "/var/lib/x\nallow_anonymous true"],
        ["--user", "a b"],
        ["--plugins", "/x\ny"],
    ],
    ids=str,
)
def test_no_option_adds_a_line_to_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["broker-config", str(tmp_path), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_a_pattern_gets_no_rights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--parent", "#"], ["--operator", "a b"], ["--parent", "x", "--operator", "x"]):
        assert main(["broker-config", str(tmp_path), *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_all_names_that_are_parents_and_operators_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for option in ("--parent", "--operator") for name in ("c", "a", "b") for word in (option, name)]
    assert main(["broker-config", str(tmp_path), *words]) == 2
    assert "a, b, c: named by both --parent and --operator; give each" in capsys.readouterr().err
