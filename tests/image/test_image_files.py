"""What the image is made of, without building it: units, scripts, partitions, what is published."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from edge_agent.config.node_file.gateway_file import parse_gateway_file
from edge_agent.provisioning import fat
from edge_agent.provisioning.machine_files import machine_files
from tests.image.gateway_files import WHOLE

ROOT: Final = Path(__file__).resolve().parents[2]
IMAGE: Final = ROOT / "gateway_image"
SYSTEM: Final = IMAGE / "overlay" / "etc" / "systemd" / "system"
THEIRS: Final = ("ssh", "mosquitto", "iwd")  # Debian's units, to which the image adds drop-ins
PROGRAMS: Final = ("usr/bin/headwater", "usr/sbin/mosquitto", "usr/sbin/sshd", "usr/bin/true")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with the image's units, ours, and stand-ins for Debian's."""
    folder = tmp_path / "usr/lib/systemd/system"
    folder.mkdir(parents=True)
    for name in ("sysinit", "basic", "network", "shutdown", "multi-user", "local-fs", "local-fs-pre", "timers"):
        (folder / f"{name}.target").write_text("[Unit]\nDescription=a stand-in\n")
    for name in THEIRS:
        (folder / f"{name}.service").write_text("[Unit]\nDescription=a stand-in\n[Service]\nExecStart=/usr/bin/true\n")
    for unit in (*(IMAGE / "units").glob("*.service"), IMAGE / "units" / "headwater-enrol.timer"):
        shutil.copy(unit, folder)
    shutil.copytree(IMAGE / "overlay", tmp_path, dirs_exist_ok=True)
    for name in PROGRAMS:
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return tmp_path


def test_units_of_the_image_have_no_mistake_that_systemd_finds(root: Path) -> None:
    ours = [unit.name for unit in SYSTEM.iterdir() if unit.is_file()]
    units = [*ours, "headwater-gateway.service", "headwater-enrol.service", *(f"{name}.service" for name in THEIRS)]
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={root}", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("name", "tenths"), [("headwater-gateway", 16), ("headwater-enrol", 16), ("mosquitto", 18)])
def test_services_of_the_image_may_do_little(root: Path, name: str, tenths: int) -> None:
    words = [
        "systemd-analyze",
        "security",
        "--offline=true",
        f"--threshold={tenths}",
        f"--root={root}",
        f"{name}.service",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:]


def test_no_unit_of_the_image_holds_up_the_boot_for_ever() -> None:
    """A unit of type oneshot has no limit of time unless it says so (systemd.service(5), TimeoutStartSec=)."""
    for unit in SYSTEM.iterdir():
        text = unit.read_text() if unit.is_file() else ""
        assert ("Type=oneshot" in text) == ("TimeoutStartSec=" in text), unit.name


def test_every_unit_of_the_image_is_enabled_or_wanted() -> None:
    setup = (IMAGE / "image-setup").read_text()
    for unit in SYSTEM.iterdir():
        if unit.is_file() and "[Install]" in unit.read_text():
            assert unit.stem in setup, unit.name


def test_partitions_have_the_ids_that_everything_else_uses() -> None:
    config = (IMAGE / "genimage.cfg").read_text()
    signature = f"{fat.SIGNATURE:08x}"
    assert f"disk-signature = 0x{signature}" in config
    for file in ("image-tree", "base/raspi-firmware", "overlay/etc/systemd/system/headwater-grow.service"):
        text = (IMAGE / file).read_text().replace("\\x2d", "-")
        assert set(re.findall(r"(?i)partuuid[=-]([0-9a-f]{8})", text)) == {signature}, file


def test_nothing_in_the_image_is_a_secret_or_a_password() -> None:
    for path in IMAGE.rglob("*"):
        if path.is_file():
            assert not re.search(rb"PRIVATE KEY|\$6\$|\$y\$|chpasswd", path.read_bytes()), path
    assert "passwd -l root" in (IMAGE / "image-setup").read_text()
    assert "PasswordAuthentication no" in (IMAGE / "overlay/etc/ssh/sshd_config.d/10-headwater.conf").read_text()


def test_names_open_no_port_for_neighbours() -> None:
    """With Debian's settings systemd-resolved answers LLMNR on port 5355 of every network."""
    lines = (IMAGE / "overlay/etc/systemd/resolved.conf.d/10-headwater.conf").read_text().splitlines()
    assert {"LLMNR=no", "MulticastDNS=no"} <= set(lines)


def test_the_broker_of_sensors_waits_for_its_address() -> None:
    """[local_broker] address may be one that the network gives later, and a broker that ended comes again."""
    drop_in = (SYSTEM / "mosquitto.service.d/10-headwater.conf").read_text()
    unit, _, service = drop_in.partition("[Service]")
    assert "StartLimitIntervalSec=0" in unit.splitlines()
    assert {"Restart=always", "RestartSec=2"} <= set(service.splitlines())
    assert {"User=mosquitto", "CapabilityBoundingSet="} <= set(service.splitlines()), "not root at any moment"
    kernel = (IMAGE / "overlay/etc/sysctl.d/90-headwater.conf").read_text()
    for family in ("ipv4", "ipv6"):
        assert re.search(rf"(?m)^-?net\.{family}\.ip_nonlocal_bind = 1$", kernel)


