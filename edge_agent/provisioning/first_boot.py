"""Applies gateway.toml at every boot.

A file with mistakes is not applied: the last valid file stays in force. Every mistake is written to the console and to
`gateway-errors.txt` beside the file. If there never was a valid file, the machine starts without the gateway.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.config.node_file.gateway_file import GatewayFile, parse_gateway_file
from edge_agent.errors import ConfigError
from edge_agent.provisioning.machine_files import PASSWORDS, MachineFile, machine_files

GOOD: Final = "var/lib/headwater-machine/gateway.toml"  # copy of the last file without mistakes
ERRORS: Final = "gateway-errors.txt"


@dataclass(frozen=True, slots=True)
class BootOutcome:
    """Result of applying gateway.toml. node: id of the gateway; '' if no file is valid.

    errors: mistakes, one line each. kept: an earlier file is in force.
    """

    node: str = ""
    errors: tuple[str, ...] = ()
    kept: bool = False


def apply(file: Path, root: Path = Path("/")) -> BootOutcome:
    """Read gateway.toml and write the machine's files below root. Mistakes are returned; `report` shows them."""
    good = root / GOOD
    try:
        payload = file.read_bytes()
        found = parse_gateway_file(payload, file.name)
    except (ConfigError, OSError) as err:
        errors = _lines(err, file)
        try:
            kept = parse_gateway_file(good.read_bytes(), good.name)
        except (ConfigError, OSError):
            return BootOutcome(errors=errors)
        _write_all(kept, root)
        return BootOutcome(kept.settings.node.id, errors, kept=True)
    _write_all(found, root)
    good.parent.mkdir(parents=True, exist_ok=True)
    scratch = good.with_suffix(".new")
    with scratch.open("wb") as out:
        out.write(payload)
        out.flush()
        os.fsync(out.fileno())
    scratch.chmod(0o600)
    scratch.replace(good)
    return BootOutcome(found.settings.node.id)


def report(applied: BootOutcome, file: Path, say: Callable[[str], None]) -> None:
    """Show mistakes on the console, by `say`, and in ERRORS beside gateway.toml. Without mistakes delete that file."""
    for line in applied.errors:
        say(line)
    text = file.with_name(ERRORS)
    if applied.errors:
        state = (
            f"The last good file is in force, as {applied.node}."
            if applied.kept
            else "The gateway does not run until the file is valid."
        )
        lines = [f"{file.name} was not applied. {state}", *applied.errors, ""]
        content = "\r\n".join(lines)  # line ends for editors on Windows
        if not text.exists() or text.read_bytes() != content.encode():
            with _writable(file.parent):
                text.write_bytes(content.encode())
    elif text.exists():
        with _writable(file.parent):
            text.unlink()


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


def _write_all(found: GatewayFile, root: Path) -> None:
    for each in machine_files(found, secrets.token_urlsafe(24)):
        _write(each, root)
    if found.local_broker is not None:
        passwords = root / PASSWORDS.lstrip("/")
        subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True)
        if root == Path("/"):
            shutil.chown(passwords, "mosquitto", "mosquitto")  # the command needs root as owner, the broker itself
        passwords.chmod(0o600)


def _write(each: MachineFile, root: Path) -> None:
    """Write a file with its owner and mode, without more permissions than that at any moment."""
    path = root / each.path.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, each.mode & 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        if os.geteuid() == 0 and root == Path("/"):
            shutil.chown(path, each.owner if each.mode & 0o040 == 0 else "root", each.owner)
        os.fchmod(out.fileno(), each.mode)
        out.write(each.text)


def _lines(err: ConfigError | OSError, file: Path) -> tuple[str, ...]:
    if isinstance(err, OSError):
        hint = "put the file there; `headwater init --for-image` writes one"
        return (f"{file.name}: {(err.strerror or str(err)).lower()}; {hint}",)
    return tuple(str(err).splitlines())
