"""Boots the gateway image in QEMU and uses it: `make image-test`, or `python -m tests.image.boot IMAGE`.

No KVM, no loop device. Kernel, initrd and command line come out of the image's own FAT partition, so the files that a
Pi would load are booted; only the machine is QEMU's (-M virt). The guest reaches nothing but the enrolment service and
the region's broker of this test, on 127.0.0.1; its disk is a copy, larger than the image, so that /var can grow.
Prints a line for each check and figures at the end; exits with 1 if a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.config import topics
from edge_agent.demo.processes import Broker, ChildProcess, free_ports, mosquitto
from edge_agent.identity.authority import Authority
from edge_agent.identity.broker_files import Access, Listener, broker_files
from edge_agent.provisioning import fat
from tests.image.boot_updates import Bundles, Gateway, bundles, updates

NODE: Final = "gw-test"
BROKER, CA = "10.0.2.100", "10.0.2.101"  # addresses inside the guest's network, which QEMU forwards
SENSORS: Final = ("sensors", "Sensors-1234")
SUCCESS: Final = 0  # of PUBACK; 16 if nobody subscribed
COMMIT_S: Final = 2.0  # a reading is safe after a commit interval, 1 s; the gateway's broker keeps nothing
DISK_BYTES: Final = 3 * 2**30
BOOT_S: Final = 900.0  # a loaded machine takes 100 s; a gateway that never comes ends here
LONG_S: Final = 600.0  # a command that starts the agent
AGENT_MB: Final = 64
GATEWAY_LOG: Final = "journalctl -b -u headwater-gateway --no-pager"
UPLINK: Final = "link.up broker=mqtts"
SPOOL: Final = "stat -c 'inode %i, made %W' /var/lib/headwater/spool.db"
QUERY: Final = {"source": "t", "window": {"type": "tumbling", "length": "2s"}, "aggregates": ["count", "sum"]}


class FailedError(Exception):
    """A check failed."""


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
        client.connect("127.0.0.1", self.region_port if where == "region" else self.cloud_port)
        client.loop_start()
        client.publish(topic, json.dumps(value), qos=1, retain=True).wait_for_publish(20)
        client.disconnect()
        client.loop_stop()

    def merged(self) -> tuple[int, float]:
        """(readings, their sum) in all rows of the region's merger, from its frames to the root, each once."""
        log, frames = self.processes[-1].log, dict[tuple[str, int], tuple[int, float]]()
        for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
            with contextlib.suppress(ValueError):  # a line of the log that is no message
                frame = json.loads(line)
                if frame["node"] == "region-1":
                    partials = [row for group in frame.get("groups", ()) for row in group["partials"]]
                    counts = sum(row.get("count", 0) for row in partials), sum(row.get("sum", 0) for row in partials)
                    frames[frame["epoch"], frame["seq"]] = counts
        return sum(count for count, _ in frames.values()), sum(total for _, total in frames.values())


