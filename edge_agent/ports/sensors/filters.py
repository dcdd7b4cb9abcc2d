"""Matches MQTT topic filters, and replaces overlapping filters by filters that do not overlap.

A broker may deliver a message once for each matching filter of a client, and its reading would then count twice. So
overlapping filters are replaced by the narrowest filter that covers them; messages that match no sensor are dropped.
Source: MQTT 3.1.1 section 4.7, and section 3.3.5 on overlapping subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.config.checking.checker import Report, type_of
from edge_agent.config.checking.documents import Path
from edge_agent.config.checking.value_types import AsWritten

MOST_LEVELS: Final = 32  # of a topic; the limit of the broker is 200


@dataclass(frozen=True, slots=True)
class TopicFilter(AsWritten):
    """An MQTT topic filter. `+` stands for one level, `#` at the end for any number of levels."""

    def read(self, value: Any, at: Path, report: Report) -> Any:
        if not isinstance(value, str):
            return report.wrong(at, value, f"wanted a topic, got {type_of(value)}")
        levels = value.split("/")
        if not value or len(value.encode()) > 1000 or len(levels) > MOST_LEVELS or "\0" in value:
            return report.wrong(at, value, f"wanted a topic of 1 to 1000 bytes and at most {MOST_LEVELS} levels")
        if "#" in value and (levels[-1] != "#" or value.count("#") > 1):
            return report.wrong(
                at, value, "# must be the last level of the topic, alone", value.split("#")[0].rstrip("/") + "/#"
            )
        if any("+" in level and level != "+" for level in levels):
            return report.wrong(at, value, "+ must be a whole level", "/".join("+" if "+" in x else x for x in levels))
        if levels[0] == "$share":
            return report.wrong(at, value, "a shared subscription would lose readings", "/".join(levels[2:]))
        return value


def matches(filter_: str, topic: str) -> bool:
    """Whether a filter contains a topic. A filter that begins with a wildcard matches no topic that begins with $."""
    if topic.startswith("$") and filter_[:1] in ("+", "#"):
        return False
    wanted, levels = filter_.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        levels = levels[: max(len(wanted), 1)] if len(levels) >= len(wanted) else levels
        if not wanted:
            return True
    return len(wanted) == len(levels) and all(w in ("+", level) for w, level in zip(wanted, levels, strict=True))


def overlap(a: str, b: str) -> bool:
    """Whether some topic matches both filters."""
    for x, y in ((a, b), (b, a)):
        if x.startswith("$") and y[:1] in ("+", "#"):  # see `matches`
            return False
    one, other = a.split("/"), b.split("/")
    for x, y in zip(one, other, strict=False):
        if "#" in (x, y):
            return True
        if x != y and "+" not in (x, y):
            return False
    longer = one if len(one) > len(other) else other
    return len(one) == len(other) or longer[min(len(one), len(other)) :] == ["#"]  # `a/#` also matches `a`


def cover(a: str, b: str) -> str:
    """The narrowest filter that contains every topic of both, if they overlap or none begins with $."""
    one, other = a.split("/"), b.split("/")
    levels: list[str] = []
    for x, y in zip(one, other, strict=False):
        if "#" in (x, y):
            return "/".join([*levels, "#"])
        levels.append(x if x == y else "+")
    return "/".join(levels if len(one) == len(other) else [*levels, "#"])


def disjoint(filters: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Replaces overlapping filters. Returns filter -> QoS that match every topic of `filters`, each topic once.

    filters: (filter, QoS). A filter that replaces several has their highest QoS.
    """
    done: dict[str, int] = {}
    for name, qos in sorted(filters):
        clash = next((other for other in done if overlap(name, other)), None)
        while clash is not None:
            qos = max(qos, done.pop(clash))
            name = cover(name, clash)
            clash = next((other for other in done if overlap(name, other)), None)
        done[name] = qos
    return done


def changes(now: Mapping[str, int], wanted: Mapping[str, int]) -> tuple[dict[str, int], list[str]]:
    """Compares subscriptions, filter -> QoS. Returns (filters to subscribe to, filters to unsubscribe)."""
    fresh = {name: qos for name, qos in wanted.items() if now.get(name) != qos}
    return fresh, [name for name in now if name not in wanted]
