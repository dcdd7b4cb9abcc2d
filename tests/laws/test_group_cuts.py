"""The text of a group's cut: part of frames, checkpoints, plan hashes and the order of groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.query.group_cut import (
    GroupCut,
    OrderedCut,
    PunctuationCut,
    SessionCut,
    TimeCut,
    cut_from_text,
)
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.windows import Punctuation
from edge_agent.errors import WireError
from edge_agent.machines.checkpoint.codec import decode, encode
from edge_agent.wire.definitions import group, group_item
from tests.support.wire.frame_strategies import groups

GROUP = Group("boiler", "", ("site",), 0)


@pytest.mark.parametrize(
    ("cut", "gap_us", "max_us", "text"),
    [
        (TimeCut(), 0, 0, ""),
        (SessionCut(5, 60), 5, 60, ""),
        (OrderedCut(), 0, 0, "raw"),
        (PunctuationCut("local"), 0, 0, "markers local drop ."),
        (PunctuationCut("overlap", marker_source="door"), 1, 0, "markers overlap drop door"),
        (PunctuationCut("order", True, True, "door", "7"), 0, 0, "markers order/skip open door 7"),
        (PunctuationCut("central", marker_id="shift change"), 0, 0, "markers central drop . shift change"),
    ],
)
def test_every_cut_has_its_text(cut: GroupCut, gap_us: int, max_us: int, text: str) -> None:
    assert (cut.gap_us, cut.max_us, cut.text) == (gap_us, max_us, text)
    assert cut_from_text(gap_us, max_us, text) == cut


@given(groups)
def test_groups_travel_and_are_stored_unchanged(one: Group) -> None:
    assert group(group_item(one)) == one
    assert decode(Group, encode(one)) == one
    assert hash(group(group_item(one))) == hash(one)


@given(groups, groups)
def test_groups_sort_by_their_plain_values(one: Group, other: Group) -> None:
    first, second = encode(one), encode(other)
    assert (one < other) == (first < second)
    assert (one == other) == (first == second)


@given(st.text(alphabet="7 \t", max_size=4), st.booleans())
def test_blanks_at_the_end_of_a_marker_id_do_not_travel(marker_id: str, skips: bool) -> None:
    cut = Punctuation(punctuation_id=marker_id).group_cut(skips=skips)
    assert cut_from_text(0, 0, cut.text) == cut


@pytest.mark.parametrize(
    ("gap_us", "max_us", "form"),
    [
        (0, 0, "entropy"),
        (0, 0, "raw "),
        (5, 0, "raw"),
        (0, 60, ""),
        (0, 0, "markers"),
        (0, 0, "markers local drop"),
        (0, 0, "markers between drop ."),
        (0, 0, "markers local maybe ."),
        (0, 0, "markers local drop . "),
        (0, 0, "markers overlap drop ."),
        (1, 0, "markers local drop ."),
    ],
)
def test_a_form_that_no_cut_has_is_refused(gap_us: int, max_us: int, form: str) -> None:
    item = [*group_item(GROUP), gap_us, max_us, "gw-1", form]
    with pytest.raises(WireError, match=r"of a group|of markers"):
        group(item)


def test_groups_of_unequal_cuts_are_unequal() -> None:
    cuts: list[GroupCut] = [
        TimeCut(),
        SessionCut(1),
        OrderedCut(),
        PunctuationCut("overlap"),
        PunctuationCut("overlap", True),
    ]
    assert len({replace(GROUP, cut=cut) for cut in cuts}) == len(cuts)