def test_wifi_is_started_again_without_limit() -> None:
    unit, _, service = (SYSTEM / "iwd.service.d/10-headwater.conf").read_text().partition("[Service]")
    assert "StartLimitIntervalSec=0" in unit.splitlines()
    assert "Restart=on-failure" in service.splitlines()


def test_a_machine_that_cannot_start_tries_again() -> None:
    """systemd's emergency shell waits for ever; on a gateway nobody is there, and no password works."""
    drop_in = (SYSTEM / "emergency.service.d/10-headwater.conf").read_text()
    program = "/usr/lib/headwater-image/start-again"
    assert [line for line in drop_in.splitlines() if line.startswith("ExecStart=")] == [
        "ExecStart=",
        f"ExecStart={program}",
    ]
    assert (IMAGE / "overlay" / program[1:]).read_text().rstrip().endswith("exec systemctl --force reboot")


def test_a_gateway_starts_without_the_boot_partition() -> None:
    """The last good gateway.toml is on the data partition."""
    table = (IMAGE / "image-tree").read_text()
    assert re.search(r"(?m)^PARTUUID=\S+-01 /boot/firmware vfat \S*\bnofail 0 2$", table)
    unit = (SYSTEM / "headwater-machine.service").read_text().splitlines()
    assert "RequiresMountsFor=/var /tmp" in unit
    assert "Wants=boot-firmware.mount" in unit


def test_a_cut_while_the_partition_grows_is_harmless(tmp_path: Path) -> None:
    """sfdisk writes one sector; running it again on a partition that has grown changes nothing."""
    disk = tmp_path / "disk"
    with disk.open("wb") as out:
        out.truncate(64 * 2**20)
    layout = f"label: dos\nlabel-id: 0x{fat.SIGNATURE:x}\nstart=2048,size=8192\nsize=8192\nsize=8192\n"
    subprocess.run(["sfdisk", "-q", disk], input=layout, text=True, check=True)
    script = (IMAGE / "overlay/usr/lib/headwater-image/grow-data").read_text()
    assert 'echo ", +" | sfdisk --no-reread --no-tell-kernel -q -N' in script
    tables = []
    for _ in range(2):
        command = ["sfdisk", "--no-reread", "--no-tell-kernel", "-q", "-N", "3", str(disk)]
        subprocess.run(command, input=", +\n", text=True, check=True)
        tables.append(subprocess.run(["sfdisk", "-d", disk], capture_output=True, text=True, check=True).stdout)
    assert tables[0] == tables[1]
    third = tables[0].splitlines()[-1]
    start, size = (int(n) for n in re.findall(r"(?:start|size)=\s*(\d+)", third))
    assert start + size == 64 * 2**20 // 512, "to the end"


@pytest.fixture
def host_key(tmp_path: Path) -> Callable[..., int]:
    """Runs the script that makes the host key, with its folders in tmp_path. more: where commands are found first."""

    def run(*more: Path) -> int:
        script = (IMAGE / "overlay/usr/lib/headwater-image/ssh-keys").read_text()
        script = script.replace("/var/lib/headwater-machine", str(tmp_path)).replace(
            "/run/sshd", str(tmp_path / "sshd")
        )
        path = os.pathsep.join([*map(str, more), os.environ["PATH"]])
        command = ["sh", "-c", script]
        return subprocess.run(
            command, env=os.environ | {"PATH": path}, stdin=subprocess.DEVNULL, check=False, timeout=60
        ).returncode

    return run


@pytest.mark.parametrize(
    ("left", "content"), [("", b""), (".new", b""), ("", b"-----BEGIN OPENSSH PRIVATE KEY-----\n")]
)
def test_a_host_key_is_made_where_a_power_cut_left_none(
    tmp_path: Path, host_key: Callable[..., int], left: str, content: bytes
) -> None:
    """Nor does a damaged one lock everybody out: sshd would end at each start."""
    key = tmp_path / "ssh_host_ed25519_key"
    Path(f"{key}{left}").touch(0o600)
    Path(f"{key}{left}").write_bytes(content)
    assert host_key() == 0
    public = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True, check=True).stdout
    assert key.with_name(f"{key.name}.pub").read_text() == public
    assert not list(tmp_path.glob("*.new*"))
    first = key.read_bytes()
    assert host_key() == 0
    assert key.read_bytes() == first, "made once"


def test_a_host_key_is_on_disk_before_it_has_its_name(tmp_path: Path, host_key: Callable[..., int]) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "sync").write_text("#!/bin/sh\nexit 1\n")  # the power goes here
    (commands / "sync").chmod(0o755)
    assert host_key(commands) == 1
    assert not (tmp_path / "ssh_host_ed25519_key").exists()
    assert host_key() == 0
    assert (tmp_path / "ssh_host_ed25519_key").exists()


