"""Random fleets with windows of one gateway and windows between markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from edge_agent.algebra.punctuation.markers import Marker
from edge_agent.algebra.query.query import ON_MISSING, Aggregate, Query
from edge_agent.algebra.windows import Punctuation, Session, Sliding, Tumbling
from edge_agent.machines.events import Read
from edge_agent.root.numpy.rows import Row
from tests.oracle import central_computer, marker_windows
from tests.support.simulation.fleets import LABELS, START, Fleet, GatewayHost, Reading, quickly
from tests.support.simulation.world import MS, SECOND, Chaos, RootHost
from tests.support.tolerance import close

Place = tuple[str, str, str, int, int]  # query, node, key, start, end


@dataclass(frozen=True, slots=True)
class Marking(Reading):
    """A marker among the readings."""

    kind: str = ""


class MarkedHost(GatewayHost):
    """A gateway whose source gives markers too."""

    def event_of(self, part: list[Reading]) -> Read:
        """Readings, and the markers among them."""
        markers = tuple(Marker(item.time_us, item.kind) for item in part if isinstance(item, Marking))
        batch = self.batch_of([item for item in part if not isinstance(item, Marking)])
        return Read("s", batch, position=self.position, markers=markers)

    def note_lateness(self, part: list[Reading]) -> None:
        """Rows between markers are compared as a whole."""


class MarkedFleet(Fleet):
    """Markers at the times at which they come: of those that a system gives to all, and each gateway's own."""

    def __init__(self, seed: int, chaos: Chaos, *, prefix: str = "") -> None:
        """prefix: see Fleet."""
        super().__init__(seed, chaos, prefix=prefix)
        random = Random(f"markers {seed}")
        times = sorted(random.sample(range(int(self.length_us / MS)), random.randint(0, 12)))
        for name in self.gateways:
            own = sorted(random.sample(range(int(self.length_us / MS)), random.randint(0, 12)))
            explicit = any(query.window == Punctuation("overlap") for query in self.queries)
            if explicit:
                own = own[: len(own) // 2 * 2]  # a window that nobody ends holds the others back, as it should
            marks = [
                Marking(START + at * MS, START + at * MS, 0, 0, ("start", "end")[n % 2] if explicit else "")
                for n, at in enumerate(own if explicit else times + own * (random.random() < 0.5))
            ]
            self.truth[name] += marks
            self.truth[name].sort(key=lambda item: item.arrives_us)
            old = self.world.hosts[name]
            assert isinstance(old, GatewayHost)
            self.world.hosts[name] = MarkedHost(self.world, name, old.parent, self.truth[name], self)

        root = self.world.hosts["root"]
        assert isinstance(root, RootHost)
        root.root.decider.parent.children.named |= set(self._below("root"))

    def _named(self, parent: str) -> list[str]:
        """Every parent names its children: the i-th windows are of those that anybody expects."""
        return self._below(parent)

    def _queries(self, random: Random) -> tuple[Query, ...]:
        aggregates = tuple(Aggregate(fn, fn) for fn in ("sum", "count", "max", "avg", "median", "last"))
        local = [Tumbling(2 * SECOND), Sliding(3 * SECOND, 1 * SECOND), Session(1 * SECOND)]
        led = Random(f"leading {self.seed}").choice(["drop", "open"])  # also by late readings: only the root knows
        between = [
            [*(Punctuation(each) for each in ("local", "bounds", "order")), Punctuation("central", led)],
            [Punctuation("overlap")],
        ]
        by, lateness = random.choice([(), ("machine",)]), random.choice([0, 1, 2]) * SECOND
        windows: list[Any] = [random.choice(local), *random.choice(between)]
        missing = random.choice(ON_MISSING)
        return tuple(
            Query(
                *(f"q{i}", 1, "s", window, aggregates),
                by=by,
                lateness_us=lateness,
                scope="global" if i else "local",
                on_missing=missing if isinstance(window, Punctuation) and window.waits else "hold",
            )
            for i, window in enumerate(windows)
        )

    def wrong(self) -> list[str]:
        """Differences between the final rows and the oracle."""
        root = self.world.hosts["root"]
        assert isinstance(root, RootHost)
        out: list[str] = []
        final: dict[Place, Row] = {}
        for row in root.rows:
            place = self._place(row)
            if row.revision != (final[place].revision + 1 if place in final else 0):
                out.append(f"revision {row.revision} of {place} comes out of turn")
            final[place] = row
        apart = self._never_whole(root)
        rows = (row for row in final.values() if not row.withdrawn and (row.query, row.start, row.end) not in apart)
        shown = {(r.query, r.node, r.key, r.start, r.end): r for r in rows}
        want = self.rows_wanted({key.query: of.numbers.joined for key, of in root.root.state.markers.windows.items()})
        out += [f"missing {place}" for place in want if place not in shown]
        out += [f"extra {place}" for place in shown if place not in want]
        for place in want.keys() & shown.keys():
            row = shown[place]
            if not all(close(row.values[name], value) for name, value in want[place].items()):
                out.append(f"{place}: want {want[place]}, got {dict(row.values)}")
            if not row.complete or (row.node and row.coverage.expected != (row.node,)):
                out.append(f"{place}: coverage {row.coverage}")
        return out

    def _never_whole(self, root: RootHost) -> set[tuple[str, int, int]]:
        """Windows by number (query, start, end) that were shown without a gateway which has no window of this number.

        It stood still at that time, and the query skips such gateways.
        """
        marks = {
            node: {item.time_us for item in stream if isinstance(item, Marking)} for node, stream in self.truth.items()
        }
        out = set()
        for key, of in root.root.state.markers.windows.items():
            for number, place in of.numbered.items():
                away = marks.keys() - {node for node, _, _ in of.shown[place][0]} if place in of.shown else ()
                if any(of.numbers.joined.get(node, 0) + max(len(marks[node]) - 1, 0) <= number for node in away):
                    out.add((key.query, *place[1:]))
        return out

    def _place(self, row: Row) -> Place:
        window = next(query.window for query in self.queries if query.id == row.query)
        by_end = isinstance(window, Punctuation) and window.by_end
        return row.query, row.node, row.key, row.start, row.end if by_end else 0

    def rows_wanted(self, joined: Mapping[str, Mapping[str, int]]) -> dict[Place, dict[str, float | None]]:
        """The oracle's rows over all readings.

        joined: query -> gateway that was first heard when windows had merged -> the first window that it is a part of.
        """
        readings = {
            node: [
                central_computer.Reading(
                    r.time_us, central_computer.exact(r.value, -1), node, order, Labels(LABELS[r.series])
                )
                for order, r in enumerate(stream)
                if not isinstance(r, Marking)
            ]
            for node, stream in self.truth.items()
        }
        out: dict[Place, dict[str, float | None]] = {}
        for node, own in readings.items():
            for (name, key, start, end), values in central_computer.results(self.queries[:1], own).items():
                out[name, node, key, start, end] = values
        children = {
            node: marker_windows.Child(
                own, [marker_windows.Mark(r.time_us, r.kind) for r in self.truth[node] if isinstance(r, Marking)], {}
            )
            for node, own in readings.items()
        }
        for query in self.queries[1:]:
            out |= marker_windows.results(query, children, joined.get(query.id))
        return out


class Labels(dict[str, str]):
    """Labels that a set of readings can hold."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def marked(seeds: Iterable[int], chaos: Callable[[Random], Chaos]) -> list[str]:
    """Run many; one line a seed that went wrong."""
    out = []
    for seed in seeds:
        wrong = quickly(MarkedFleet(seed, chaos(Random(seed))))
        if wrong:
            out.append(f"seed {seed}: {len(wrong)} wrong: " + "; ".join(wrong[:2]))
    return out
