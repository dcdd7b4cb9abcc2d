"""Boots the gateway image in QEMU and uses it: `make image-test`, or `python -m tests.image.boot IMAGE`.

No KVM, no loop device. Kernel, initrd, device tree and command line come out of the image's own FAT partition, so the
files that a Pi would load are booted; only the machine is QEMU's: `virt`, or `raspi3b` with the Pi 3's own devices. The
guest reaches nothing but the enrolment service and
the region's broker of this test, on 127.0.0.1; its disk is a copy, larger than the image, so that /var can grow.
Prints a line for each check and figures at the end; exits with 1 if a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from edge_agent.config import topics
from edge_agent.demo.processes import ChildProcess, free_ports
from edge_agent.provisioning import fat
from tests.image.boot_site import BROKER, CA, NODE, SENSORS, Sensors, Site, online
from tests.image.boot_updates import Gateway, bundles, updates

COMMIT_S: Final = 2.0  # a reading is safe after a commit interval, 1 s; the gateway's broker keeps nothing
DISK_BYTES: Final = {"virt": 3 * 2**30, "raspi3b": 4 * 2**30}  # QEMU's SD cards have a power of two of bytes
MBR_START: Final = 446 + 8  # where a disk's table says at which sector the first partition starts
PI3_TREE: Final = "bcm2837-rpi-3-b.dtb"
# QEMU's model of the Pi's watchdog resets the machine as soon as systemd arms it.
PI3_LINE: Final = "console=ttyAMA0 systemd.watchdog_sec=0 modprobe.blacklist=bcm2835_wdt"
BOOT_S: Final = 900.0  # a loaded machine takes 100 s; a gateway that never comes ends here
LONG_S: Final = 600.0  # a command that starts the agent
AGENT_MB: Final = 64
WINDOW_S: Final = 2
RTC_S: Final = 1  # a board's clock counts whole seconds, so after a boot its system may be behind by so much
QUIET_S: Final = 25.0  # a sensor that is silent for 10 s is idle, and its last window is closed after that
HELD: Final = 50  # readings while the clock is wrong
GATEWAY_LOG: Final = "journalctl -b -u headwater-gateway --no-pager"
UPLINK: Final = "link.up broker=mqtts"
SPOOL: Final = "stat -c 'inode %i, made %W' /var/lib/headwater/spool.db"
# The data partition keeps the last time for boards without a clock; one that lay for months has an old one.
FORGET: Final = "systemctl stop systemd-timesyncd; touch -d @0 /var/lib/systemd/timesync/clock; sync"
START: Final = "runuser -u headwater -- /usr/lib/headwater-image/agent run --dry-run /etc/headwater/headwater.toml"
DAY_S: Final = 86_400
COMPILES: Final = "2>&1 | grep -Ec '^# code object from .*[.]py$'"  # modules without bytecode, by PYTHONVERBOSE
QUERY: Final = {"source": "t", "window": {"type": "tumbling", "length": f"{WINDOW_S}s"}, "aggregates": ["count", "sum"]}


class FailedError(Exception):
    """A check failed."""


class Machine(NamedTuple):
    """A machine of QEMU. memory_mb: of `virt`; the Pi 3 has 1 GiB."""

    name: str
    memory_mb: int


class Guest:
    """The image on a disk of its own, in QEMU."""

    def __init__(self, image: Path, folder: Path, site: Site, machine: Machine) -> None:
        self.folder, self.site, self.machine, self.files = folder, site, machine, bundles(folder)
        self.disk = folder / "disk.img"
        subprocess.run(["cp", "--sparse=always", image, self.disk], check=True)
        with self.disk.open("r+b") as file:
            file.truncate(DISK_BYTES[machine.name])
        self.mqtt_port, self.ssh_port = free_ports(2)
        self.key = folder / "ssh"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        self.boots = 0
        self.process: ChildProcess | None = None
        self.booted = 0.0
        self.line = ""  # of the kernel

    def settings(self, token: str) -> str:
        ca = (self.folder / "ca" / "ca.pem").read_text()
        return (
            f'[node]\nid = "{NODE}"\n[uplink]\nbroker = "mqtts://{BROKER}:8883"\nparent = "region-1"\n'
            f'[enrol]\nurl = "https://{CA}:8443"\ntoken = "{token}"\nca = """\n{ca}"""\n'
            f'[ssh]\nkeys = ["{self.key.with_suffix(".pub").read_text().strip()}"]\n'
            f'[local_broker]\nuser = "{SENSORS[0]}"\npassword = "{SENSORS[1]}"\n'
            f'[update]\nkeys = ["{self.files.public}"]\n'
        )

    def boot(self, *more: str) -> None:
        """Start it. more: further options of QEMU."""
        self.boots += 1
        if self.boots == 1:
            self._take_out()
        line = self.line
        net = (
            f"user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:{self.mqtt_port}-:1883,hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22"
            f",guestfwd=tcp:{BROKER}:8883-cmd:nc 127.0.0.1 {self.site.region_port}"
            f",guestfwd=tcp:{CA}:8443-cmd:nc 127.0.0.1 {self.site.ca_port}"
        )
        drive = f"file={self.disk},format=raw,cache=unsafe"
        if self.machine.name == "virt":
            hardware = ["-M", "virt,gic-version=2", "-cpu", "cortex-a72", "-smp", "2"]
            hardware += ["-m", str(self.machine.memory_mb), "-drive", f"if=none,id=d0,{drive}"]
            hardware += ["-device", "virtio-blk-pci,drive=d0"]
            hardware += ["-device", "virtio-net-pci,netdev=n0,romfile=", "-device", "virtio-rng-pci"]
            line += " console=ttyAMA0"
        else:  # its memory is 1 GiB
            hardware = ["-M", self.machine.name, "-dtb", str(self.folder / "tree"), "-drive", f"if=sd,{drive}"]
            hardware += ["-device", "usb-net,netdev=n0"]
            line += f" {PI3_LINE}"
        command = [
            *("qemu-system-aarch64", "-netdev", net, *hardware),
            *("-accel", "tcg,thread=multi,tb-size=512", "-display", "none", "-monitor", "none", "-no-reboot"),
            *("-kernel", str(self.folder / "kernel"), "-initrd", str(self.folder / "initrd")),
            *("-append", f"{line} systemd.show_status=1"),
            *("-serial", f"file:{self.folder}/console-{self.boots}.log"),
            *more,
        ]
        self.process = ChildProcess(f"qemu-{self.boots}", command, self.folder)
        self.process.start()
        self.booted = time.monotonic()

    def _take_out(self) -> None:
        """What a Pi would load from the boot partition, for QEMU, which does not read it."""
        config = fat.get(self.disk, "config.txt").decode()
        names = [re.search(pattern, config, re.MULTILINE) for pattern in (r"^kernel=(\S+)", r"^initramfs (\S+)")]
        for found, name in zip(names, ("kernel", "initrd"), strict=True):
            assert found is not None, config
            (self.folder / name).write_bytes(fat.get(self.disk, found[1]))
        if self.machine.name != "virt":
            (self.folder / "tree").write_bytes(fat.get(self.disk, PI3_TREE))
        self.line = re.sub(r"console=\S+ ?", "", fat.get(self.disk, "cmdline.txt").decode().strip())

    def wipe(self, partition: int, size: int) -> None:
        """Overwrite the first bytes of a partition with zeros. partition: 1 to 3; size: bytes."""
        with self.disk.open("r+b") as disk:
            (sector,) = struct.unpack_from("<I", disk.read(512), MBR_START + 16 * (partition - 1))
            disk.seek(512 * sector)
            for _ in range(size // 2**20):
                disk.write(bytes(2**20))

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

    def set_clock(self) -> None:
        """Set it as a time server would have; QEMU forwards none."""
        self.run(f"date -s @{time.time():.3f}")

    def console(self) -> str:
        file = self.folder / f"console-{self.boots}.log"
        text = file.read_text(errors="replace") if file.exists() else ""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", type=Path)
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    parser.add_argument("--machine", choices=sorted(DISK_BYTES), default="virt", help="of QEMU")
    parser.add_argument("--memory", type=int, default=1024, metavar="MB", help="of the machine `virt`")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="headwater-boot-"))
    folder.mkdir(parents=True, exist_ok=True)
    report = Report()
    site = Site(folder)
    guest = Guest(args.image, folder, site, Machine(args.machine, args.memory))
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
    power_on(report, guest)
    is_online = online(site)
    report.until("the gateway is online at the region's broker, enrolled", is_online, guest)
    report.figures["boot to online, s"] = round(time.monotonic() - guest.booted, 1)
    report.check("enrolled with a certificate of its own", NODE in {each.name for each in site.authority.issued()})
    sensors, began = Sensors(guest.mqtt_port), time.time()
    try:
        report.until("readings of the guest's broker come back as a window", lambda: site.merged().count, guest)
        report.figures["boot to first window, s"] = round(time.monotonic() - guest.booted, 1)
        inside(report, guest)
        report.say("power cut in mid-stream")
        time.sleep(5)
        guest.cut()
        cuts = [time.monotonic()]
        machine, serials = report.figures["machine id"], len(site.authority.issued())
        report.say("second boot")
        power_on(report, guest)
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
        report.say("power cut, and a board whose clock begins in 1970")
        guest.run(FORGET)
        guest.cut()
        cuts.append(time.monotonic())
        guest.boot("-rtc", "base=1970-01-01")
        without_clock(report, guest, sensors)
    finally:
        sensors.close()
    # What the guest's broker had acknowledged and the gateway had not committed went with the power. A reading
    # whose acknowledgement the cut took away is sent again, as MQTT has it: at most the one under way.
    sent, under_way = len(sensors.at), sum(cut - COMMIT_S < at < cut for at in sensors.at for cut in cuts)
    report.until("what was committed reaches the merger", lambda: site.merged().count >= sent - under_way, guest)
    report.until("the last window is closed", lambda: steady(site), guest)
    found = site.merged()
    report.check(
        "none that was committed is lost, and none is counted twice",
        sent - under_way <= found.count <= sent + len(cuts),
        f"{found.count} of {sent}, {under_way} of them in the last {COMMIT_S:.0f} s before a cut",
    )
    mean = found.total / found.count
    report.check("their mean is right", abs(mean - 5.5) < 0.1, f"{mean:.3f}")
    right = began - WINDOW_S - RTC_S <= found.first and found.last <= time.time() + WINDOW_S
    report.check("all have the right time", right, f"{found.first - began:.1f} to {found.last - began:.0f} s")
    report.say("a gateway.toml with a mistake")
    power_off(report, guest)
    fat.put(guest.disk, guest.settings("x" * 20).replace("[uplink]", "[uplnk]").encode())
    power_on(report, guest)
    report.until("the console says what is wrong", lambda: "uplnk" in guest.console(), guest)
    report.until("the last good file stays in force", lambda: UPLINK in guest.run(GATEWAY_LOG), guest)
    power_off(report, guest)
    said = fat.get(guest.disk, "gateway-errors.txt").decode()
    report.check("the card says what is wrong", '"uplnk"' in said and "uplink" in said, said.splitlines()[1])
    damaged(report, guest)


def power_on(report: Report, guest: Guest) -> None:
    """Boot it with the right time. The Pi's model has no clock, as the Pi itself."""
    guest.boot()
    if guest.machine.name != "virt":
        report.until("ssh, to set the clock", lambda: guest.run("true") == "", guest)
        guest.set_clock()


