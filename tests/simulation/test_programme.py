"""Worlds drawn from seeds, with every kind of fault whose rule is built: the fixed part of `make simulate`."""

from __future__ import annotations

import pytest

from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.uplink.outbox import Outbox
from tests.support.effort import seeds
from tests.support.simulation import programme
from tests.support.simulation.failpoints import GATE
from tests.support.simulation.trees import Shape, Tree
from tests.support.simulation.world import Chaos

LOSSY = {"process.crash", "network.drop", "network.repeat"}
ONCE_WRONG = [
    (28, LOSSY | {"frames.flush"}),
    (29, LOSSY | {"keys.many"}),
    (28, {"process.crash", "node.late", "frames.step"}),
    (28, {"process.crash", "node.late", "disk.full", "frames.flush", "keys.many", "network.repeat"}),
    (236, LOSSY | {"keys.many"}),
    *((seed, LOSSY | {"disk.flip_slot"}) for seed in (218, 264, 266, 277)),
    *((seed, LOSSY | {"disk.wiped"}) for seed in (1008, 1017, 1027)),
    (86, LOSSY | {"journal.new"}),
    (305, {"process.crash", "source.live"}),
    (406, {"disk.wiped", "process.crash", "source.live"}),
    (1020, {"disk.full", "epochs.many", "journal.new", "node.late"}),
    (65, LOSSY | {"disk.older"}),
    (266, LOSSY | {"disk.flip_frame"}),
    (25, {"landing.cut"}),
    (5025, {"merger.move", "network.late", "parent.away"}),
    (12215, {"clock.step", "parent.away"}),
    (9107, {"landing.cut", "process.crash"}),
    (12031, {"landing.cut", "node.late", "source.live"}),
    (6089, {"clock.skew", "disk.older", "network.repeat", "process.crash"}),
    (6289, {"disk.flip_slot", "process.crash", "source.live"}),
    (8182, {"clock.step"}),
    (11097, {"clock.unset", "disk.full", "process.crash"}),
    (11193, LOSSY - {"network.repeat"} | {"clock.lander", "clock.skew", "command.sent", "journal.new", "network.late"}),
    (12041, {"clock.step", "disk.full"}),
    (12102, {"disk.flip_frame", "merger.move"}),
    (13048, {"clock.step", "link.lower", "merger.move"}),
    (1555, {"disk.older", "epochs.many", "network.late", "network.repeat", "process.crash", "source.live"}),
    (1447, {"clock.step", "frames.step", "node.late", "node.move"}),
    (
        1947,
        LOSSY - {"network.repeat"}
        | {"clock.step", "clock.unset", "frames.birth", "frames.flush", "merger.move", "network.late", "parent.away"},
    ),
    (5041, {"disk.wiped", "process.crash", "source.tokens"}),
    (22807, LOSSY - {"network.repeat"} | {"command.sent", "disk.flip_slot", "epochs.many", "node.late"}),
]


@pytest.mark.seeded
@pytest.mark.parametrize("first", [0, 29])
def test_worlds_with_every_fault_of_the_gate_give_the_oracles_rows(first: int) -> None:
    """protocol 1 to 8: each failpoint of the gate, at once and alone."""
    assert [(outcome.seed, outcome.wrong) for outcome in programme.wrong_ones(seeds(first, 28))] == []


@pytest.mark.parametrize(("seed", "on"), ONCE_WRONG)
def test_worlds_that_showed_a_hole_give_the_oracles_rows(seed: int, on: set[str]) -> None:
    """protocol 1.2, 1.3, 2.3, 2.4: flushes and steps of several frames with new leaves, many keys, repeats."""
    assert programme.run(seed, on).wrong == ()


def test_a_session_that_a_twin_had_open_is_declared_lost_from_its_beginning_on() -> None:
    """protocol 1.2, 1.4: its register lay before the frontier from which on the rest was declared."""
    assert programme.run(168, {"node.cloned"}, Shape(tiers=1, gateways=1, seconds=8)).wrong == ()