class Guest:
    """The image on a disk of its own, in QEMU."""

    def __init__(self, image: Path, folder: Path, site: Site, files: Bundles) -> None:
        self.folder, self.site, self.files = folder, site, files
        self.disk = folder / "disk.img"
        subprocess.run(["cp", "--sparse=always", image, self.disk], check=True)
        with self.disk.open("r+b") as file:
            file.truncate(DISK_BYTES)
        self.mqtt_port, self.ssh_port = free_ports(2)
        self.key = folder / "ssh"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        self.boots = 0
        self.process: ChildProcess | None = None
        self.booted = 0.0

    def settings(self, token: str) -> str:
        ca = (self.folder / "ca" / "ca.pem").read_text()
        return (
            f'[node]\nid = "{NODE}"\n[uplink]\nbroker = "mqtts://{BROKER}:8883"\nparent = "region-1"\n'
            f'[enrol]\nurl = "https://{CA}:8443"\ntoken = "{token}"\nca = """\n{ca}"""\n'
            f'[ssh]\nkeys = ["{self.key.with_suffix(".pub").read_text().strip()}"]\n'
            f'[local_broker]\nuser = "{SENSORS[0]}"\npassword = "{SENSORS[1]}"\n'
            f'[update]\nkeys = ["{self.files.public}"]\n'
        )

    def boot(self, more: str = "") -> None:
        """Start it; `more` is added to the kernel's command line."""
        self.boots += 1
        config = fat.get(self.disk, "config.txt").decode()
        names = [re.search(pattern, config, re.MULTILINE) for pattern in (r"^kernel=(\S+)", r"^initramfs (\S+)")]
        for found, name in zip(names, ("kernel", "initrd"), strict=True):
            assert found is not None, config
            (self.folder / name).write_bytes(fat.get(self.disk, found[1]))
        line = re.sub(r"console=\S+ ?", "", fat.get(self.disk, "cmdline.txt").decode().strip())
        net = (
            f"user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:{self.mqtt_port}-:1883,hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22"
            f",guestfwd=tcp:{BROKER}:8883-cmd:nc 127.0.0.1 {self.site.region_port}"
            f",guestfwd=tcp:{CA}:8443-cmd:nc 127.0.0.1 {self.site.ca_port}"
        )
        command = [
            *("qemu-system-aarch64", "-M", "virt,gic-version=2", "-cpu", "cortex-a72", "-smp", "2", "-m", "1024"),
            *("-accel", "tcg,thread=multi,tb-size=512", "-display", "none", "-monitor", "none", "-no-reboot"),
            *(
                "-drive",
                f"if=none,id=d0,file={self.disk},format=raw,cache=unsafe",
                "-device",
                "virtio-blk-pci,drive=d0",
            ),
            *("-netdev", net, "-device", "virtio-net-pci,netdev=n0,romfile=", "-device", "virtio-rng-pci"),
            *("-kernel", str(self.folder / "kernel"), "-initrd", str(self.folder / "initrd")),
            *("-append", f"{line} console=ttyAMA0 systemd.show_status=1 {more}"),
            *("-serial", f"file:{self.folder}/console-{self.boots}.log"),
        ]
        self.process = ChildProcess(f"qemu-{self.boots}", command, self.folder)
        self.process.start()
        self.booted = time.monotonic()

    def cut(self) -> None:
        """A power cut: what QEMU has not written to the disk file is lost to the guest as well."""
        assert self.process is not None
        self.process.kill()

    def put(self, file: Path) -> None:
        """Copy a file to /var/tmp of the guest."""
        self.run(f"cat > /var/tmp/{file.name}", content=file.read_bytes())

    def run(self, command: str, timeout_s: float = 120.0, content: bytes = b"") -> str:
        words = ["ssh", "-i", str(self.key), "-p", str(self.ssh_port), "-o", "StrictHostKeyChecking=no"]
        words += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=20"]
        done = subprocess.run(
            [*words, "root@127.0.0.1", command], input=content, capture_output=True, timeout=timeout_s, check=False
        )
        if done.returncode == 255:
            raise FailedError(f"ssh: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode(errors="replace").strip()

    def console(self) -> str:
        file = self.folder / f"console-{self.boots}.log"
        text = file.read_text(errors="replace") if file.exists() else ""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


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


class Report:
    """Checks and figures."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.failed: list[str] = []
        self.figures: dict[str, object] = {}

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begin:6.1f} s] {text}", flush=True)

    def check(self, what: str, right: object, found: object = "") -> None:
        self.say(f"{'ok    ' if right else 'FAILED'} {what}{f': {found}' if found != '' else ''}")
        if not right:
            self.failed.append(what)

    def until(self, what: str, condition: Callable[[], object], guest: Guest, timeout_s: float = BOOT_S) -> object:
        """Wait for it while the guest runs. Raises: FailedError."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with contextlib.suppress(FailedError, subprocess.TimeoutExpired, OSError):
                if found := condition():
                    return found
            if guest.process is None or not guest.process.alive:
                raise FailedError(f"{what}: QEMU has ended")
            time.sleep(0.5)
        raise FailedError(f"{what}: not within {timeout_s:.0f} s")


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", type=Path)
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="headwater-boot-"))
    folder.mkdir(parents=True, exist_ok=True)
    report = Report()
    site = Site(folder)
    guest = Guest(args.image, folder, site, bundles(folder))
    try:
        with site.running():
            scenario(report, site, guest)
    except (FailedError, AssertionError, subprocess.SubprocessError) as err:
        report.check("the whole scenario", False, err)
        print("\n".join(guest.console().splitlines()[-40:]))
    finally:
        if guest.process is not None:
            guest.process.kill()
        if args.keep is None and not report.failed:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            report.say(f"logs and disk: {folder}")
    for name, figure in report.figures.items():
        print(f"{name}: {figure}")
    print(f"image-test: {'FAILED: ' + '; '.join(report.failed) if report.failed else 'ok'}")
    return 1 if report.failed else 0


