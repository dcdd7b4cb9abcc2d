"""Numbers definitions at a parent, and passes definitions for the whole subtree down.

Rules (schemas/topics.md, "Definitions"):
- A definition without a revision is published again with the next free number of its id in all scopes, so that an
  (id, revision) has one content in the whole fleet. The same content keeps its number.
- An empty payload becomes a removal with the next free number. On a topic without a definition it is ignored.
- A definition from above is passed on only if its revision is higher than any seen below. Otherwise two mergers on one
  broker would overwrite each other's definitions for ever. It is passed on once more if a new connection to the lower
  broker does not find it, and the broker had this revision: then the broker has lost it.
Pure: the runtime passes messages in, and publishes the messages of `due` (retained, QoS 1).
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from edge_agent.config import topics
from edge_agent.config.checking import foreign_json
from edge_agent.config.checking.documents import read
from edge_agent.config.definitions.definitions import MOST_REVISION
from edge_agent.errors import ConfigError

SETTLE_US: Final = 1_000_000  # pause after subscribing, until all retained definitions have arrived

MOST_AHEAD: Final = 1_000  # a number in a local file is credible up to this far beyond all published ones
MOST_TAUGHT: Final = 3_000  # most definitions read from one `state`; 256 sensors and 2 000 queries fit

KindAndId = tuple[str, str]  # (kind, id)


@dataclass(frozen=True, slots=True)
class NumberedDefinition:
    """A retained QoS 1 message to publish on the lower broker."""

    topic: str
    payload: bytes


class RevisionNumberer:
    """The definitions on the lower broker of a parent, and their numbers.

    Two parents on one broker compute identical payloads, so that they do not overwrite each other's for ever.
    """

    def __init__(self, settle_us: int = SETTLE_US) -> None:
        self._settle_us = settle_us
        self._ready_us: int | None = None
        self._seen: dict[str, tuple[int, str]] = {}  # topic -> (revision, digest of its content)
        self._highest: dict[KindAndId, int] = {}
        self._taught: dict[str, dict[KindAndId, int]] = {}  # node -> numbers of its local file, from its `state`
        self._pending: dict[str, Mapping[str, object]] = {}  # topic -> table without a revision
        self._above: dict[str, tuple[int, bytes]] = {}  # topic -> newest (revision, payload) from above
        self._compare: set[str] = set()  # topics in `_above` that are compared with the lower broker next
        self._found: set[str] = set()  # topics with a definition on the lower broker since it was connected

    def connected(self, now_us: int) -> None:
        """Note that the subscription on the lower broker begins: its retained definitions arrive next."""
        self._ready_us = now_us + self._settle_us
        self._found.clear()
        self._compare.update(self._above)

    def hear(self, topic: str, payload: bytes, now_us: int) -> None:
        """Take a message on a definition topic of the lower broker, retained or live, including the parent's own."""
        if (item := _item(topic)) is None:
            return
        if self._ready_us is None:
            self.connected(now_us)
        if not payload:
            if topic in self._seen:
                self._pending[topic] = {"removed": True}
            else:
                self._pending.pop(topic, None)
            return
        if (table := _table(payload)) is None:
            return  # not readable; the nodes report why in `state`
        revision = _revision(table)
        if revision is None:
            if "revision" not in table:
                self._pending[topic] = table
            return
        self._pending.pop(topic, None)
        self._found.add(topic)
        self._learn(item, revision)
        if revision > self._seen.get(topic, (0, ""))[0]:
            self._seen[topic] = (revision, _digest(table))

    def hear_above(self, topic: str, payload: bytes) -> None:
        """Take a definition for the whole subtree from the upper broker (a merger only)."""
        item = _item(topic)
        parsed = topics.parse(topic)
        if item is None or parsed is None or parsed.scope != topics.ALL:
            return
        table = _table(payload) if payload else None
        revision = None if table is None else _revision(table)
        if revision is not None and revision > self._above.get(topic, (0, b""))[0]:
            self._above[topic] = (revision, payload)
            self._compare.add(topic)

    def hear_state(self, payload: bytes, node: str = "") -> None:
        """Take the `state` of a node. Numbers that its local file uses are not free any more.

        A number far beyond all published ones (MOST_AHEAD) is ignored, since it could use up the numbers. The newest
        state of a node replaces its earlier ones.
        """
        taught: dict[KindAndId, int] = {}
        items = foreign_json.table(payload).get("items")
        if not isinstance(items, Mapping):
            return
        for name, said in list(items.items())[:MOST_TAUGHT]:
            kind, _, item = str(name).partition("/")
            if kind in topics.KINDS and isinstance(said, Mapping):
                for key in ("revision", "in_force"):
                    revision = _revision(said, key) or 0
                    if revision > taught.get((kind, item), self._highest.get((kind, item), 0)):
                        taught[kind, item] = revision
        self._taught.pop(node, None)
        if taught:
            self._taught[node] = taught

    def wake_us(self) -> int | None:
        """When `due` may return messages; None if none wait."""
        return self._ready_us if self._pending or self._compare else None

    def due(self, now_us: int) -> tuple[NumberedDefinition, ...]:
        """Returns the messages to publish now, and counts them as published."""
        if self._ready_us is None or now_us < self._ready_us:
            return ()
        made = []
        for topic in sorted(self._compare):
            revision, payload = self._above[topic]
            below = self._seen.get(topic, (0, ""))[0]
            if revision > below or (revision == below and topic not in self._found):
                made.append(NumberedDefinition(topic, payload))
                self.hear(topic, payload, now_us)
        self._compare.clear()
        for topic, table in sorted(self._pending.items()):
            item = _item(topic)
            seen = self._seen.get(topic)
            if item is None:
                continue
            revision = seen[0] if seen is not None and seen[1] == _digest(table) else self._free(item)
            made.append(NumberedDefinition(topic, _text({**table, "revision": revision}).encode()))
            self._seen[topic] = (revision, _digest(table))
            self._learn(item, revision)
        self._pending = {}
        return tuple(made)

    def snapshot(self) -> dict[str, object]:
        """The state as plain values, for the spool or the lander's journal."""
        return {
            "seen": {topic: list(value) for topic, value in self._seen.items()},
            "highest": {f"{kind}/{item}": n for (kind, item), n in self._highest.items()},
        }

    @classmethod
    def restore(cls, state: Mapping[str, object] | None, settle_us: int = SETTLE_US) -> RevisionNumberer:
        """From a snapshot. None: start without; the broker sends all retained definitions again."""
        made = cls(settle_us)
        seen, highest = (state or {}).get("seen"), (state or {}).get("highest")
        for topic, value in seen.items() if isinstance(seen, Mapping) else ():
            made._seen[str(topic)] = (int(value[0]), str(value[1]))
        for name, number in highest.items() if isinstance(highest, Mapping) else ():
            kind, _, item = str(name).partition("/")
            made._highest[kind, item] = int(number)
        return made

    def _free(self, item: KindAndId) -> int:
        """The next number of an id that no topic uses, and no local file with a credible number."""
        highest = self._highest.get(item, 0)
        taken = (of.get(item, 0) for of in self._taught.values())
        return max([highest, *(number for number in taken if number <= highest + MOST_AHEAD)]) + 1

    def _learn(self, item: KindAndId, revision: int) -> None:
        self._highest[item] = max(revision, self._highest.get(item, 0))


def _item(topic: str) -> KindAndId | None:
    parsed = topics.parse(topic)
    return (parsed.kind, parsed.other) if parsed is not None and parsed.what == "definition" else None


def _table(payload: bytes) -> Mapping[str, object] | None:
    try:
        return read(payload).value
    except ConfigError:
        return None


def _revision(table: Mapping[str, object], key: str = "revision") -> int | None:
    number = table.get(key)
    whole = isinstance(number, int) and not isinstance(number, bool)
    return number if whole and isinstance(number, int) and 1 <= number < MOST_REVISION else None


def _digest(table: Mapping[str, object]) -> str:
    return hashlib.sha256(_text({k: v for k, v in table.items() if k != "revision"}).encode()).hexdigest()[:16]


def _text(table: Mapping[str, object]) -> str:
    return json.dumps(table, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=_plain)


def _plain(value: object) -> str:
    times = datetime.datetime | datetime.date | datetime.time  # TOML has them, JSON has text
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, times) else str(value)
