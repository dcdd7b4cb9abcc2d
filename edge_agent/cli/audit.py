"""`headwater audit`: proves from tables and nodes that no reading was lost without a record or counted twice."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from edge_agent.cli.query import add_tables, folder_of
from edge_agent.cli.support.broker_listener import add_broker, broker_address, link_of
from edge_agent.cli.support.fleet_listener import FleetListener, HeardNode
from edge_agent.cli.support.option_values import seconds
from edge_agent.config.checking.foreign_json import printable
from edge_agent.root.books import Audit, NodeBook, RootBook, audit
from edge_agent.runtime.refusals import MOST_REASONS, without_numbers

if TYPE_CHECKING:
    from edge_agent.ports.mqtt.link import Link

HELP = (
    "Prove that no reading was lost without a record and none counted twice: produced = stored + pending + declared "
    "lost + late + quarantined, for every node, every link and the whole tree. In a running tree, readings on their "
    "way are pending. The last line is `balanced` (exit code 0), or says what differs, where and by how much (1)."
)
EXAMPLES = """\
  headwater audit
  headwater audit --tables /srv/tables --broker mqtt://cloud --also mqtt://hall-1 --also mqtt://hall-2
"""
COLUMNS: Final = (
    *("node", "role", "parent", "produced", "sent", "open", "on its way", "lost", "dropped late", "refused", "said"),
)
NUMBERS_FROM: Final = 3  # index of the first column with numbers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser)
    add_broker(parser)
    parser.add_argument(
        "--also", metavar="URL", action="append", default=[], help="a further broker of the tree, with the same rights"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=5.0, metavar="S", help="wait at most S seconds for nodes (5)"
    )


def main(args: argparse.Namespace) -> int:
    """Read tables and nodes, and print the books. Returns 0 if they balance, else 1."""
    first = link_of(args)
    links = [first, *(replace(first, url=broker_address(url, "--also")) for url in args.also)]
    found = audited(folder_of(args), links, args.seconds)
    print("\n".join(lines(found)))
    return 0 if balanced(found) else 1


def audited(folder: str, links: Sequence[Link], seconds: float) -> Audit:
    """Read and compare the books of a tree. links: its brokers. seconds: how long to wait for each tier of nodes.

    Parents are read before their children, so that a child never has sent fewer readings than its parent has applied.
    Raises: PortError if tables or brokers cannot be read.
    """
    from cloud_job.audit.root_book import root_book

    return audit_of(root_book(folder), links, seconds)


def audit_of(root: RootBook, links: Sequence[Link], seconds: float) -> Audit:
    """Ask the nodes for their books and compare them with the root's, which was read before. See `audited`."""
    with FleetListener(links) as fleet:
        fleet.retained(seconds)
        silent = _ask_downward(fleet, seconds)
    return audit(named(root, fleet.nodes), books(fleet.nodes, silent))


def _ask_downward(fleet: FleetListener, seconds: float) -> set[str]:
    """Ask every node for its book, tier by tier from the top. Returns the nodes that do not answer."""
    silent, tier = set[str](), _below(fleet.nodes, set(fleet.nodes))
    while tier:
        silent |= fleet.ask([node for node in tier if fleet.nodes[node].online], seconds)
        tier = [node for node, heard in fleet.nodes.items() if _parent(heard) in tier]
    return silent


def _below(nodes: Mapping[str, HeardNode], names: set[str]) -> list[str]:
    """The top tier of these nodes: those whose parent is not a gateway or region among them."""
    keepers = {name for name in names if nodes[name].status.get("role") in {"gateway", "region"}}
    return [name for name in keepers if _parent(nodes[name]) not in keepers]


def _parent(heard: HeardNode) -> str:
    return str(heard.status.get("parent", heard.books.get("parent", "")))


def named(root: RootBook, nodes: Mapping[str, HeardNode]) -> RootBook:
    """The root's book with the id that its children use for the root.

    Children that moved below a region name the region, which is itself a child of a node. If nobody from whom the root
    applied anything is heard, the name is that of a node that says it is the root. One node alone cannot take the name
    from the node that the others name.
    """
    claims = {name for name, heard in nodes.items() if heard.status.get("role") == "root"}
    of = Counter(_parent(nodes[child]) for child in root.lines if child in nodes)
    names = [name for name in of if name and name not in root.lines and not _has_parent(nodes.get(name))]
    if not names:
        names = sorted(claims - root.lines.keys())
        of = Counter(_parent(heard) for name, heard in nodes.items() if _parent(heard) != name)
    return replace(root, name=max(names, key=lambda name: (name in claims, of[name]))) if names else root


