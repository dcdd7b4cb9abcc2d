"""A cloned card: for some seconds two devices have one id, the same spool and the same sensors (protocol 1.4)."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, cast

from tests.support.simulation.failpoints import SECOND
from tests.support.simulation.fleets import GatewayHost

if TYPE_CHECKING:
    from tests.support.simulation.trees import SourceHost, Tree


class Twins:
    """The fault `node.cloned`, once in a world."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self._faults = tree, tree.world.faults
        self._until_us = 0
        self.of = ""  # the node that has, or had, a twin

    def step(self, now_us: int) -> None:
        """What happens now."""
        if self.of and now_us >= self._until_us:
            self.end()
        if self.of:
            return
        up = [host for host in self._gateways() if host.machine is not None and host.disk.stored.slots]
        if up and self._faults.happens("node.cloned"):
            random = self._faults.stream("node.cloned")
            self._clone(random.choice(up), random)
            self._until_us = now_us + random.choice([2, 5, 10]) * SECOND

    def _gateways(self) -> list[SourceHost]:
        hosts = self._tree.world.hosts.values()
        return [cast("SourceHost", host) for host in hosts if isinstance(host, GatewayHost)]

    def _clone(self, first: SourceHost, random: Random) -> None:
        world = self._tree.world
        twin = type(first)(world, first.name, first.parent, first.readings, first.fleet)
        twin.kind, twin.rng = first.kind, Random(f"{world.seed} twin {random.random()}")
        twin.disk.stored = first.disk.stored.copy()
        self.of = first.name
        world.twins[first.name] = twin
        twin.start(world.now_us)

    def end(self) -> None:
        """The second device is taken away, and the first one started again, as an operator does who has the alarm."""
        if self._tree.world.twins.pop(self.of, None) is not None:
            self._tree.world.hosts[self.of].down(self._tree.world.now_us)