def scenario(report: Report, site: Site, guest: Guest) -> None:
    site.publish("cloud", topics.definition("query", "q"), QUERY)
    site.publish(
        "region",
        topics.definition("sensor", "t", NODE),
        {"driver": "mqtt", "topic": "sensor/t", "qos": 1},
    )
    fat.put(guest.disk, guest.settings(site.authority.token(NODE)).encode())
    report.say("first boot")
    guest.boot()
    is_online = online(site)
    report.until("the gateway is online at the region's broker, enrolled", is_online, guest)
    report.figures["boot to online, s"] = round(time.monotonic() - guest.booted, 1)
    report.check("enrolled with a certificate of its own", NODE in {each.name for each in site.authority.issued()})
    sensors = Sensors(guest.mqtt_port)
    try:
        report.until("readings of the guest's broker come back as a window", lambda: site.merged()[0], guest)
        report.figures["boot to first window, s"] = round(time.monotonic() - guest.booted, 1)
        inside(report, guest)
        report.say("power cut in mid-stream")
        time.sleep(5)
        guest.cut()
        cut = time.monotonic()
        machine, serials = report.figures["machine id"], len(site.authority.issued())
        report.say("second boot")
        guest.boot()
        # Not by its status, which the broker keeps from before the cut.
        report.until("the gateway is online again", lambda: UPLINK in guest.run(GATEWAY_LOG), guest)
        report.figures["second boot to online, s"] = round(time.monotonic() - guest.booted, 1)
        again = report.until("ssh after the second boot", lambda: guest.run("cat /etc/machine-id"), guest)
        report.check("the machine id is the same", again == machine, again)
        report.check("the certificate is the same", len(site.authority.issued()) == serials)
        spool = guest.run(SPOOL)
        report.check("the spool is the same file", spool == report.figures["spool"], spool)
        report.say("updates of the agent, while readings come")
        updates(
            Gateway(
                run=lambda command: guest.run(command, LONG_S),
                put=guest.put,
                until=lambda what, end: report.until(what, end, guest),
                check=report.check,
            ),
            guest.files,
        )
    finally:
        sensors.close()
    # What the guest's broker had acknowledged and the gateway had not committed went with the power. A reading
    # whose acknowledgement the cut took away is sent again, as MQTT has it: at most the one under way.
    sent, under_way = len(sensors.at), sum(cut - COMMIT_S < at < cut for at in sensors.at)
    report.until("what was committed reaches the merger", lambda: site.merged()[0] >= sent - under_way, guest)
    report.until("the last window is closed", lambda: steady(site), guest)
    count, total = site.merged()
    report.check(
        "none that was committed is lost, and none is counted twice",
        sent - under_way <= count <= sent + 1,
        f"{count} of {sent}, {under_way} of them in the last {COMMIT_S:.0f} s before the cut",
    )
    report.check("their mean is right", abs(total / count - 5.5) < 0.1, f"{total / count:.3f}")
    report.say("a gateway.toml with a mistake")
    power_off(report, guest)
    fat.put(guest.disk, guest.settings("x" * 20).replace("[uplink]", "[uplnk]").encode())
    guest.boot()
    report.until("the console says what is wrong", lambda: "uplnk" in guest.console(), guest)
    report.until("the last good file stays in force", lambda: UPLINK in guest.run(GATEWAY_LOG), guest)
    power_off(report, guest)
    said = fat.get(guest.disk, "gateway-errors.txt").decode()
    report.check("the card says what is wrong", '"uplnk"' in said and "uplink" in said, said.splitlines()[1])


