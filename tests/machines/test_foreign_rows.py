"""Rows of a child that are not what its definitions say: the frame is settled as bad, and the line goes on.

A merger that fell over them would fall again after every restart: the frame comes back until it has a receipt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge_agent.algebra.frame import LOST, Birth, Define, Frame, GroupPart, Leaf, Members, Plan, Section
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.partials.series import Series
from edge_agent.algebra.query.group_cut import cut_from_text
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Group
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.epochs.definitions_ahead import DefinitionsAhead
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.waiting_frames import WaitingFrames
from edge_agent.machines.downlink.inbox import UNEXPLAINED, Inbox
from edge_agent.wire import frames, heads

SECOND = 1_000_000
NOW = 1_790_000_000 * SECOND
GROUP = Group("boiler", "", (), 0)
FLOATS = Plan(b"floats  ", "slice", ("count", "sum"), None, SECOND, (("q", 1),))
FIRSTS = ("count", "first_time", "first_node", "first_order", "first_value")
FIRST = Plan(b"first   ", "slice", FIRSTS, None, SECOND, (("q", 1),))
READINGS = Plan(b"readings", "slice", ("count", "series"), None, SECOND, (("q", 1),))
DEFINE = Define((0, ("",)), (0, ("a",)), ((0, GROUP),), ((0, 0, FLOATS), (1, 0, FIRST), (3, 0, READINGS)))


def rows(*columns: Any, key: int = 0) -> Partials:
    """One row."""
    states = {str(i): np.array([column], object if isinstance(column, int) and column >= 2**63 else None)
              for i, column in enumerate(columns)}  # fmt: skip
    return Partials(np.array([NOW]), np.array([NOW + SECOND]), np.array([key]), states)


BAD = {
    "a column too few": (0, rows(3)),
    "a column too many": (0, rows(3, 1.5, 2.5)),
    "no reading in a row": (0, rows(0, 1.5)),
    "integers where the plan says floats": (0, rows(3, 1)),
    "floats where a count stands": (0, rows(3.0, 1.5)),
    "a negative node": (1, rows(3, NOW, -1, 0, 1.5)),
    "a time beyond 64 bits": (1, rows(3, 2**70, 0, 0, 1.5)),
}


SERIES = np.empty(2, object)
SERIES[:] = [Series(*(np.array([number]) for number in (NOW, 1.5, node, 7))) for node in (0, 1)]


@pytest.mark.parametrize(
    ("form", "basis", "why"),
    [
        ("raw", ("count", "series"), ""),
        ("raw", ("count", "sum"), "need the column 'series'"),
        ("", ("count", "series"), "kind raw, wanted one of slice, window in this group"),
    ],
)
def test_raw_rows_are_series_in_a_group_of_raw_readings(form: str, basis: tuple[str, ...], why: str) -> None:
    """protocol 6.2, 7.4, 3.6"""
    half = ChildFrames(7, 60 * SECOND)
    plan = Plan(b"readings", "raw", basis, None, 1, (("q", 1),))
    define = replace(DEFINE, groups=((0, replace(GROUP, cut=cut_from_text(0, 0, form))),), plans=((0, 0, plan),))
    half.take("a", Frame(1, 0, Birth(1 << 32, 7, None, "1"), define), NOW)
    one = np.array([NOW])
    states = {"0": np.array([1]), "1": SERIES[:1] if "series" in basis else np.array([1.5])}
    section = Section(0, Partials(one, one + 1, np.array([0]), states))
    [applied] = half.take("a", Frame(1, 1, groups=(GroupPart(0, NOW, (section,)),)), NOW)
    assert (applied.effect.frame is None) == bool(why)
    assert why in applied.effect.why


def parent() -> ChildFrames:
    """With a child whose birth has taken effect."""
    half = ChildFrames(7, 60 * SECOND)
    assert [a.effect.seq for a in half.take("a", Frame(1, 0, Birth(1 << 32, 7, None, "1"), DEFINE), NOW)] == [0]
    return half


@pytest.mark.parametrize("only_head", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_rows_that_break_their_definitions_are_settled_as_bad(name: str, only_head: bool) -> None:
    """protocol 2.4, 3.6; the root sees heads only, and refuses the same."""
    plan, bad = BAD[name]
    half = parent()
    for seq, (number, partials) in enumerate([(0, rows(3, 1.5)), (plan, bad), (1, rows(3, NOW, 0, 5, 1.5))], start=1):
        payload = frames.encode(Frame(1, seq, groups=(GroupPart(0, NOW, (Section(number, partials),)),)))
        message = heads.head(frames.envelope(payload))[0] if only_head else frames.decode(payload)
        [applied] = half.take("a", message, NOW)
        assert (applied.effect.frame is None) == (seq == 2), applied.effect.why
        assert bool(applied.effect.why) == (seq == 2)
    assert half.inbox.receipt("a", 1).upto == 4


@pytest.mark.parametrize("only_head", [False, True])
def test_of_late_rows_in_a_frame_that_is_refused_the_windows_are_marked(only_head: bool) -> None:
    """protocol 3.6, 4.2: they lie before the line of their sender, from where on the rest is declared."""
    half, first = parent(), NOW - 500 * SECOND
    members = Members(0, leaves=(Leaf("a", 1),))
    half.take("a", Frame(1, 1, members=(members,), groups=(GroupPart(0, NOW),)), NOW)
    late = replace(rows(3), start=np.array([first]), end=np.array([first + SECOND]))
    payload = frames.encode(Frame(1, 2, groups=(GroupPart(0, None, (), (Section(0, late),)),)))
    message = heads.head(frames.envelope(payload))[0] if only_head else frames.decode(payload)
    [applied] = half.take("a", message, NOW + SECOND)
    assert applied.effect.frame is None
    assert [(gap.nodes, gap.start_us, gap.end_us) for gap in applied.losses] == [(("a",), first, NOW + SECOND + 1)]


UNKNOWN = {"a key": (0, rows(3, 1.5, key=1)), "a plan": (2, rows(3, 1.5))}
UNKNOWN = {
    "a key": (0, rows(3, 1.5, key=1)),
    "a plan": (2, rows(3, 1.5)),
    "a node": (1, rows(3, NOW, 1, 0, 1.5)),
    "a node of a series": (3, rows(1, SERIES[1])),
}
NEWS = {
    **dict.fromkeys(("a node", "a node of a series"), Define(nodes=(0, ("a", "late")))),
    "a key": Define((0, ("", "late")), (0, ("a",))),
    "a plan": Define(groups=((0, GROUP),), plans=((2, 0, replace(FLOATS, hash=b"second  ")),)),
}


@pytest.mark.parametrize("only_head", [False, True])
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_row_with_an_unknown_number_waits_until_its_node_says_what_it_means(name: str, only_head: bool) -> None:
    """protocol 2.4: the definitions of a frame that is lost come again in a later one."""
    half, (number, found) = parent(), UNKNOWN[name]
    for seq in (1, 2):
        payload = frames.encode(Frame(1, seq, groups=(GroupPart(0, NOW + seq, (Section(number, found),)),)))
        message = heads.head(frames.envelope(payload))[0] if only_head else frames.decode(payload)
        assert half.take("a", message, NOW) == []
    assert half.children.membership(GROUP).member("a").frontier_us < NOW
    assert half.inbox.receipt("a", 1).upto == 3
    effects = [applied.effect for applied in half.take("a", Frame(1, 3, define=NEWS[name]), NOW)]
    assert [(effect.seq, effect.why) for effect in effects] == [(1, ""), (2, ""), (3, "")]


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_row_that_nothing_can_explain_is_settled_as_bad_and_the_line_goes_on(name: str) -> None:
    """protocol 2.4: that is so when its epoch is here to its end, or when many frames have come behind it."""
    bad = Frame(1, 1, groups=(GroupPart(0, NOW, (Section(*UNKNOWN[name]),)),))
    half = parent()
    assert half.take("a", bad, NOW) == []
    effects = [applied.effect for applied in half.take("a", Frame(2, 0, Birth(2 << 32, 7, (1, 1), "1")), NOW)]
    assert [(effect.epoch, effect.frame is None) for effect in effects] == [(1, True), (2, False)]
    half = parent()
    assert half.take("a", bad, NOW) == []
    for seq in range(2, UNEXPLAINED + 1):
        assert half.take("a", Frame(1, seq), NOW) == []
    effects = [applied.effect for applied in half.take("a", Frame(1, UNEXPLAINED + 1), NOW)]
    assert [effect.seq for effect in effects if effect.frame is None] == [1]
    assert half.inbox.receipt("a", 1).upto == UNEXPLAINED + 2


def test_a_plan_that_this_version_cannot_merge_does_no_harm_until_rows_of_it_come() -> None:
    """protocol 2.4, 3.6: a newer child keeps its line; only frames with such rows are settled as bad."""
    for basis, why in (("count", "entropy"), "not know: entropy"), (("count", "m2"), "not a basis: sum"):
        half = ChildFrames(7, 60 * SECOND)
        newer = Plan(b"newer   ", "slice", basis, None, SECOND, ())
        define = replace(DEFINE, plans=((0, 0, newer), (1, 0, FLOATS)))
        [applied] = half.take("a", Frame(1, 0, Birth(1 << 32, 7, None, "1"), define), NOW)
        assert applied.effect.frame is not None
        [applied] = half.take("a", Frame(1, 1, groups=(GroupPart(0, NOW, (Section(0, rows(3, 1.5)),)),)), NOW)
        assert applied.effect.frame is None
        assert why in applied.effect.why
        [applied] = half.take("a", Frame(1, 2, groups=(GroupPart(0, NOW, (Section(1, rows(3, 1.5)),)),)), NOW)
        assert applied.effect.frame is not None


def test_definitions_in_frames_that_wait_are_learnt_once_however_many_frames_have_unknown_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """protocol 2.2, 2.4: one frame of a hostile child lets thousands take effect, each after a look at all others."""
    learnt, real = list[Define](), EpochDictionary.learn

    def learn(self: EpochDictionary, define: Define) -> None:
        learnt.append(define)
        real(self, define)

    monkeypatch.setattr(EpochDictionary, "learn", learn)
    half, many = parent(), 4 * UNEXPLAINED
    for seq in range(2, many):
        half.take("a", Frame(1, seq, define=Define(keys=(seq - 1, ("k",))), groups=(GroupPart(9, NOW),)), NOW)
    learnt.clear()
    effects = [applied.effect for applied in half.take("a", Frame(1, 1, groups=(GroupPart(9, NOW),)), NOW)]
    assert [(effect.seq, effect.frame is None) for effect in effects][:2] == [(1, True), (2, True)]
    assert len(effects) == many - UNEXPLAINED - 1
    assert len(learnt) <= 3 * many


def test_frames_of_an_older_line_that_wait_for_numbers_are_looked_at_when_another_one_of_it_comes() -> None:
    """protocol 1.2, 2.4: not with each message of the newer line."""
    looks, known = list[int](), set[int]()

    def explains(_key: EpochKey, frame: Frame, _ahead: DefinitionsAhead) -> bool:
        looks.append(frame.seq)
        return frame.epoch != 1 or frame.seq in known

    inbox = Inbox(7, explains=explains)
    known.add(0)
    inbox.take("a", Frame(1, 0, Birth(1 << 32, 7, None, "1")))
    for seq in range(2, 50):
        inbox.take("a", Frame(1, seq))
    inbox.take("a", Frame(2, 0, Birth(2 << 32, 7, LOST, "1")))
    looks.clear()
    for seq in range(1, 50):
        assert [effect.seq for effect in inbox.take("a", Frame(2, seq))] == [seq]
    assert len(looks) < 100
    known |= set(range(1, 50))
    assert [effect.seq for effect in inbox.take("a", Frame(1, 1))] == list(range(1, 50))
    inbox.check()


def test_a_frame_with_unknown_numbers_of_a_lost_epoch_never_takes_effect_as_one_of_the_epoch_in_force() -> None:
    """protocol 1.2, 2.2: only its data may count. Without room for more frames it did, with its frontier."""

    def explains(_key: EpochKey, frame: Frame, _ahead: DefinitionsAhead) -> bool:
        return frame.seq == 0

    inbox = Inbox(7, explains=explains)
    inbox.waiting = WaitingFrames(most_frames=1)
    assert len(inbox.take("a", Frame(1, 0, Birth(1 << 32, 7, None, "1")))) == 1
    assert inbox.take("a", Frame(1, 1)) == []
    assert [effect.epoch for effect in inbox.take("a", Frame(2, 0, Birth(2 << 32, 7, LOST, "1")))] == [2]
    assert inbox.take("a", Frame(1, 2)) == []
    assert inbox.current["a"] == 2
    inbox.check()
