"""The rows a merger holds: children's partials under the merger's own key and node numbers, by plan.

Rules (docs/protocol.md): partials of equal plan, range and key merge, plans never meet before the root (6.2); a merger
forgets what it has sent, what comes later is a new delta (6.1); rows that end at or below the published frontier, and
rows a child calls late, leave as late ones (4.2, 4.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS, renumbered
from edge_agent.algebra.columns import OF_NODES
from edge_agent.algebra.frame import Plan, Section
from edge_agent.algebra.partials.partial import NOTHING, Partials, concat
from edge_agent.algebra.partials.sessions import SessionStore
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.windows.ordered import RAW
from edge_agent.machines.checkpoint.codec import group_from_plain, group_to_plain, plan_from_plain, plan_to_plain
from edge_agent.machines.downlink.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.renumbering import Renumbering
from edge_agent.machines.uplink.step import Hints, StepRows

PlanKey = tuple[Group, bytes]


class PartialStore:
    """Open rows of every plan."""

    def __init__(self) -> None:
        self._numbers = Renumbering()
        self.keys, self.nodes = self._numbers.keys, self._numbers.nodes
        self.plans: dict[PlanKey, Plan] = {}
        self.touched: set[PlanKey] = set()
        self._stores: dict[PlanKey, Store | SessionStore] = {}
        self._late: dict[PlanKey, list[Partials]] = {}
        # raw rows of one child epoch and plan, put under our own numbers together: one numpy call for many frames
        self._raw: dict[tuple[str, int, int, bool], list[Partials]] = {}
        self._books: dict[tuple[str, int], EpochDictionary] = {}
        self._stale: list[str] = []  # slots of plans that had no rows at the restart

    def add(self, node: str, epoch: int, book: EpochDictionary, section: Section, *, late: bool) -> None:
        """Take the rows of one section of a child's frame."""
        _, plan = book.plans[section.plan]
        self._books[node, epoch] = book
        self._raw.setdefault((node, epoch, section.plan, late), []).append(section.rows(plan.basis))

    def absorb(self, published: Mapping[Group, int]) -> None:
        """Put what was added under our own numbers, on time or late by the published frontier of its group."""
        for (node, epoch, number, late), raw in self._raw.items():
            book = self._books[node, epoch]
            group, plan = book.plans[number]
            key = (group, plan.hash)
            rows = self._numbers.rows(EpochKey(node, epoch), book, concat(raw))
            self.plans[key] = plan
            self.touched.add(key)
            after_us = group.cut.gap_us  # a session is complete when the frontier is past last + gap
            behind = np.ones(len(rows), np.bool_) if late else rows.end + after_us <= published.get(group, -(2**62))
            if not behind.any():
                self._store(key).add(rows)
            elif behind.all():
                self._late.setdefault(key, []).append(rows)
            else:
                self._late.setdefault(key, []).append(rows.take(behind))
                self._store(key).add(rows.take(~behind))
        self._raw.clear()

    def forget(self, node: str, epoch: int) -> None:
        """An epoch is over and its book is gone."""
        self._books.pop((node, epoch), None)
        self._numbers.forget(EpochKey(node, epoch))

    def _store(self, key: PlanKey) -> Store | SessionStore:
        if key not in self._stores:
            (group, _), plan = key, self.plans[key]
            if group.cut.gap_us and plan.kind in {"session", "marker"}:
                self._stores[key] = SessionStore(plan.basis, group.cut.gap_us, group.cut.max_us, self.nodes.texts)
            else:
                self._stores[key] = Store(plan.basis, plan.unit_us, self.nodes.texts)
        return self._stores[key]

    def hints(self, group: Group, below: Mapping[str, int]) -> Hints | None:
        """What is not sent yet of a group of sessions: here, and by the children that count; else None (5.1)."""
        if not group.cut.gap_us:
            return None
        lows = [s.lows() for k, s in self._stores.items() if k[0] == group and isinstance(s, SessionStore)]
        codes = [*(low for low, _ in lows), np.array([self.keys.number(text) for text in below], np.int64)]
        starts = [*(start for _, start in lows), np.array(list(below.values()), np.int64)]
        return Hints(self.keys.texts, np.concatenate(codes), np.concatenate(starts))

    def holds(self, group: Group) -> bool:
        """Whether rows of a group are open here."""
        return any(key[0] == group and len(store) for key, store in self._stores.items())

    def release(
        self, group: Group, frontier_us: int, below: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[StepRows, ...]:
        """What closes at a frontier and everything late, of one group; it is forgotten here.

        below: of a group of sessions, the hints of the children that count (docs/protocol.md 5.1).
        """
        out = []
        for key in [k for k in self.plans if k[0] == group]:
            store = self._stores.get(key)
            if isinstance(store, SessionStore):
                rows = store.close(frontier_us, {self.keys.number(text): start for text, start in below.items()})
            elif store is not None:  # raw readings are only passed on: they wait for no frontier (7.4)
                rows = store.flush() if self.plans[key].kind == RAW else store.close(frontier_us)
            else:
                rows = NOTHING
            if len(rows):
                self.touched.add(key)
                out.append(StepRows(self.plans[key], False, rows, self.keys.texts, self.nodes.texts))
            if key in self._late:
                self.touched.add(key)
                late = concat(self._late.pop(key))
                out.append(StepRows(self.plans[key], True, late, self.keys.texts, self.nodes.texts))
        return tuple(out)

    def flush(self, group: Group) -> tuple[StepRows, ...]:
        """Everything of a group, closed or not."""
        return self.release(group, 2**62)

    def groups(self) -> list[Group]:
        """Groups with a plan."""
        return list(dict.fromkeys(group for group, _ in self.plans))

    def snapshot(self) -> dict[str, object]:
        """Slots of the plans touched since the last call. Late rows are never open between commits."""
        out: dict[str, object] = dict.fromkeys(self._stale)
        self._stale = []
        for key in self.touched:
            group, digest = key
            name = f"{digest.hex()}/{group_to_plain(group)}"
            store = self._stores.get(key)
            if store is None or not len(store):
                self._stores.pop(key, None)
                out[f"store/{name}"] = None  # its plan stays: the next rows are of it
                continue
            out[f"plan/{name}"] = plan_to_plain(self.plans[key])  # of thousands of queries maybe: written once
            out[f"store/{name}"] = {"group": group_to_plain(group), "rows": self._texts_of(store.snapshot(), key)}
        self.touched.clear()
        return out

    def _texts_of(self, rows: dict[str, object], key: PlanKey) -> dict[str, object]:
        """A snapshot of rows with their own table of names: our numbers do not outlive the process."""
        used = np.unique(np.asarray(rows["key"], np.int64))
        rows["names"] = [self.keys.texts[n] for n in used.tolist()]
        rows["key"] = np.searchsorted(used, np.asarray(rows["key"], np.int64))
        if any(COLUMNS[name].kind in OF_NODES for name in self.plans[key].basis):
            rows["nodes"] = list(self.nodes.texts)
        return rows

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the rows found in the slots of a spool."""
        self._stale = [slot for slot in state if slot.startswith("plan/") and f"store/{slot[5:]}" not in state]
        for slot, value in state.items():
            if not slot.startswith("store/"):
                continue
            plain = state[f"plan/{slot.removeprefix('store/')}"]
            group, plan = group_from_plain(value["group"]), plan_from_plain(plain)
            key = (group, plan.hash)
            self.plans[key] = plan
            rows = value["rows"]
            keys = np.array([self.keys.number(text) for text in rows["names"]], np.int64)
            states = dict(rows["states"])
            if "nodes" in rows:
                numbers = np.array([self.nodes.number(text) for text in rows["nodes"]], np.int64)
                states = renumbered(states, plan.basis, numbers.__getitem__)
            self._store(key).add(Partials(rows["start"], rows["end"], keys[rows["key"]], states))
            self.touched.add(key)
