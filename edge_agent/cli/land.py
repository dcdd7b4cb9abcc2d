"""`headwater land`: the top of the tree on MQTT."""

from __future__ import annotations

import argparse
import logging

from edge_agent import __version__
from edge_agent.cli.support.serving import add_config, settings_of, stopped_by_signal

HELP = (
    "Run the top of the tree on MQTT: write the frames of gateways and regions to landing files, fsync, then send "
    "receipts. `headwater root` turns the files into tables. Definitions without a revision get the next number here."
)
EXAMPLES = """\
  headwater land root.toml
  headwater land --dry-run root.toml        # print what it would do; change nothing
"""


add_arguments = add_config


def main(args: argparse.Namespace) -> int:
    settings = settings_of(args, "root")
    if args.dry_run:
        lower = settings.lower
        print(f"root {settings.node.id}, landing files in {settings.lander.folder}")
        print(f"below {lower.broker if lower is not None else '-'}, grace {settings.grace_us / 1e6:g} s")
        return 0
    from edge_agent.runtime.guard import Guard, Service
    from edge_agent.runtime.lander import LanderLoop, quarantine_of

    service = Service(lambda _: LanderLoop(settings, __version__), Guard(quarantine_of(settings)))
    logging.getLogger("headwater").info(
        "lander.start", extra={"node": settings.node.id, "folder": settings.lander.folder}
    )
    with stopped_by_signal(service.stop):
        service.run()
    return 0
