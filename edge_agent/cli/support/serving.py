"""Settings, dry run and signals for the commands that run a node."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.cli.main import COMMAND_OF
from edge_agent.config.checking.checker import line_of
from edge_agent.config.definitions.window_table import window_text
from edge_agent.config.in_force.unserved_report import unserved
from edge_agent.config.node_file.settings import DEFAULT_FILE, Settings, load, notes
from edge_agent.errors import ConfigError
from edge_agent.log import setup


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", default=DEFAULT_FILE, metavar="FILE", help=f"settings ({DEFAULT_FILE})")
    parser.add_argument("--dry-run", action="store_true", help="check the file, print what would run, and exit")


def settings_of(args: argparse.Namespace, role: str) -> Settings:
    """Load the settings and set up the log. Raises: ConfigError for mistakes, and if the file is for another role."""
    settings = load(args.config, os.environ.get("STATE_DIRECTORY"))  # set by systemd
    if settings.node.role != role:
        verb = COMMAND_OF[settings.node.role]
        raise ConfigError(
            f'{args.config}: role is "{settings.node.role}", not "{role}"; run: headwater {verb} {args.config}'
        )
    setup(settings.log.level)
    os.umask(0o077)  # spools, landing files, quarantine and tables contain readings: for this user only
    return settings


def dry_run(settings: Settings) -> int:
    """Print the connections, sensors and queries of a node."""
    node, up, lower = settings.node, settings.uplink, settings.lower
    print(f"{node.role} {node.id}, spool {settings.spool.path}")
    if up is not None:
        print(f"up    {up.broker} to {up.in_order[0]}, heartbeat {up.heartbeat_us / 1e6:g} s")
        for name in up.in_order[1:]:
            print(f"      {dict(up.brokers).get(name, up.broker)} to {name}, when the one before is away")
    if lower is not None:
        same = " (the same broker, one connection)" if settings.one_broker else ""
        print(f"below {lower.broker}{same}, grace {settings.grace_us / 1e6:g} s")
    if settings.local is not None:
        print(f"local {settings.local.broker}")
    for definition in settings.definitions:
        value = definition.value
        if isinstance(value, Sensor):
            print(f"sensor {value.id}: {value.driver}")
        elif isinstance(value, Query):
            names = ", ".join(aggregate.name for aggregate in value.aggregates)
            print(f"query {value.id}: {names} of {value.source}, {window_text(value.window)}")
    for line in (*map(line_of, unserved(settings)[0]), *notes(settings)):
        print(f"note: {line}")
    return 0


@contextmanager
def stopped_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, SIGTERM, Ctrl-C and the end of the terminal call `stop`. Under `nohup` the last does not."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
