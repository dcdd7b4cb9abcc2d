"""What stands around the gateway that boot.py starts: authority, brokers, merger and lander, and its sensors."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.config import topics
from edge_agent.demo.processes import Broker, ChildProcess, free_ports, mosquitto
from edge_agent.identity.authority import Authority
from edge_agent.identity.broker_files import Access, Listener, broker_files
from tests.support.waiting import eventually

NODE: Final = "gw-test"
BROKER, CA = "10.0.2.100", "10.0.2.101"  # addresses inside the guest's network, which QEMU forwards
SENSORS: Final = ("sensors", "Sensors-1234")
SUCCESS: Final = 0  # of PUBACK; 16 if nobody subscribed


@dataclass(frozen=True)
class Merged:
    """Readings in windows, their sum, and from when to when these windows are, in seconds since 1970."""

    count: int
    total: float
    first: float
    last: float


class Site:
    """What stands around the gateway: authority, region's broker with TLS, merger, cloud broker, lander."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca_port, self.region_port, self.cloud_port = free_ports(3)
        self.authority = Authority.create(folder / "ca", "test fleet")
        keys = folder / "region-broker"
        self.issue("region-broker", keys, (BROKER, "127.0.0.1"))
        self.issue("region-1", folder / "region")
        self.issue("ops", folder / "ops")
        files = broker_files(
            Listener(port=self.region_port, files=keys),
            Access(("region-1",), ("ops",)),
            acl_file=keys / "acl",
            state=keys,
            user="root",
        )
        (keys / "mosquitto.conf").write_text(files.config)
        (keys / "acl").write_text(files.acl)
        self.cloud = Broker("cloud-broker", folder / "cloud", self.cloud_port)
        region = folder / "region" / "region.toml"
        region.write_text(
            f'[node]\nid = "region-1"\nrole = "region"\n[uplink]\nbroker = "{self.cloud.url}"\nparent = "root"\n'
            f'[lower]\nbroker = "mqtts://127.0.0.1:{self.region_port}"\nca_file = "ca.pem"\ncert_file = "cert.pem"\n'
            'key_file = "key.pem"\n'
        )
        root = folder / "root" / "root.toml"
        root.parent.mkdir()
        root.write_text(f'[node]\nid = "root"\nrole = "root"\n[lower]\nbroker = "{self.cloud.url}"\n')
        agent = [sys.executable, "-m", "edge_agent"]
        words = ["--address", "127.0.0.1", "--port", str(self.ca_port), "--host", CA]
        self.processes = [
            self.cloud,
            ChildProcess("region-broker", [mosquitto(), "-c", str(keys / "mosquitto.conf")], keys),
            ChildProcess("ca", [*agent, "ca", "serve", str(folder / "ca"), *words], folder),
            ChildProcess("region", [*agent, "merge", str(region)], region.parent),
            ChildProcess("lander", [*agent, "land", str(root)], root.parent),
            ChildProcess(
                "peek", [*agent, "peek", "--broker", self.cloud.url, "--only", "frame", "--rows", "--json"], folder
            ),
        ]

    def issue(self, name: str, out: Path, hosts: tuple[str, ...] = ()) -> None:
        out.mkdir(parents=True, exist_ok=True)
        key, certificate = self.authority.key_pair(name, hosts)
        (out / "key.pem").write_bytes(key)
        (out / "cert.pem").write_bytes(certificate)
        for given in ("ca.pem", "crl.pem"):
            shutil.copy(self.folder / "ca" / given, out)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        try:
            for process in self.processes:
                process.start()
            yield
        finally:
            for process in reversed(self.processes):
                process.kill()

    def publish(self, where: str, topic: str, value: object) -> None:
        """An operator publishes a definition, retained, at the broker of the region or the cloud."""
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="ops", protocol=mqtt.MQTTv5)
        if where == "region":
            keys = self.folder / "ops"
            client.tls_set(str(keys / "ca.pem"), str(keys / "cert.pem"), str(keys / "key.pem"))
        port = self.region_port if where == "region" else self.cloud_port

        def connected() -> bool:  # not at once: a broker that was just started does not listen yet
            with contextlib.suppress(ConnectionRefusedError):
                return client.connect("127.0.0.1", port) == mqtt.MQTT_ERR_SUCCESS
            return False

        eventually(connected)
        client.loop_start()
        client.publish(topic, json.dumps(value), qos=1, retain=True).wait_for_publish(20)
        client.disconnect()
        client.loop_stop()

    def merged(self) -> Merged:
        """All rows of the region's merger, from its frames to the root, each once."""
        log, frames = self.processes[-1].log, dict[tuple[str, int], list[dict[str, Any]]]()
        for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
            with contextlib.suppress(ValueError):  # a line of the log that is no message
                frame = json.loads(line)
                if frame["node"] == "region-1":
                    partials = [row for group in frame.get("groups", ()) for row in group["partials"]]
                    frames[frame["epoch"], frame["seq"]] = partials
        rows = [row for partials in frames.values() for row in partials]
        return Merged(
            sum(row.get("count", 0) for row in rows),
            sum(row.get("sum", 0) for row in rows),
            min((datetime.fromisoformat(row["start"]).timestamp() for row in rows), default=0.0),
            max((datetime.fromisoformat(row["end"]).timestamp() for row in rows), default=0.0),
        )


class Sensors:
    """Publishes readings on the guest's own broker: 1 to 10, over and over.

    at: when each was acknowledged. It does not count if the broker knew no subscriber.
    """

    def __init__(self, port: int) -> None:
        self.at: list[float] = []
        self._value = 0
        self._stop = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="probe", protocol=mqtt.MQTTv5)
        self._client.on_publish = self._acknowledged
        self._client.username_pw_set(*SENSORS)
        self._client.reconnect_delay_set(1, 4)
        self._client.connect_async("127.0.0.1", port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            if self._client.is_connected():
                self._value = self._value % 10 + 1
                message = self._client.publish("sensor/t", str(self._value), qos=1)
                with contextlib.suppress(RuntimeError, ValueError):
                    message.wait_for_publish(5)

    def _acknowledged(self, _client: object, _data: object, _mid: int, reason: Any, _properties: object) -> None:
        if reason.value == SUCCESS:
            self.at.append(time.monotonic())

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()


def online(site: Site) -> Callable[[], bool]:
    """Whether the gateway's retained status at the region's broker says that it is there."""
    said: list[bytes] = []
    keys = site.folder / "ops"

    def look() -> bool:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="ops", protocol=mqtt.MQTTv5)
        client.tls_set(str(keys / "ca.pem"), str(keys / "cert.pem"), str(keys / "key.pem"))
        client.on_message = lambda _c, _u, message: said.append(bytes(message.payload))
        client.on_connect = lambda client, *_: client.subscribe(topics.status(NODE), 1)
        said.clear()
        client.connect("127.0.0.1", site.region_port)
        client.loop_start()
        time.sleep(1.0)
        client.disconnect()
        client.loop_stop()
        return any(b'"online": true' in each or b'"online":true' in each for each in said)

    return look
