"""A region burns and is retired; its gateways come to another one, before that or long after it (protocol 1.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from edge_agent.machines.downlink.losses.let_go import LET_GO
from edge_agent.machines.events import Retire
from edge_agent.machines.parents import NodeSettings
from edge_agent.root.numpy.rows import Row
from tests.support.simulation.fleets import GRACE, START, Fleet, GatewayHost
from tests.support.simulation.limits import drawn
from tests.support.simulation.world import MS, SECOND, Chaos, Host, MergerHost
from tests.support.tolerance import close

BURNS_US, RETIRED_US, MOVED_US = START + 12 * SECOND, START + 20 * SECOND, START + 40 * SECOND
NEVER_AGAIN_US = 10**15


class RetiringFleet(Fleet):
    """Two regions with two gateways each, below the root, one merger or a merger each. The first region burns."""

    def __init__(self, seed: int, *, parent: str, moved_first: bool) -> None:
        """parent: of the first region: root or mid; apart: mid too, but the other region is below another merger.

        moved_first: the gateways are listed by the other region when the first one is retired.
        """
        self.parent = parent
        super().__init__(seed, Chaos(delay_us=20 * MS))
        self.length_us = 70 * SECOND
        moments = (MOVED_US, RETIRED_US)
        self.moved_us, self.retired_us = (RETIRED_US, MOVED_US) if moved_first else moments
        self._told: object = None  # the process of the parent that knows who is retired

    def _grow(self, random: Random, prefix: str) -> None:
        del prefix
        hosts = self.world.hosts
        self.length_us = 70 * SECOND
        parents = {"root": ("root", "root"), "mid": ("mid", "mid"), "apart": ("mid", "other")}[self.parent]
        for name in sorted({*parents} - {"root"}):
            hosts[name] = MergerHost(self.world, name, "root", self._merger)
        for name, parent in zip(("old", "new"), parents, strict=True):
            hosts[name] = MergerHost(self.world, name, parent, self._merger)
        for i, region in enumerate(("old", "old", "new", "new")):
            name = f"g{i}"
            self.gateways.append(name)
            self.truth[name] = self._readings(random) or self._readings(random)
            hosts[name] = GatewayHost(self.world, name, region, self.truth[name], self)

    def settings(self, name: str) -> NodeSettings:
        host = self.world.hosts.get(name)
        return replace(super().settings(name), parents=(host.parent,) if isinstance(host, Host) else ())

    def _step(self, now_us: int) -> None:
        hosts = self.world.hosts
        if now_us == BURNS_US:
            hosts["old"].down(NEVER_AGAIN_US)
        if now_us == self.moved_us:
            for name in ("g0", "g1"):
                host = hosts[name]
                assert isinstance(host, GatewayHost)
                host.parent = "new"
                host.down(now_us + SECOND)
        if now_us == (self.retired_us + self.moved_us) // 2 and self.parent != "root":
            hosts["mid"].down(now_us + SECOND)
        if now_us >= self.retired_us:
            self._retire(now_us)

    def _retire(self, now_us: int) -> None:
        if self.parent == "root":
            if self._told is None:
                self._told = self.root_host
                self.root_host.root.decider.retire(("old",), now_us)
            return
        mid = self.world.hosts["mid"]
        assert isinstance(mid, Host)
        if mid.machine is not None and mid.machine is not self._told:
            self._told = mid.machine
            mid.do(Retire("old"), now_us)

    def run(self) -> list[str]:
        """What is wrong at the end."""
        with drawn(self.world.faults, self.frame_bytes):
            self.world.now_us = START
            self.world.run(START + self.length_us, self._step)
            self.world.calm()
            self.world.run(START + self.length_us + 150 * SECOND, self._step)
            self.root_host.flush()
        return self.wrong()

    def wrong(self) -> list[str]:
        final = {(row.query, row.key, row.start): row for row in self.root_host.rows}
        return self.differences(final) + self.lies(self.root_host.rows)

    def differences(self, final: Mapping[tuple[str, str, int], Row]) -> list[str]:
        """Complete rows are the oracle's, and all are complete once both things have happened."""
        out, settled_us = [], max(self.moved_us, self.retired_us) + GRACE
        for key, values in self.expected().items():
            row = final.get(key)
            if row is None or row.withdrawn or not row.complete:
                out += [f"not complete: {key}: {row}"] if key[2] > settled_us else []
            elif not all(close(row.values[name], value) for name, value in values.items()):
                out.append(f"complete, want {values}: {row}")
        return out


@pytest.mark.parametrize("moved_first", [True, False])
@pytest.mark.parametrize("parent", ["root", "mid", "apart"])
def test_gateways_of_a_region_that_burned_are_complete_again_below_another_one(parent: str, moved_first: bool) -> None:
    """protocol 1.5: whichever comes first, and though the parent is started again in between."""
    fleet = RetiringFleet(3, parent=parent, moved_first=moved_first)
    assert fleet.run() == []
    lost = {gap.nodes for _, gap in fleet.root_host.root.decider.gaps if gap.reason == LET_GO}
    assert lost == {("g0",), ("g1",)}
