"""`headwater ca`: the certificate authority of a fleet."""

from __future__ import annotations

import argparse
import datetime
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_agent.cli.support.option_values import MOST_PORT
from edge_agent.config.checking.durations import parse_duration
from edge_agent.errors import ConfigError, PortError

if TYPE_CHECKING:
    from edge_agent.identity.authority import Authority

HELP = (
    "Keep the certificate authority of a fleet: certificates for brokers, parents and people, one-time tokens for "
    "gateways, revocation. Its folder holds the key of the fleet: keep it on one machine and in one backup."
)
EXAMPLES = """\
  headwater ca init ca                                     # a new authority in the folder ca
  headwater ca issue ca broker-1 --host broker.example     # key and certificate of a server, into broker-1/
  headwater ca issue ca region-1                           # of a region, the root or an operator
  headwater ca serve ca --host ca.example                  # gateways enrol and renew here, port 8443
  headwater ca token ca press-1 --url https://ca.example:8443   # what press-1 needs to enrol, for gateway.toml
  headwater ca revoke ca press-1                           # then copy ca/crl.pem to the brokers, and SIGHUP them
  headwater ca list ca
"""
PORT: Final = 8443
SERVER_LIFE: Final = "365d"  # default life of certificates that a person renews by hand


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")

    def verb(name: str, about: str, *, named: bool = False) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=about, description=about)
        made.add_argument("folder", type=_folder, metavar="FOLDER", help="folder of the authority")
        if named:
            made.add_argument("name", metavar="NAME", help="id of the node, or name of the server or person")
        return made

    verb("init", "make an authority").add_argument("--name", default="Headwater fleet", help="its name")
    issue = verb("issue", "make key and certificate of a broker, a parent or a person", named=True)
    issue.add_argument("--host", action="append", default=[], metavar="HOST", help="of a server: its name or address")
    issue.add_argument("--life", default=SERVER_LIFE, help=f"how long it is good ({SERVER_LIFE})")
    issue.add_argument("--out", type=_folder, metavar="FOLDER", help="where to write (default: a folder named NAME)")
    token = verb("token", "make a one-time token, and print the lines of gateway.toml with it", named=True)
    token.add_argument("--life", default="15m", help="how long it is good (15m)")
    token.add_argument(
        "--url", help="where `headwater ca serve` is reached, https://host:port; without it, add url to what is printed"
    )
    verb("revoke", "revoke the certificates and tokens of a name", named=True)
    verb("list", "list certificates")
    serve = verb("serve", "let gateways enrol and renew over HTTPS")
    serve.add_argument("--address", default="0.0.0.0", help="address to listen on (0.0.0.0)")  # noqa: S104 - for gateways
    serve.add_argument("--port", type=int, default=PORT, help=f"port to listen on ({PORT})")
    serve.add_argument("--host", action="append", required=True, metavar="HOST", help="name or address gateways use")


def main(args: argparse.Namespace) -> int:
    """Run one of its commands. Raises: ConfigError, PortError."""
    from edge_agent.identity.authority import Authority, check_name

    folder: Path = args.folder
    if args.what == "init":
        Authority.create(folder, args.name)
        print(f"{folder}: a new authority; nodes need {folder}/ca.pem, and nobody else needs {folder}/ca.key")
        return 0
    authority = Authority(folder)
    if args.what == "list":
        return _list(authority)
    if args.what == "serve":
        return _serve(authority, args)
    name = check_name(args.name)
    if args.what == "issue":
        return _issue(authority, name, args)
    if args.what == "token":
        return _token(authority, name, args)
    certificates, tokens = authority.revoke(name)
    count = f"{certificates} certificate{'s' * (certificates != 1)} and {tokens} unused token{'s' * (tokens != 1)}"
    print(f"{name}: {count} revoked; copy {folder}/crl.pem to the brokers, and send them SIGHUP")
    return 0 if certificates or tokens else 1


def _folder(text: str) -> Path:
    if not text:
        raise ConfigError("wanted the name of a folder, got ''; the current folder is .")
    return Path(text)


def _life(text: str) -> datetime.timedelta:
    from edge_agent.identity.authority import CA_LIFE

    try:
        life_us = parse_duration(text)
    except ValueError as err:
        raise ConfigError(f'--life {text}: {err}; like "90d"') from err
    if not 1_000_000 <= life_us <= CA_LIFE // datetime.timedelta(microseconds=1):
        raise ConfigError(f"--life {text}: wanted 1s to {CA_LIFE.days}d, the life of an authority")
    return datetime.timedelta(microseconds=life_us)


def _issue(authority: Authority, name: str, args: argparse.Namespace) -> int:
    from edge_agent.identity.authority import write

    out: Path = args.out or Path(name)
    life = _life(args.life)
    try:
        if (out / "key.pem").exists():
            raise ConfigError(f"{out}/key.pem exists; name another folder with --out, or move it away")
        if not (authority.folder / "crl.pem").exists():  # as after a power cut in `ca init`; made anew from ca.db
            authority.write_revoked()
        key, certificate = authority.key_pair(name, tuple(args.host), life)
        out.mkdir(parents=True, exist_ok=True)
        write(out / "key.pem", key, 0o600)
        write(out / "cert.pem", certificate)
        for given in ("ca.pem", "crl.pem"):
            write(out / given, (authority.folder / given).read_bytes())
    except OSError as err:
        raise PortError(f"{out}: {err.strerror}") from err
    print(f"{out}: key.pem, cert.pem, ca.pem and crl.pem of {name}")
    return 0


def _token(authority: Authority, name: str, args: argparse.Namespace) -> int:
    from edge_agent.config.checking.checker import Report
    from edge_agent.config.checking.documents import Document
    from edge_agent.config.node_file.gateway_file import Https

    life = _life(args.life)
    if args.url is not None:  # before a token is made
        report = Report(Document({}))
        Https().read(args.url, ("--url",), report)
        report.finish()
    text = authority.token(name, life)
    print("[enrol]")
    # without the key, `headwater image check` says that it is missing: an example would look right until the card boots
    print(
        f'url = "{args.url}"'
        if args.url
        else "# url = ... is missing: where `headwater ca serve` is reached; or give --url"
    )
    print(f'token = "{text}"  # of {name}, once, good for {args.life}')
    print(f"ca = '''\n{(authority.folder / 'ca.pem').read_text()}'''")
    return 0


def _list(authority: Authority) -> int:
    now = datetime.datetime.now(datetime.UTC)
    for each in authority.issued():
        state = f"revoked {each.revoked:%Y-%m-%d}" if each.revoked else "over" if each.until < now else "valid"
        print(f"{each.name:32}  until {each.until:%Y-%m-%d}  {state}")
    return 0


def _serve(authority: Authority, args: argparse.Namespace) -> int:
    from edge_agent.cli.support.serving import stopped_by_signal
    from edge_agent.identity.service import EnrolmentService
    from edge_agent.log import setup

    if not 0 <= args.port <= MOST_PORT:
        raise ConfigError(f"--port {args.port}: wanted a port from 1 to {MOST_PORT}, or 0 for any free one")
    setup("info")
    service = EnrolmentService(authority, args.address, args.port, tuple(args.host))
    print(f"headwater: serving on {args.address}:{service.server_address[1]}", file=sys.stderr)
    # `shutdown` waits until serve_forever ends, and a signal handler interrupts serve_forever: so use another thread
    with stopped_by_signal(lambda: threading.Thread(target=service.shutdown, daemon=True).start()), service:
        service.serve_forever()
    return 0
