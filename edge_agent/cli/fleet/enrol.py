"""`headwater enrol`: gets and renews a node's certificate from the fleet's authority."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from edge_agent.config.topics import is_node_id
from edge_agent.errors import ConfigError, PortError
from edge_agent.identity.device import Device

MOST_TOKEN_BYTES: Final = 10_000  # a token has 27
HELP = (
    "Make a key on this node and get a certificate for it with a one-time token; later, renew it at two thirds of its "
    "life. With a new token it enrols again at once, as after a revocation. Does nothing while there is nothing to do: "
    "run it at start and once a day."
)
EXAMPLES = """\
  headwater enrol /var/lib/headwater-identity --id press-1 --url https://ca.example:8443 --token-file token
  headwater enrol /var/lib/headwater-identity --id press-1 --url https://ca.example:8443     # renews

The folder must have ca.pem, the certificate of the authority. In headwater.toml:
  ca_file = "/var/lib/headwater-identity/ca.pem"
  cert_file = "/var/lib/headwater-identity/current/cert.pem"
  key_file = "/var/lib/headwater-identity/current/key.pem"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the identity; it has ca.pem")
    parser.add_argument("--id", required=True, help="id of the node, the name in its certificate")
    parser.add_argument("--url", required=True, help="the authority's service, https://host:port")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the one-time token")


def main(args: argparse.Namespace) -> int:
    """Enrol or renew. Raises: ConfigError, PortError."""
    if not is_node_id(args.id):
        raise ConfigError(f'--id "{args.id}": not a node id; use a-z, 0-9 and -, at most 32')
    try:
        found = (args.folder / "ca.pem").is_file()
    except OSError as err:
        raise PortError(f"{args.folder}/ca.pem: {err.strerror}; run as the user who owns the folder") from err
    if not found:
        raise ConfigError(f"{args.folder}/ca.pem does not exist; copy it from the authority's folder")
    try:
        token = None if args.token_file is None else _read(args.token_file).decode("utf-8").strip()
    except FileNotFoundError:
        token = None  # a used token is deleted, and a renewal needs none
    except OSError as err:
        raise ConfigError(f"{args.token_file}: {err.strerror}") from err
    except ValueError as err:
        raise ConfigError(f"{args.token_file} is not a text; wanted the token of `headwater ca token`") from err
    device = Device(args.folder, args.id)
    try:
        print(device.ensure(args.url, token))
    finally:
        device.give_to_owner()
    return 0


def _read(file: Path) -> bytes:
    """The content of a file of a token's length. Raises: OSError; ValueError for a longer one, as /dev/zero is."""
    with file.open("rb") as opened:
        content = opened.read(MOST_TOKEN_BYTES + 1)
    if len(content) > MOST_TOKEN_BYTES:
        raise ValueError("too long for a token")
    return content
