"""Decides which definitions are in force on a node and reports in `state` why others are not.

Rules (schemas/topics.md, "Definitions"):
- Within a scope (`all`, or `node`: down/<node> and the local file) the highest revision is in force. A lower revision,
  or an equal revision with other content, is refused; the hint is the next free number. A definition without a revision
  waits for the parent's number.
- `node` overrides `all`. A removal at `node` also hides the definition at `all`, until `all` has a higher revision.
- A definition that cannot be read, is not supported or exceeds a limit never replaces the definition in force. Its
  refusal is dropped when its topic is emptied.
- Emptying a topic has no other effect. A definition that is deleted from the local file is removed.
- A sensor whose driver this node cannot run is ignored with a warning, and so are queries of it.
Pure: payloads in, values out. `snapshot` is stored in the spool, so that a node can start offline.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from edge_agent.algebra.query.query import Query, Sensor
from edge_agent.config.definitions.definitions import Definition, canonical_query, canonical_sensor, parse_definition
from edge_agent.config.definitions.drivers import DRIVERS
from edge_agent.config.in_force.capacity import Capacity
from edge_agent.config.in_force.crosscheck import driver_fails, not_usable, shows_no_rows, too_much, unmet, warnings
from edge_agent.config.in_force.rejection import MOST_ERRORS, Rejection, kept, problem_fields, revision_in, state_item
from edge_agent.config.node_file.node_tables import LimitsTable
from edge_agent.config.topics import ALL, KINDS, NODE
from edge_agent.errors import ConfigError, NotSupported, Problem

MAX_STATE_BYTES: Final = 900_000  # brokers accept packets of 1 MiB (docs/operate.md)
MOST_REFUSED: Final = 10_000  # most refusals that are kept, because anybody who may publish can cause any number
MOST_WAITING: Final = 500  # most definitions over a limit that are retried; others must be published again
Slot = tuple[str, str, str]  # (scope, kind, id)


class DefinitionRegistry:
    """The definitions of one node.

    local: definitions of the local file. state: from `snapshot`. local_broker: whether the node has a local broker.
    """

    def __init__(
        self,
        node: str,
        limits: LimitsTable | None = None,
        local: Iterable[Definition] = (),
        state: Mapping[str, object] | None = None,
        *,
        local_broker: bool = True,
    ) -> None:
        self._node = node
        self._limits = limits or LimitsTable()
        self._local_broker = local_broker
        self._accepted: dict[Slot, Definition] = {}
        self._refused: dict[Slot, Rejection] = {}
        self._highest: dict[tuple[str, str], int] = {}
        self._files: dict[tuple[str, str], tuple[int, str]] = {}  # (kind, id) -> (revision, content) of the local file
        self._capacity = Capacity(self._limits)
        self._version = 0
        self._unconfirmed: set[Slot] = set()  # refused before the broker was connected, not published since
        before = self._hash()
        if state is not None:
            self._restore(state)
            before = str(state.get("hash"))
        self._take_file(tuple(local))
        if state is not None:  # the file may have fewer definitions now, or the limits may be higher
            self._retry()
        self._version += self._hash() != before

    def take(self, scope: str, kind: str, item: str, payload: bytes | str) -> bool:
        """Apply a message on a definition topic. Returns whether the definitions in force have changed.

        `state` may change even if they have not.
        """
        slot = (scope, kind, item)
        self._unconfirmed.discard(slot)
        if not payload:  # a definition in force ends only with a removal, which the parent publishes
            self._forget(slot)
            return False
        try:
            definition = parse_definition(kind, item, payload)
        except ConfigError as err:
            unsupported = isinstance(err, NotSupported)
            self._refuse(slot, Rejection(revision_in(payload), err.problems, unsupported=unsupported))
            return False
        if definition.revision is None:
            have = self._accepted.get(slot)
            if have is None or have.content != definition.content:
                why = "has no revision yet: it waits until the parent has numbered it"
                hint = f"or set revision = {self._next(kind, item)}"
                self._refuse(slot, Rejection(None, (Problem("revision", None, why, hint),), waiting=True))
            return False
        again = self._known(kind, item)
        changed = self._accept(slot, definition)
        if again:  # only a change of a known definition can make room for others
            changed |= self._retry(slot)
        self._version += changed
        return changed

    def leave_out(self, scope: str, kind: str, item: str, why: str) -> None:
        """Report a definition that this process cannot handle. The definition in force does not change."""
        slot = (scope, kind, item)
        self._unconfirmed.discard(slot)
        self._refuse(slot, Rejection(None, (Problem("", None, why, "change it, or report it with the log"),)))

    def connected(self) -> None:
        """Note that the broker sends all retained definitions again; `confirmed` then drops refusals not repeated."""
        self._unconfirmed = {slot for slot, refusal in self._refused.items() if refusal.definition is None}

    def confirmed(self) -> bool:
        """Note that all retained definitions have arrived. Drops refusals not repeated; returns whether any were."""
        stale, self._unconfirmed = self._unconfirmed, set()
        return sum(self._forget(slot) for slot in stale) > 0

    def in_force(self) -> tuple[tuple[Sensor, ...], tuple[Query, ...]]:
        """The sensors and the queries that this node runs, in order of their ids."""
        sensors = self._sensors()
        queries = [d.value for d in self._effective("query") if isinstance(d.value, Query)]
        return (
            tuple(sorted(sensors.values(), key=lambda s: s.id)),
            tuple(sorted((q for q in queries if sensors.keys() >= {*q.sources}), key=lambda q: q.id)),
        )

    def state(self, most_bytes: int = MAX_STATE_BYTES, failing: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The document of the `state` topic: for each definition, whether it is in force, or why not.

        failing: sensor whose driver fails -> why, for a warning; the definition stays in force.
        Entries beyond most_bytes of JSON are left out and counted in `left_out`; entries with errors come first.
        """
        sensors, elsewhere = self._sensors(), self.cannot_run()
        items: dict[str, Any] = {}
        for kind in KINDS:
            slots = [s for s in (*self._accepted, *self._refused) if s[1] == kind]
            for item in sorted({s[2] for s in slots}):
                if (entry := self._item(kind, item, sensors, elsewhere)) is not None:
                    if kind == "sensor" and failing and item in failing:
                        entry["warnings"] = [*entry.get("warnings", ()), problem_fields(driver_fails(failing[item]))]
                    items[f"{kind}/{item}"] = entry
        head = {"version": self._version, "hash": self._hash()}
        sizes = {
            name: len(name) + len(json.dumps(entry, ensure_ascii=False).encode()) + 8 for name, entry in items.items()
        }
        if sum(sizes.values()) <= most_bytes:
            return {**head, "items": items}
        room, stay = most_bytes, dict[str, Any]()
        for name in sorted(items, key=lambda name: items[name]["ok"]):
            room -= sizes[name]
            if room < 0:
                break
            stay[name] = items[name]
        return {**head, "left_out": len(items) - len(stay), "items": stay}

    def refused(self) -> dict[tuple[str, str], Problem]:
        """(kind, id) -> why the newest definition of the id is not in force, the newest refusal last.

        Definitions that wait for a number or for their sensor are not included.
        """
        final = {slot: r for slot, r in self._refused.items() if r.definition is not None or not r.waiting}
        return {(kind, item): refusal.problems[0] for (_, kind, item), refusal in final.items() if refusal.problems}

    def cannot_run(self) -> dict[str, Definition]:
        """Sensor id -> definition that is for this node, but with a driver that the node cannot run."""
        return {d.id: d for d in self._accepted.values() if d.concerns(self._node) and not self._concerns(d)}

    def unpublished(self) -> dict[str, Problem]:
        """Query id -> why the query of the node's own file shows no rows: the id is published too."""
        found = ((item, self._unpublished(item)) for kind, item in self._files if kind == "query")
        return {item: problem for item, problem in found if problem is not None}

    def snapshot(self) -> dict[str, object]:
        return {
            "version": self._version,
            "hash": self._hash(),
            "accepted": [[*slot, d.text] for slot, d in self._accepted.items()],
            "highest": [[kind, item, n] for (kind, item), n in self._highest.items()],
            "files": [[kind, item, n, content] for (kind, item), (n, content) in self._files.items()],
            "refused": [[*slot, *refusal.plain()] for slot, refusal in self._refused.items()],
        }

    # --- changes --------------------------------------------------------------------------------------------------

    def _accept(self, slot: Slot, definition: Definition) -> bool:
        """Put a numbered definition in force, or note why not. Returns whether the definitions in force changed."""
        _, kind, item = slot
        if (problem := self._outdated(slot, definition)) is not None:
            self._refuse(slot, Rejection(definition.revision, (problem,)))
            return False
        before, value = self._accepted.get(slot), self._value(kind, item)
        is_new = not self._known(kind, item) and self._concerns(definition)
        problem = self._capacity.refusal(definition) if is_new else None
        if problem is None:
            self._put(slot, definition)
            if (problem := self._beyond(kind, item)) is not None:
                self._put(slot, before)
                if is_new:
                    self._capacity.refused(definition, problem)
        if problem is not None:
            self._wait(slot, definition, problem)
            return False
        self._refused.pop(slot, None)
        self._highest[kind, item] = max(definition.revision or 0, self._highest.get((kind, item), 0))
        return self._value(kind, item) != value

    def _retry(self, but: Slot | None = None) -> bool:
        """Try the definitions over a limit again, except in a slot. Returns whether those in force have changed."""
        self._capacity.changed()
        changed = False
        for waiting, refusal in list(self._refused.items()):
            if refusal.definition is not None and waiting != but:
                changed |= self._accept(waiting, refusal.definition)
        return changed

    def _refuse(self, slot: Slot, rejection: Rejection) -> None:
        """Note a refusal, as the newest."""
        self._refused.pop(slot, None)
        self._refused[slot] = replace(rejection, problems=tuple(map(kept, rejection.problems[:MOST_ERRORS])))
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def _forget(self, slot: Slot) -> bool:
        """Drop the refusal of an emptied topic, unless it is of the local file. Returns whether it was dropped."""
        refusal, in_file = self._refused.get(slot), self._files.get(slot[1:])
        if refusal is None or (slot[0] == NODE and in_file is not None and in_file[0] == refusal.revision):
            return False
        del self._refused[slot]
        return True

    def _concerns(self, definition: Definition) -> bool:
        """Whether a definition is for this node and the node can run its driver."""
        value = definition.value
        can_run = self._local_broker or not isinstance(value, Sensor) or not DRIVERS[value.driver].local
        return can_run and definition.concerns(self._node)

    def _known(self, kind: str, item: str) -> bool:
        """Whether any scope has an accepted definition of the id."""
        return (NODE, kind, item) in self._accepted or (ALL, kind, item) in self._accepted

    def _wait(self, slot: Slot, definition: Definition, problem: Problem) -> None:
        """Refuse a definition over a limit. The first MOST_WAITING are kept and tried again when there is room."""
        waiting = (refusal for refusal in self._refused.values() if refusal.definition is not None)
        if slot not in self._refused and next(islice(waiting, MOST_WAITING - 1, None), None) is not None:
            of_file = slot[0] == NODE and self._files.get(slot[1:]) == (definition.revision, definition.content)
            how = "reload the file" if of_file else "publish it again"
            again = replace(problem, hint=f"{how} once there is room; {problem.hint}")
            self._refuse(slot, Rejection(definition.revision, (again,)))
            return
        self._refuse(slot, Rejection(definition.revision, (problem,), waiting=True, definition=definition))

    def _put(self, slot: Slot, definition: Definition | None) -> None:
        for each, sign in ((self._accepted.get(slot), -1), (definition, 1)):
            if each is not None:
                self._capacity.count(each, sign)
        if definition is None:
            self._accepted.pop(slot, None)
        else:
            self._accepted[slot] = definition

    def _outdated(self, slot: Slot, definition: Definition) -> Problem | None:
        """Why the revision rules refuse a definition; None if they do not."""
        scope, kind, item = slot
        number, have = definition.revision or 0, self._accepted.get(slot)
        free = f"set revision = {self._next(kind, item)}"
        if have is not None and number < (have.revision or 0):
            return Problem("revision", number, f"lower than revision {have.revision}, which is in force", free)
        other = self._accepted.get((NODE if scope == ALL else ALL, kind, item))
        for known in (have, other):
            if known is not None and known.revision == number and known.content != definition.content:
                return Problem("revision", number, f"revision {number} has other content already", free)
        return None

    def _beyond(self, kind: str, item: str) -> Problem | None:
        """Why the newly accepted definition of an id exceeds a limit of this node; None if it does not."""
        chosen = self._choose(kind, item)
        if chosen is None or chosen.value is None:
            return None
        if self._capacity.plenty(chosen.value):
            return None
        return too_much(kind, item, [d.value for d in self._effective(kind)], self._limits)

    def _take_file(self, local: Sequence[Definition]) -> None:
        """Apply the local file. Definitions without a revision are numbered here; unchanged ones keep their number."""
        named = {(d.kind, d.id) for d in local}
        for key in [key for key in self._files if key not in named]:
            gone = self._files.pop(key)
            self._refused.pop((NODE, *key), None)
            have = self._accepted.get((NODE, *key))
            if have is not None and (have.revision, have.content) == gone:
                self._put((NODE, *key), None)
                self._capacity.changed()
        for definition in sorted(local, key=lambda d: d.kind, reverse=True):  # sensors before queries
            key = (definition.kind, definition.id)
            known = self._files.get(key)
            same = known is not None and known[1] == definition.content
            number = definition.revision or (known[0] if same and known is not None else self._next(*key))
            numbered = definition.numbered(number)
            overridden = self._accepted.get((NODE, *key))
            if definition.revision is None and overridden is not None and number < (overridden.revision or 0):
                continue  # a topic has a newer revision, and the file is unchanged
            self._files[key] = (number, numbered.content)
            self._accept((NODE, *key), numbered)

    def _restore(self, state: Mapping[str, Any]) -> None:
        for kind, item, number in state.get("highest", ()):
            self._highest[str(kind), str(item)] = int(number)
        for kind, item, number, content in state.get("files", ()):
            self._files[str(kind), str(item)] = (int(number), str(content))
        for scope, kind, item, text in state.get("accepted", ()):
            slot = (str(scope), str(kind), str(item))
            try:
                definition = parse_definition(slot[1], slot[2], str(text))
            except ConfigError as err:  # written by another version of this software
                number = revision_in(str(text))
                self._refuse(slot, Rejection(number, err.problems, unsupported=isinstance(err, NotSupported)))
                continue
            self._accept(slot, definition)
        for scope, kind, item, *values in state.get("refused", ()):
            try:
                refusal = Rejection.of_plain(str(kind), str(item), values)
            except ConfigError:
                continue  # written by another version of this software; the broker sends it again
            self._refused.setdefault((str(scope), str(kind), str(item)), refusal)
        self._version = int(state.get("version", 0))

    # --- definitions in force ------------------------------------------------------------------------------------

    def _effective(self, kind: str) -> list[Definition]:
        """The definitions in force, one per id, without removals, in the order in which the ids arrived."""
        ids = dict.fromkeys(slot[2] for slot in self._accepted if slot[1] == kind)
        found = (self._choose(kind, item) for item in ids)
        return [definition for definition in found if definition is not None and not definition.removed]

    def _choose(self, kind: str, item: str) -> Definition | None:
        """The definition or removal of an id that is in force here: `node` overrides `all`."""
        own, shared = self._accepted.get((NODE, kind, item)), self._accepted.get((ALL, kind, item))
        own = own if own is not None and self._concerns(own) else None
        shared = shared if shared is not None and self._concerns(shared) else None
        if own is not None and own.removed and shared is not None and (shared.revision or 0) > (own.revision or 0):
            return shared
        return own or shared

    def _sensors(self) -> dict[str, Sensor]:
        return {d.id: d.value for d in self._effective("sensor") if isinstance(d.value, Sensor)}

    def _item(
        self, kind: str, item: str, sensors: Mapping[str, Sensor], elsewhere: Mapping[str, Definition]
    ) -> dict[str, Any] | None:
        """The entry of one id in `state`; None if the definition is only for other nodes."""
        chosen = self._choose(kind, item)
        refused = [r for scope in (NODE, ALL) if (r := self._refused.get((scope, kind, item))) is not None]
        if chosen is not None:
            missing = unmet(chosen.value, sensors)
            if missing is None or str(missing.got) not in elsewhere:
                own = self._unpublished(item) if kind == "query" else None
                notes = (*([own] if own else ()), *warnings(chosen.value, sensors))
                return state_item(chosen, refused, missing, notes)
            return state_item(chosen, refused, None, (not_usable(elsewhere[str(missing.got)], missing.at),))
        if kind == "sensor" and item in elsewhere:
            return state_item(elsewhere[item], refused, None, (not_usable(elsewhere[item], "driver"),))
        return state_item(None, refused, None, ()) if refused else None

    def _unpublished(self, item: str) -> Problem | None:
        """The warning for a query of the local file whose id is published with another revision or content."""
        own, chosen = self._files.get(("query", item)), self._accepted.get((NODE, "query", item))
        if own is None or chosen is None or chosen.removed or (chosen.revision, chosen.content) != own:
            return None
        shared = self._accepted.get((ALL, "query", item))
        revisions = [shared.revision] if shared is not None and (shared.revision, shared.content) != own else []
        at_all, at_node = (self._refused.get((scope, "query", item)) for scope in (ALL, NODE))
        revisions += [at_all.revision] if at_all is not None else []
        revisions += [at_node.revision] if at_node is not None and at_node.revision != own[0] else []
        known = [revision for revision in revisions if revision is not None]
        return shows_no_rows(item, own[0], max(known)) if known else None

    def _value(self, kind: str, item: str) -> Sensor | Query | None:
        """The sensor or query of an id that is in force; None if there is none, or a sensor of the query is missing."""
        chosen = self._choose(kind, item)
        value = None if chosen is None else chosen.value
        if isinstance(value, Query):
            sources = [self._choose("sensor", name) for name in value.sources]
            return value if all(source is not None and not source.removed for source in sources) else None
        return value

    def _hash(self) -> str:
        sensors, queries = self.in_force()
        text = "\n".join([*map(canonical_sensor, sensors), *map(canonical_query, queries)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _next(self, kind: str, item: str) -> int:
        return self._highest.get((kind, item), 0) + 1
