"""Applies gateway.toml at every boot.

A file with mistakes is not applied: the last valid file stays in force. Every mistake is written to the console and to
`gateway-errors.txt` beside the file. If there never was a valid file, the machine starts without the gateway. A file of
the machine that cannot be written is such a line too, and the others are written. So is an error of this program, as
nobody sees it otherwise.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import stat
import subprocess
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from edge_agent.config.node_file.gateway_file import parse_gateway_file
from edge_agent.errors import ConfigError
from edge_agent.provisioning.machine_files import PASSWORDS, SECRET, MachineFile, machine_files

GOOD: Final = "var/lib/headwater-machine/gateway.toml"  # copy of the last file without mistakes
ERRORS: Final = "gateway-errors.txt"
ERRORS_BESIDE: Final = "gateway-errors.new"  # ERRORS while it is written; a power cut may leave it
SPOOL: Final = "var/lib/headwater/spool.db"
WIFI: Final = "var/lib/iwd"  # networks that iwd knows, each a file with its password


@dataclass(frozen=True, slots=True)
class BootOutcome:
    """Result of applying gateway.toml. node: id of the gateway; '' if no file is valid.

    errors: mistakes, one line each. kept: an earlier file is in force. undone: what the machine refused, one line each.
    """

    node: str = ""
    errors: tuple[str, ...] = ()
    kept: bool = False
    undone: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Everything that is wrong."""
        return (*self.errors, *self.undone)


def apply(file: Path, root: Path = Path("/")) -> BootOutcome:
    """Read gateway.toml and write the machine's files below root. Mistakes are returned; `report` shows them."""
    try:
        payload = file.read_bytes()
        found = _read(payload, file.name)
        copy = MachineFile(f"/{GOOD}", payload.decode(), SECRET)
    except Exception as err:  # an error of this program must not leave a machine silent either
        errors = (*_lines(err, file), *_misnamed(file))
        kept = _last_good(root)
        if kept is None:
            return BootOutcome(errors=errors)
        return BootOutcome(kept.node, errors, kept=True, undone=tuple(_write_all(kept, root)))
    other = _other_node(found.node, root, file.name)
    if other and (kept := _last_good(root)) is not None and not _other_node(kept.node, root, file.name):
        return BootOutcome(kept.node, tuple(other), kept=True, undone=tuple(_write_all(kept, root)))
    undone = [*other, *_write_all(found, root), *_done(copy.path, partial(_write, copy, root))]
    return BootOutcome(found.node, undone=tuple(undone))


@dataclass(frozen=True, slots=True)
class _Machine:
    """What a gateway.toml says. files: all files of the machine; local_broker: whether it has one."""

    node: str
    files: list[MachineFile]
    local_broker: bool


def _last_good(root: Path) -> _Machine | None:
    """The last file without mistakes; None if there is none, or this image cannot read it."""
    try:
        return _read((root / GOOD).read_bytes(), Path(GOOD).name)
    except Exception:
        return None


def _other_node(node: str, root: Path, name: str) -> list[str]:
    """A line with what to do if the spool is of a node with another id, which the gateway would refuse for ever."""
    owner = _owner(root / SPOOL)
    if owner is None or owner == node:
        return []
    line = (
        f'{name}: [node] id is "{node}", but the spool on the card is of "{owner}", maybe with readings that were not '
        f'sent yet; write id = "{owner}" again. To begin anew as "{node}", flash all three partitions and make a new '
        f"token, or delete /{SPOOL}* over SSH"
    )
    return [line]