@pytest.mark.parametrize("more", [set(), {"frames.birth"}])
def test_what_a_gateway_sends_where_its_twin_has_flushed_is_there_or_declared(more: set[str]) -> None:
    """protocol 1.3, 1.4: the receipt for the flush was taken for one of a late reading, which nobody else knew of."""
    on = {"network.drop", "network.late", "network.repeat", "node.cloned"}
    assert (
        programme.run(6647, on | more, Shape(tiers=3, gateways=3, seconds=16, share=1.0 if more else 0.5)).wrong == ()
    )


def test_two_devices_that_flush_in_the_same_place_count_once() -> None:
    """protocol 1.3, 1.4: the births behind the two flushes looked alike."""
    assert programme.run(26195, set(GATE)).wrong == ()


@pytest.mark.parametrize(
    ("seed", "on", "shape"),
    [
        (
            10598,
            {"clock.step", "journal.wiped", "landing.cut", "network.drop", "network.repeat", "process.crash"},
            Shape(1, 2, 12, 0.5),
        ),
        (32000, {"journal.wiped", "landing.cut", "process.crash", "root.killed"}, Shape(0, 2, 24)),
    ],
)
def test_the_root_does_not_wait_for_frames_that_a_lander_without_its_journal_cannot_state(
    seed: int, on: set[str], shape: Shape
) -> None:
    """protocol 3.2: the landing file was cut short, and nobody knew any more that its frames had been received."""
    assert programme.run(seed, on, shape).wrong == ()


def test_a_frame_of_a_restored_spool_that_cannot_be_read_is_declared_from_where_its_rows_begin() -> None:
    """protocol 3.6, 1.3: they are on time in its own line, and below what the child had promised before."""
    on = {"disk.flip_frame", "disk.older", "frames.birth", "frames.flush", "network.drop", "process.crash"}
    assert programme.run(25692, on, Shape(0, 1, 24)).wrong == ()


def test_what_a_damaged_copy_of_a_spool_had_open_counts_once() -> None:
    """protocol 1.2, 1.3: its sensors could not be read again."""
    on = {"disk.flip_slot", "disk.older", "epochs.many", "keys.many", "process.crash", "source.live"}
    assert programme.run(13966, on, Shape(1, 2, 12)).wrong == ()


def test_a_gateway_that_went_to_and_fro_is_missing_for_no_longer_than_its_parents_are_away() -> None:
    """protocol 1.5"""
    on = {"clock.step", "network.drop", "network.repeat", "parent.away", "process.crash"}
    assert programme.run(14590, on, Shape(4, 3, 24, 0.5)).wrong == ()


def test_a_gateway_whose_spool_is_gone_and_that_starts_in_1970_declares_what_it_read_before() -> None:
    """protocol 4.3, 1.2: the record of its beginning waits until it knows the time."""
    on = {"clock.unset", "disk.wiped", "process.crash", "source.tokens"}
    assert programme.run(12771, on, Shape(0, 2, 16, 0.5)).wrong == ()


def test_a_leave_in_a_landing_file_that_was_cut_short_holds_up_no_row() -> None:
    """protocol 1.5, 3.2"""
    on = {"clock.lander", "command.sent", "landing.cut", "merger.move"}
    assert programme.run(10248, on, Shape(2, 2, 24)).wrong == ()


def test_a_gateway_and_a_lander_whose_clocks_are_a_month_ahead_together_make_no_row_complete() -> None:
    """protocol 4.4, 8.1: the gateway's readings of the present came after rows that counted it."""
    on = {"clock.lander", "clock.skew", "clock.step", "network.drop", "network.repeat", "process.crash"}
    assert programme.run(4253, on, Shape(tiers=0, gateways=2, seconds=24)).wrong == ()


def test_a_gateway_and_its_region_whose_clocks_are_a_month_ahead_together_make_no_row_complete() -> None:
    """protocol 4.4: the region closed windows without the readings that the gateway had still to read."""
    chaos = Chaos.of({"clock.step": 0.05, "clock.lander": 0.02}, 20_000, 131_072)
    assert Tree(10, chaos, Shape(tiers=1, gateways=2, seconds=24)).run() == []


