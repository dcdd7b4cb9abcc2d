"""`headwater broker-config`: configuration of Mosquitto for the broker of a region or the cloud."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import Final

from edge_agent.config.topics import is_node_id
from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.broker_files import DIALECTS, Access, Listener, broker_files

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

exit codes: 0 written; 2 wrong use
"""
PLUGINS: Final = Path(f"/usr/lib/{platform.machine()}-linux-gnu/mosquitto")  # where Debian installs them


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
    folder: Path = args.folder.resolve()
    for name in (*args.parent, *args.operator):
        if not is_node_id(name):
            raise ConfigError(f'"{name}" cannot be the name in a certificate; use a-z, 0-9 and -, at most 32')
    if both := set(args.parent) & set(args.operator):
        names = ", ".join(sorted(both))
        raise ConfigError(
            f"{names}: named by both --parent and --operator; give each a certificate with a name of its own"
        )
    files = broker_files(
        Listener(port=args.port, address=args.address, files=folder),
        Access(tuple(args.parent), tuple(args.operator)),
        acl_file=folder / "acl",
        state=args.state,
        dialect=args.dialect,
        plugins=args.plugins,
        user=args.user,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mosquitto.conf").write_text(files.config, encoding="utf-8")
        (folder / "acl").write_text(files.acl, encoding="utf-8")
        (folder / "acl").chmod(0o640)
    except OSError as err:
        raise PortError(f"{folder}: {err.strerror}") from err
    print(f"{folder}: mosquitto.conf and acl for Mosquitto {args.dialect}")
    missing = [name for name in ("ca.pem", "cert.pem", "key.pem", "crl.pem") if not (folder / name).is_file()]
    if missing:
        print(f"{folder}: still missing: {', '.join(missing)}; `headwater ca issue` writes them")
    return 0
