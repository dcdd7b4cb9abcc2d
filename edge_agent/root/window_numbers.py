"""Windows between markers by number: at each node, and among the windows of all nodes (docs/protocol.md 6.2). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_agent.algebra.punctuation.markers import ordinal_of
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.span import FAR_US
from edge_agent.root.punctuation_windows import Members, Pick

Known = Mapping[str, Mapping[tuple[int, int], int]]  # node -> (start, end) of windows without rows -> own number


@dataclass(slots=True)
class WindowNumbers:
    """The numbers of one query revision.

    A node counts from the first window that it serves the revision for; its own numbers go on from one revision to the
    next. The first window of a node that joins later is the next of all.

    made: the last own number of each node; ends: the end of that window. next: number of the next window of all nodes.
    first: node -> its own number of its first window of this revision; joined: node -> number of this window among
    those of all nodes. passed: node -> its own number of its last window that has closed, so that earlier ones that did
    not come are lost. shifts: node -> how much its own numbers are above those in its rows, because it has begun to
    count anew.
    """

    made: dict[str, int] = field(default_factory=dict)
    next: int = 0
    first: dict[str, int] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    shifts: dict[str, int] = field(default_factory=dict)

    def take(self, node: str, key: str, start_us: int, end_us: int) -> int:
        """Take a numbered marker row of a node. Returns the node's own number of the window."""
        number = self._own(node, key, start_us)
        if number > self.made.get(node, -1):
            self.made[node], self.ends[node] = number, end_us
        return number

    def _own(self, node: str, key: str, start_us: int) -> int:
        """The number of a window at its node, which goes on if the node has lost its spool and counts from 0 again.

        Then the window is the next of all nodes that the node has not had: nobody knows how many it has missed. Numbers
        are known modulo ORDINALS only, so one that leads back, or a 0, shows this if the window is newer than all.
        """
        last, shift = self.made.get(node, -1), self.shifts.get(node, 0)
        number = ordinal_of(key, last - shift) + shift
        if start_us < self.ends.get(node, FAR_US) or number == last + 1 or (number > last and int(key[1:])):
            return number
        number = last + 1 + max(0, self.next - self.common(node, last) - 1) * (node in self.first)
        self.shifts[node] = number - int(key[1:])
        return number

    def count_from(self, key: QueryKey, members: Members, known: Known) -> None:
        """Find the number of each node's first window of this revision.

        Its number is 0 at a node that has served the revision from the beginning. At others it is found once the
        node's frontier has reached the end of such a window, because rows may arrive out of order.
        """
        for node, (group, view) in members.items():
            # a line of the node that is left out may still have the number: only `skip` goes on without it
            closed_us = view.frontier_us if group.cut.skips else min(view.frontier_us, *view.leaves.distinct())
            closed = (number for window, number in known.get(node, {}).items() if window[1] <= closed_us)
            self.passed[node] = max(self.passed.get(node, -1), *closed, -1)
            if node in self.first:
                continue
            self.joined.setdefault(node, self.next)
            serving, own = view.serving[key], known.get(node, {})
            numbers = [n for window, n in own.items() if window[1] <= view.frontier_us and serving.covers(*window)]
            if serving.start_from_us is None:
                self.first[node] = 0
            elif numbers:
                self.first[node] = min(numbers)

    def common(self, node: str, number: int) -> int:
        """The number among all nodes' windows of a node's window; -1 if the node does not take part with it."""
        after = number - self.first.get(node, number + 1)
        return after + self.joined.get(node, 0) if after >= 0 else -1

    def expected(self, members: Members, picks: Sequence[Pick], number: int) -> Members:
        """The nodes that are expected in a window of all nodes: those it consists of, and those that joined by then."""
        here = {node for node, _, _ in picks}
        return {node: of for node, of in members.items() if node in here or self.joined.get(node, 0) <= number}

    def lost(self, nodes: Iterable[str], number: int) -> set[str]:
        """The nodes whose window with this number among those of all nodes will not come, unless it has."""
        return {node for node in nodes if self.common(node, self.passed.get(node, -1)) > number >= 0}

    def leave(self, node: str) -> None:
        """Forget a node that is gone for good. If its name returns, it joins anew."""
        for of in (self.made, self.first, self.joined, self.passed, self.ends, self.shifts):
            of.pop(node, None)

    def snapshot(self) -> dict[str, object]:
        return {
            "made": dict(self.made),
            "next": self.next,
            "first": dict(self.first),
            "joined": dict(self.joined),
            "passed": dict(self.passed),
            "ends": dict(self.ends),
            "shifts": dict(self.shifts),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> WindowNumbers:
        """The result of `snapshot`. Older versions had no `first`, `joined`, `passed`, `ends` and `shifts`."""
        made = dict(state["made"])
        return cls(
            made,
            state["next"],
            # older versions counted from 0 at every node; if that gave no window yet, the first one is looked for now
            dict(state.get("first", dict.fromkeys(made if state["next"] else (), 0))),
            *(dict(state.get(name, {})) for name in ("joined", "passed", "ends", "shifts")),
        )
