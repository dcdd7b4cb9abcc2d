"""What a child can make its parent keep has bounds, and what is beyond them is counted (protocol 2.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import (
    BEGAN,
    DAMAGED,
    JOURNAL_LOST,
    LOST,
    Birth,
    Define,
    ExcludedLeaf,
    Frame,
    Gap,
    GroupPart,
    Heartbeat,
    Leaf,
    Members,
    Plan,
    Serving,
)
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Group
from edge_agent.algebra.text_shares import TextShares
from edge_agent.config.in_force import known_definitions
from edge_agent.config.in_force.known_definitions import KnownDefinitions
from edge_agent.errors import WireError
from edge_agent.machines.downlink import definitions, inbox, moves, room, serving_agreement
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs import ended_epochs, epoch_dictionary
from edge_agent.machines.downlink.epochs.definitions_ahead import DefinitionsAhead
from edge_agent.machines.downlink.epochs.ended_epochs import EndedEpochs
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.losses.let_go import WAIT_US, LetGo
from edge_agent.machines.downlink.losses.lost_pasts import LostPasts
from edge_agent.machines.downlink.losses.retired_leaves import RetiredLeaves
from edge_agent.machines.downlink.losses.unlisted import Unlisted
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.downlink.moves import Moves
from edge_agent.machines.downlink.serving_agreement import ServingAgreement
from edge_agent.machines.events import Arrived, BadFrame, Tick
from edge_agent.machines.region import merger as of_merger
from edge_agent.machines.region import partial_store
from edge_agent.machines.region.child_alarms import ChildAlarms
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.region.partial_store import PartialStore
from edge_agent.machines.region.sent_upward import SentUpward
from edge_agent.machines.uplink.late_sendings import LateSendings
from edge_agent.root import bounds
from edge_agent.root.completeness import Decider
from edge_agent.runtime.region import heard
from edge_agent.wire import frames
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, Region, S, counted, rows

OWN_ID = "one entry for each child: a child writes below its own id only (docs/operate.md)"
GROUPS = "room.MOST_GROUPS for each child, refused frames in `refused`"
LINES = "inbox.MOST_LINES and MOST_LOST for each child, `turned_away` and `beyond_bounds`"
WAITING = "waiting_frames.MOST_FRAMES and MOST_BYTES for each child, `turned_away`"
COMMIT = "emptied with every commit"
ITSELF = "not grown by children"
GROWS: dict[type, dict[str, str]] = {
    Inbox: {
        "epochs": LINES,
        "_lines": LINES,
        "current": OWN_ID,
        "changed": COMMIT,
        "rivals": OWN_ID,
        "restored": OWN_ID,
        "spoke_us": OWN_ID,
        "_unborn": OWN_ID,
    },
    EndedEpochs: {
        "of": "ended_epochs.MOST_ENDED for each child, `beyond_bounds`",
        "flushes": "ended_epochs.MOST_FLUSHES for each child, each with MOST_CONTESTED numbers",
        "changed": COMMIT,
    },
    DefinitionsAhead: {"_of": WAITING},
    EpochFrames: {"waiting": WAITING, "quarantined": "epoch_frames.MOST_QUARANTINED"},
    EpochDictionary: {
        **dict.fromkeys(("keys", "nodes", "groups", "plans"), "epoch_dictionary.MOST_BYTES, refused in `refused`"),
        "agreed": "of `plans`",
    },
    ChildFrames: {
        "dictionaries": LINES,
        "changed_dictionaries": COMMIT,
        "_beats": OWN_ID,
    },
    LetGo: {
        "_waited_us": f"ranges between frames that wait: {WAITING}",
        "_comes_again": "of `_waited_us`",
        "_refused": "let_go.MOST_REFUSED for each child",
        "_heard_us": OWN_ID,
    },
    LostPasts: {"_forgetful": OWN_ID, "_rebuilt": OWN_ID},
    GroupMembership: {"members": OWN_ID, "_history": "a grace time"},
    Member: {
        "leaves": "room.MOST_LEAVES, refused frames in `refused`",
        "serving": "room.MOST_SERVINGS, refused frames in `refused`",
        "exceptions": "room.MOST_LEAVES, refused frames in `refused`",
        "begins": "of `serving` and `leaves`",
        "ends": "of `serving` and `leaves`",
        "hints": "keys of an epoch",
        "held": "keys of an epoch",
        "reached": "of `leaves`",
        "unlisted": "of `leaves`",
        "unsaid": "of `leaves`, when its journal was lost",
        "anew": "of `unsaid`",
        "older": "inbox.MOST_LOST",
        "moved": "of `leaves`",
        "unheeded": "of `serving`",
        "former": "of `serving` of a line before",
    },
    PartialStore: {
        "plans": "partial_store.MOST_PLANS beside those with rows",
        "_of": "of `plans`",
        "touched": COMMIT,
        "lost": COMMIT,
        "_stores": "partial_store.MOST_OPEN rows, `beyond_bounds`",
        "_claimed": "of `_stores`",
        "_late": COMMIT,
        "_raw": COMMIT,
        "_dictionaries": LINES,
        "_stale": ITSELF,
    },
    ServingAgreement: {
        "_since": "serving_agreement.MOST_AGREED beside those that somebody serves, `beyond_bounds`",
        "_start_us": "of `_since`",
    },
    Moves: {
        "left": "moves.MOST_MOVED beside those that somebody lists, KEPT_LEAVES of each, `beyond_bounds`",
        "transit": "of `left`, KEPT_LEAVES of each",
        "carried": "of `left`, KEPT_LEAVES of each",
        "served": "moves.MOST_SERVED leaves of `transit`",
        "_reporters": "of `left`",
        "replaced": "moves.MOST_MOVED, KEPT_LEAVES of each, `beyond_bounds`",
        "reports": COMMIT,
    },
    Children: {"known": OWN_ID, "memberships": GROUPS, "named": ITSELF, "retired": ITSELF},
    Unlisted: {"of": OWN_ID},
    RetiredLeaves: {"of": "retired_leaves.MOST_RETIRED, `beyond_bounds`"},
    Merger: {
        "_owed": COMMIT,
        "_receipts": COMMIT,
        "_after": COMMIT,
        "_gaps": COMMIT,
        "_retired": ITSELF,
        "_sensors": "merger.MOST_TEXTS for each gateway, `beyond_bounds`",
        "_child_keys": LINES,
        "_spooled_hints": GROUPS,
        **dict.fromkeys(("_tokens", "_in_commit", "_commit_notes", "_failed"), COMMIT),
    },
    ChildAlarms: {"alarmed": "line_watch.MOST_NAMED", "_rivals": OWN_ID, "_went_back": OWN_ID},
    SentUpward: {"groups": GROUPS, "ended": "sent_upward.MOST_ENDED, `beyond_bounds`"},
    LateSendings: {"_of": f"{GROUPS}; late_sendings.MOST of each"},
    Decider: {
        "gaps": "bounds.MOST_GAPS and MOST_UNDATED, `beyond_bounds`",
        "alarms": OWN_ID,
        "beyond_bounds": ITSELF,
        "_serving": "bounds.MOST_SERVED of each group beside those that somebody serves, `beyond_bounds`",
        "_behind": "bounds.MOST_GONE of each group beside those that somebody lists, `beyond_bounds`",
        "_over_us": "one of each group that is served",
        "_sensor_texts": "bounds.MOST_SENSORS for each gateway, `beyond_bounds`",
        "_reported_beyond": ITSELF,
        "_effects": COMMIT,
        "_new_gaps": COMMIT,
        "_new_queries": COMMIT,
        "_new_sensors": COMMIT,
        "_corrected": COMMIT,
    },
    TextShares: {"of": "its `most` for each gateway below a child, `beyond_bounds`", "_used": OWN_ID},
    KnownDefinitions: {
        "texts": "MOST_TEXTS for each gateway, `beyond_bounds`",
        "_text": "of `texts`",
        "unnamed": "of `_text`",
        "_queries": "of `_text` and `_published`",
        "_answers": "MOST_KNOWN",
        "_published": ITSELF,
        "_removed": "MOST_REMOVED",
        "_held": "MOST_HELD for each gateway, `beyond_bounds`",
        "_waiting": "of `_held`",
        "_claims": "MOST_CLAIMS",
        "released": COMMIT,
        "corrected": COMMIT,
    },
}


def made(of: type) -> Any:
    match of.__name__:
        case "Inbox":
            return Inbox(1)
        case "ChildFrames":
            return ChildFrames(1, 60 * S)
        case "LetGo":
            return LetGo(Inbox(1))
        case "LostPasts":
            return LostPasts(Children(60 * S), Inbox(1))
        case "GroupMembership":
            return GroupMembership(60 * S)
        case "ServingAgreement":
            return ServingAgreement(60 * S)
        case "Children":
            return Children(60 * S)
        case "Decider":
            return Decider(1, 60 * S)
        case "LateSendings":
            return LateSendings({})
        case "Merger":
            return Region().merger
        case "TextShares":
            return TextShares(1)
    return of()


@pytest.mark.parametrize("of", GROWS, ids=lambda of: of.__name__)
def test_every_container_that_a_child_can_grow_is_listed_with_its_bound(of: type) -> None:
    thing = made(of)
    names = [*getattr(thing, "__dict__", {}), *(name for name in getattr(of, "__slots__", ()))]
    grows = {name for name in names if hasattr(getattr(thing, name, None), "__len__")}
    grows -= {name for name in grows if isinstance(getattr(thing, name), str | bytes | tuple | np.ndarray)}
    assert grows == GROWS[of].keys()


class Fed(Region):
    """A region of one child that says what it likes."""

    def births(self, epoch: int, predecessor: Any = LOST, held: tuple[int, ...] | None = None) -> None:
        define = Define(keys=(0, ("",)), groups=((0, GROUP),), plans=((0, 0, COUNTED),))
        birth = Birth(epoch << 32, self.merger.journal, predecessor, "1", 1, held)
        leaves = (Members(0, (Leaf("c", epoch),), (), (Serving("q", 1),)),)
        frame = Frame(epoch, 0, birth, define, members=leaves, groups=(GroupPart(0, NOW_US),))
        self.feed(Arrived((("c", heard(frames.encode(frame)), None),)))


def test_epochs_that_a_birth_says_are_held_or_lost_are_bounded() -> None:
    with mock.patch.object(inbox, "MOST_LOST", 30), mock.patch.object(ended_epochs, "MOST_ENDED", 50):
        region = Fed()
        region.births(1, None)
        region.births(2, LOST, tuple(range(1_000, 3_000)))
        box = region.merger.parent.inbox
        assert len(box.epochs) <= 32
        for epoch in range(3, 150):
            region.births(epoch)
            region.now_us += 2 * S
            region.feed(Tick())
            box.check()
        assert len(box.epochs) <= 32
        assert len(box.ended.of["c"]) <= 50
        assert region.merger.counters()["beyond_bounds"]["epochs"] == box.forgotten > 0
        assert len(region.merger.parent.dictionaries) <= 33
        assert box.current["c"] == 149


def test_epochs_that_wait_at_the_root_are_bounded_and_what_comes_beyond_is_declared_lost() -> None:
    """protocol 1.4, 2.2: the lander has receipted them; a birth that the line in force leads to takes effect."""
    with mock.patch.object(inbox, "MOST_EPOCHS", 30):
        root, heard_us = ChildFrames(1, 60 * S, bounded=False), NOW_US
        first = Fed().birth("c", COUNTED)
        assert first.birth is not None
        root.take("c", replace(first, birth=replace(first.birth, journal=1)), heard_us)
        for epoch in range(1_000, 1_100):
            root.take("c", BadFrame(epoch, 0, "unreadable", b""), heard_us + S)
        root.inbox.check()
        assert len(root.inbox.epochs) == 30
        assert root.inbox.forgotten == 71
        assert len(root.dictionaries) == 1
        for epoch in (2_000, 1_099):  # an epoch that is new, and one that is known to be too many
            (lost,) = root.take("c", replace(counted(1, 5), epoch=epoch), heard_us + S)
            assert [gap.nodes for gap in lost.losses] == [("c",)]
        (born,) = root.take("c", Frame(8, 0, Birth(8 << 32, 1, (7, 0), "1")), heard_us + S)
        assert (born.effect.epoch, len(root.inbox.epochs)) == (8, 30)
        (born,) = root.take("c", Frame(9, 0, Birth(9 << 32, 1, LOST, "1")), heard_us + S)
        assert born.effect.epoch == 9


def test_births_of_which_frames_are_missing_are_bounded_also_if_all_follow_the_line_in_force() -> None:
    """protocol 2.2: they are turned away, and come again; a birth that takes effect at once has room."""
    with mock.patch.object(inbox, "MOST_EPOCHS", 30):
        region = Fed()
        region.births(1, None)
        for epoch in range(2, 100):
            region.hears("c", Frame(epoch, 0, Birth(epoch << 32, region.merger.journal, (1, 0), "1", 2)))
        box = region.merger.parent.inbox
        assert (len(box.epochs), box.refused) == (30, 69)
        region.births(100, (1, 0))
        assert box.current["c"] == 100


def test_definitions_of_an_epoch_have_a_bound_and_the_frame_beyond_it_is_settled() -> None:
    with mock.patch.object(epoch_dictionary, "MOST_BYTES", 5_000):
        known = EpochDictionary()
        known.learn(Define(keys=(0, ("x" * 4_000,))))
        with pytest.raises(WireError, match="at most 5000 are kept"):
            known.learn(Define(keys=(1, ("y" * 4_000,))))
        assert len(known.keys) == 1


def test_what_a_child_says_is_missing_takes_an_entry_for_each_frame_that_waits() -> None:
    """protocol 1.2, 1.3: births of 65 536 frames of which the first came, and births that name one epoch."""
    region = Fed()
    region.births(1, None)
    for epoch in range(2, 12):
        birth = Birth(epoch << 32, region.merger.journal, (1, 0), "1", 65_536)
        region.hears("c", Frame(epoch, 0, birth), Frame(epoch, 7, groups=(GroupPart(0, NOW_US),)))
    for epoch in range(12, 30):
        birth = Birth(epoch << 32, region.merger.journal, (1, 99), "1")
        region.hears("c", Frame(epoch, 0, birth), Frame(1, 2 * epoch, groups=(GroupPart(0, NOW_US),)))
    let_go = region.merger.parent.let_go
    between = 18 + 1
    assert len(list(let_go._holes("c", None))) <= 2 * 10 + 2 * between
    assert len(let_go._waited_us["c"]) <= between  # only of the epoch in force, which speaks
    region.now_us += WAIT_US
    for _ in range(20):  # the epoch in force is silent
        region.now_us += 10 * S
        region.hears("c", Frame(12, 1, groups=(GroupPart(0, NOW_US),)))
    assert len(let_go._waited_us["c"]) <= 2 * 10 + between
    region.merger.parent.inbox.check()


@pytest.mark.parametrize("what", ["leaves", "queries", "groups"])
def test_what_a_child_says_of_groups_is_bounded_and_a_sibling_goes_on(what: str) -> None:
    limits = {"leaves": "MOST_LEAVES", "queries": "MOST_SERVINGS", "groups": "MOST_GROUPS"}
    with mock.patch.object(room, limits[what], 3):
        region = Region(gateways_only=False)
        region.hears("good", region.birth("good", COUNTED))
        region.hears("bad", region.birth("bad", COUNTED))
        if what == "groups":
            many = tuple((n, Group(f"s-{n}", "", (), 0, "revise")) for n in range(1, 5))
            members = tuple(Members(n, (Leaf("bad", 1),)) for n, _ in many)
            over = Frame(7, 1, define=Define(groups=many), members=members)
        else:
            leaves = tuple(Leaf(f"l-{n}", 1) for n in range(5)) if what == "leaves" else ()
            servings = tuple(Serving(f"q-{n}", 1) for n in range(5)) if what == "queries" else ()
            over = Frame(7, 1, members=(Members(0, leaves, (), servings),))
        region.hears("bad", over)
        region.hears("good", counted(1, 5))
        region.goes_on("good")
        assert any(f"more than 3 {what} of one child" in why for why in region.quarantined)
        assert region.readings() == 5


@pytest.mark.parametrize("reason", [LOST, BEGAN, DAMAGED, JOURNAL_LOST])
def test_groups_that_only_a_record_or_a_heartbeat_names_are_not_kept(reason: str) -> None:
    """protocol 2.2: a parent works on every group that it knows in every step, for as long as it runs."""
    region = Region()
    region.hears("bad", region.birth("bad", COUNTED))
    many = tuple(Group(f"s-{n}", "", (), 0, "revise") for n in range(50))
    defined = Define(groups=tuple(enumerate(many, 1)))
    for start_us, end_us in ((0, 0), (NOW_US, NOW_US + S)):
        region.hears("bad", Frame(7, 1 + (end_us > 0), gaps=(Gap(many, start_us, end_us, -1, ("bad",), reason),)))
    region.hears("bad", Frame(7, 3, define=defined))
    beat = Heartbeat(7, 3, tuple((n, region.now_us) for n in range(1, 51)))
    region.gives("bad", frames.encode_heartbeat(beat))
    region.waits()
    assert [*region.merger.parent.children.memberships] == [GROUP]
    assert region.quarantined == []
    declared = {group for gap in region.losses() for group in gap.groups}
    assert declared == set(many)


def test_groups_that_a_child_only_promises_are_bounded_as_those_that_it_lists() -> None:
    with mock.patch.object(room, "MOST_GROUPS", 3):
        region = Region()
        region.hears("bad", region.birth("bad", COUNTED))
        many = Define(groups=tuple((n, Group(f"s-{n}", "", (), 0, "revise")) for n in range(1, 5)))
        parts = tuple(GroupPart(n, NOW_US, exceptions=(ExcludedLeaf("bad", 0, 0),)) for n in range(1, 5))
        region.hears("bad", Frame(7, 1, define=many, groups=parts))
        assert any("more than 3 groups of one child" in why for why in region.quarantined)
        assert [*region.merger.parent.children.memberships] == [GROUP]


def test_definitions_of_sensors_are_bounded_and_counted() -> None:
    with mock.patch.object(of_merger, "MOST_TEXTS", 10):
        region = Region()
        region.hears("c", region.birth("c", COUNTED))
        texts = tuple(f'{{"id":"s-{n}"}}' for n in range(25))
        region.hears("c", Frame(7, 1, define=Define(sensors=texts)))
        assert len(region.merger._sensors) == 10
        assert region.merger.counters()["beyond_bounds"]["definitions"] == 15
        region.hears("good", region.birth("good", COUNTED))
        region.hears("good", Frame(7, 1, define=Define(sensors=('{"id":"of a sibling"}',))))
        assert '{"id":"of a sibling"}' in region.merger._sensors


@pytest.mark.parametrize("kind", ["queries", "sensors"])
def test_a_child_that_sends_too_many_definitions_costs_only_itself_also_at_the_root(kind: str) -> None:
    """Definitions that are only in files: those of a sibling must still reach the root."""
    with (
        mock.patch.object(of_merger, "MOST_TEXTS", 10),
        mock.patch.object(definitions, "MOST_TEXTS", 10),
        mock.patch.object(known_definitions, "MOST_TEXTS", 10),
        mock.patch.object(bounds, "MOST_SENSORS", 10),
    ):
        region, root = Region(), Decider(1, 60 * S)
        for child, count in (("bad", 1_000), ("good", 3)):
            region.hears(child, region.birth(child, COUNTED))
            texts = tuple(f'{{"id":"{child}-{n}"}}' for n in range(count))
            define = Define(queries=texts) if kind == "queries" else Define(sensors=texts)
            region.hears(child, Frame(7, 1, define=define))
        assert region.merger.counters()["beyond_bounds"]["definitions"] == 990
        for frame in region.sent:
            birth = frame.birth and replace(frame.birth, journal=1)
            root.take("m", replace(frame, birth=birth), region.now_us)
        decision = root.decide(region.now_us)
        found = decision.queries if kind == "queries" else decision.sensors
        assert [text for text in found if "good" in text] == [f'{{"id":"good-{n}"}}' for n in range(3)]
        assert len(found) == 13


def test_the_share_of_a_text_grows_with_its_length_and_is_given_back() -> None:
    shares = TextShares(5)
    assert shares.add("x" * 4_100, "a")
    assert not shares.add("y", "a")
    assert shares.add("y", "b"), "another child has a share of its own"
    assert shares.add("y", "a"), "it is here already"
    assert shares.add("z" * 9_000, "m", gateways=2)
    shares.remove("x" * 4_100)
    assert shares.add("y-2", "a")
    assert list(shares) == ["y", "z" * 9_000, "y-2"]
    restored = TextShares(5, shares)
    restored.assign(shares.of.items())
    assert (restored.of, restored._used) == (shares.of, {each: n for each, n in shares._used.items() if n})


def test_texts_and_plans_of_no_open_row_go_and_open_rows_stay_what_they_are() -> None:
    with mock.patch.object(partial_store, "MOST_KEYS", 40), mock.patch.object(partial_store, "MOST_PLANS", 5):
        region, plain = Region(), Region()
        region.merger.store._tidy_at = 40
        for each in (region, plain):
            each.hears("c", each.birth("c", COUNTED))
            for n in range(1, 60):
                keys = Define(keys=(n, (f"k-{n}",)), plans=((n, 0, _plan(n)),))
                made = rows(n, _plan(n), {"count": np.array([n]), "sum": np.array([n * 7], object)})
                part = made.groups[0].sections[0]
                moved = part.partials.take(np.array([0]))
                moved.key[:] = n
                section = type(part).of(n, _plan(n), moved)
                on_time, late = ((section,), ()) if n % 5 == 0 else ((), (section,))  # those stay open till the end
                each.hears("c", Frame(7, n, define=keys, groups=(GroupPart(0, NOW_US - 10 * S, on_time, late),)))
            each.goes_on("c", 60)
        assert region.merger.store.tidied > 0
        assert len(region.merger.store.keys.texts) <= 41
        assert len(region.merger.store.plans) <= 6
        assert said(region) == said(plain)
        assert region.readings() == plain.readings() == sum(range(1, 60))


def _plan(n: int) -> Plan:
    return Plan(n.to_bytes(8, "big"), "slice", ("count", "sum"), 0, S, (("q", 1),))


def said(region: Region) -> list[tuple[str, int]]:
    """(key, count) of every row that left."""
    keys: list[str] = []
    out = []
    for frame in region.sent:
        if frame.birth is not None:
            keys = []
        if frame.define is not None:
            keys += frame.define.keys[1]
        for part in frame.groups:
            for section in (*part.sections, *part.late):
                column = next(iter(section.partials.states.values()))
                out += [(keys[k], int(c)) for k, c in zip(section.partials.key.tolist(), column.tolist(), strict=True)]
    return sorted(out)


def test_entries_that_mergers_replaced_are_bounded() -> None:
    """protocol 1.5: a leaf below two mergers is listed in a new epoch by one of them, again and again."""
    known = Moves()
    with mock.patch.object(moves, "MOST_MOVED", 80):
        for number in range(100):
            listed = {str(number): Leaf(str(number), 1)}
            known._replace(Leaf(str(number), 1), "m1", {"m1": Member(leaves=listed), "m2": Member(leaves=listed)})
    assert (len(known.replaced), known.forgotten) == (80, 20)
    assert "99" in known.replaced


def test_leaves_that_moved_are_bounded_and_who_reports_most_forgets_first() -> None:
    with mock.patch.object(moves, "MOST_MOVED", 80):
        family = GroupMembership(60 * S)
        for child in ("good", "bad"):
            family.change(child, Members(0, (Leaf(f"{child}-own", 1),)))
        family.change("good", Members(0, (Leaf("g", 1),)))
        family.leave("good", Leaf("g", 2, 1))
        for n in range(1_000):
            family.leave("bad", Leaf(f"x-{n}", 2, 1))
        for n in range(1_000):
            family.leave("bad", Leaf("x", n + 2, n + 1_000_000))
        assert len(family.moves.left) <= 80
        assert "g" in family.moves.left
        assert family.leaf_frontiers().keys() >= {"g", "good-own", "bad-own"}
        assert len(family.moves.transit["x"]) <= moves.KEPT_LEAVES
        assert family.forgotten["moves"] > 1_000
        restored = GroupMembership.restore(60 * S, family.snapshot())
        assert restored.leaf_frontiers() == family.leaf_frontiers()


def test_starts_agreed_for_revisions_that_nobody_serves_are_bounded() -> None:
    with mock.patch.object(serving_agreement, "MOST_AGREED", 40):
        family = GroupMembership(60 * S)
        family.change("good", Members(0, (Leaf("g", 1),), serving=(Serving("q", 1, 5),)))
        for n in range(200):
            family.member("bad").begin(anew=False)
            family.change("bad", Members(0, (Leaf("b", 1),), serving=(Serving(f"x-{n}", 1),)))
            family.serving(n * 100 * S)
        state = family.snapshot()
        assert len(state.since or ()) <= 42
        assert (state.starts or {})[QueryKey("q", 1)] == 5
        assert family.forgotten["starts"] >= 150


RECORDS = st.builds(
    lambda child, groups, start, length, nodes, reason: (
        child,
        Gap(tuple(Group(f"s-{n}", "", (), 0) for n in sorted(groups)), start, start + length, -1, nodes, reason),
    ),
    st.sampled_from(["a", "b", "c"]),
    st.sets(st.integers(0, 1), min_size=1),
    st.integers(0, 30),
    st.integers(0, 5),
    st.sampled_from([(), ("x",), ("x", "y")]),
    st.sampled_from([LOST, "poison"]),
)


@given(st.lists(RECORDS, max_size=40))
def test_gap_records_beyond_the_bound_are_joined_and_every_loss_stays_declared(found: list[tuple[str, Gap]]) -> None:
    with mock.patch.object(bounds, "MOST_GAPS", 8), mock.patch.object(bounds, "MOST_UNDATED", 3):
        kept = bounds.bounded_gaps(found)
    assert len(kept) <= 8
    assert sum(gap.end_us <= gap.start_us for _, gap in kept) <= 3
    for child, gap in found:
        if gap.end_us > gap.start_us:
            assert any(
                child == of
                and set(gap.groups) <= set(each.groups)
                and each.start_us <= gap.start_us < gap.end_us <= each.end_us
                and (not each.nodes or (gap.nodes and set(gap.nodes) <= set(each.nodes)))
                for of, each in kept
            ), (child, gap)


def test_what_a_child_tells_the_root_is_bounded_and_said() -> None:
    """Revisions served once, sensors, leaves that are behind and go."""
    with mock.patch.multiple(bounds, MOST_SERVED=5, MOST_SENSORS=5, MOST_GONE=5):
        decider = Decider(1, 60 * S)
        for n in range(30):
            define = Define(groups=((0, GROUP),), sensors=(f'{{"id":"s-{n}"}}',))
            leaves = (Leaf("good", 1), Leaf(f"l-{n}", 1))
            members = (Members(0, leaves, (f"l-{n - 1}",), (Serving(f"x-{n}", 1),)),)
            birth = Birth(n + 1 << 32, 1, LOST if n == 0 else (n, 1), "1", 1, ())
            at_us = NOW_US + n * S
            late = (ExcludedLeaf(f"l-{n}", 0, 0),)
            decider.take("m", Frame(n + 1, 0, birth, define, members=members, groups=(GroupPart(0, at_us),)), at_us)
            decider.take("m", Frame(n + 1, 1, groups=(GroupPart(0, at_us, exceptions=late),)), at_us)
            decision = decider.decide(at_us)
            assert len(decision.groups[GROUP].serving) <= 6
        assert len(decider._sensor_texts) == 3 * 5, "for two gateways, and one that comes"
        assert len(decider._behind[GROUP]) <= 6
        assert decider.take_beyond() == {"servings": 24, "sensors": 15, "leaves": 24}
        assert decider.take_beyond() == {}
