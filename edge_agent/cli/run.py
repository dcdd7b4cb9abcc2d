"""`headwater run`: the process of a gateway."""

from __future__ import annotations

import argparse
import logging

from edge_agent import __version__
from edge_agent.cli.support.serving import add_config, dry_run, settings_of, stopped_by_signal
from edge_agent.config.node_file.settings import load
from edge_agent.runtime.build import build, quarantine_of
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.guard import Guard, Service

HELP = (
    "Run a gateway: read sensors, aggregate their readings in slices, keep open state in the spool, and send frames to "
    "the parent until it sends receipts. Sensors and queries come from the file and from retained MQTT topics."
)
EXAMPLES = """\
  headwater run                        # with headwater.toml of this folder
  headwater run /etc/headwater.toml
  headwater run --dry-run              # print what it would do; change nothing
  headwater run --once                 # end when all files are read and all frames are receipted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--once", action="store_true", help="end when all files are read and all frames are receipted")


def main(args: argparse.Namespace) -> int:
    settings = settings_of(args, "gateway")
    if args.dry_run:
        return dry_run(settings)
    guard = Guard(quarantine_of(settings))
    service = Service(lambda again: build(settings, __version__, lambda: load(args.config).definitions, again), guard)
    logging.getLogger("headwater").info("gateway.start", extra={"node": settings.node.id, "spool": settings.spool.path})
    with stopped_by_signal(service.stop):
        service.run(until=GatewayLoop.all_read if args.once else None)
    return 0
