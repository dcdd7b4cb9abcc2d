"""The windows that each group serves of each query, until none of their rows can change (docs/protocol.md 6.3, 8.4).

revision_handover.py says how the members of a group agree on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edge_agent.algebra.frame import MAX_HORIZON_US, NEVER_US, Serving
from edge_agent.algebra.query.key import QueryKey, QueryPlace
from edge_agent.algebra.query.query import Group
from edge_agent.config.in_force.known_definitions import KnownDefinitions
from edge_agent.machines.checkpoint.codec import decode, encode
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.root import bounds, revision_handover


class AgreedServings:
    """The servings in force, and which of those that children still state have ended for good.

    of: group -> (query, revision) -> the agreed serving. surplus: servings dropped beyond `bounds.MOST_SERVED`.
    """

    def __init__(self, parent: ChildFrames, texts: KnownDefinitions) -> None:
        """parent: its children state servings. texts: the definitions of their queries."""
        self._parent, self._texts = parent, texts
        self.of: dict[Group, dict[QueryKey, Serving]] = {}
        self._over_us: dict[Group, int] = {}  # servings that ended before this time are forgotten for good
        self.surplus = 0

    def agree(self, passed: Mapping[Group, int], now_us: int) -> None:
        """Agree on what children state now. passed: frontier of each group at the last decision."""
        memberships = self._parent.children.memberships
        stated = {
            group: {
                key: serving
                for key, serving in servings.items()
                if self._texts.fits(key, group) and not self._is_over(group, memberships[group], serving)
            }
            for group, servings in self._parent.servings(now_us).items()
        }
        self.of = revision_handover.agreed(self.of, stated, passed)
        for group, held in self.of.items():
            for key in [key for key in held if not self._texts.fits(key, group)]:
                del held[key]  # the operator has published a definition of another window, filter or key since (6.5)
            for key in bounds.surplus(held, stated.get(group, {})):
                del held[key]
                self.surplus += 1

    def _is_over(self, group: Group, membership: GroupMembership, serving: Serving) -> bool:
        """Whether a serving stated by a child ended so long ago that it has been forgotten."""
        over = serving.key not in self.of.get(group, {}) and self._end_us(serving) < self._over_us.get(group, NEVER_US)
        if over:
            membership.forget(serving.key)
        return over

    def _end_us(self, serving: Serving) -> int:
        """The time by which every row of the serving ends; FAR_US: it has no end."""
        _, until_us, end_us = serving.bounds_us
        if until_us < -NEVER_US:
            reach_us = self._texts.reach_us(serving.key)
            end_us = min(end_us, until_us + (MAX_HORIZON_US if reach_us is None else reach_us))
        return end_us

    def let_go(
        self, frontiers: Mapping[Group, int], horizon_us: int, waits: Callable[[QueryPlace, int], bool]
    ) -> list[tuple[Group, QueryKey]]:
        """Forget servings that ended two horizons before the frontier. Returns them. waits: as in `Decider.let_go`."""
        out = []
        for group, held in self.of.items():
            frontier_us = frontiers[group]
            over_us = max(frontier_us - 2 * horizon_us, self._over_us.get(group, NEVER_US))
            if frontier_us > NEVER_US:
                self._over_us[group] = over_us
            for key, serving in [*held.items()]:
                end_us = self._end_us(serving)
                if end_us < over_us and not waits(QueryPlace(*key, group.node), end_us):
                    del held[key]
                    self._parent.children.memberships[group].forget(key)
                    out.append((group, key))
        return out

    def serves(self, group: Group, key: QueryKey) -> bool | None:
        """Whether a group serves a query's revision; None: not yet agreed, but a member states it."""
        if key in self.of.get(group, {}):
            return True
        membership = self._parent.children.memberships.get(group)
        stated = membership is not None and membership.serves(key) and self._texts.fits(key, group)
        return None if stated else False

    def forget_group(self, group: Group) -> None:
        """Forget a group that has ended."""
        del self.of[group]
        self._over_us.pop(group, None)

    def snapshot(self) -> dict[str, object]:
        return {
            "serving": encode([(group, list(servings.values())) for group, servings in self.of.items()]),
            "over": encode(list(self._over_us.items())),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `snapshot`."""
        serving = decode(dict[Group, list[Serving]], state["serving"])
        self.of = {group: {each.key: each for each in servings} for group, servings in serving.items()}
        self._over_us = dict(decode(list[tuple[Group, int]], state["over"])) if "over" in state else {}
