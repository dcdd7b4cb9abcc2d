"""Regions whose parents make a circle (docs/protocol.md 1.5): nothing that they send reaches the root."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from edge_agent.config import topics
from edge_agent.machines.parents import NodeSettings
from edge_agent.machines.region.merger import Merger
from edge_agent.runtime.region import BELOW_ITSELF, RegionLoop
from edge_agent.runtime.status_and_commands import MOST_REGIONS
from tests.support.runtime.scripted import ScriptedClock, ScriptedConnection, parts

GRACE_US = 60_000_000


class Hall:
    """A region with a broker of its own below."""

    def __init__(self, folder: Path, node: str, parent: str) -> None:
        folder.mkdir()
        merger = Merger(NodeSettings(node, parents=(parent,)), Random(1), grace_us=GRACE_US)
        made, self.spool = parts(merger, folder, parent, "region")
        assert isinstance(made.clock, ScriptedClock)
        self.node, self.clock, self.merger, self.lower = node, made.clock, merger, ScriptedConnection(node)
        self.loop = RegionLoop(made, restored={}, lower=self.lower)
        self.turn()

    def turn(self, seconds: float = 1.0) -> None:
        self.clock.pass_s(seconds)
        self.loop.turn(0.0)

    def hears(self, child: str, status: dict[str, object]) -> None:
        """The child's status, and something that it sends."""
        table = {"parent": self.node, "online": True, **status}
        self.lower.message(topics.status(child), json.dumps(table).encode())
        self.merger.parent.children.heard(child, self.clock.now_us())
        self.turn()

    @property
    def status(self) -> dict[str, object]:
        table: dict[str, object] = json.loads(self.loop.status.online(self.merger, self.clock))
        return table

    @property
    def said(self) -> tuple[object, object]:
        """Regions below, and alarms."""
        return self.status.get("regions", []), self.status.get("alarms", {})


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Callable[[str, str], Hall]]:
    halls: list[Hall] = []

    def made(node: str, parent: str) -> Hall:
        halls.append(Hall(tmp_path / node, node, parent))
        return halls[-1]

    yield made
    for each in halls:
        each.loop.close()
        each.spool.close()


def test_regions_in_a_circle_raise_an_alarm_until_one_of_them_has_another_parent(
    hall: Callable[[str, str], Hall],
) -> None:
    """protocol 1.5: the checker finds a circle only where it is given the files of all nodes in it."""
    a, b, c = hall("a", "b"), hall("b", "c"), hall("c", "a")
    for _ in range(2):
        for parent, child in ((b, a), (c, b), (a, c)):
            parent.hears(child.node, child.status)
    assert a.said == (["b", "c"], {"region c": BELOW_ITSELF})
    assert b.said == (["a", "c"], {"region a": BELOW_ITSELF})
    a.hears("c", {"role": "region", "parent": "root"})
    for parent, child in ((b, a), (c, b)):
        parent.hears(child.node, child.status)
    assert [each.said for each in (a, b, c)] == [([], {}), (["a"], {}), (["a", "b"], {})]


def test_a_region_counts_as_below_while_it_is_heard_and_says_that_it_is_there(hall: Callable[[str, str], Hall]) -> None:
    a = hall("a", "root")
    a.hears("g", {"role": "gateway", "regions": ["a"]})
    assert a.said == ([], {})
    a.hears("b", {"role": "region", "regions": ["x", "a", 7, "Not An Id"]})
    assert a.said == (["b", "x"], {"region b": BELOW_ITSELF})
    a.turn(GRACE_US / 1e6 + 2)
    assert a.said == ([], {})
    many = [f"n-{number:03}" for number in range(2 * MOST_REGIONS)]
    a.hears("b", {"role": "region", "regions": many})
    assert a.said == (["b", *many[: MOST_REGIONS - 1]], {})
    a.hears("b", {"role": "region", "regions": ["a"], "online": False})
    assert a.said == ([], {})