def without_clock(report: Report, guest: Guest, sensors: Sensors) -> None:
    """A boot with the clock of a board that has none: readings wait for the time, and get the right one."""
    before = len(sensors.at)
    report.until("readings are taken without the time", lambda: len(sensors.at) >= before + HELD, guest)
    report.until("ssh without the time", lambda: guest.run("true") == "", guest)
    behind_s = time.time() - int(guest.run("date +%s"))
    report.check("the clock is wrong", behind_s > DAY_S, f"{behind_s / DAY_S:.0f} days behind")
    report.check("the gateway runs", guest.run("systemctl is-active headwater-gateway") == "active")
    report.check("TLS waits for the time", UPLINK not in guest.run(GATEWAY_LOG))
    failed = guest.run("systemctl --failed --plain --no-legend")
    report.check("no unit has failed for want of the time", failed == "", failed)
    guest.set_clock()
    corrected = time.monotonic()
    report.until("it is online once the clock is right", lambda: UPLINK in guest.run(GATEWAY_LOG), guest)
    report.figures["clock right to online, s"] = round(time.monotonic() - corrected, 1)


def damaged(report: Report, guest: Guest) -> None:
    """Partitions that cannot be mounted: nobody is there to answer an emergency shell."""
    report.say("a boot partition that cannot be read any more")
    guest.wipe(1, 64 * 2**20)
    power_on(report, guest)
    report.until("the gateway works with the last good file", lambda: UPLINK in guest.run(GATEWAY_LOG), guest)
    report.check("the boot partition is not mounted", guest.run("findmnt -no SOURCE /boot/firmware") == "")
    power_off(report, guest)
    report.say("a data partition that cannot be read any more")
    guest.wipe(3, 2**30)
    guest.boot()
    ended(guest, "a machine that cannot start does not try again", BOOT_S)
    report.check("a machine that cannot start says so and tries again", "could not start" in guest.console())


