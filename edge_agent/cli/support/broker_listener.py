"""Options that name a broker, and reading its messages, for `peek`, `status` and others."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from edge_agent.cli.support.option_values import user_name
from edge_agent.config.checking.checker import Report
from edge_agent.config.checking.value_types import Url, without_credentials
from edge_agent.errors import ConfigError, PortError
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.dial import read_password, tls_context
from edge_agent.ports.mqtt.link import REFUSED_CODE, Down, Link, Messages, Subscribed, Up
from edge_agent.ports.mqtt.packets import RETAIN, Message, RefusedPublish
from edge_agent.ports.waiter import Waiter

DEFAULT_BROKER: Final = "mqtt://127.0.0.1:1883"
TURN_S: Final = 0.2  # longest wait, and so the longest delay of Ctrl-C and --seconds


class UnfinishedError(PortError):
    """The time is over, and retained messages are still coming."""


def add_broker(parser: argparse.ArgumentParser) -> None:
    named = os.environ.get("HEADWATER_BROKER", DEFAULT_BROKER)
    broker = parser.add_argument_group("the broker")
    broker.add_argument(
        "--broker",
        metavar="URL",
        default=named,
        help="mqtt:// or mqtts:// host[:port] (%(default)s)",  # argparse puts it in: it may have a % of its own
    )
    broker.add_argument(
        "--user",
        metavar="NAME",
        type=user_name,
        help="user name, and client id: the access rules of docs/operate.md need both",
    )
    broker.add_argument("--password-file", metavar="FILE", type=Path, help="file with the password")
    broker.add_argument(
        "--ca-file",
        metavar="FILE",
        type=Path,
        help="CA certificates (PEM) that the broker's certificate is checked against",
    )
    broker.add_argument("--cert-file", metavar="FILE", type=Path, help="client certificate")
    broker.add_argument("--key-file", metavar="FILE", type=Path, help="key of the client certificate")


def link_of(args: argparse.Namespace) -> Link:
    """The link for these options, with a client id that no node uses.

    Raises: ConfigError, also for files that cannot serve, as settings files do.
    """
    link = Link(
        url=broker_address(args.broker, "--broker"),
        client_id=args.user or f"headwater-{secrets.token_hex(6)}",
        user=args.user,
        password_file=args.password_file,
        ca_file=args.ca_file,
        cert_file=args.cert_file,
        key_file=args.key_file,
        connect_timeout_s=5.0,
    )
    _check_files(link, secure=any(url.startswith("mqtts") for url in (link.url, *(getattr(args, "also", None) or ()))))
    return link


def _check_files(link: Link, *, secure: bool) -> None:
    """Check the password, certificates and key of a link. secure: one of the brokers has TLS. Raises: ConfigError."""
    if link.password_file is not None and link.user is None:
        raise ConfigError("--password-file: there is a password without a user; add --user NAME")
    if link.key_file is not None and link.cert_file is None:
        raise ConfigError("--key-file: there is a key without a certificate; add --cert-file FILE")
    for option, file in (("--ca-file", link.ca_file), ("--cert-file", link.cert_file)):
        if file is not None and not secure:
            raise ConfigError(f"{option}: {link.url} is not TLS; use mqtts://...")
    try:
        if link.password_file is not None and not _read_once(link.password_file):
            read_password(link.password_file)
        if secure and not any(map(_read_once, (link.ca_file, link.cert_file, link.key_file))):
            tls_context(link)
    except PortError as err:
        raise ConfigError(str(err)) from err


def _read_once(file: Path | None) -> bool:
    """Whether a file gives its content only once, as `<(pass show broker)` and /dev/stdin: the connection reads it."""
    # not the methods of Path, which raise where this user may not look
    return file is not None and os.path.exists(file) and not os.path.isfile(file) and not os.path.isdir(file)  # noqa: PTH110, PTH112, PTH113


def broker_address(url: str, option: str) -> str:
    """The address in an option, as it is. Raises: ConfigError, which repeats no password in it."""
    report = Report()
    Url().read(url, (), report)
    for problem in report.problems:
        hint = "use --user and --password-file" if "credentials" in problem.why else problem.hint
        raise ConfigError(f"{option} {without_credentials(url)!r}: {problem.why}; {hint}")
    return url


def listen(
    link: Link, filters: Sequence[str], seconds: float | None, quiet_s: float | None = None
) -> Iterator[Message]:
    """Yields messages for these topic filters, retained ones first.

    Ends after `seconds` (None: no limit), or once subscribed `quiet_s` after the last retained message (None: no
    limit). Raises: PortError if the first connection fails, or the broker refuses a filter or does not answer in time;
    UnfinishedError if `seconds` end before it was quiet.
    """
    if quiet_s is not None and seconds is not None:
        quiet_s = min(quiet_s, seconds / 2)
    connection, waiter = Connection(link), Waiter()
    until = None if seconds is None else time.monotonic() + seconds
    quiet_since: float | None = None
    reached = False  # only a failure of the first connection is an error; later ones are retried
    connection.subscribe(dict.fromkeys(filters, 1))
    connection.open()
    try:
        while until is None or time.monotonic() < until:
            waiter.wait([connection], TURN_S)
            for report in connection.take():
                match report:
                    case Up():
                        reached = True
                    case Down() if not reached:
                        raise PortError(
                            f"no broker: {report.why}; check that the broker runs and that --broker is right"
                        )
                    case Down():
                        print(f"headwater: {report.why}; next attempt in {report.retry_s:.0f} s", file=sys.stderr)
                    case Subscribed():
                        _accepted(report, link)
                        quiet_since = time.monotonic()
                    case RefusedPublish():
                        print(f"headwater: {report.topic}: {report.why}", file=sys.stderr)
                    case Messages():
                        if any(flags & RETAIN for _, _, _, flags in report.messages):  # a fleet is never quiet
                            quiet_since = time.monotonic()
                        yield from report.messages
            if quiet_s is not None and quiet_since is not None and time.monotonic() - quiet_since > quiet_s:
                return
        if quiet_since is None:
            raise PortError(f"{link.url} accepted the connection and did not answer within {seconds:g} s")
        if quiet_s is not None:
            raise UnfinishedError(f"not all was read from {link.url} within {seconds:g} s; use a larger --seconds")
    finally:
        connection.close()
        waiter.close()


def _accepted(report: Subscribed, link: Link) -> None:
    """Raises: PortError if the broker refuses a filter."""
    refused = [name for name, code in report.results if code >= REFUSED_CODE]
    if refused:
        names = ", ".join(refused)
        raise PortError(f"{link.url} refuses the subscription to {names}; use --user with a user that may read it")
