"""`headwater run`: be a gateway."""

from __future__ import annotations

import argparse
import logging

from edge_agent.cli.main import version
from edge_agent.cli.support.serving import add_config, dry_run, serve, settings_of
from edge_agent.config.node_file.settings import load
from edge_agent.errors import ConfigError
from edge_agent.runtime.build import build
from edge_agent.runtime.gateway import GatewayLoop

HELP = (
    "Be a gateway: read sensors, slice, lift, keep everything open in the spool, send frames to the parent until they "
    "are receipted. Sensors and queries come from the file and, while it runs, from retained MQTT topics."
)
EXAMPLES = """\
  headwater run                        # with headwater.toml of this folder
  headwater run /etc/headwater.toml
  headwater run --dry-run              # say what it would do; touches nothing
  headwater run --once                 # until the files are read and everything is receipted, then end
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of run."""
    add_config(parser)
    parser.add_argument("--once", action="store_true", help="end when what can end is read and receipted")


def main(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    settings = settings_of(args)
    if settings.node.role != "gateway":
        raise ConfigError(f'{args.config}: role is "{settings.node.role}"; `headwater merge` runs a region')
    if args.dry_run:
        return dry_run(settings)
    loop = build(settings, version(), lambda: load(args.config).definitions)
    logging.getLogger("headwater").info("gateway.start", extra={"node": settings.node.id, "spool": settings.spool.path})
    assert isinstance(loop, GatewayLoop)
    return serve(loop, until=loop.all_read if args.once else None)
