"""Hearing a broker as an operator: the options that name it, and its messages until enough was heard."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from edge_agent.errors import PortError
from edge_agent.ports.link import REFUSED_CODE, Down, Link, Messages, Subscribed, Up
from edge_agent.ports.mqtt import Connection
from edge_agent.ports.packets import Message, RefusedPublish
from edge_agent.ports.waiter import Waiter

DEFAULT_BROKER: Final = "mqtt://127.0.0.1:1883"
TURN_S: Final = 0.2  # the longest sleep: Ctrl-C and --seconds are noticed that soon


def add_broker(parser: argparse.ArgumentParser) -> None:
    """The options that say which broker, and as whom."""
    named = os.environ.get("HEADWATER_BROKER", DEFAULT_BROKER)
    broker = parser.add_argument_group("the broker")
    broker.add_argument("--broker", metavar="URL", default=named, help=f"mqtt:// or mqtts:// host[:port] ({named})")
    broker.add_argument("--user", metavar="NAME", help="user name; client id too, as the access rules want it")
    broker.add_argument("--password-file", metavar="FILE", type=Path, help="the password is the text of this file")
    broker.add_argument("--ca-file", metavar="FILE", type=Path, help="certificates that may have signed the broker's")
    broker.add_argument("--cert-file", metavar="FILE", type=Path, help="our certificate")
    broker.add_argument("--key-file", metavar="FILE", type=Path, help="its key")


def link_of(args: argparse.Namespace) -> Link:
    """Those options as a link. A connection of its own: it throws out nobody. Raises: ConfigError."""
    link = Link(
        url=args.broker,
        client_id=args.user or f"headwater-{os.getpid()}",
        user=args.user,
        password_file=args.password_file,
        ca_file=args.ca_file,
        cert_file=args.cert_file,
        key_file=args.key_file,
        connect_timeout_s=5.0,
    )
    link.address()
    return link


def listen(
    link: Link, filters: Sequence[str], seconds: float | None, quiet_s: float | None = None
) -> Iterator[Message]:
    """Messages of these filters, retained ones first.

    Ends after `seconds` (None: never), or when nothing has come for `quiet_s` once subscribed (None: goes on).
    Raises: PortError when the broker cannot be reached at first, or refuses the filters.
    """
    connection, waiter = Connection(link), Waiter()
    until = None if seconds is None else time.monotonic() + seconds
    heard: float | None = None  # since when it is quiet
    known = False  # it was reached once: from then on a lost connection is waited for
    connection.subscribe(dict.fromkeys(filters, 1))
    connection.open()
    try:
        while until is None or time.monotonic() < until:
            waiter.wait([connection], TURN_S)
            for report in connection.take():
                match report:
                    case Up():
                        known = True
                    case Down() if not known:
                        raise PortError(f"no broker: {report.why}; is it running, is --broker right?")
                    case Down():
                        print(f"headwater: {report.why}; again in {report.retry_s:.0f} s", file=sys.stderr)
                    case Subscribed():
                        refused = [name for name, code in report.results if code >= REFUSED_CODE]
                        if refused:
                            raise PortError(f"{link.url} does not let us read {', '.join(refused)}; try --user")
                        heard = time.monotonic()
                    case RefusedPublish():
                        print(f"headwater: {report.topic}: {report.why}", file=sys.stderr)
                    case Messages():
                        heard = time.monotonic()
                        yield from report.messages
                    case _:
                        pass  # we publish nothing
            if quiet_s is not None and heard is not None and time.monotonic() - heard > quiet_s:
                return
    finally:
        connection.close()
        waiter.close()