def steady(site: Site) -> bool:
    """Whether nothing comes any more."""
    before = site.merged()
    time.sleep(QUIET_S)
    return site.merged() == before


def power_off(report: Report, guest: Guest) -> None:
    """An orderly end. Raises: FailedError."""
    with contextlib.suppress(FailedError, subprocess.TimeoutExpired):
        guest.run("systemctl poweroff", 60)  # the connection ends before the answer
    ended(guest, "the machine does not power off", 300)
    report.say("powered off")


def ended(guest: Guest, otherwise: str, timeout_s: float) -> None:
    """Wait for the end of QEMU, which a restart of the guest ends as well. Raises: FailedError."""
    end = time.monotonic() + timeout_s
    while guest.process is not None and guest.process.alive:
        if "System halted" in guest.console():  # a Pi 3 has no power switch
            guest.cut()
        if time.monotonic() > end:
            raise FailedError(otherwise)
        time.sleep(0.5)


def inside(report: Report, guest: Guest) -> None:
    """What is asked of the machine itself, by SSH with the key of gateway.toml."""
    report.until("ssh with the key of gateway.toml", lambda: guest.run("true") == "", guest)
    options = guest.run("findmnt -no OPTIONS /")
    report.check("the root file system is read-only", options.startswith("ro"), options)
    var = int(guest.run("df --output=size -B1 /var | tail -n 1"))
    grown = var > DISK_BYTES[guest.machine.name] - 1.5 * 2**30
    report.check("/var has grown to the end of the card", grown, f"{var / 2**20:.0f} MiB")
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
    for command in ("headwater image check /boot/firmware/gateway.toml", START):
        compiles = guest.run(f"export PYTHONVERBOSE=1; {command} {COMPILES}")
        report.check(f"no module is compiled at a start: {command}", compiles == "0", compiles)
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
