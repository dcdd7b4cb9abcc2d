"""A group takes rows only of the kinds that its windows are formed from: others would be kept for no query (3.6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_agent.algebra.frame import KINDS, Birth, Define, Frame, GroupPart, Plan, Section
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.series import Series
from edge_agent.algebra.query.group_cut import GroupCut, OrderedCut, PunctuationCut, SessionCut, TimeCut
from edge_agent.machines.downlink.child_frames import ChildFrames
from tests.hostile.fed_region import GROUP, NOW_US, S

WANTED: list[tuple[GroupCut, set[str]]] = [
    (TimeCut(), {"slice", "window"}),
    (SessionCut(5 * S), {"session"}),
    (OrderedCut(), {"raw"}),
    (PunctuationCut("order"), {"window", "marker"}),
    (PunctuationCut("overlap"), {"window", "marker"}),
    (PunctuationCut("central"), {"raw", "marker"}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cut", "wanted"), WANTED, ids=[repr(cut) for cut, _ in WANTED])
def test_rows_of_a_kind_that_its_group_has_no_windows_for_are_settled_as_bad(
    cut: GroupCut, wanted: set[str], kind: str
) -> None:
    """Open sessions and marker rows in a group of windows by time were kept for ever: nothing there ends them."""
    raw, start = kind == "raw", np.array([NOW_US - S])
    series = np.empty(1, object)
    series[0] = Series(*(np.array([number]) for number in (NOW_US, 1.5, 0, 7)))
    basis = ("count", "series") if raw else ("count",)
    plan = Plan(b"12345678", kind, basis, None, 1, (("q", 1),), cut.gap_us if kind == "session" else None)
    define = Define((0, ("|",)), (0, ("a",)), ((0, replace(GROUP, cut=cut)),), ((0, 0, plan),))
    half = ChildFrames(7, 60 * S)
    half.take("a", Frame(1, 0, Birth(1 << 32, 7, None, "1"), define), NOW_US)
    columns = {"0": np.array([1]), **({"1": series} if raw else {})}
    section = Section(0, Partials(start, start + 1, np.array([0]), columns))
    [applied] = half.take("a", Frame(1, 1, groups=(GroupPart(0, NOW_US, (section,)),)), NOW_US)
    assert (applied.effect.frame is not None) == (kind in wanted), applied.effect.why
    assert (f"kind {kind}, wanted one of" in applied.effect.why) == (kind not in wanted)
