"""Why a query is computed where it is: a decision for its window and one for each of its functions.

Source: thesis figure 16 (windows: known from the definition alone, from the readings, from markers; by time or by
count) and figure 17 (functions: decomposable or not, commutative or not).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.algebra import aggregates
from edge_agent.algebra.aggregates import COLUMNS, FUNCTIONS
from edge_agent.algebra.markers import is_central
from edge_agent.algebra.query import Aggregate, Query
from edge_agent.algebra.windows import Punctuation, Session
from edge_agent.algebra.windows.central import RAW


@dataclass(frozen=True, slots=True)
class Decision:
    """about: what was decided on, as the user wrote it. distributed: whether gateways and mergers share the work."""

    about: str
    distributed: bool
    why: str


def decisions(query: Query, scale: int | None) -> tuple[Decision, ...]:
    """One for the window, one for each function in turn. scale: of the sensor's values, None for floats."""
    window = _window(query)
    every = (_function(aggregate, scale, window) for aggregate in query.aggregates)
    return (window, *(map(_alone, every) if query.scope == "local" and window.distributed else every))


def _window(query: Query) -> Decision:
    about = f"window {query.window.type}"
    if query.scope == "local" and query.group.form == RAW:
        return Decision(about, False, "local: of each gateway's own readings, which the root puts in their order")
    if query.scope == "local":
        return Decision(about, True, "local: every gateway finishes its own and waits for no other node")
    if query.group.form == RAW:
        return Decision(
            about, False, "its bounds depend on the order of all readings: only the root knows it, from raw readings"
        )
    if is_central(query.group):
        return Decision(
            about, False, "its bounds are the markers of all gateways: only the root has those, and cuts raw readings"
        )
    if isinstance(query.window, Session):
        return Decision(
            about, True, "its bounds depend on the readings, but pieces join at every tier once the next start is known"
        )
    if isinstance(query.window, Punctuation):
        return Decision(about, True, f"its bounds are markers, read as {query.window.interpretation!r} at every node")
    return Decision(about, True, "its edges follow from the definition alone: every node cuts alike")


def _function(aggregate: Aggregate, scale: int | None, window: Decision) -> Decision:
    about = f"function {aggregate.fn}"
    if not window.distributed:
        return Decision(about, False, "the root has every reading in order, and computes it there")
    names = FUNCTIONS[aggregate.fn].components(scale, aggregates.params_of(aggregate))
    columns = {column for name in names for column in aggregates.COMPONENTS[name].columns}
    kinds = {COLUMNS[column].kind for column in columns}
    if "series" in kinds:
        return Decision(
            about, False, "it depends on the order of readings: each travels once, with its time; the root computes it"
        )
    if "bag" in columns:
        return Decision(
            about, True, "it needs every value: each travels once, sorted and counted at every tier; exact at the root"
        )
    if kinds & {"sketch", "bag"}:
        return Decision(about, True, "approximate: sketches of bounded size merge at every tier")
    return Decision(about, True, "decomposable: a few numbers a row merge at every tier, whatever the order")


def _alone(function: Decision) -> Decision:
    """The same for windows that no other node shares: nothing merges."""
    if not function.distributed:
        return function
    return Decision(function.about, True, "of the gateway's own windows: it lifts them whole, and nobody merges them")
