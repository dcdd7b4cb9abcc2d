"""Nodes of simulated trees that get another parent: every row is the oracle's, nothing counts twice (protocol 1.5)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.effort import seeds
from tests.support.simulation import programme
from tests.support.simulation.trees import Shape, Tree
from tests.support.simulation.world import Chaos

ROUGH = {"network.drop": 0.1, "network.repeat": 0.1, "process.crash": 0.005}


def hits(first: int, count: int, chances: dict[str, float]) -> Counter[str]:
    """Trees with these faults, each of which must be right. Returns how often each fault happened."""
    found = Counter[str]()
    for seed in seeds(first, count):
        tree = Tree(seed, Chaos.of(chances, 20_000, 131_072), Shape.of(seed))
        assert tree.run() == [], seed
        found += tree.world.faults.hits
    return found


@pytest.mark.seeded
def test_a_node_that_is_configured_for_another_parent_loses_nothing_and_counts_once() -> None:
    """protocol 1.5"""
    assert hits(0, 8, {"node.move": 0.03})["node.move"] > 8


@pytest.mark.seeded
def test_a_node_whose_parent_is_away_goes_to_another_and_back() -> None:
    """protocol 1.5: what was sent to the first one waits for it."""
    assert hits(20, 8, {"parent.away": 0.03})["parent.away"] > 8


@pytest.mark.seeded
def test_a_node_that_does_not_reach_a_parent_which_others_reach_goes_to_another_and_back() -> None:
    """protocol 1.5: gateways and mergers; the parent goes on without it."""
    assert hits(60, 8, {"parent.unreached": 0.03})["parent.unreached"] > 8


@pytest.mark.seeded
def test_the_same_on_links_that_lose_and_repeat_with_crashes() -> None:
    """protocol 1.5, 1.2"""
    assert hits(40, 6, {"parent.away": 0.02, "node.move": 0.02, **ROUGH})["node.move"] > 2


AGAIN = {"parent.away": 0.03, "merger.move": 1e-9}  # mergers have a second parent too


@pytest.mark.parametrize("seed", [16, 24])
def test_worlds_whose_mergers_go_to_another_parent_and_showed_a_hole(seed: int) -> None:
    """Registers that a leaf left behind; a subtree that nobody above had heard of."""
    assert hits(seed, 1, AGAIN)["parent.away"] > 0


def test_a_group_with_a_gateway_on_its_way_does_not_end_where_an_older_line_of_it_ends_last() -> None:
    """protocol 1.5: below a merger that moves it keeps its epoch."""
    assert Tree(71, Chaos.of(AGAIN, 20_000, 131_072), Shape(tiers=4, gateways=1, seconds=6)).run() == []


def test_leaves_whose_end_a_merger_had_still_to_report_when_it_moved_itself_are_not_awaited_for_ever() -> None:
    """protocol 1.5: the report went to its new parent, and of the old one's word nobody knew what it was about."""
    on = {"clock.unset": 0.5, "parent.away": 0.01, "parent.unreached": 0.03, "process.crash": 0.03}
    assert Tree(1147, Chaos.of(on, 20_000, 131_072), Shape(tiers=3, gateways=2, seconds=8, share=0.0625)).run() == []


def test_a_gateway_that_began_anew_below_a_merger_that_two_lines_list_and_that_both_move_on_does_not_stay_missing() -> (
    None
):
    """protocol 1.5: the entry that led on from the root had been replaced, and nobody above had heard of it."""
    on = {"clock.step": 0.01, "frames.birth": 1, "frames.step": 1, "keys.many": 1}
    on |= {"network.drop": 0.4, "parent.unreached": 0.03}
    assert Tree(1063, Chaos.of(on, 20_000, 500), Shape(tiers=3, gateways=2, seconds=24)).run() == []


def test_a_gateway_that_a_region_lists_in_another_line_is_not_complete_between_two_frames_of_the_step() -> None:
    """protocol 2.3, 1.5: the root decided between the frame that listed it and the late rows of that line."""
    on = {"network.drop": 0.4, "parent.unreached": 0.01, "frames.step": 1, "parent.away": 0.02}
    assert Tree(88, Chaos.of(on, 20_000, 500), Shape(tiers=3, gateways=1, seconds=12)).run() == []


def test_a_leaf_that_comes_to_a_merger_which_all_others_had_left_does_not_count_as_far_as_they_had_come() -> None:
    """protocol 1.5, 4.4"""
    on = {"clock.step": 0.03, "link.down": 0.01, "network.drop": 0.1, "node.move": 0.01}
    on |= {"parent.unreached": 0.03, "process.crash": 0.03}
    assert Tree(1140, Chaos.of(on, 20_000, 500), Shape(tiers=2, gateways=2, seconds=24)).run() == []


