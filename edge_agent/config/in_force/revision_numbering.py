"""The parent's side of definitions: it numbers those without a revision and passes those of the subtree down.

Rules (schemas/topics.md, "Definitions"):
- A definition without a revision is published again with the next free number of its id, over every scope: an
  (id, revision) has one content in the whole fleet. The same content keeps its number.
- An empty payload becomes a removal with the next free number; an unknown topic stays unknown.
- From above only a revision higher than any seen below is passed on: two mergers on one broker that pass on whatever
  differs never end.
Pure: the rim feeds messages and publishes (retained, QoS 1) what `due` gives.
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

SETTLE_US: Final = 1_000_000  # retained messages come in one burst after subscribing: number only when all are known

MOST_AHEAD: Final = 1_000  # numbers of a local file beyond all that was published: a person changed it as often
MOST_TAUGHT: Final = 3_000  # definitions of one node's file: 256 sensors and 2 000 queries fit

KindAndId = tuple[str, str]  # (kind, id)


@dataclass(frozen=True, slots=True)
class NumberedDefinition:
    """A retained QoS 1 message to publish on the lower broker."""

    topic: str
    payload: bytes


class RevisionNumberer:
    """The definitions on the lower broker of a parent, and their numbers.

    Two parents on one broker compute the same payloads, byte by byte, so that they do not answer each other for ever.
    """

    def __init__(self, settle_us: int = SETTLE_US) -> None:
        self._settle_us = settle_us
        self._ready_us: int | None = None
        self._seen: dict[str, tuple[int, str]] = {}  # topic -> (revision, digest of its content)
        self._highest: dict[KindAndId, int] = {}
        self._taught: dict[str, dict[KindAndId, int]] = {}  # node -> numbers of its local file, by its `state`
        self._pending: dict[str, Mapping[str, object]] = {}  # topic -> table without a revision
        self._above: dict[str, tuple[int, bytes]] = {}  # topic -> (revision, payload) to pass on

    def connected(self, now_us: int) -> None:
        """Expect the retained definitions of the lower broker: the subscription begins."""
        self._ready_us = now_us + self._settle_us

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
            return  # the nodes report in `state` what is wrong with it
        revision = _revision(table)
        if revision is None:
            if "revision" not in table:
                self._pending[topic] = table
            return
        self._pending.pop(topic, None)
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

    def hear_state(self, payload: bytes, node: str = "") -> None:
        """Take the `state` of a node: numbers used by its local file are not free, if they are credible.

        A local file takes the next number. A number far beyond all published ones is ignored, since it would leave none
        for the operator. The newest state of a node replaces its earlier ones.
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
        """When `due` may return something; None while nothing waits."""
        return self._ready_us if self._pending or self._above else None

    def due(self, now_us: int) -> tuple[NumberedDefinition, ...]:
        """The messages to publish now; from then on they count as published."""
        if self._ready_us is None or now_us < self._ready_us:
            return ()
        made = []
        for topic, (revision, payload) in sorted(self._above.items()):
            if revision > self._seen.get(topic, (0, ""))[0]:
                made.append(NumberedDefinition(topic, payload))
                self.hear(topic, payload, now_us)
        self._above = {}
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
        """Plain values for the spool or the lander's journal."""
        return {
            "seen": {topic: list(value) for topic, value in self._seen.items()},
            "highest": {f"{kind}/{item}": n for (kind, item), n in self._highest.items()},
        }

    @classmethod
    def restore(cls, state: Mapping[str, object] | None, settle_us: int = SETTLE_US) -> RevisionNumberer:
        """From a snapshot. None, or content that cannot be read, starts anew: the broker sends all retained topics
        again.
        """
        made = cls(settle_us)
        seen, highest = (state or {}).get("seen"), (state or {}).get("highest")
        for topic, value in seen.items() if isinstance(seen, Mapping) else ():
            made._seen[str(topic)] = (int(value[0]), str(value[1]))
        for name, number in highest.items() if isinstance(highest, Mapping) else ():
            kind, _, item = str(name).partition("/")
            made._highest[kind, item] = int(number)
        return made

    def _free(self, item: KindAndId) -> int:
        """The next number that neither a topic nor, credibly, a local file uses."""
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
