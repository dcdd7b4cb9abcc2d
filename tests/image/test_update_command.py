"""`headwater update`: signed by whom gateway.toml names, or nothing is done; then the whole way on one machine."""

from __future__ import annotations

import base64
import fcntl
import gzip
import io
import os
import re
import subprocess
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.cli.fleet import update
from edge_agent.cli.main import main
from edge_agent.cli.support.spool_form import OWN, form_of
from edge_agent.config.node_file.gateway_file import parse_gateway_file
from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.signatures import make_key, public_key, sign, signed
from edge_agent.ports.service_manager import parent_answers
from edge_agent.ports.spool import Spool
from edge_agent.provisioning.machine_files import UPDATE_KEYS, machine_files
from edge_agent.provisioning.updates import bundle
from edge_agent.provisioning.updates.bundle import pack, unpack
from edge_agent.provisioning.updates.version_folder import SPARE_BYTES, Disk, VersionFolder
from edge_agent.provisioning.updates.versions import MOST_STARTS, ServiceState
from tests.image.gateway_files import SMALL

VERSION = "9.9.9"


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """A small agent: it says its version, or what is wrong with its settings."""
    folder = tmp_path / "agent" / "edge_agent"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "__main__.py").write_text("print('here')\n")
    return folder


def pack_by(key: Path, agent: Path, version: str = VERSION) -> bytes:
    return pack(agent, version, OWN, (3, 11), lambda text: sign(key, text))


def checks(*keys: str) -> Callable[[bytes, bytes], bool]:
    return lambda text, signature: signed(text, signature, keys)


def test_what_a_key_signed_is_accepted_whole(tmp_path: Path, agent: Path) -> None:
    key = tmp_path / "key"
    public = make_key(key)
    assert key.stat().st_mode & 0o777 == 0o600
    found = unpack(pack_by(key, agent), checks("A" * 43 + "=", public))
    assert (found.manifest.version, found.manifest.spool) == (VERSION, OWN)
    assert found.files == {f"edge_agent/{name.name}": name.read_bytes() for name in agent.iterdir()}


def test_every_byte_is_covered_by_the_signature(tmp_path: Path, agent: Path) -> None:
    key = tmp_path / "key"
    public = make_key(key)
    payload = pack_by(key, agent)
    head = len(payload) - len(payload.split(b"\n", 3)[3])
    for at in (*range(0, head, 9), head, head + 20, len(payload) - 1):
        damaged = bytearray(payload)
        damaged[at] ^= 1
        with pytest.raises(ConfigError):
            unpack(bytes(damaged), checks(public))
    for end in (0, 10, head - 1, head, len(payload) - 1):
        with pytest.raises(ConfigError):
            unpack(payload[:end], checks(public))
    with pytest.raises(ConfigError, match="damaged"):
        unpack(payload + b"x", checks(public))


