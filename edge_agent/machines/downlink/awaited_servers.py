"""Which children a query waits for before its start is agreed, because of what they do in other groups (6.3).

A revision with other slices, or a new query with slices of its own, begins in a group of which the first node that
serves it may be the only member. Its start would then be agreed before the others have received the definition, and
rows would count only the first. So the query waits for the children that served the revision before it; a query without
such children, for those that have its sensor. As within a group, it waits a grace time at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.group_membership import GroupMembership

NO_CHILDREN = frozenset[str]()


class AwaitedServers:
    """The children of one parent, as its groups know them at present. Reads the groups only if it is asked."""

    def __init__(self, memberships: Mapping[Group, GroupMembership]) -> None:
        self._memberships = memberships

    def of(self, group: Group, key: QueryKey) -> frozenset[str]:
        """The children for which a query of this group waits. None for the group of a single gateway."""
        if group.node:
            return NO_CHILDREN
        here, found, elsewhere = self._memberships[group].members, set[str](), set[str]()
        for child, revisions in self._by_query.get(key.query, {}).items():
            older = [revision for revision in revisions if revision < key.revision]
            if max(revisions) >= key.revision and (child not in here or key not in here[child].serving):
                elsewhere.add(child)  # it says that it serves this revision, or a newer one, in another group
            elif older and revisions[max(older)]:
                found.add(child)
        return frozenset(found or self._by_source.get(group.source, NO_CHILDREN)) - elsewhere

    @cached_property
    def _by_query(self) -> dict[str, dict[str, dict[int, bool]]]:
        """Query -> child -> revision that it serves -> whether the next one is expected of it.

        It is, unless the child is left out, or has removed the query.
        """
        out: dict[str, dict[str, dict[int, bool]]] = {}
        for membership in self._memberships.values():
            for child, member in membership.expected().items():
                for (query, revision), serving in member.serving.items():
                    revisions = out.setdefault(query, {}).setdefault(child, {})
                    goes_on = not member.out and serving.end_until_us is None
                    revisions[revision] = goes_on or revisions.get(revision, False)
        return out

    @cached_property
    def _by_source(self) -> dict[str, frozenset[str]]:
        """Sensor -> the children in its groups that are not left out."""
        out: dict[str, frozenset[str]] = {}
        for group, membership in self._memberships.items():
            found = frozenset(child for child, member in membership.expected().items() if not member.out)
            out[group.source] = out.get(group.source, NO_CHILDREN) | found
        return out
