"""`headwater merge`: be a region."""

from __future__ import annotations

import argparse
import logging

from edge_agent.cli.main import version
from edge_agent.cli.support.serving import add_config, dry_run, serve, settings_of
from edge_agent.errors import ConfigError
from edge_agent.runtime.build import build

HELP = (
    "Be a region: hear children, apply their frames once and in order, merge their partials, pass them on with who is "
    "missing. Configuration comes in the frames; only this node's own file is read."
)
EXAMPLES = """\
  headwater merge region.toml
  headwater merge --dry-run region.toml     # say what it would do; touches nothing
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of merge."""
    add_config(parser)


def main(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    settings = settings_of(args)
    if settings.node.role != "region":
        raise ConfigError(f'{args.config}: role is "{settings.node.role}"; this takes role = "region"')
    if args.dry_run:
        return dry_run(settings)
    loop = build(settings, version())
    logging.getLogger("headwater").info("region.start", extra={"node": settings.node.id, "spool": settings.spool.path})
    return serve(loop)
