"""`headwater broker-config`: configuration of Mosquitto for the broker of a region or the cloud."""

from __future__ import annotations

import argparse
import os
import platform
import pwd
import re
import stat
from pathlib import Path
from typing import Final

from edge_agent.cli.support.option_values import MOST_PORT
from edge_agent.config.topics import is_node_id
from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.broker_files import DIALECTS, Access, Listener, broker_files
from edge_agent.ports.sqlite_file import real_path

HELP = (
    "Write mosquitto.conf and its access list for a broker of the fleet: TLS with client certificates, whose name is "
    "the user name and client id; each node may use only its own topics; and limits with which the broker discards "
    "nothing silently."
)
EXAMPLES = """\
  headwater ca issue ca broker-1 --host broker.example --out /etc/mosquitto/headwater
  headwater broker-config /etc/mosquitto/headwater --parent region-1 --operator ops
  headwater broker-config /etc/mosquitto/headwater --parent root --operator ops --dialect 2.1
  mosquitto -c /etc/mosquitto/headwater/mosquitto.conf

Started by root, Mosquitto runs as the user `mosquitto` (or --user), who must be able to read key.pem and acl. If root
runs broker-config, it gives them to this user; otherwise it prints the chown line. Run it again after each new key.

exit codes: 0 written; 2 wrong use; 3 the folder cannot be written
"""
PLUGINS: Final = Path(f"/usr/lib/{platform.machine()}-linux-gnu/mosquitto")  # where Debian installs them
MOSQUITTO: Final = "mosquitto"  # the user that Mosquitto becomes if root starts it
PLAIN: Final = re.compile(r"[!-~]+")  # one word: in mosquitto.conf, a line break begins a directive of its own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="where to write; beside the keys of `headwater ca issue`"
    )
    parser.add_argument("--parent", action="append", default=[], metavar="ID", help="merger or root with children here")
    parser.add_argument(
        "--operator", action="append", default=[], metavar="NAME", help="name of a person's certificate"
    )
    parser.add_argument("--dialect", choices=DIALECTS, default=DIALECTS[0], help="Mosquitto's version (2.0)")
    parser.add_argument("--address", default="0.0.0.0", help="address to listen on (0.0.0.0)")  # noqa: S104 - TLS
    parser.add_argument("--port", type=int, default=8883, help="port to listen on (8883)")
    parser.add_argument(
        "--state", type=Path, default=Path("/var/lib/mosquitto"), metavar="FOLDER", help="folder of its sessions"
    )
    parser.add_argument(
        "--plugins", type=Path, default=PLUGINS, metavar="FOLDER", help=f"plugins of Mosquitto 2.1 ({PLUGINS})"
    )
    parser.add_argument("--user", help="user to run as (default: Mosquitto's own)")


def main(args: argparse.Namespace) -> int:
    """Write the two files. Raises: ConfigError, PortError."""
    folder = real_path(args.folder)
    for name in (*args.parent, *args.operator):
        if not is_node_id(name):
            raise ConfigError(f'"{name}" cannot be the name in a certificate; use a-z, 0-9 and -, at most 32')
    if both := set(args.parent) & set(args.operator):
        names = ", ".join(sorted(both))
        raise ConfigError(
            f"{names}: named by both --parent and --operator; give each a certificate with a name of its own"
        )
    state, plugins = args.state.absolute(), args.plugins.absolute()  # Mosquitto starts in another folder
    _check(args, folder, state, plugins)
    files = broker_files(
        Listener(port=args.port, address=args.address, files=folder),
        Access(tuple(args.parent), tuple(args.operator)),
        acl_file=folder / "acl",
        state=state,
        dialect=args.dialect,
        plugins=plugins,
        user=args.user,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mosquitto.conf").write_text(files.config, encoding="utf-8")
        (folder / "mosquitto.conf").chmod(0o644)  # whatever the umask is: at SIGHUP Mosquitto reads it as its own user
        (folder / "acl").write_text(files.acl, encoding="utf-8")
        (folder / "acl").chmod(0o640)
        hint = _hand_over([folder / "acl", folder / "key.pem"], state, args.user or MOSQUITTO)
        closed = _closed(folder, args.user or MOSQUITTO)
    except OSError as err:
        raise PortError(f"{err.filename or folder}: {err.strerror}") from err
    print(f"{folder}: mosquitto.conf and acl for Mosquitto {args.dialect}")
    for line in filter(None, (hint, closed)):
        print(line)
    missing = [name for name in ("ca.pem", "cert.pem", "key.pem", "crl.pem") if not (folder / name).is_file()]
    if missing:
        print(f"{folder}: still missing: {', '.join(missing)}; `headwater ca issue` writes them; then run this again")
    return 0


def _check(args: argparse.Namespace, folder: Path, state: Path, plugins: Path) -> None:
    """Check what becomes a word or a line of mosquitto.conf. Raises: ConfigError."""
    if not 1 <= args.port <= MOST_PORT:
        raise ConfigError(f"--port {args.port}: wanted a port from 1 to {MOST_PORT}")
    words = {"--address": args.address, "--state": str(state), "--user": args.user}
    for option, word in words.items():
        if word is not None and not PLAIN.fullmatch(word):
            raise ConfigError(f"{option} {word!r}: wanted one word without blanks, because it stands in mosquitto.conf")
    for path in (folder, plugins):
        if not str(path).isprintable():
            raise ConfigError(f"{str(path)!r}: a path in mosquitto.conf cannot contain line breaks; use another folder")


def _hand_over(files: list[Path], state: Path, name: str) -> str:
    """Give the secret files to the user that Mosquitto runs as, if this process may.

    Returns what is left to do, '' for nothing. A missing state folder is made; an existing one is never given away,
    because it may contain other things. Raises: OSError.
    """
    present = [file for file in files if file.exists()]
    chown = f"chown {name}: {' '.join(str(file) for file in present)}"
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return f"there is no user {name} here; where Mosquitto runs, if root starts it: {chown}"
    if os.geteuid() != 0:
        return f"if root starts Mosquitto, it runs as {name} and must be able to read its files: {chown}"
    for file in present:
        os.chown(file, user.pw_uid, user.pw_gid)
    if not state.exists():
        state.mkdir(parents=True, mode=0o750)
        os.chown(state, user.pw_uid, user.pw_gid)
    elif state.stat().st_uid != user.pw_uid and user.pw_uid != 0:
        return f"{name} must be able to write the folder of the sessions: chown {name}: {state}"
    return ""


def _closed(folder: Path, name: str) -> str:
    """A line if the user that Mosquitto runs as cannot enter the folder, '' if it can or there is no such user here.

    Raises: OSError.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return ""
    groups = os.getgrouplist(name, user.pw_gid)
    for each in (*reversed(folder.parents), folder):
        found = each.stat()
        own, group = found.st_uid == user.pw_uid, found.st_gid in groups
        needed = stat.S_IXUSR if own else stat.S_IXGRP if group else stat.S_IXOTH
        if user.pw_uid != 0 and not found.st_mode & needed:
            return f"if root starts Mosquitto, {name} cannot enter {each}: chmod a+x {each}, or use another folder"
    return ""
