"""`headwater init`: write a commented settings file that passes `headwater check`."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_agent.cli.main import COMMAND_OF
from edge_agent.config.checking.foreign_json import printable
from edge_agent.config.node_file.gateway_file import MACHINE_TABLES, NAME, parse_gateway_file
from edge_agent.config.node_file.node_tables import ROLES, ROOT_ID
from edge_agent.config.node_file.sample import sample, sample_gateway_file
from edge_agent.config.node_file.settings import DEFAULT_FILE, parse
from edge_agent.errors import ConfigError
from edge_agent.ports.sqlite_file import real_path

HELP = "Write settings with comments to start from: each key of the role, its default, and the reason for it."
EXAMPLES = """\
  headwater init                                        # headwater.toml of a gateway named like this machine
  headwater init --id press-1 --parent region-a --broker mqtts://broker.example
  headwater init --role region region.toml
  headwater init --for-image --id press-1               # gateway.toml for the gateway image
  headwater init --role root -                          # to standard output
"""
_LOOPBACK: Final = "mqtt://127.0.0.1:1883"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", default=DEFAULT_FILE, help=f"file to write (default {DEFAULT_FILE}; - is standard output)"
    )
    parser.add_argument("--role", choices=ROLES, default=ROLES[0], help="role of the node (default gateway)")
    parser.add_argument("--id", help="id of the node (default: from the host name; root for a root)")
    parser.add_argument(
        "--broker",
        default=_LOOPBACK,
        help=f"URL of the parent's broker; for a root, of the broker of its children (default {_LOOPBACK})",
    )
    parser.add_argument("--parent", help=f"id of the node above (default {ROOT_ID})")
    parser.add_argument("--for-image", action="store_true", help="write a gateway.toml for the gateway image")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def main(args: argparse.Namespace) -> int:
    """Write the file. Raises: ConfigError if an option is wrong or the file exists."""
    if args.id == "":
        raise ConfigError("--id is empty; name the node, or leave --id out")
    if args.role == "root" and args.parent is not None:
        raise ConfigError("a root has no parent; leave --parent out, or choose another --role")
    name = args.id or (ROOT_ID if args.role == "root" else _own_name())
    if args.for_image and args.role != "gateway":
        raise ConfigError(f"--for-image is for a gateway, not for a {args.role}")
    default = NAME if args.for_image else DEFAULT_FILE
    if args.file == DEFAULT_FILE:
        args.file = default
    shown = default if args.file == "-" else printable(args.file)  # stands in a comment, which is one line
    chosen = {"id": name, "broker": args.broker, "parent": ROOT_ID if args.parent is None else args.parent}
    # parse the text first, so that nothing is written if an id or address is wrong
    if args.for_image:
        text = sample_gateway_file(shown, MACHINE_TABLES, **chosen)
        parse_gateway_file(text.encode(), shown)
    else:
        text = sample(args.role, shown, **chosen)
        parse(text, shown)
    if args.file == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())  # whatever the terminal shows: the file must be UTF-8
        return 0
    file = Path(args.file)
    try:
        _write(file, text, force=args.force, secret=args.for_image)
    except OSError as err:
        raise ConfigError(
            f"{file}: {(err.strerror or str(err)).lower()}; name a file in a folder you may write"
        ) from err
    if args.for_image:
        print(printable(f"{file}: for gateway {name}; next: headwater image configure IMG_OR_DEVICE --config {file}"))
        return 0
    verb = COMMAND_OF[args.role]
    print(printable(f"{file}: a {args.role} named {name}; next: headwater check {file}, then headwater {verb} {file}"))
    return 0


def _write(file: Path, text: str, *, force: bool, secret: bool) -> None:
    """Write the file, or leave it as it is. secret: only this user may read it.

    Raises: OSError; ConfigError if the file must not be written.
    """
    if file.is_dir():
        raise ConfigError(f"{file} is a directory; name a file in it")
    if file.exists() and not file.is_file():  # it would become a plain file: /dev/null for the whole machine
        raise ConfigError(f"{file} is no plain file, but a device, pipe or socket; name another")
    if file.exists() and not force:
        raise ConfigError(f"{file} exists; --force overwrites it, or name another file")
    file = real_path(file)  # whoever reads the target of a link reads the new text
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        scratch.touch(0o600 if secret else 0o666)  # gateway.toml will have a Wi-Fi password and a token
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(file)  # so that a failure leaves no half-written file
    except OSError:
        with suppress(OSError):
            scratch.unlink()
        raise


def _own_name() -> str:
    """The host name as a node id."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")[:32] or "gateway-1"