def _owner(spool: Path) -> str | None:
    """The id of the node of a spool; None if it cannot be read. SQLite must not create files: they would be root's.

    The gateway's user wrote the file: it may be anything, even a pipe, which opens once somebody writes to it.
    """
    try:
        if not stat.S_ISREG(spool.lstat().st_mode):
            return None
    except OSError:
        return None
    try:
        with closing(sqlite3.connect(f"{spool.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            db.set_progress_handler(lambda: 1, 100_000)
            found = db.execute("SELECT value FROM meta WHERE name = 'node'").fetchone()
    except sqlite3.Error:  # none there yet, or damaged: the gateway sets it aside
        return None
    owner = str(found[0]) if found else ""
    return owner if owner.isprintable() and 0 < len(owner) < 100 else None


def _read(payload: bytes, name: str) -> _Machine:
    """Read a gateway.toml. Raises: ConfigError."""
    found = parse_gateway_file(payload, name)
    files = machine_files(found, secrets.token_urlsafe(24))
    return _Machine(found.settings.node.id, files, found.local_broker is not None)


def report(applied: BootOutcome, file: Path, say: Callable[[str], None]) -> None:
    """Show mistakes on the console, by `say`, and in ERRORS beside gateway.toml. Without mistakes delete that file.

    Raises: OSError and subprocess.SubprocessError if the card cannot be written, after all lines were said; the file
    is then as it was.
    """
    for line in applied.lines:
        say(line)
    text, scratch = file.with_name(ERRORS), file.with_name(ERRORS_BESIDE)
    if applied.lines:
        content = "\r\n".join([*_told(applied, file), ""]).encode()  # line ends for editors on Windows
        if scratch.exists() or not _has(text, content):
            with _writable(file.parent):
                _replace(text, content, scratch)
    elif text.exists() or scratch.exists():
        with _writable(file.parent):
            for each in (text, scratch):
                each.unlink(missing_ok=True)


def _replace(text: Path, content: bytes, scratch: Path) -> None:
    """Write a file beside and rename it: on a full partition the one that is there stays. Raises: OSError."""
    try:
        with scratch.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        scratch.replace(text)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def _told(applied: BootOutcome, file: Path) -> Iterator[str]:
    """The lines of ERRORS."""
    if applied.errors:
        kept, none = (
            f"The last good file is in force, as {applied.node}.",
            "The gateway does not run until the file is valid.",
        )
        yield f"{file.name} was not applied. {kept if applied.kept else none}"
        yield from applied.errors
    if applied.undone:
        what = "The last good file" if applied.kept else file.name
        yield f"{what} was applied, as {applied.node}, except for this:"
        yield from applied.undone


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Make the boot partition writable for a moment. It is mounted read-only to protect it against power cuts."""
    mount = os.path.ismount(folder)
    if mount:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    try:
        yield
    finally:
        if mount:
            os.sync()
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def _write_all(found: _Machine, root: Path) -> list[str]:
    """Write the files of the machine. Returns what could not be done, one line each.

    Those in memory (/run) come first: with them the gateway runs, whatever is wrong with the card.
    """
    undone = list[str]()
    for each in sorted(found.files, key=lambda each: not each.path.startswith("/run/")):
        undone += _done(each.path, partial(_write, each, root))
    undone += _done(f"/{WIFI}", partial(_forget_networks, root / WIFI, {Path(each.path).name for each in found.files}))
    if found.local_broker:
        undone += _done(f"mosquitto_passwd {PASSWORDS}", partial(_hash, root / PASSWORDS.lstrip("/"), root))
    return undone


def _forget_networks(folder: Path, named: set[str]) -> None:
    """Delete the networks that gateway.toml no longer names: iwd would use them again. named: files to keep."""
    for kind in ("psk", "open", "8021x", "psk.new"):  # the last one: written halfway when the power went
        for each in folder.glob(f"*.{kind}"):
            if each.name not in named:
                each.unlink()


def _done(what: str, action: Callable[[], None]) -> list[str]:
    """Do something. Returns a line that says why it could not be done, if so."""
    try:
        action()
    except Exception as err:  # such as LookupError: no such user
        return [f"{what}: {refusal(err)}"]
    return []


def refusal(err: Exception) -> str:
    """Why something could not be done, without the name of the file."""
    return (err.strerror or str(err)).lower() if isinstance(err, OSError) else str(err)


def _hash(passwords: Path, root: Path) -> None:
    """Hash the passwords of the local broker in their file, which is deleted if this fails."""
    try:
        subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True)
        if root == Path("/"):
            shutil.chown(passwords, "mosquitto", "mosquitto")  # the command needs root as owner, the broker itself
        passwords.chmod(0o600)
    except BaseException:
        passwords.unlink(missing_ok=True)
        raise


def _write(each: MachineFile, root: Path) -> None:
    """Write a file with its owner and mode, without more permissions than that at any moment.

    A file on the card (/var) is written only if it changed. Whatever fails, the one that is there stays.
    """
    path, content, on_card = root / each.path.lstrip("/"), each.text.encode(), each.path.startswith("/var/")
    if on_card and _has(path, content):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, each.mode & 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            if os.geteuid() == 0 and root == Path("/"):
                shutil.chown(handle, each.owner if each.mode & 0o040 == 0 else "root", each.owner)
            os.fchmod(handle, each.mode)
            out.write(content)
            if on_card:
                out.flush()
                os.fsync(handle)
        scratch.replace(path)
    except (OSError, LookupError):
        scratch.unlink(missing_ok=True)
        raise


def _has(path: Path, content: bytes) -> bool:
    """Whether this is a regular file with this content. A link does not count: another user may have put it there."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == len(content) and path.read_bytes() == content


def _misnamed(file: Path) -> list[str]:
    """A line about a file that an editor on Windows named `gateway.toml.txt`, of which Windows shows `gateway.toml`."""
    other = file.with_name(f"{file.name}.txt")
    return [f"{other.name} beside it is not read: rename it to {file.name}"] if other.exists() else []


def _lines(err: Exception, file: Path) -> tuple[str, ...]:
    if isinstance(err, ConfigError):
        return tuple(str(err).splitlines())
    if isinstance(err, OSError):
        hint = "put the file there; `headwater init --for-image` writes one"
        return (f"{file.name}: {(err.strerror or str(err)).lower()}; {hint}",)
    place = traceback.extract_tb(err.__traceback__)[-1]  # not the message, which may repeat a password
    what = f"{type(err).__name__} in {Path(place.filename).name}, line {place.lineno}"
    return (f"{file.name}: this image has a mistake and cannot apply the file: {what}; please report it",)
