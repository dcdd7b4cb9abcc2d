"""Decides which revision of a query each window belongs to, for all groups together (docs/protocol.md 6.3).

Members report the ranges that they serve at different times, some after rows were written without them. An agreed range
may therefore become narrower, but never wider: the end of a revision never moves later, and lies at the begin of the
next revision at the latest. Rows of the older revision beyond its new end are withdrawn; see `narrowed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edge_agent.algebra.frame import NEVER_US, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group

Servings = Mapping[Group, Mapping[QueryKey, Serving]]
Places = dict[tuple[str, str], dict[int, list[tuple[Group, Serving]]]]  # (query, node) -> revision -> its servings


def agreed(before: Servings, stated: Servings, frontiers: Mapping[Group, int]) -> dict[Group, dict[QueryKey, Serving]]:
    """Returns the ranges in force from now on.

    before: the ranges in force so far. stated: the ranges that members report now. frontiers: of the groups at the last
    decision, up to which rows have been written.

    A revision without a start begins where the rows of older revisions end. If there are no such rows, it covers all
    earlier time too, and an older revision that is reported later has no window.
    """
    out: dict[Group, dict[QueryKey, Serving]] = {group: dict(known) for group, known in before.items()}
    places: Places = {}
    for group, servings in stated.items():
        held = out.setdefault(group, {})
        for key, serving in servings.items():
            known = held.get(key)
            if known is not None:
                until_us = _least(known.start_until_us, serving.start_until_us)
                if (serving.start_from_us, serving.start_until_us) != (known.start_from_us, until_us):
                    serving = replace(serving, start_from_us=known.start_from_us, start_until_us=until_us)
            held[key] = serving
    for group, known_now in out.items():
        for (query, revision), serving in known_now.items():
            places.setdefault((query, group.node), {}).setdefault(revision, []).append((group, serving))
    for revisions in places.values():
        if len(revisions) > 1:
            _succeed(revisions, before, frontiers, out)
    return out


def _succeed(
    revisions: Mapping[int, list[tuple[Group, Serving]]],
    before: Servings,
    frontiers: Mapping[Group, int],
    out: dict[Group, dict[QueryKey, Serving]],
) -> None:
    """End each revision of a query where a newer one begins."""
    until_us: int | None = None
    for revision in sorted(revisions, reverse=True):
        starts = [until_us]
        for group, serving in revisions[revision]:
            key = QueryKey(serving.query, revision)
            fresh = key not in before.get(group, {})
            if fresh and serving.start_from_us is None:
                older = [frontiers.get(g, NEVER_US) for r in revisions if r < revision for g, _ in revisions[r]]
                after_us = max(older, default=NEVER_US)
                serving = serving if after_us == NEVER_US else replace(serving, start_from_us=after_us)
            out[group][key] = replace(serving, start_until_us=_least(serving.start_until_us, until_us))
            starts.append(NEVER_US if serving.start_from_us is None else serving.start_from_us)
        until_us = _least(*starts)


def narrowed(before: Servings, after: Servings, frontiers: Mapping[Group, int]) -> dict[tuple[Group, QueryKey], int]:
    """Revisions whose end moved to before the frontier of their group -> window start from which rows are withdrawn."""
    out = {}
    for group, servings in after.items():
        for key, serving in servings.items():
            known, until_us = before.get(group, {}).get(key), serving.start_until_us
            if known is None or until_us is None or until_us >= frontiers.get(group, NEVER_US):
                continue
            if known.start_until_us is None or until_us < known.start_until_us:
                out[group, key] = until_us
    return out


def _least(*times_us: int | None) -> int | None:
    return min((us for us in times_us if us is not None), default=None)