def test_a_query_that_a_gateway_learns_while_its_clock_is_ahead_is_served_once_it_is_right() -> None:
    """protocol 6.3, 4.1"""
    shape = Shape(tiers=0, gateways=2, seconds=24, share=0.25)
    assert programme.run(1005, {"clock.step", "process.crash"}, shape).wrong == ()


def test_births_for_a_journal_that_nobody_knows_any_more_leave_the_spool() -> None:
    """protocol 3.7, 1.2"""
    on = {"clock.unset", "command.sent", "disk.flip_slot", "disk.full", "frames.birth", "link.down", "process.crash"}
    assert programme.run(1837, on, Shape(tiers=2, gateways=1, seconds=24, share=0.5)).wrong == ()


def test_a_gateway_and_then_two_regions_above_it_that_lose_their_slots_count_once() -> None:
    """protocol 1.2, 3.7: the root knew that the gateway reads again, then believed what it said of its new life."""
    on = {"clock.step", "clock.unset", "disk.flip_slot", "link.down", "process.crash"}
    assert programme.run(53055, on, Shape(tiers=2, gateways=1, seconds=24)).wrong == ()


def test_what_waits_of_a_line_before_a_wiped_spool_does_not_take_the_place_of_the_line_that_speaks() -> None:
    """protocol 1.3, 1.4: its hole was settled as lost, and its rows counted again."""
    on = {"disk.wiped", "epochs.many", "network.drop", "process.crash"}
    assert programme.run(2771, on, Shape(tiers=1, gateways=2, seconds=12, share=0.25)).wrong == ()


@pytest.mark.parametrize(
    ("seed", "on", "shape"),
    [
        (9146, {"clock.skew", "frames.flush", "process.crash", "source.tokens"}, Shape(1, 2, 12, 0.25)),
        (
            8242,
            {"link.lower", "network.drop", "node.late", "node.move", "process.crash", "source.tokens"},
            Shape(1, 2, 24),
        ),
    ],
)
def test_frames_of_a_new_gateway_that_come_before_its_first_birth_are_of_no_earlier_life(
    seed: int, on: set[str], shape: Shape
) -> None:
    """protocol 1.2: all before them was declared lost."""
    assert programme.run(seed, on, shape).wrong == ()


def test_a_world_in_which_a_twin_counts_as_a_successor_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control, protocol 1.4: a parent that takes every birth for the next one of its child must be found."""
    monkeypatch.setattr(EpochFrames, "leads_to", lambda *_: True)
    wrong = [line for seed in (45, 168, 664) for line in programme.run(seed, {"node.cloned", "network.drop"}).wrong]
    assert any(line.startswith("counted twice") for line in wrong), wrong


def test_a_world_that_trusts_the_broker_loses_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control, protocol 3: a node that lets a frame go at the broker's PUBACK must be found."""

    def let_go(self: Outbox, epoch: int, seq: int) -> None:
        if self.pending.marked.pop((epoch, seq), None) is not None:
            self.forget.append((epoch, seq))
            self._flying.discard((epoch, seq))

    monkeypatch.setattr(Outbox, "sent", let_go)
    wrong = [line for seed in range(6) for line in programme.run(seed, {"network.drop", "broker.restart"}).wrong]
    assert any(line.startswith("missing") for line in wrong), wrong


def test_what_a_gateway_read_while_its_clock_was_ahead_goes_before_what_it_promises_once_it_is_right() -> None:
    """protocol 4.1: the root took rows for complete of which it had half the readings."""
    on = {"clock.step", "disk.full", "frames.flush", "frames.step", "link.down"}
    assert programme.run(3053, on).wrong == ()


def test_a_gateway_that_loses_its_spool_before_its_first_promise_may_have_lost_all_until_then() -> None:
    """protocol 1.2: the readings that its broker took for delivered were in the spool."""
    on = {"disk.wiped", "frames.birth", "process.crash", "source.tokens"}
    assert programme.run(3830, on, Shape(tiers=0, gateways=2, seconds=24, share=0.125)).wrong == ()


