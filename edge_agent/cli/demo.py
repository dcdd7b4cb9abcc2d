"""`headwater demo`: the whole tree on this machine, with kills, compared with a direct computation."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_agent.cli import audit
from edge_agent.cli.support.option_values import seconds
from edge_agent.ports.mqtt.link import Link

if TYPE_CHECKING:
    from edge_agent.demo.compare import Comparison
    from edge_agent.demo.runner import DemoRun
    from edge_agent.root.books import Audit

HELP = (
    "Run the whole tree on this machine: 8 gateways (the last one reads this machine itself), 2 regions, 3 brokers, a "
    "lander and a Spark root, configured through MQTT. In the middle one agent, one merger and one broker are killed "
    "with -9. At the end every window in Delta is compared with a direct computation over the raw readings, and the "
    "books of all nodes are audited. It takes about three minutes."
)
EXAMPLES = """\
  headwater demo
  headwater demo --seconds 60 --gateways 4
  headwater demo --no-kill --keep           # keep spools, logs and landing files too
"""
SQL: Final = (
    'select query, key, window_start, readings, revision, complete, "values" from gold.results '
    "where query = 'boiler-1s' and not withdrawn order by window_start desc, key limit 10"
)
NEXT: Final = 'select * from "boiler-10s" order by window_start desc limit 10'
AUDIT_S: Final = 10.0  # time for the books of all nodes to arrive, on a busy machine
LEAST_GATEWAYS: Final = 2  # a simulated one, and one for this machine
MOST_GATEWAYS: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gateways", type=gateways, default=8, metavar="N", help="gateways, one of them real (8)")
    parser.add_argument("--seconds", type=seconds, default=120.0, metavar="S", help="how long the tree runs (120)")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="kill nothing")
    parser.add_argument("--keep", action="store_true", help="keep everything, not only the tables")
    parser.add_argument("--picture", type=Path, default=Path("demo.png"), metavar="FILE", help="(demo.png)")


def gateways(text: str) -> int:
    """Parse --gateways. Raises: ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and LEAST_GATEWAYS <= int(text) <= MOST_GATEWAYS):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number from {LEAST_GATEWAYS} to {MOST_GATEWAYS}")
    return int(text)


def main(args: argparse.Namespace) -> int:
    """Run the demo and print its results. Returns 1 if a window differs or the books do not balance."""
    check()
    from edge_agent.demo.runner import DemoRun

    found: list[Audit] = []

    def audited(tables: Path, brokers: list[Link]) -> None:
        found.append(audit.audited(str(tables), brokers, AUDIT_S))

    run = DemoRun(args.gateways, args.seconds, lambda text: print(text, flush=True), kill=args.kill, audit=audited)
    print(f"everything is in {run.folder}")
    print("starting 3 brokers, lander, Spark root, 2 regions and", args.gateways, "gateways; Spark takes half a minute")
    verdict = run.run()
    report(run, verdict)
    picture(run, args.picture)
    print("\n" + "\n".join(line for books in found for line in audit.lines(books)))
    good = verdict.good and all(map(audit.balanced, found))
    if good and not args.keep:
        run.tidy()
    return 0 if good else 1


def check() -> None:
    """Check that Mosquitto, Java and the libraries are installed. Raises: PortError, ModuleNotFoundError."""
    import cryptography  # noqa: F401 - as for deltalake
    import deltalake  # noqa: F401 - if it is missing, cli/main.py names the extra to install
    import matplotlib as mpl  # noqa: F401

    from cloud_job.spark_session import check_java
    from edge_agent.demo.processes import mosquitto

    mosquitto()
    check_java()


def report(run: DemoRun, verdict: Comparison) -> None:
    """Print ten rows with their SQL, the verdict, and where the tables are."""
    from edge_agent.demo import delta_reader

    print(f"\n{SQL}")
    for row in delta_reader.query(run.tables, SQL):
        print("  ".join(f"{value}" for value in row.values()))
    print()
    if run.killed:
        print(f"killed with -9 and started again: {', '.join(run.killed)}")
    if stale_s := run.staleness():
        later = stale_s[len(stale_s) // 2 :]
        print(
            f"from the end of a window to its row in Delta: median {statistics.median(later):.1f} s in the second half"
        )
    for name, why in verdict.skipped.items():
        print(f"not compared: {name}: {why}")
    for line in verdict.differences:
        print(f"  {line}")
    print(f"{verdict.revised} rows were revised by late readings, {verdict.incomplete} are not complete")
    print(verdict.line)
    print(f"the tables: {run.tables}")
    print(f"  headwater query --tables {run.tables} '{NEXT}'")


def picture(run: DemoRun, file: Path) -> None:
    """Write the picture to `file`, or beside the tables if that is not possible."""
    from edge_agent.demo.picture import draw
    from edge_agent.demo.runner import picture_data

    raw, windows, title = picture_data(run)
    try:
        draw(file, raw, windows, run.traffic, title)
    except OSError:
        file = run.folder / "demo.png"
        draw(file, raw, windows, run.traffic, title)
    print(f"the picture: {file.absolute()}")
