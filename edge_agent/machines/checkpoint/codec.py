"""Frozen values of frames as lists of plain values, for a spool slot or a decision row, and back."""

from __future__ import annotations

from typing import Any

from edge_agent.algebra.frame import Gap, Plan, Serving
from edge_agent.algebra.query.group_cut import cut_from_text
from edge_agent.algebra.query.query import Group


def group_to_plain(group: Group) -> list[object]:
    """A Group as a list of plain values."""
    fields, cut = [group.source, group.where, list(group.by), group.lateness_us, group.late], group.cut
    return [*fields, cut.gap_us, cut.max_us, group.node, cut.text]


def group_from_plain(state: Any) -> Group:
    """From what `group_to_plain` returns."""
    source, where, by, lateness_us, late, gap_us, max_us, node, text = state
    cut = cut_from_text(int(gap_us), int(max_us), text)
    return Group(source, where, tuple(by), int(lateness_us), late, cut, node)


def plan_to_plain(plan: Plan) -> list[object]:
    """A Plan as a list of plain values."""
    queries = [[q, r] for q, r in plan.queries]
    return [plan.hash, plan.kind, list(plan.basis), plan.scale, plan.unit_us, queries, plan.gap_us]


def plan_from_plain(state: Any) -> Plan:
    """From what `plan_to_plain` returns."""
    digest, kind, basis, scale, unit_us, queries, gap_us = state
    return Plan(bytes(digest), kind, tuple(basis), scale, int(unit_us), tuple((q, int(r)) for q, r in queries), gap_us)


def serving_to_plain(serving: Serving) -> list[object]:
    """A Serving without its node, as a list of plain values."""
    return [
        serving.query,
        serving.revision,
        serving.start_from_us,
        serving.start_until_us,
        serving.end_until_us,
    ]


def serving_from_plain(state: Any) -> Serving:
    """From what `serving_to_plain` returns."""
    return Serving(*state)


def gap_to_plain(gap: Gap) -> list[object]:
    """A Gap as a list of plain values."""
    groups = [group_to_plain(g) for g in gap.groups]
    return [groups, gap.start_us, gap.end_us, gap.readings, list(gap.nodes), gap.reason, gap.run, gap.detail]


def gap_from_plain(state: Any) -> Gap:
    """From what `gap_to_plain` returns."""
    groups, start_us, end_us, readings, nodes, reason, run, detail = state
    return Gap(
        tuple(group_from_plain(g) for g in groups), start_us, end_us, readings, tuple(nodes), reason, run, detail
    )