@pytest.mark.parametrize(
    ("seed", "on", "shape"),
    [
        (4666, {"command.sent", "network.drop", "node.late"}, Shape(tiers=1, gateways=2, seconds=24)),
        (6580, {"disk.full", "node.late", "process.crash"}, Shape(tiers=3, gateways=3, seconds=24)),
    ],
)
def test_a_session_that_is_stated_again_holds_what_waits_to_be_joined_to_it(
    seed: int, on: set[str], shape: Shape
) -> None:
    """protocol 5.4, 4.7: it said that it was complete with the leaf whose readings it left out."""
    assert programme.run(seed, on, shape).wrong == ()


@pytest.mark.parametrize(
    ("seed", "on", "shape"),
    [
        (5464, {"disk.older", "network.repeat", "node.late", "process.crash"}, Shape(2, 2, 16, 0.25)),
        (
            7007,
            LOSSY - {"network.repeat"} | {"command.sent", "disk.older", "frames.step", "network.late"},
            Shape(4, 1, 24),
        ),
        (
            7067,
            {"broker.restart", "clock.skew", "disk.flip_frame", "merger.move", "network.repeat", "node.late"}
            | {"process.crash"},
            Shape(2, 3, 24),
        ),
    ],
)
def test_leaves_that_only_a_lost_frame_listed_are_declared_once_they_are_listed(
    seed: int, on: set[str], shape: Shape
) -> None:
    """protocol 1.3, 3.6: the record named those that the parent knew, or nobody."""
    assert programme.run(seed, on, shape).wrong == ()


def test_a_line_that_waits_at_a_parent_that_its_node_has_left_takes_its_place() -> None:
    """protocol 1.4, 3.7: the lander had a new journal, and the first line there was not silent for long before."""
    on = LOSSY | {"command.sent", "journal.new", "link.down", "network.late", "parent.away", "source.live"}
    assert programme.run(8245, on, Shape(4, 3, 24)).wrong == ()


def test_a_gateway_of_whose_birth_a_frame_is_in_no_spool_is_expected_and_its_loss_declared() -> None:
    """protocol 1.3, 1.2: its region went back to a copy, and waited for the frame for ever."""
    on = {"clock.step", "disk.older", "frames.birth", "link.lower", "node.late", "process.crash"}
    assert programme.run(3349, on, Shape(tiers=2, gateways=2, seconds=24)).wrong == ()


def test_late_readings_in_frames_that_a_region_lacks_since_it_went_back_to_a_copy_are_declared() -> None:
    """protocol 1.3, 4.2: a row that they had revised said that it was complete."""
    on = {"clock.step", "disk.older", "network.repeat", "process.crash"}
    assert programme.run(4115, on, Shape(tiers=2, gateways=1, seconds=24)).wrong == ()


@pytest.mark.parametrize(
    ("seed", "on", "shape"),
    [
        (4591, {"disk.wiped", "network.repeat", "process.crash"}, Shape(tiers=3, gateways=1, seconds=16, share=0.5)),
        (
            6574,
            {"clock.skew", "disk.wiped", "frames.step", "keys.many", "network.repeat", "process.crash"},
            Shape(tiers=1, gateways=3, seconds=24),
        ),
        (
            8382,
            {"clock.step", "disk.full", "disk.wiped", "frames.flush", "frames.step", "process.crash"},
            Shape(tiers=1, gateways=1, seconds=24),
        ),
    ],
)
def test_a_gateway_and_its_region_that_both_lose_their_spools_count_once(seed: int, on: set[str], shape: Shape) -> None:
    """protocol 1.2, 3.7: the tier above did not know that the gateway reads again what it had sent."""
    assert programme.run(seed, on, shape).wrong == ()


def test_a_damaged_birth_for_a_journal_that_is_lost_ends_no_process() -> None:
    """protocol 3.7, 3.6"""
    on = {"disk.flip_frame", "disk.wiped", "network.repeat", "process.crash", "source.live"}
    assert programme.run(25088, on, Shape(tiers=2, gateways=2, seconds=16)).wrong == ()


@pytest.mark.parametrize("seed", [1350, 2687])
def test_epochs_that_follow_the_first_one_are_no_life_before_it_though_a_birth_between_has_not_come(seed: int) -> None:
    """protocol 1.2: nothing was lost, and no row is incomplete for it."""
    assert programme.run(seed).wrong == ()