def test_another_key_counts_for_nothing_and_is_not_even_parsed(
    tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(tmp_path / "mine")
    public = make_key(tmp_path / "other")
    monkeypatch.setattr(bundle, "_manifest", lambda line: pytest.fail("parsed before its signature was checked"))
    for keys in ((), (public,)):
        with pytest.raises(ConfigError, match="not signed by a key"):
            unpack(pack_by(tmp_path / "mine", agent), checks(*keys))


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "edge_agent/../../x", "other/x.py", "edge_agent/.hidden", "edge_agent"]
)
def test_a_signed_file_outside_the_agent_is_refused(
    tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        member = tarfile.TarInfo(name)
        member.size = 1
        out.addfile(member, io.BytesIO(b"x"))
    monkeypatch.setattr(bundle, "_packed", lambda package: gzip.compress(tar.getvalue()))
    public = make_key(tmp_path / "key")
    with pytest.raises(ConfigError, match="not a file of the agent"):
        unpack(pack_by(tmp_path / "key", agent), checks(public))


def test_a_signed_file_that_unpacks_without_end_takes_no_memory(
    tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = make_key(tmp_path / "key")
    monkeypatch.setattr(bundle, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(bundle, "_packed", lambda package: gzip.compress(bytes(1 << 24)))
    payload = pack_by(tmp_path / "key", agent)
    tracemalloc.start()
    with pytest.raises(ConfigError, match="larger than 1 MB"):
        unpack(payload, checks(public))
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 1 << 23


def test_a_file_that_every_gateway_refuses_is_not_signed(tmp_path: Path, agent: Path) -> None:
    make_key(tmp_path / "key")
    (agent / ".main.py.swp").touch()
    with pytest.raises(ConfigError, match=r"main\.py\.swp: every gateway refuses"):
        pack_by(tmp_path / "key", agent)


def test_a_link_in_a_signed_file_is_refused(tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        member = tarfile.TarInfo("edge_agent/x.py")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/shadow"
        out.addfile(member)
    monkeypatch.setattr(bundle, "_packed", lambda package: gzip.compress(tar.getvalue()))
    public = make_key(tmp_path / "key")
    with pytest.raises(ConfigError, match="not a file of the agent"):
        unpack(pack_by(tmp_path / "key", agent), checks(public))


def test_gateway_toml_names_whose_updates_count(tmp_path: Path) -> None:
    public = make_key(tmp_path / "key")
    files = {each.path: each.text for each in machine_files(parse_gateway_file((SMALL + table(public)).encode()), "")}
    assert files[UPDATE_KEYS] == public + "\n"
    assert UPDATE_KEYS not in {each.path for each in machine_files(parse_gateway_file(SMALL.encode()), "")}
    with pytest.raises(ConfigError, match="is not a key"):
        parse_gateway_file((SMALL + table(base64.b64encode(b"short").decode())).encode())


def test_a_command_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "systemctl"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(update, "SYSTEMD_S", 0.05)
    monkeypatch.setattr(update, "REHEARSAL_S", 0.05)
    monkeypatch.setattr(update, "USER", None)
    with pytest.raises(PortError, match=r"spool-form: no answer within 0\.05 s"):
        update._as_user([str(slow), "spool-form"], os.environ, tmp_path)
    with pytest.raises(PortError, match=r"systemctl show: no answer within 0\.05 s"):
        update._systemctl("show")


def table(public: str) -> str:
    return f'[update]\nkeys = ["{public}"]\n'


def test_the_form_of_a_spool_is_read_without_being_its_node(tmp_path: Path) -> None:
    assert form_of(tmp_path / "spool.db") is None
    (tmp_path / "spool.db").write_bytes(b"no database")
    assert form_of(tmp_path / "spool.db") is None
    (tmp_path / "spool.db").unlink()
    spool = Spool(tmp_path / "spool.db", "g1", lambda frame: b"")
    spool.open()
    spool.close()
    assert form_of(tmp_path / "spool.db") == (OWN[0], 0), "nothing is committed yet"


class Machine:
    """A gateway in a folder: `headwater update` as it is there, and what it asks of systemd."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.asked = folder, list[tuple[str, ...]]()
        self.service = ServiceState(False)
        for name in ("FOLDER", "CODE", "KEYS", "SETTINGS", "SPOOL"):
            monkeypatch.setattr(update, name, folder / name.lower())
        monkeypatch.setattr(update, "USER", None)
        monkeypatch.setattr(update, "IMAGE_TOOLS", folder)
        monkeypatch.setattr(update, "EVERY_S", 0.0)
        monkeypatch.setattr(update, "_service", lambda: self.service)
        monkeypatch.setattr(update, "_systemctl", self._systemctl)
        self.key = folder / "operator.pem"
        (folder / "keys").write_text(make_key(self.key) + "\n")

    def _systemctl(self, *words: str) -> str:
        self.asked.append(words)
        return ""

    def do(self, *words: str) -> int:
        return main(["update", *words])

    def install(self, payload: bytes, *words: str) -> int:
        (self.folder / "file").write_bytes(payload)
        return self.do("install", str(self.folder / "file"), *words)

    def runs(self) -> str:
        """Start the gateway. Returns the version that runs."""
        assert self.do("choose") == 0
        code = self.folder / "code"
        return code.readlink().name if code.is_symlink() else "image"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("what", ["status", "back", "choose", "watch", "install"])
def test_off_the_image_nothing_is_said_or_done(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    monkeypatch.setattr(update, "IMAGE_TOOLS", machine.folder / "nowhere")
    assert machine.do(what, *(["file"] if what == "install" else [])) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"`headwater update {what}` is for gateways that run the gateway image" in said.err
    assert not (machine.folder / "folder").exists()


def test_the_image_has_the_folder_by_which_it_is_recognised() -> None:
    overlay = Path(__file__).parents[2] / "gateway_image" / "overlay"
    assert (overlay / update.IMAGE_TOOLS.relative_to("/")).is_dir()


def test_a_version_is_kept_once_its_parent_answered(
    machine: Machine, agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.runs() == "image"
    assert machine.install(pack_by(machine.key, agent)) == 0
    assert machine.asked == [("restart", "--no-block", update.UNIT)]
    assert machine.runs() == VERSION
    assert machine.asked[-1] == ("start", "--no-block", update.WATCHER)
    machine.service = ServiceState(True, parent_answers(VERSION), 5.0)
    assert machine.do("watch") == 0
    capsys.readouterr()
    machine.do("status")
    assert f"in force: {VERSION}" in capsys.readouterr().out
    assert machine.do("back") == 0
    assert machine.runs() == "image"


def test_a_version_that_never_answers_is_given_up_in_time(
    machine: Machine, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install(pack_by(machine.key, agent))
    assert machine.runs() == VERSION
    machine.service = ServiceState(True, "", 1e6)
    clock = iter(range(0, 10_000, 200))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert machine.do("watch") == 0
    assert machine.asked[-1] == ("restart", "--no-block", update.UNIT)
    assert machine.runs() == "image"
    assert machine.install(pack_by(machine.key, agent)) == 2, "--again"
    assert machine.install(pack_by(machine.key, agent), "--again") == 0


def test_a_version_that_dies_is_given_up_after_some_starts(machine: Machine, agent: Path) -> None:
    machine.install(pack_by(machine.key, agent))
    assert [machine.runs() for _ in range(MOST_STARTS + 1)] == [VERSION] * MOST_STARTS + ["image"]


def test_a_version_in_force_may_be_restarted_as_often_as_one_likes(machine: Machine, agent: Path) -> None:
    machine.install(pack_by(machine.key, agent))
    machine.runs()
    machine.service = ServiceState(True, parent_answers(VERSION), 5.0)
    assert machine.do("watch") == 0
    note = machine.folder / "folder" / "stopped"
    for _ in range(2 * MOST_STARTS):
        note.touch()  # ExecStop of the gateway's unit
        assert machine.runs() == VERSION
        assert not note.exists()
    assert [machine.runs() for _ in range(MOST_STARTS)] == [VERSION] * (MOST_STARTS - 1) + ["image"]


@pytest.mark.parametrize(
    ("pid", "result", "noted"),
    [("17", "success", True), ("", "success", False), ("17", "oom-kill", False)],  # systemd.exec(5), SERVICE_RESULT
)
@pytest.mark.parametrize("installed", [True, False])
def test_only_a_requested_stop_of_a_gateway_with_updates_is_noted(
    tmp_path: Path, pid: str, result: str, noted: bool, installed: bool
) -> None:
    script = Path(__file__).parents[2] / "gateway_image/overlay/usr/lib/headwater-image/stopped"
    text = script.read_text().replace("/var/lib/headwater-update", str(tmp_path))
    if installed:
        (tmp_path / "state.json").touch()
    environment = {**os.environ, "MAINPID": pid, "SERVICE_RESULT": result}
    subprocess.run(["sh", "-e", "-c", text], env=environment, check=True)
    assert (tmp_path / "stopped").exists() == (noted and installed)
    assert (tmp_path / "stopped").name == VersionFolder(tmp_path)._stopped.name


@pytest.mark.parametrize("code", ["import a_module_that_is_not_here", "raise SystemExit(2)"])
def test_a_version_that_does_not_start_here_is_not_installed(
    machine: Machine, agent: Path, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    (agent / "__main__.py").write_text(code)
    assert machine.install(pack_by(machine.key, agent)) == 2
    assert "does not start here" in capsys.readouterr().err
    assert VersionFolder(machine.folder / "folder").present() == set()
    assert machine.asked == []
    assert machine.runs() == "image"


def test_a_version_for_a_newer_python_is_not_installed(
    machine: Machine, agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.install(pack(agent, VERSION, OWN, (9, 1), lambda text: sign(machine.key, text))) == 2
    assert f"{VERSION} needs Python 9.1: flash a newer image" in capsys.readouterr().err
    assert machine.runs() == "image"


def test_a_version_on_the_card_that_does_not_start_here_is_tried_once(
    machine: Machine, agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (agent / "__main__.py").write_text("raise SystemExit(2)")
    payload = pack_by(machine.key, agent)
    assert machine.install(payload, "--if-new") == 2
    assert "does not start here" in capsys.readouterr().err
    assert machine.install(payload, "--if-new") == 0
    assert "nothing new" in capsys.readouterr().out
    assert machine.install(payload) == 2
    assert "--again tries it once more" in capsys.readouterr().err


def test_on_a_full_disk_the_version_in_force_starts_and_no_trial_begins(
    machine: Machine, agent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "state.json.part")

    machine.install(pack_by(machine.key, agent))
    with monkeypatch.context() as patch:
        patch.setattr(VersionFolder, "write", full)
        assert machine.runs() == "image", "nobody would count its starts"
    assert machine.runs() == VERSION
    machine.service = ServiceState(True, parent_answers(VERSION), 5.0)
    assert machine.do("watch") == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(VersionFolder, "write", full)
        assert machine.runs() == VERSION
    said = capsys.readouterr().err
    assert "the start is not counted: state.json.part: No space left on device" in said


def test_an_installation_that_fails_leaves_no_part_of_a_version(
    machine: Machine, agent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device", "main.pyc")

    payload, versions = pack_by(machine.key, agent), machine.folder / "folder" / "versions"
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "compile", lambda self, folder: full(folder))
        assert machine.install(payload) == 3
    assert "main.pyc: No space left on device" in capsys.readouterr().err
    assert list(versions.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "free_bytes", lambda self, folder: SPARE_BYTES)
        assert machine.install(payload) == 3
    assert "folder: No space left on device: 8 MB wanted, 8 MB free" in capsys.readouterr().err
    assert list(versions.iterdir()) == []


def test_what_a_kill_left_of_an_installation_is_gone_after_a_start(machine: Machine, agent: Path) -> None:
    left = machine.folder / "folder" / "versions" / f"{VERSION}.part"
    for command in (machine.runs, lambda: machine.install(pack_by(machine.key, agent, "0.0.1"))):
        left.mkdir(parents=True, exist_ok=True)
        (left / "x.py").touch()
        command()
        assert not left.exists()


def test_a_write_that_fails_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="left") as error:
        Disk().write(Path("/dev/full"), b"x")
    assert error.value.filename == "/dev/full"


def test_the_gateway_may_start_while_a_version_is_tried_out(
    machine: Machine, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial run may take 180 s, and systemd waits 120 s for a start, which needs the lock."""
    rehearse, meanwhile = update._rehearse, list[str]()

    def slow(folder: Path) -> None:
        with (machine.folder / "folder" / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        meanwhile.append(machine.runs())
        rehearse(folder)

    monkeypatch.setattr(update, "_rehearse", slow)
    assert machine.install(pack_by(machine.key, agent)) == 0
    assert meanwhile == ["image"]
    assert machine.runs() == VERSION


def test_a_version_that_another_command_deletes_meanwhile_is_not_admitted(
    machine: Machine, agent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deleted(folder: Path) -> None:
        store = VersionFolder(machine.folder / "folder")
        store.prune(store.read())

    monkeypatch.setattr(update, "_rehearse", deleted)
    assert machine.install(pack_by(machine.key, agent)) == 3
    assert "another `headwater update` ran meanwhile; run this again" in capsys.readouterr().err
    assert machine.runs() == "image"


def test_a_version_that_is_refused_leaves_the_trial_as_it_is(machine: Machine, agent: Path) -> None:
    machine.install(pack_by(machine.key, agent))
    assert machine.runs() == VERSION
    (agent / "__main__.py").write_text("raise SystemExit(2)")
    assert machine.install(pack_by(machine.key, agent, "9.9.10")) == 2
    assert machine.runs() == VERSION
    assert machine.install(pack_by(machine.key, agent)) == 2, "its own files are replaced"
    assert machine.runs() == "image"


def test_a_version_on_the_card_does_not_undo_a_downgrade(machine: Machine, agent: Path) -> None:
    def in_force(payload: bytes, *words: str) -> str:
        assert machine.install(payload, *words) == 0
        machine.service = ServiceState(True, parent_answers(version := machine.runs()), 100.0)
        assert machine.do("watch") == 0
        return version

    card = pack_by(machine.key, agent)
    assert in_force(card, "--if-new") == VERSION
    assert in_force(pack_by(machine.key, agent, "9.9.3"), "--downgrade") == "9.9.3"
    assert in_force(card, "--if-new") == "9.9.3"
    assert in_force(pack_by(machine.key, agent, "9.9.10"), "--if-new") == "9.9.10"


def test_without_a_key_in_gateway_toml_nothing_is_installed(
    machine: Machine, agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine.folder / "keys").unlink()
    assert machine.install(pack_by(machine.key, agent)) == 2
    assert "refuses updates" in capsys.readouterr().err
    assert not (machine.folder / "folder").exists()


def test_a_file_on_the_card_is_installed_once(machine: Machine, agent: Path) -> None:
    payload = pack_by(machine.key, agent)
    assert machine.install(payload, "--if-new") == 0
    assert machine.asked == [], "the gateway starts afterwards"
    for _ in range(MOST_STARTS):
        assert machine.runs() == VERSION
        assert machine.install(payload, "--if-new") == 0
    assert machine.runs() == "image"
    assert machine.install(payload, "--if-new") == 0
    assert machine.runs() == "image", "given up, and not tried at every boot"


def test_the_operator_signs_the_version_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["update", "key", "key.pem"]) == 0
    public = re.search(r'keys = \["(.+)"\]', capsys.readouterr().out)
    assert public is not None
    assert public[1] == public_key(tmp_path / "key.pem")
    assert main(["update", "key", "key.pem"]) == 2, "a key is never overwritten"
    (tmp_path / "other.pem").write_text("no key")
    assert main(["update", "make", "--key", "other.pem"]) == 2
    assert "other.pem is not a key of `headwater update key`" in capsys.readouterr().err
    assert main(["update", "make", "--key", str(tmp_path)]) == 2
    assert "Is a directory; wanted a key of" in capsys.readouterr().err
    assert main(["update", "make", "--key", "key.pem", "--out", str(tmp_path / "nowhere" / "x")]) == 3
    assert "nowhere/x: No such file" in capsys.readouterr().err
    assert main(["update", "make", "--key", "key.pem"]) == 0
    (file,) = tmp_path.glob("headwater-*.update")
    found = unpack(file.read_bytes(), checks(public[1]))
    assert found.manifest.installed() == update.own()
    assert {"edge_agent/__main__.py", "edge_agent/cli/run.py", "edge_agent/py.typed"} <= found.files.keys()
    assert not [name for name in found.files if "__pycache__" in name]