def _has_parent(heard: HeardNode | None) -> bool:
    return heard is not None and heard.status.get("role") != "root" and bool(_parent(heard))


def books(nodes: Mapping[str, HeardNode], silent: Iterable[str] = ()) -> list[NodeBook]:
    """The books of all nodes: from the node's answer if there is one, else its retained book."""
    silent, out = set(silent), []
    parents = {
        str(kept.status.get("parent"))
        for name, heard in nodes.items()
        for kept in heard.by_broker.values()
        if kept.status.get("parent") != name
    }
    parents |= {_parent(heard) for name, heard in nodes.items() if _parent(heard) != name}
    for name, heard in sorted(nodes.items()):
        answer = heard.answer.get("books")
        if isinstance(answer, dict):
            out.append(NodeBook(name, _parent(heard), answer, believed=name in parents, retired=_retired(heard)))
        elif heard.books:
            late = heard.books.get("final") is not True
            kept = NodeBook(name, _parent(heard), heard.books, late_word=late, believed=name in parents)
            out.append(replace(kept, retired=_retired(heard)))
    return out


def _retired(heard: HeardNode) -> frozenset[str]:
    """The nodes that a status names as retired; a node may publish anything."""
    names = heard.status.get("retired")
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def balanced(found: Audit) -> bool:
    """Whether the books balance. Declared losses of unknown size are allowed."""
    return bool(found.nodes) and not found.off and not found.unheard


def lines(found: Audit) -> list[str]:
    """The table, the equation, and the verdict as the last line. Texts of nodes cannot control the terminal."""
    return [printable(text) for text in _lines(found)]


def _lines(found: Audit) -> list[str]:
    out = _table([_row(found, node) for node in found.nodes])
    root = found.root
    out.append(f"{root.name}: {sum(root.stored.values())} readings in bronze.messages, {root.late} of them in ops.late")
    out += [f"declared in ops.gaps: {text}" for text in _losses(root.unknown)]
    out += [f"unknown: {text}" for text in (*found.unheard, *found.unknown)]
    sure = not (found.unknown or found.unheard)
    pending = sum(found.pending.values())
    parts = f"stored {found.stored} + pending {pending} + declared lost {found.lost} + late {found.late}"
    out.append(
        f"produced {found.produced} {'=' if found.rest == 0 else '>=' if found.rest > 0 else '<='} {parts} "
        f"+ quarantined {found.quarantined}" + ("" if found.rest == 0 else f" (difference {abs(found.rest)})")
    )
    if found.off:
        return [*out, *(f"off: {text}" for text in found.off[:-1]), f"off: {found.off[-1]}"]
    if not found.nodes:
        return [*out, "not proved: no node has published its books"]
    if found.unheard:
        return [*out, f"not proved: {len(found.unheard)} of the books could not be read; --also names further brokers"]
    return [*out, "balanced" if sure else "balanced, as far as is known: the lines with `unknown` say what is not"]


def _losses(unknown: Mapping[str, int]) -> list[str]:
    """A line for each reason, the most frequent first. unknown: reason -> how many losses have no size.

    Reasons that differ only in numbers share a line: one child that sends bad frames would fill the screen.
    """
    alike: dict[str, list[str]] = {}
    for reason in unknown:
        alike.setdefault(without_numbers(reason), []).append(reason)
    counts = {of[0] if len(of) == 1 else name: sum(unknown[each] for each in of) for name, of in alike.items()}
    most = sorted(counts, key=lambda reason: -counts[reason])
    out = [f"{counts[reason]} losses of unknown size: {reason}" for reason in most[:MOST_REASONS]]
    if more := most[MOST_REASONS:]:
        rest = sum(counts[reason] for reason in more)
        out.append(f"{rest} losses of unknown size, for {len(more)} further reasons: see ops.gaps")
    return out


def _row(found: Audit, node: NodeBook) -> tuple[str, ...]:
    number, open_ = node.number, node.number("open") + node.number("waiting")
    on_its_way = found.pending.get(node.node, 0) - open_
    role, said = ("gateway" if node.leaf else "region"), ("earlier" if node.late_word else "")
    produced = node.produced if node.leaf else number("received")
    refused = number("refused") + number("undated")
    values = (produced, number("sent"), open_, on_its_way, number("lost"), number("dropped"), refused)
    return (node.node, role, node.parent, *map(str, values), said)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[at]) for row in (COLUMNS, *rows)) for at in range(len(COLUMNS))]

    def line(row: tuple[str, ...]) -> str:
        cells: list[Any] = [
            text.rjust(width) if NUMBERS_FROM <= at < len(COLUMNS) - 1 else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(COLUMNS), *map(line, rows)]