def test_a_machine_keeps_the_id_of_its_first_boot(tmp_path: Path) -> None:
    """The root file system is read-only; half an id, after a power cut, counts as none."""
    commands, disk = tmp_path / "commands", tmp_path / "disk"
    commands.mkdir()
    disk.touch()
    for name in ("mount", "umount", "sync"):
        (commands / name).write_text("#!/bin/sh\n")
        (commands / name).chmod(0o755)
    script = (IMAGE / "base/initramfs-machine-id").read_text()
    for real, stand_in in (
        (f"/dev/disk/by-partuuid/{fat.SIGNATURE:08x}-03", disk),
        ("/run/headwater-data", tmp_path / "data"),
        ("/run/headwater-machine-id", tmp_path / "id"),
    ):
        assert real in script
        script = script.replace(real, str(stand_in))

    def boot() -> str:
        path = os.pathsep.join([str(commands), os.environ["PATH"]])
        subprocess.run(["sh", "-c", script], env={"PATH": path, "rootmnt": str(tmp_path)}, check=True, timeout=60)
        return (tmp_path / "id").read_text()

    first = boot()
    assert re.fullmatch(r"[0-9a-f]{32}\n", first)
    assert boot() == first
    for half in (first[:9], ""):
        (tmp_path / "data/lib/headwater-machine/machine-id").write_text(half)
        later = boot()
        assert re.fullmatch(r"[0-9a-f]{32}\n", later)
        assert boot() == later


@pytest.mark.parametrize("installed", [True, False])
def test_a_start_begins_with_the_copy_in_the_image_and_a_version_is_chosen_if_one_was_installed(
    tmp_path: Path, installed: bool
) -> None:
    script = (IMAGE / "overlay/usr/lib/headwater-image/choose").read_text()
    for real in ("/run/headwater-agent", "/var/lib/headwater-update"):
        assert real in script
        script = script.replace(real, str(tmp_path))
    (tmp_path / "code").symlink_to("/a/version/that/is/gone")
    if installed:
        (tmp_path / "state.json").touch()
    script = script.replace("/usr/bin/headwater", "echo")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ("update choose\n" if installed else "")
    assert not (tmp_path / "code").is_symlink()


def test_a_bill_of_materials_and_an_entry_for_the_imager_are_published(tmp_path: Path) -> None:
    (tmp_path / "g.img.xz").write_bytes(b"packed")
    rows = [
        ("zlib1g", "1:1.3", "arm64", "https://zlib.net"),
        ("headwater-agent", "0.1.0", "all", ""),
        ("base", "1", "all", ""),
    ]
    (tmp_path / "packages.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    words = ["--name", "g", "--version", "0.1.0", "--folder", str(tmp_path), "--raw-size", "7", "--raw-sum", "ab"]
    subprocess.run(
        [sys.executable, IMAGE / "published.py", *words], check=True, env={"SOURCE_DATE_EPOCH": "1800000000"}
    )
    bill = json.loads((tmp_path / "g.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert [each["name"] for each in bill["components"]] == ["headwater-agent", "base", "zlib1g"]
    assert bill["components"][2]["purl"] == "pkg:deb/debian/zlib1g@1:1.3?arch=arm64&distro=trixie"
    assert bill["metadata"]["timestamp"] == "2027-01-15T08:00:00Z"
    (entry,) = json.loads((tmp_path / "g.imager.json").read_text())["os_list"]
    assert (entry["extract_size"], entry["image_download_size"]) == (7, 6)
    assert entry["release_date"] == "2027-01-15"


def test_what_the_units_read_are_links_to_what_is_made_from_gateway_toml() -> None:
    """Enrolment and gateway are those of the packages; on the image their settings are below /run."""
    made = {each.path for each in machine_files(parse_gateway_file(WHOLE.encode()), "")}
    (names,) = re.findall(
        r"for name in (.*); do\n\s+ln -s \"/run/headwater/\$name\"", (IMAGE / "image-setup").read_text()
    )
    assert {f"/run/headwater/{name}" for name in names.split()} <= made
    units = "".join((IMAGE / "units" / f"headwater-{name}.service").read_text() for name in ("enrol", "gateway"))
    assert set(re.findall(r"/etc/headwater/([a-z.-]+)", units)) == set(names.split())


def test_no_drop_in_asks_for_a_file_that_is_never_made() -> None:
    made = {each.path for each in machine_files(parse_gateway_file(WHOLE.encode()), "")}
    for drop_in in SYSTEM.glob("*.d/*.conf"):
        for path in re.findall(r"(/run/headwater/[^\s]+)", drop_in.read_text()):
            assert path in made, drop_in


def test_the_list_of_packages_is_a_list() -> None:
    names = [line for line in (IMAGE / "base" / "packages").read_text().splitlines() if not line.startswith("#")]
    assert names == sorted(set(names))
    assert all(re.fullmatch(r"[a-z0-9.+-]+", name) for name in names)
