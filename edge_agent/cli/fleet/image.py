"""`headwater image`: puts a gateway.toml on the gateway image, and applies it at boot."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

from edge_agent.cli.main import complain
from edge_agent.config.checking.foreign_json import printable
from edge_agent.config.node_file.gateway_file import NAME, parse_gateway_file, unresolved
from edge_agent.config.node_file.settings import bytes_of
from edge_agent.errors import PortError

HELP = "Work with the gateway image: put a checked gateway.toml on an image or a card, or apply it (on the gateway)."
EXAMPLES = """\
  headwater init --for-image --id press-1 gateway.toml
  headwater image check gateway.toml
  headwater image configure headwater-gateway-arm64.img --config gateway.toml
  headwater image configure /dev/sdX --config gateway.toml        # a flashed card
  headwater image errors /dev/sdX                                 # mistakes that a gateway found
"""
MISTAKEN: Final = 2  # exit code of `apply`, as for other mistakes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    check = verbs.add_parser("check", help="list every mistake of a gateway.toml")
    check.add_argument("config", type=Path, nargs="?", default=Path(NAME), metavar="FILE")
    configure = verbs.add_parser("configure", help="put a gateway.toml on an image or a card")
    configure.add_argument("disk", type=Path, metavar="IMG_OR_DEVICE")
    configure.add_argument("--config", type=Path, default=Path(NAME), metavar="FILE", help=f"({NAME})")
    errors = verbs.add_parser("errors", help="print what a gateway wrote about its gateway.toml")
    errors.add_argument("disk", type=Path, metavar="IMG_OR_DEVICE")
    apply = verbs.add_parser("apply", help="on the gateway, at boot: apply gateway.toml")
    apply.add_argument("config", type=Path, metavar="FILE")
    apply.add_argument("--root", type=Path, default=Path("/"), metavar="FOLDER", help="write below this folder (/)")


def main(args: argparse.Namespace) -> int:
    """Run one of its commands. Raises: ConfigError, PortError."""
    from edge_agent.provisioning import fat
    from edge_agent.provisioning.first_boot import ERRORS
    from edge_agent.provisioning.machine_files import machine_files

    if args.what == "apply":
        return _apply(args.config, args.root)
    if args.what == "errors":
        found = fat.find(args.disk, ERRORS)
        if found is None:
            print(f"{args.disk}: no {ERRORS}: the gateway found no mistake, or has not booted with this card yet")
        else:
            for line in found.decode("utf-8", "replace").splitlines():  # anybody may have written the card
                print(printable(line))
        return 0
    payload = bytes_of(args.config, "`headwater init --for-image` writes one")
    file = parse_gateway_file(payload, str(args.config))
    machine_files(file, "")  # as at boot: what cannot be written there is refused here
    node = file.settings.node.id
    if hosts := unresolved(file):
        names = printable(", ".join(hosts))
        complain(f"{args.config}: a fixed address without dns: the gateway may not find {names}; add dns = [...]")
    if args.what == "check":
        print(printable(f"{args.config}: gateway {node}, all right"))
        return 0
    try:
        fat.put(args.disk, payload)
    except OSError as err:
        raise PortError(f"{args.disk}: {err.strerror}") from err
    print(f"{args.disk}: {NAME} of {node}; at its next boot the gateway applies it")
    return 0


def _apply(config: Path, root: Path) -> int:
    """Apply gateway.toml at boot. Returns 2 if anything is wrong, which is said; whatever it is, the boot goes on.

    Not 1: this is the code of Python for a crash, after which the unit has failed.
    """
    from edge_agent.provisioning.first_boot import ERRORS, apply, refusal, report

    def say(line: str) -> None:
        print(f"headwater: {line}", file=sys.stderr)

    applied = apply(config, root)
    if not applied.node:
        print("headwater: no gateway")
    elif applied.kept:
        print(f"headwater: the last good {config.name} stays in force, node {applied.node}")
    else:
        print(f"headwater: {config.name} applied, node {applied.node}")
    try:
        report(applied, config, say)
    except (OSError, subprocess.SubprocessError) as err:
        say(f"{ERRORS} on the card is not up to date: {refusal(err)}")
        return MISTAKEN
    return MISTAKEN if applied.lines else 0
