"""A marker row under a key that no marker has costs its gateway the frame, not its region's frame at the root."""

from __future__ import annotations

import numpy as np
import pytest

from edge_agent.algebra.frame import Define, Frame, GroupPart, Leaf, Members, Plan, Section, Serving
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.punctuation.markers import LEAD, is_marker_key, role_key, window_key
from edge_agent.algebra.query.group_cut import PunctuationCut
from edge_agent.algebra.query.query import Group
from edge_agent.root.punctuation_state import PunctuationWindows
from edge_agent.wire import frames
from tests.hostile.fed_region import COUNTED, NOW_US, Region, S, counted

MARKERS = Plan(b"87654321", "marker", ("count",), None, S, (("mq", 1),))
NO_MARKER = ("", "|x", "x=|", "|-1", "|+1", "| 1", "|1_0", "|\u0661", "|12345", "|:middle", "|:start|", "||")
OF_MARKERS = (*map(window_key, (None, 0, 7, 4_095, 4_096)), *map(role_key, ("", "start", "end", LEAD)))


def marked(region: Region, key: str) -> None:
    """Feed one marker row of a gateway `bad` under a key, and one row of a gateway `good`."""
    region.hears("good", region.birth("good", COUNTED))
    cut = PunctuationCut("order")
    group = Group("s", "", (), 0, "revise", cut=cut, node="bad")
    define = Define(keys=(0, (key,)), groups=((0, group),), plans=((0, 0, MARKERS),))
    members = (Members(0, (Leaf("bad", 1),), (), (Serving("mq", 1),)),)
    region.hears("bad", region.birth("bad", MARKERS, define=define, members=members))
    start = np.array([NOW_US - 5 * S])
    row = Partials(start, start + S, np.zeros(1, np.int64), {"count": np.ones(1, np.int64)})
    part = GroupPart(0, NOW_US, (Section.of(0, MARKERS, row),))
    region.gives("bad", frames.encode(Frame(7, 1, groups=(part,))))
    region.hears("good", counted(1, 5))
    region.goes_on("good")


@pytest.mark.parametrize("key", NO_MARKER)
def test_a_marker_row_under_another_key_is_refused_at_the_region(key: str) -> None:
    """protocol 6.2: the root reads the number of the window from the key."""
    region = Region()
    marked(region, key)
    assert ["a key no marker has" in why for why in region.quarantined] == [True]
    assert region.readings() == 5


@pytest.mark.parametrize("key", OF_MARKERS)
def test_the_keys_that_gateways_write_pass(key: str) -> None:
    region = Region()
    marked(region, key)
    assert not region.quarantined
    assert is_marker_key(key)


def test_the_root_passes_over_such_a_row() -> None:
    """Frames that it took before they were refused may hold some."""
    windows = PunctuationWindows()
    windows.add_markers("bad", [*NO_MARKER, "|3"], [S] * (len(NO_MARKER) + 1), [2 * S] * (len(NO_MARKER) + 1))
    assert windows.known == {"bad": {(S, 2 * S): 3}}
    assert windows.numbers.made == {"bad": 3}