def test_a_gateway_that_lost_its_slots_at_most_of_70_starts_counts_once() -> None:
    """protocol 1.2: its region knew the lines of the last 64 only, and took rows of the others for the present one."""
    assert programme.run(24239, {"disk.flip_slot", "epochs.many"}, Shape(tiers=1, gateways=1, seconds=12)).wrong == ()


def test_what_a_gateway_sent_late_before_it_was_started_again_is_lost_with_the_journal_of_its_region() -> None:
    """protocol 3.7: the gateway had forgotten where it lay, and nobody declared it."""
    on = LOSSY | {"disk.wiped"}
    assert programme.run(32242, on, Shape(tiers=1, gateways=1, seconds=24, share=0.5)).wrong == ()


def test_a_gateway_that_moves_to_and_fro_before_it_has_sent_anything_is_not_awaited_there() -> None:
    """protocol 1.5: its leaves state epochs in which nothing was sent, and name the last one in which something was."""
    on = {"frames.flush", "frames.step", "node.move", "process.crash"}
    assert programme.run(22650, on, Shape(tiers=1, gateways=2, seconds=24, share=0.5)).wrong == ()


def test_what_a_region_whose_clock_is_not_set_loses_is_declared_until_now() -> None:
    """protocol 3.5, 4.3: the frames of a gateway were damaged, and the region's record ended in 1970."""
    on = {"clock.unset", "disk.flip_frame", "disk.older", "process.crash"}
    assert programme.run(57261, on, Shape(tiers=2, gateways=2, seconds=24)).wrong == ()


def test_what_a_region_whose_clock_is_not_set_loses_of_a_new_leaf_is_declared_from_the_beginning_of_time() -> None:
    """protocol 3.5: its birth was damaged, and the frontier of the region above had not waited for it."""
    on = LOSSY | {"clock.unset", "command.sent", "disk.flip_frame"}
    assert programme.run(96275, on, Shape(tiers=4, gateways=2, seconds=16, share=0.5)).wrong == ()


def test_what_a_region_whose_clock_has_stepped_back_loses_is_declared_until_the_time_before() -> None:
    """protocol 3.5: region and gateway had lost their slots, and both clocks showed half a minute too little."""
    on = {"clock.step", "disk.flip_slot", "network.drop", "process.crash", "source.tokens"}
    assert programme.run(60488, on, Shape(tiers=2, gateways=2, seconds=24)).wrong == ()


def test_what_a_gateway_lost_is_declared_though_its_region_had_listed_it_only_behind_its_new_birth() -> None:
    """protocol 1.2: both had lost their spools, and the list came behind the birth of the region's new line."""
    on = {"clock.step", "disk.flip_slot", "disk.wiped", "network.drop", "process.crash", "source.tokens"}
    assert programme.run(60488, on, Shape(tiers=2, gateways=2, seconds=24)).wrong == ()


def test_a_gateway_and_its_region_that_lose_their_spools_before_the_first_row_have_lost_what_was_read() -> None:
    """protocol 1.2: the root knew an earlier epoch of the gateway, and took it for a new one."""
    on = {"disk.flip_slot", "disk.full", "disk.wiped", "network.drop", "process.crash", "source.live"}
    assert programme.run(61911, on, Shape(tiers=1, gateways=1, seconds=16)).wrong == ()


def test_a_lost_birth_of_a_life_before_does_not_replace_the_line_of_a_region_that_lost_its_spool() -> None:
    """protocol 1.2, 3.2: its later frames waited for ever at the root, and rows without them were complete."""
    on = {"clock.skew", "clock.step", "disk.full", "disk.wiped", "landing.cut", "link.down", "process.crash"}
    assert programme.run(64039, on, Shape(tiers=4, gateways=2, seconds=24)).wrong == ()


def test_a_gateway_that_loses_its_spool_behind_what_it_says_of_a_lost_journal_counts_once() -> None:
    """protocol 1.2, 3.7: it had promised its region nothing since, so nothing that it read again was a repeat there."""
    on = {"clock.step", "disk.flip_frame", "disk.flip_slot", "frames.step", "process.crash"}
    assert programme.run(69300, on, Shape(tiers=4, gateways=3, seconds=24)).wrong == ()
