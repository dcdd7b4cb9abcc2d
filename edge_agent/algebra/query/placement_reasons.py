"""Explains where a query is computed: one reason for its window and one for each of its functions.

Source: the thesis on Disco, figure 16 (windows by definition, by readings or by markers; by time or by count) and
figure 17 (functions: decomposable or not, commutative or not).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS, FUNCTIONS
from edge_agent.algebra.columns import KINDS
from edge_agent.algebra.query.group_cut import OrderedCut
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Punctuation, Session

EVERY, GATEWAY, ROOT = "every tier", "gateway", "root"


@dataclass(frozen=True, slots=True)
class PlacementReason:
    """Where a window or function is computed. about: its name for the user. where: EVERY, GATEWAY or ROOT."""

    about: str
    where: str
    why: str


def placement_reasons(query: Query, scale: int | None) -> tuple[PlacementReason, ...]:
    """A reason for the window, then one per function, in order. scale: of the sensor's values, None for floats."""
    window = _window(query)
    return (window, *(_function(aggregate, scale, window) for aggregate in query.aggregates))


def _window(query: Query) -> PlacementReason:
    about, local = f"window {query.window.type}", query.scope == "local"
    if isinstance(query.group.cut, OrderedCut):
        why = "its bounds depend on the order of all readings: only the root knows it, from raw readings"
        if local:
            why = "local: of each gateway's own readings, which the root puts in their order"
        return PlacementReason(about, ROOT, why)
    if query.group.cut.central:
        why = "its bounds are the markers of all gateways: only the root has those, and cuts raw readings"
        return PlacementReason(about, ROOT, why)
    if isinstance(query.window, Punctuation) and query.window.interpretation == "order":
        why = "its bounds are the gateway's own markers: it finishes its windows, and the root merges the i-th of all"
        return PlacementReason(about, GATEWAY, why)
    if local or (isinstance(query.window, Punctuation) and query.window.own):
        return PlacementReason(about, GATEWAY, "local: every gateway finishes its own and waits for no other node")
    if isinstance(query.window, Session):
        why = "its bounds depend on the readings, but pieces join at every tier once the next start is known"
        return PlacementReason(about, EVERY, why)
    if isinstance(query.window, Punctuation):
        return PlacementReason(
            about, EVERY, f"its bounds are markers, read as {query.window.interpretation!r} at every node"
        )
    return PlacementReason(about, EVERY, "its edges follow from the definition alone: every node makes the same cuts")


def _function(aggregate: Aggregate, scale: int | None, window: PlacementReason) -> PlacementReason:
    about = f"function {aggregate.fn}"
    if window.where == ROOT:
        return PlacementReason(about, ROOT, "the root has every reading in order, and computes it there")
    names = FUNCTIONS[aggregate.fn].components(scale, aggregates.params_of(aggregate))
    columns = {column for name in names for column in aggregates.COMPONENTS[name].columns}
    kinds = {COLUMNS[column].kind for column in columns}
    if "series" in kinds:
        why = "it depends on the order of readings: each travels once, with its time; the root computes it"
        return PlacementReason(about, ROOT, why)
    if window.where == GATEWAY:
        why = "of the gateway's own windows: it lifts them whole, and no merger merges them"
    elif "bag" in columns:
        why = "it needs every value: each travels once, sorted and counted at every tier; exact at the root"
    elif any(KINDS[kind].grows for kind in kinds):
        why = "approximate: sketches of bounded size merge at every tier"
    else:
        why = "decomposable: a few numbers a row merge at every tier, whatever the order"
    return PlacementReason(about, window.where, why)
