"""Keeps the open rows of a merger by plan, under the merger's own key and node numbers.

Rules (docs/protocol.md): partials of equal plan, range and key merge; different plans meet only at the root (6.2). A
merger forgets sent rows, and a later row is a new delta (6.1). Rows that end at or below the published frontier, and
rows that a child sent as late, leave as late rows (4.2, 4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from edge_agent.algebra.aggregates import COLUMNS, renumbered
from edge_agent.algebra.columns import OF_NODES
from edge_agent.algebra.frame import LEAF_READINGS, MAX_LEAVES, ROW_LIMIT_US, Gap, Plan, Section
from edge_agent.algebra.partials.arrays import Array
from edge_agent.algebra.partials.cell_bytes import held_bytes
from edge_agent.algebra.partials.partial import NOTHING, Partials, concat, readings_in, with_names
from edge_agent.algebra.partials.row_counts import claimed
from edge_agent.algebra.partials.sessions import SessionStore
from edge_agent.algebra.partials.store import Store
from edge_agent.algebra.query.key import EpochKey, QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.windows.ordered import RAW
from edge_agent.machines.checkpoint.slots import PLAN, STORE, NamedRows, StoreState, slot_name
from edge_agent.machines.downlink.epochs.counting import ALL, Counting
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.renumbering import Renumbering
from edge_agent.machines.region import overfull
from edge_agent.machines.uplink.step import Hints, StepRows

PlanKey = tuple[Group, bytes]
MOST_PLANS: Final = 100_000  # plans without open rows are forgotten beyond this number
BEYOND_TIME: Final = "a row has impossible times"  # reason of a gap record
# Open rows of all groups; beyond it those of the largest groups leave before their frontier. A row counts once for each
# 8 state columns or part of them, so that all take some 100 MB at most.
MOST_OPEN: Final = 2**20
COLUMNS_OF_ONE: Final = 8
BYTES_OF_ONE: Final = 100  # of what cells hold, such as the values of a multiset
OF_PLAN: Final = 16  # what a plan with open rows counts: each has two slots of the spool, and a number in an epoch
MOST_KEYS: Final = 2**18  # beyond so many texts of keys and nodes, those of no open row are forgotten


class PartialStore:
    """Open rows of every plan. tidied: how often unused texts were forgotten. touched: plans to commit.

    left_early: how often the rows of a group left early, since the process started (see `crowded`). lost: gap records
    for rows that were taken out, until the owner takes them.
    """

    def __init__(self, leaves: Callable[[Group], int] = lambda group: MAX_LEAVES) -> None:
        """leaves: how many gateways the parent knows below this node."""
        self._leaves = leaves
        self._numbers = Renumbering()
        self.keys, self.nodes = self._numbers.keys, self._numbers.nodes
        self.plans: dict[PlanKey, Plan] = {}
        self._of: dict[Group, dict[PlanKey, None]] = {}  # keys of `plans`: a step asks for those of every group
        self.tidied = 0
        self.left_early = 0
        self.touched: set[PlanKey] = set()
        self.lost: list[Gap] = []
        self._stores: dict[PlanKey, Store | SessionStore] = {}
        self._claimed: dict[PlanKey, float] = {}  # at least the readings in open rows
        self._held: dict[PlanKey, int] = {}  # at least the bytes that the cells of open rows hold
        self._late: dict[PlanKey, list[Partials]] = {}
        # (node, epoch, plan number, late) -> rows as they came: one numpy call names and renumbers those of many frames
        self._raw: dict[tuple[str, int, int, bool], list[Partials]] = {}
        self._raw_weight = 0  # what the rows in `_raw` count towards MOST_OPEN
        self._dictionaries: dict[EpochKey, EpochDictionary] = {}
        self._tidy_at = MOST_KEYS
        self._stale: list[str] = []  # slots of plans without rows found at the restart, to delete

    def add(
        self, of: EpochKey, dictionary: EpochDictionary, section: Section, *, late: bool, counting: Counting = ALL
    ) -> int:
        """Add the rows of a section of a child's frame, as far as they count. Returns how many readings do not count.

        of: the child's epoch. counting: which rows count.
        """
        rows = section.partials
        counted = rows if counting is ALL else counting.of(rows)
        if len(counted):
            self._dictionaries[of] = dictionary
            self._raw.setdefault((*of, section.plan, late), []).append(counted)
            self._raw_weight += weight(len(counted), len(counted.states)) + held_bytes(counted) // BYTES_OF_ONE
        return 0 if counted is rows else readings_in(rows) - readings_in(counted)

    @property
    def full(self) -> bool:
        """Whether the added rows must be committed now, before more come."""
        return self._raw_weight > MOST_OPEN

    def absorb(self, published: Mapping[Group, int]) -> None:
        """Move added rows to the stores, under the merger's own numbers. published: frontiers; rows below are late."""
        for (node, epoch, number, late), raw in self._raw.items():
            dictionary = self._dictionaries[EpochKey(node, epoch)]
            group, plan = dictionary.plans[number]
            key = (group, plan.hash)
            rows = self._numbers.rows(EpochKey(node, epoch), dictionary, with_names(concat(raw), plan.basis))
            self._know(key, plan)
            self.touched.add(key)
            after_us = group.cut.gap_us  # a session is complete when the frontier is above last + gap
            behind = np.ones(len(rows), np.bool_) if late else rows.end + after_us <= published.get(group, -(2**62))
            if not behind.any():
                self._open(key, rows)
            elif behind.all():
                self._late.setdefault(key, []).append(rows)
            else:
                self._late.setdefault(key, []).append(rows.take(behind))
                self._open(key, rows.take(~behind))
        self._raw.clear()
        self._raw_weight = 0

    def _know(self, key: PlanKey, plan: Plan) -> None:
        self.plans[key] = plan
        self._of.setdefault(key[0], {})[key] = None

    def _open(self, key: PlanKey, rows: Partials) -> None:
        """Add open rows. Those that claim too many readings are taken out before their sums leave 64 bits."""
        store = self._store(key)
        store.add(rows)
        self._note_held(key, rows)
        self._claimed[key] = self._claimed.get(key, 0.0) + claimed(rows, store.basis)
        if self._claimed[key] > LEAF_READINGS:
            kept = self._bounded(key, store.view())
            store.restore(kept)
            self._claimed[key] = claimed(kept, store.basis)

    def _note_held(self, key: PlanKey, rows: Partials) -> None:
        if held := held_bytes(rows):
            self._held[key] = self._held.get(key, 0) + held

    def _bounded(self, key: PlanKey, rows: Partials) -> Partials:
        """The rows that the parent takes; others are declared lost."""
        kept, taken = overfull.split(rows, self.plans[key].basis, lambda: self._leaves(key[0]))
        self.lost += () if taken is None else overfull.losses(key[0], taken)
        return kept

    def forget(self, epoch: EpochKey) -> None:
        """Drop the dictionary of a child's epoch that has ended."""
        self._dictionaries.pop(epoch, None)
        self._numbers.forget(epoch)

    def _store(self, key: PlanKey) -> Store | SessionStore:
        if key not in self._stores:
            (group, _), plan = key, self.plans[key]
            if group.cut.gap_us and plan.kind in {"session", "marker"}:
                self._stores[key] = SessionStore(plan.basis, group.cut.gap_us, group.cut.max_us, self.nodes.texts)
            else:
                self._stores[key] = Store(plan.basis, plan.unit_us, self.nodes.texts)
        return self._stores[key]

    def hints(self, group: Group, below: Mapping[str, int]) -> Hints | None:
        """Earliest unsent starts of a group of sessions (5.1); None for other groups.

        below: key text -> earliest start at children that count.
        """
        if not group.cut.gap_us:
            return None
        stores = (self._stores.get(key) for key in self._of.get(group, ()))
        lows = [store.lows() for store in stores if isinstance(store, SessionStore)]
        if len(lows) == 1 and not below:
            return Hints(self.keys.texts, *lows[0])
        codes = [*(low for low, _ in lows), np.array([self.keys.number(text) for text in below], np.int64)]
        starts = [*(start for _, start in lows), np.array(list(below.values()), np.int64)]
        return Hints(self.keys.texts, np.concatenate(codes), np.concatenate(starts))

    def holds(self, group: Group) -> bool:
        """Whether the group has open rows."""
        return any(len(self._stores.get(key, ())) for key in self._of.get(group, ()))

    def _weight(self, key: PlanKey) -> int:
        """What the open rows of a plan count towards MOST_OPEN."""
        rows = len(self._stores.get(key, ()))
        held = self._held.get(key, 0) // BYTES_OF_ONE
        return OF_PLAN + weight(rows, len(self.plans[key].basis)) + held if rows else 0

    def crowded(self) -> set[Group]:
        """The groups whose open rows must leave early: the largest ones, until half of MOST_OPEN rows are left.

        The parent merges such rows with later ones as it does with those of a flush, so only bytes are lost (6.1).
        """
        rows = sum(map(self._weight, self._stores))
        if rows > MOST_OPEN and self._held:
            self._measure()
            rows = sum(map(self._weight, self._stores))
        if rows <= MOST_OPEN:
            return set()
        sizes = [(sum(self._weight(key) for key in keys), group) for group, keys in self._of.items()]
        out = set()
        for size, group in sorted(sizes, key=lambda each: -each[0]):
            if rows <= MOST_OPEN // 2:
                break
            rows -= size
            out.add(group)
        self.left_early += len(out)
        return out

    def _measure(self) -> None:
        """Measure what open rows hold: rows have left, and others were combined."""
        known, self._held = self._held, {}
        for key in known:
            if key in self._stores:
                self._note_held(key, self._stores[key].view())

    def release(
        self, group: Group, frontier_us: int, below: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[StepRows, ...]:
        """Remove and return the rows of one group that close at a frontier, and all its late rows.

        below: see `hints`.
        """
        out = []
        for key in self._of.get(group, ()):
            store = self._stores.get(key)
            if isinstance(store, SessionStore):
                rows = store.close(frontier_us, {self.keys.number(text): start for text, start in below.items()})
            elif store is not None:  # raw readings are passed on at once, whatever the frontier (7.4)
                rows = store.flush() if self.plans[key].kind == RAW else store.close(frontier_us)
            else:
                rows = NOTHING
            if len(rows):
                self.touched.add(key)
                rows = self._bounded(key, rows)
            if len(rows):
                out.append(StepRows(self.plans[key], False, rows, self.keys.texts, self.nodes.texts))
            out += self._late_of(key)
        return tuple(out)

    def late(self, group: Group) -> tuple[StepRows, ...]:
        """Remove and return the late rows of a group."""
        return tuple(rows for key in self._of.get(group, ()) for rows in self._late_of(key))

    def _late_of(self, key: PlanKey) -> list[StepRows]:
        if key not in self._late:
            return []
        self.touched.add(key)
        rows = self._bounded(key, concat(self._late.pop(key)))
        return [StepRows(self.plans[key], True, rows, self.keys.texts, self.nodes.texts)] if len(rows) else []

    def flush(self, group: Group) -> tuple[StepRows, ...]:
        """Remove and return all rows of a group, closed or not."""
        return self.release(group, 2**62)

    @property
    def readings(self) -> int:
        """Number of readings in all rows."""
        parts = (*self._raw.values(), *self._late.values())
        waiting = sum(readings_in(rows) for found in parts for rows in found)
        return waiting + sum(store.readings for store in self._stores.values())

    def named(self) -> set[QueryKey]:
        """The queries whose plans have open or late rows."""
        held = {key for key, store in self._stores.items() if len(store)} | self._late.keys()
        return {query for key in held for query in self.plans[key].keys}

    def groups(self) -> list[Group]:
        """Groups with a plan."""
        return list(self._of)

    def snapshot(self) -> dict[str, object]:
        """The slots to commit of plans touched since the last call. Late rows always leave before a commit."""
        out: dict[str, object] = dict.fromkeys(self._stale)
        self._stale = []
        self._tidy()
        for key in sorted(self.touched):
            group, digest = key
            name = f"{digest.hex()}/{slot_name(group)}"
            store = self._stores.get(key)
            if store is None or not len(store):
                self._stores.pop(key, None)
                self._claimed.pop(key, None)
                self._held.pop(key, None)
                out |= STORE.write(None, name)  # the plan stays, because more rows of it are likely
                continue
            out |= PLAN.write(self.plans[key], name)  # in a slot of its own: it may have thousands of queries
            out |= STORE.write(StoreState(group=group, rows=self._named_rows(store.view(), key)), name)
        self.touched.clear()
        for key in list(self.plans)[: max(len(self.plans) - MOST_PLANS, 0)]:
            if key not in self._stores and key not in self._late:  # the next rows of the plan bring it back
                del self.plans[key]
                del self._of[key[0]][key]
                if not self._of[key[0]]:
                    del self._of[key[0]]
                out |= PLAN.write(None, f"{key[1].hex()}/{slot_name(key[0])}")
        return out

    def _tidy(self) -> None:
        """If there are many texts, keep only those of open rows, so that keys used once do not stay for ever."""
        if len(self.keys.texts) + len(self.nodes.texts) <= self._tidy_at:
            return
        kept = {key: self._named_rows(store.view(), key) for key, store in self._stores.items() if len(store)}
        self._numbers = Renumbering()
        self.keys, self.nodes = self._numbers.keys, self._numbers.nodes
        self._stores.clear()
        for key, rows in kept.items():
            self._store(key).add(self._numbered(rows, self.plans[key]))
        self._tidy_at = max(MOST_KEYS, 2 * (len(self.keys.texts) + len(self.nodes.texts)))
        self.tidied += 1

    def _numbered(self, rows: NamedRows, plan: Plan) -> Partials:
        keys = np.array([self.keys.number(text) for text in rows.names], np.int64)
        states: Mapping[str, Array] = rows.states
        if rows.nodes is not None:
            numbers = np.array([self.nodes.number(text) for text in rows.nodes], np.int64)
            states = renumbered(states, plan.basis, numbers.__getitem__)
        return Partials(rows.start, rows.end, keys[rows.key], states)

    def _named_rows(self, rows: Partials, key: PlanKey) -> NamedRows:
        """Rows with their own table of names, because the numbers of this process are void after a restart."""
        used = np.unique(rows.key)
        of_nodes = any(COLUMNS[name].kind in OF_NODES for name in self.plans[key].basis)
        return NamedRows(
            start=rows.start,
            end=rows.end,
            key=np.searchsorted(used, rows.key),
            states=dict(rows.states),
            names=[self.keys.texts[n] for n in used.tolist()],
            nodes=list(self.nodes.texts) if of_nodes else None,
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the rows in the slots of a spool."""
        self._stale = [row for row in state if row.startswith("plan/") and f"store/{row[5:]}" not in state]
        for name, found in STORE.each(state):
            plan = PLAN.read(state, name)
            assert plan is not None
            key = (found.group, plan.hash)
            self._know(key, plan)
            rows = self._in_time(self._numbered(found.rows, plan))
            self._store(key).add(rows)
            self._note_held(key, rows)
            self.touched.add(key)

    def _in_time(self, rows: Partials) -> Partials:
        """The rows that can be sent. Others, which only earlier versions stored, are declared lost."""
        inside = (rows.start >= -ROW_LIMIT_US) & (rows.end <= ROW_LIMIT_US) & (rows.start < rows.end)
        if inside.all():
            return rows
        self.lost.append(Gap((), 0, 0, -1, (), BEYOND_TIME))
        return rows.take(inside)


def weight(rows: int, columns: int) -> int:
    """What rows with so many state columns count towards MOST_OPEN."""
    return rows * max(1, -(-columns // COLUMNS_OF_ONE))
