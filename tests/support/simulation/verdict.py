"""Whether the rows of a tree are right: the oracle's, or declared not to be."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from edge_agent.algebra.windows import Session
from edge_agent.root.numpy.rows import Row
from tests.support.simulation.failpoints import LOSSES
from tests.support.simulation.fleets import LABELS
from tests.support.simulation.world import Host
from tests.support.tolerance import close

if TYPE_CHECKING:
    from tests.support.simulation.trees import Tree

Place = tuple[str, str, int]


class Truth:
    """Times of all readings, by node and key."""

    def __init__(self, tree: Tree) -> None:
        self.times: dict[tuple[str, str], list[int]] = {}
        for node, readings in tree.truth.items():
            for reading in readings:
                for key in ("", f"machine={LABELS[reading.series][0][1]}"):
                    self.times.setdefault((node, key), []).append(reading.time_us)
        for times in self.times.values():
            times.sort()

    def count(self, node: str, key: str, start_us: int, end_us: int) -> int:
        """How many readings of a node lie in [start, end)."""
        times = self.times.get((node, key), [])
        return bisect_left(times, end_us) - bisect_left(times, start_us)


def truth_of(tree: Tree) -> Truth:
    """The readings of a tree."""
    if tree.times is None:
        tree.times = Truth(tree)
    return tree.times


def end_of(tree: Tree, row: Row) -> int:
    """The first time that is not in a row: the end of a session is the last moment that would go on with it."""
    window = tree.window_of(row.query)
    if not isinstance(window, Session):
        return row.end
    cut_us = (row.start // window.max_us + 1) * window.max_us if window.max_us else row.end + 1
    return min(row.end + 1, cut_us)


def counted_twice(tree: Tree, rows: Iterable[Row]) -> list[str]:
    """Rows that hold more readings than there are."""
    truth, out = truth_of(tree), []
    for row in rows:
        there = sum(truth.count(node, row.key, row.start, end_of(tree, row)) for node in tree.gateways)
        if row.readings > there:
            out.append(f"counted twice: {row.readings} of {there} readings: {row}")
    return out


def of(tree: Tree) -> list[str]:
    """What is wrong when all is calm again."""
    out = [
        f"{name} still holds {len(host.disk.stored.frames)} frames"
        for name, host in tree.world.hosts.items()
        if isinstance(host, Host) and len(host.disk.stored.frames) > 2
    ]
    final: dict[Place, Row] = {}
    rows = tree.timed(tree.root_host.rows)
    for row in rows:
        place = (row.query, row.key, row.start)
        if row.revision != (final[place].revision + 1 if place in final else 0):
            out.append(f"revision {row.revision} of {place} comes out of turn")
        final[place] = row
    final = {place: row for place, row in final.items() if not row.withdrawn}
    if not any(tree.world.faults.hits[name] for name in LOSSES):
        return out + tree.differences(final) + tree.lies(rows)
    return out + with_losses(tree, final)


def with_losses(tree: Tree, final: dict[Place, Row]) -> list[str]:
    """What is complete is right; what is not counts each reading at most once, and lacks only what it says."""
    truth, want, out = truth_of(tree), tree.expected(), []
    for place, row in final.items():
        if tree.removed_about(*place) or (place[0] == "added" and row.expected < len(tree.gateways)):
            continue
        missing = {leaf for leaf, _ in row.coverage.missing}
        counts = {node: truth.count(node, row.key, row.start, end_of(tree, row)) for node in tree.gateways}
        least = sum(count for node, count in counts.items() if node not in missing)
        if row.readings < least:
            out.append(f"{row.readings} readings, {least} of nodes that are not missing: {row}")
        if row.readings > sum(counts.values()):
            out.append(f"counted twice: {row.readings} of {sum(counts.values())} readings: {row}")
        if row.complete and place not in want:
            out.append(f"complete, and not the oracle's: {row}")
        elif row.complete and not all(close(row.values[name], value) for name, value in want[place].items()):
            out.append(f"{place}: want {want[place]}, got {dict(row.values)}")
    absent = [place for place in want.keys() - final.keys() if not tree.removed_about(*place)]
    silent = [place for place in absent if not declared(tree, place, final.values())]
    return out + [f"missing {place}, and no loss is declared there" for place in silent]


def declared(tree: Tree, place: Place, rows: Iterable[Row]) -> bool:
    """Whether every node with readings in the window of an absent row says that some of them are lost."""
    query, key, start_us = place
    if tree.begins_later(place):
        return True
    window = tree.window_of(query)
    if isinstance(window, Session):  # it may stand in pieces
        return any(row.query == query and row.key == key and not row.complete for row in rows) or bool(gaps(tree))
    end_us = start_us + window.length_us
    truth = truth_of(tree)
    nodes = [node for node in tree.gateways if truth.count(node, key, start_us, end_us)]
    return all(
        any((node in names or not names) and low < end_us and high > start_us for names, low, high in gaps(tree))
        for node in nodes
    )


def gaps(tree: Tree) -> Sequence[tuple[tuple[str, ...], int, int]]:
    """(nodes, start, end) of every declared loss."""
    return [(gap.nodes or (of,), gap.start_us, gap.end_us) for of, gap in tree.root_host.root.decider.gaps]
