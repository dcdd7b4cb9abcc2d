"""`headwater merge`: the process of a region."""

from __future__ import annotations

import argparse
import logging

from edge_agent import __version__
from edge_agent.cli.support.serving import add_config, dry_run, settings_of, stopped_by_signal
from edge_agent.ports.memory import look_less_often
from edge_agent.runtime.build import build, quarantine_of
from edge_agent.runtime.guard import Guard, Service

HELP = (
    "Run a region: receive the frames of children, apply each once and in order, merge their partials and pass them on "
    "with the list of missing gateways. The definitions come in the frames."
)
EXAMPLES = """\
  headwater merge region.toml
  headwater merge --dry-run region.toml     # print what it would do; change nothing
"""


add_arguments = add_config


def main(args: argparse.Namespace) -> int:
    settings = settings_of(args, "region")
    if args.dry_run:
        return dry_run(settings)
    service = Service(lambda guard: build(settings, __version__, guard=guard), Guard(quarantine_of(settings)))
    logging.getLogger("headwater").info("region.start", extra={"node": settings.node.id, "spool": settings.spool.path})
    look_less_often()
    with stopped_by_signal(service.stop):
        service.run()
    return 0