@pytest.mark.parametrize(
    ("seed", "on", "share"),
    [
        (50527, {"epochs.many", "link.lower", "parent.unreached", "source.live"}, 0.0625),
        (53319, {"epochs.many", "node.move", "parent.unreached"}, 0.125),
    ],
)
def test_a_gateway_whose_leave_stood_in_a_frame_that_its_merger_never_sent_before_it_moved_itself(
    seed: int, on: set[str], share: float
) -> None:
    """protocol 1.5: nobody reported its leave, and it stayed missing."""
    assert programme.run(seed, on, Shape(tiers=3, gateways=1, seconds=12, share=share)).wrong == ()


def test_a_gateway_whose_clock_was_ahead_when_it_began_and_that_moved_on_before_its_parent_heard_it_lost_no_past() -> (
    None
):
    """protocol 1.2: its parent had been started since, and what it sent in later epochs came before their births."""
    on = {"broker.restart", "clock.step", "clock.unset", "command.sent", "merger.move", "network.drop", "parent.away"}
    on |= {"process.crash", "source.tokens"}
    assert programme.run(55036, on, Shape(tiers=4, gateways=2, seconds=16)).wrong == ()


def test_a_gateway_that_moves_on_while_its_first_parent_has_not_said_all() -> None:
    """protocol 1.5: its second parent reports a leave before the first one does."""
    on = {"broker.restart", "network.drop", "parent.away"}
    assert programme.run(149, on, Shape(tiers=4, gateways=2, seconds=8, share=0.5)).wrong == ()


def test_a_gateway_and_its_mergers_that_move_together() -> None:
    """protocol 1.5, 5.2: lines of it below a merger that moves, and as a child of the merger above that."""
    assert hits(23, 1, AGAIN)["parent.away"] > 0


def test_a_gateway_on_its_way_whose_older_move_is_reported_late_stays_expected() -> None:
    """protocol 1.5: the group ended with it, and its windows with the group."""
    on = {"broker.restart", "network.drop", "network.repeat", "node.move", "parent.away"}
    assert programme.run(209, on).wrong == ()


def test_a_query_that_is_removed_while_gateways_move_expects_nobody_who_does_not_serve_it() -> None:
    """protocol 6.3, 1.5: all who served it below a merger went elsewhere, and another came that never did."""
    on = {"network.repeat", "node.move", "process.crash"}
    assert programme.run(70, on, Shape(tiers=1, gateways=3, seconds=12)).wrong == ()


def test_rows_claim_no_gateway_on_its_way_that_had_removed_their_query() -> None:
    """protocol 1.5, 6.3: nobody listed it when the rows were made."""
    on = {"clock.skew", "network.repeat", "parent.away", "process.crash", "source.tokens"}
    assert programme.run(1697, on, Shape(tiers=1, gateways=2, seconds=16)).wrong == ()


def test_a_gateway_that_a_merger_lists_and_reports_gone_at_once_is_missing_until_it_is_listed_again() -> None:
    """protocol 1.5: it had come less far than the merger."""
    on = {"frames.step", "network.drop", "network.repeat", "node.late", "node.move", "process.crash"}
    assert programme.run(2981, on).wrong == ()


def test_a_gateway_that_moved_on_from_a_later_epoch_than_a_late_report_names_is_not_on_its_way_for_ever() -> None:
    """protocol 1.5"""
    on = {"clock.step", "epochs.many", "node.move"}
    assert programme.run(2704, on, Shape(tiers=3, gateways=2, seconds=16, share=0.0625)).wrong == ()


@pytest.mark.parametrize(
    ("seed", "on", "shape"),
    [
        (7536, {"merger.move", "network.drop", "node.move", "parent.away"}, Shape(tiers=4, gateways=3, seconds=24)),
        (4842, {"keys.many", "merger.move", "network.repeat", "parent.away"}, Shape(tiers=2, gateways=1, seconds=16)),
    ],
)
def test_a_leaf_of_a_merger_that_moves_twice_is_not_awaited_where_its_first_move_is_reported_last(
    seed: int, on: set[str], shape: Shape
) -> None:
    """protocol 1.5"""
    assert programme.run(seed, on, shape).wrong == ()


@pytest.mark.parametrize(
    ("seed", "on", "shape"),
    [
        (
            6939,
            {"merger.move", "network.drop", "node.move", "process.crash", "source.tokens"},
            Shape(tiers=3, gateways=3, seconds=24),
        ),
        (
            7686,
            {"clock.skew", "clock.unset", "link.lower", "network.drop", "network.repeat", "node.move", "parent.away"},
            Shape(tiers=4, gateways=3, seconds=16),
        ),
    ],
)
def test_a_gateway_in_a_group_that_had_ended_at_its_merger_comes_behind_what_that_promised(
    seed: int, on: set[str], shape: Shape
) -> None:
    """protocol 4.4, 4.6: rows said that they were complete with it, before they had its readings."""
    assert programme.run(seed, on, shape).wrong == ()