def steady(site: Site) -> bool:
    """Whether nothing comes any more."""
    before = site.merged()
    time.sleep(10)
    return site.merged() == before


def power_off(report: Report, guest: Guest) -> None:
    """An orderly end. Raises: FailedError."""
    with contextlib.suppress(FailedError, subprocess.TimeoutExpired):
        guest.run("systemctl poweroff", 60)  # the connection ends before the answer
    end = time.monotonic() + 300
    while guest.process is not None and guest.process.alive:
        if time.monotonic() > end:
            raise FailedError("the machine does not power off")
        time.sleep(0.5)
    report.say("powered off")


def inside(report: Report, guest: Guest) -> None:
    """What is asked of the machine itself, by SSH with the key of gateway.toml."""
    report.until("ssh with the key of gateway.toml", lambda: guest.run("true") == "", guest)
    options = guest.run("findmnt -no OPTIONS /")
    report.check("the root file system is read-only", options.startswith("ro"), options)
    var = int(guest.run("df --output=size -B1 /var | tail -n 1"))
    report.check("/var has grown to the end of the card", var > DISK_BYTES - 1.5 * 2**30, f"{var / 2**20:.0f} MiB")
    failed = guest.run("systemctl --failed --plain --no-legend")
    report.check("no unit has failed", failed == "", failed)
    pid = guest.run("systemctl show -P MainPID headwater-gateway")
    rss = int(guest.run(f"awk '/^VmRSS/ {{print $2}}' /proc/{pid}/status")) / 1024
    report.check(f"the agent has at most {AGENT_MB} MB", rss <= AGENT_MB, f"{rss:.1f} MiB")
    report.figures["agent RSS, MiB"] = round(rss, 1)
    report.figures["spool"] = guest.run(SPOOL)
    report.figures["machine id"] = guest.run("cat /etc/machine-id")
    report.figures["memory available, MiB"] = int(guest.run("awk '/^MemAvailable/ {print $2}' /proc/meminfo")) // 1024
    password = guest.run("passwd -S root")
    report.check("root has no password", password.split()[1] == "L", password)
    empty = guest.run("awk -F: '$2 == \"\"' /etc/shadow")
    report.check("no account has an empty password", empty == "", empty)
    listening = guest.run("ss -Hlntu | awk '{print $5}' | sort -u")
    report.check("nothing listens but SSH and the sensors' broker", ports(listening) <= {"22", "1883"}, listening)
    report.check("a write to / is refused", "Read-only" in guest.run("touch /x 2>&1"))
    watchdog = guest.run("systemctl show -P WatchdogUSec headwater-gateway")
    report.check("systemd's watchdog watches the agent", watchdog == "1min", watchdog)
    with contextlib.suppress(IndexError, ValueError):
        report.figures["systemd-analyze"] = guest.run("systemd-analyze time | head -n 1")
        report.figures["slowest units"] = guest.run("systemd-analyze blame --no-pager | head -n 12")
        report.figures["chain to the gateway"] = guest.run(
            "systemd-analyze critical-chain --no-pager headwater-gateway.service"
        )


def ports(listening: str) -> set[str]:
    """Ports that others can reach: not those on loopback, and not DHCP's."""
    lines = [line for line in listening.split() if not line.startswith(("127.", "[::1]"))]
    return {line.rpartition(":")[2] for line in lines} - {"68", "546"}


if __name__ == "__main__":
    sys.exit(main())
