"""Builds the `Lookup` that decoding needs after a decision: numberings of epochs, read requests, ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloud_job.ingest.decode import EpochView, Lookup
from cloud_job.spark.native.plan import Shape, state_columns
from cloud_job.spark.results import ranges_of
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.root.decision.root_state import RootState
from edge_agent.root.decision.window_ranges import Ranges
from edge_agent.root.decision.work import ReadRequest, WindowRange, Work, identity


@dataclass(frozen=True, slots=True)
class DecodeLookups:
    """Builds lookups. dictionaries: the numberings of each epoch. state: after the last decision."""

    dictionaries: Mapping[EpochKey, EpochDictionary]
    state: RootState

    def page(self, line: EpochKey) -> EpochView | None:
        """The view of an epoch; None if none of its frames has taken effect."""
        dictionary, applied = self.dictionaries.get(line), self.state.applied.get(line)
        if dictionary is None or applied is None:
            return None
        plans = {number: identity(group, plan) for number, (group, plan) in dictionary.plans.items()}
        repeats, too_late = self.state.repeats.get(line, {}), self.state.too_late.get(line, {})
        return EpochView(dictionary.keys, dictionary.nodes, plans, applied, repeats, too_late)

    def bases(self, lines: Iterable[EpochKey]) -> dict[bytes, tuple[str, ...]]:
        """The state columns of the plans of some epochs, also of plans whose group ended with this decision."""
        dictionaries = [self.dictionaries[line] for line in lines if line in self.dictionaries]
        return {identity(*of): of[1].basis for dictionary in dictionaries for of in dictionary.plans.values()}

    def pages(self, ranges: Sequence[tuple[int, int]] = ((NEVER_US, -NEVER_US),)) -> dict[EpochKey, EpochView]:
        """The views of all epochs with rows in these ranges of event time."""
        pages = {}
        for line, (first_us, latest_us) in self.state.extent.items():
            if any(low < latest_us and first_us < high for low, high in ranges):
                page = self.page(line)
                if page is not None:
                    pages[line] = page
        return pages

    def known(self, pages: Mapping[EpochKey, EpochView]) -> Lookup:
        """A Lookup with these views of epochs, without read requests."""
        return Lookup(pages, tuple(self.state.owners), {}, {}, {})

    def of_windows(self, work: Work, spans: Sequence[WindowRange]) -> Lookup:
        """The Lookup for the windows of these spans."""
        found: dict[int, list[WindowRange]] = {}
        for span in spans:
            for number in span.orders:
                found.setdefault(number, []).append(span)
        return self.of(work, {number: ranges_of(mine) for number, mine in found.items()}, spans)

    def of(self, work: Work, ranges: Mapping[int, Ranges], spans: Sequence[WindowRange] = ()) -> Lookup:
        """The Lookup for some read requests. ranges: number of a request -> ranges of event time. spans: the windows to
        compute from these rows.
        """
        pages = self.pages([span for found in ranges.values() for span in found])
        orders: dict[bytes, tuple[ReadRequest, ...]] = {}
        for order in work.orders:
            if order.number in ranges:
                orders[order.plan] = (*orders.get(order.plan, ()), order)
        shapes = [Shape(aggregates, scale) for aggregates, scale in work.shapes]
        bases = tuple(shape.basis for shape in shapes)
        nodes = sorted({node for page in pages.values() for node in page.nodes}, key=str.encode)
        return Lookup(pages, tuple(self.state.owners), orders, ranges, state_columns(shapes), spans, bases, nodes)
