"""Nodes of a simulated tree that get another parent, by their configuration, or because the present one is away."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from tests.support.simulation.failpoints import SECOND
from tests.support.simulation.world import Host, MergerHost

if TYPE_CHECKING:
    from tests.support.simulation.trees import Tree

AWAY_US: Final = 6 * SECOND  # of a parent, before the next one is tried
BACK_US: Final = 4 * SECOND


class Moves:
    """The parents that each node may have, and the faults in MOVES (programme.py)."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self._faults = tree, tree.world.faults
        self.others: dict[str, str] = {}  # node -> its second parent
        self.away_us = AWAY_US
        if self._faults.on("parent.away"):
            random = Random(f"parents {tree.seed}")
            for host in self._hosts():
                candidates = self.candidates(host)
                if candidates and (not isinstance(host, MergerHost) or self._faults.on("merger.move")):
                    self.others[host.name] = random.choice(candidates)
        if self._faults.on("parent.unreached"):
            self.away_us += 2 * tree.world.network.delay_us  # a parent that is there answers sooner, or none would rest
            random = Random(f"unreached {tree.seed}")
            for host in self._hosts():
                if candidates := self.candidates(host, also_beside=True):
                    self.others.setdefault(host.name, random.choice(candidates))

    def _hosts(self) -> list[Host]:
        return [host for host in self._tree.world.hosts.values() if isinstance(host, Host)]

    def candidates(self, host: Host, *, also_beside: bool = False) -> list[str]:
        """Nodes that it may have for a parent, but for the one it has: those of the tiers above.

        also_beside: mergers of its own tier too, of two of which one may have the other for a parent.
        """
        hosts, least = self._hosts(), _tier(host) + also_beside
        above = hosts[: hosts.index(host)] if isinstance(host, MergerHost) else hosts
        mergers = [each.name for each in above if isinstance(each, MergerHost) and _tier(each) < least]
        return [name for name in ("root", *mergers) if name != host.parent]

    def parents(self, name: str) -> tuple[str, ...]:
        """As its configuration says."""
        host = self._tree.world.hosts.get(name)
        if not isinstance(host, Host):
            return ()
        return tuple(dict.fromkeys([host.parent, *([self.others[name]] if name in self.others else [])]))

    def step(self, now_us: int) -> None:
        """What happens now."""
        for host in self._hosts():
            name = "merger.move" if isinstance(host, MergerHost) else "node.move"
            if self._faults.happens(name) and (candidates := self.candidates(host)):
                random = self._faults.stream(name)
                host.parent = random.choice(candidates)
                if self.others.get(host.name) == host.parent:
                    del self.others[host.name]
                host.down(now_us + random.choice([0, 1, 5]) * SECOND)
            if isinstance(host, MergerHost) and self._faults.happens("parent.away"):
                host.down(now_us + self._faults.stream("parent.away").choice([8, 15, 30]) * SECOND)
            if host.name in self.others and self._faults.happens("parent.unreached"):
                parent = host.machine.outbox.parent if host.machine is not None else host.parent
                seconds = self._faults.stream("parent.unreached").choice([8, 15, 30])
                self._tree.world.network.apart_until[frozenset((host.name, parent))] = now_us + seconds * SECOND


def _tier(host: Host) -> int:
    return int(host.name.rpartition("m")[2].partition("-")[0]) if isinstance(host, MergerHost) else 99
