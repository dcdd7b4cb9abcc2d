"""What a child can make its parent keep has bounds, and what is beyond them is counted (protocol 2.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from edge_agent.algebra.frame import (
    LOST,
    Birth,
    Define,
    Frame,
    GroupPart,
    Leaf,
    Members,
    Serving,
)
from edge_agent.algebra.query.group_cut import PunctuationCut
from edge_agent.algebra.text_shares import TextShares
from edge_agent.config.in_force.known_definitions import KnownDefinitions
from edge_agent.errors import WireError
from edge_agent.machines.downlink import inbox
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs import ended_epochs, epoch_dictionary
from edge_agent.machines.downlink.epochs.definitions_ahead import DefinitionsAhead
from edge_agent.machines.downlink.epochs.early_births import EarlyBirths
from edge_agent.machines.downlink.epochs.ended_epochs import EndedEpochs
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.losses.earlier_lives import EarlierLives
from edge_agent.machines.downlink.losses.let_go import WAIT_US, LetGo
from edge_agent.machines.downlink.losses.lost_pasts import LostPasts
from edge_agent.machines.downlink.losses.retired_leaves import RetiredLeaves
from edge_agent.machines.downlink.losses.unlisted import Unlisted
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.downlink.moves import Moves
from edge_agent.machines.downlink.senders import Senders
from edge_agent.machines.downlink.serving_agreement import ServingAgreement
from edge_agent.machines.events import Arrived, BadFrame, Tick
from edge_agent.machines.region.child_alarms import ChildAlarms
from edge_agent.machines.region.merger import Merger
from edge_agent.machines.region.partial_store import PartialStore
from edge_agent.machines.region.sent_upward import SentUpward
from edge_agent.machines.uplink.encoding.spooled_numbers import SpooledNumbers
from edge_agent.machines.uplink.late_sendings import LateSendings
from edge_agent.root.agreed_servings import AgreedServings
from edge_agent.root.completeness import Decider
from edge_agent.root.leaves_behind import LeavesBehind
from edge_agent.root.served_before import ServedBefore
from edge_agent.runtime.region import heard
from edge_agent.wire import frames
from tests.hostile.fed_region import COUNTED, GROUP, NOW_US, Region, S, counted

OWN_ID = "one entry for each child: a child writes below its own id only (docs/operate.md)"

GROUPS = "room.MOST_GROUPS for each child and at a merger MOST_TOGETHER, refused frames in `refused`"

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
    EarlyBirths: {"_of": LINES, "_followers": "of `_of`"},
    DefinitionsAhead: {"_of": WAITING},
    EpochFrames: {
        "waiting": WAITING,
        "quarantined": "epoch_frames.MOST_QUARANTINED",
        "refused_flushes": "epoch_frames.MOST_QUARANTINED",
    },
    EpochDictionary: {
        **dict.fromkeys(("keys", "nodes", "groups", "plans"), "epoch_dictionary.MOST_BYTES, refused in `refused`"),
        "agreed": "of `plans`",
    },
    ChildFrames: {
        "dictionaries": LINES,
        "changed_dictionaries": COMMIT,
        "_beats": OWN_ID,
    },
    Senders: {"known": OWN_ID},
    LetGo: {
        "_waited_us": f"ranges between frames that wait: {WAITING}",
        "_comes_again": "of `_waited_us`",
        "_refused": "let_go.MOST_REFUSED for each child",
        "_ahead_of_end": "let_go.MOST_REFUSED for each child",
        "_heard_us": OWN_ID,
    },
    LostPasts: {"_forgetful": OWN_ID, "_rebuilt": OWN_ID},
    EarlierLives: {"_undecided": OWN_ID, "_spoke": OWN_ID, "_asked": OWN_ID, "_found": COMMIT},
    GroupMembership: {"members": OWN_ID, "_mergers": OWN_ID, "_history": "a grace time"},
    Member: {
        "leaves": "room.MOST_LEAVES, refused frames in `refused`",
        "serving": "room.MOST_SERVINGS, refused frames in `refused`",
        "exceptions": "room.MOST_LEAVES, refused frames in `refused`",
        "begins": "room.MOST_SERVINGS queries with `serving`, refused frames in `refused`; leaves that a region names",
        "ends": "of `begins`",
        "hints": "room.MOST_REGISTERS with `held`, refused frames in `refused`",
        "held": "room.MOST_REGISTERS with `hints`, refused frames in `refused`",
        "reached": "of `leaves`",
        "unlisted": "of `leaves`",
        "unsaid": "of `leaves`, when its journal was lost",
        "anew": "of `leaves`",
        "older": "inbox.MOST_LOST, and room.MOST_OLDER in all groups of a child, `beyond_bounds`",
        "moved": "of `leaves`",
        "unheeded": "of `serving`",
        "former": "of `serving` of a line before",
    },
    PartialStore: {
        "plans": "partial_store.MOST_PLANS beside those with rows",
        "_of": "of `plans`",
        "touched": COMMIT,
        "lost": COMMIT,
        "_stores": "partial_store.MOST_OPEN rows of 8 columns, `beyond_bounds`",
        "_claimed": "of `_stores`",
        "_held": "of `_stores`",
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
        "skipped": "moves.MOST_MOVED, KEPT_LEAVES of each, `beyond_bounds`",
        "again": "epochs in `transit`",
        "reports": COMMIT,
    },
    Children: {"known": OWN_ID, "memberships": GROUPS, "named": ITSELF, "retired": ITSELF},
    Unlisted: {"of": OWN_ID},
    RetiredLeaves: {"of": "retired_leaves.MOST_RETIRED, `beyond_bounds`", "last": "retired_leaves.MOST_RETIRED"},
    Merger: {
        "_owed": COMMIT,
        "_receipts": COMMIT,
        "_after": COMMIT,
        "_gaps": COMMIT,
        "_sensors": "merger.MOST_TEXTS for each gateway, `beyond_bounds`",
        "_child_keys": LINES,
        **dict.fromkeys(("_tokens", "_in_commit", "_commit_notes", "_failed"), COMMIT),
    },
    ChildAlarms: {"alarmed": "line_watch.MOST_NAMED", "_rivals": OWN_ID, "_went_back": OWN_ID},
    SpooledNumbers: {"_hints": GROUPS},
    SentUpward: {
        "groups": GROUPS,
        "ended": "sent_upward.MOST_ENDED, `beyond_bounds`",
        "unstated": "configuration lists them, and no child",
    },
    LateSendings: {"_of": f"{GROUPS}; late_sendings.MOST of each"},
    Decider: {
        "gaps": "bounds.MOST_GAPS and MOST_UNDATED, `beyond_bounds`",
        "alarms": OWN_ID,
        "beyond_bounds": ITSELF,
        "_sensor_texts": "bounds.MOST_SENSORS for each gateway, `beyond_bounds`",
        "_reported_beyond": ITSELF,
        "_listed": "the leaves that its memberships list",
        "_effects": COMMIT,
        "_new_gaps": COMMIT,
        "_new_queries": COMMIT,
        "_new_sensors": COMMIT,
        "_corrected": COMMIT,
    },
    AgreedServings: {
        "of": "bounds.MOST_SERVED of each group beside those that somebody serves, `beyond_bounds`",
        "_over_us": "one of each group that is served",
    },
    ServedBefore: {"of": "queries served and leaves listed in a group at its last decision", "_last": GROUPS},
    LeavesBehind: {
        "of": "bounds.MOST_GONE of each group beside those that somebody lists, `beyond_bounds`",
        "_caught_up": COMMIT,
    },
    TextShares: {"of": "its `most` for each gateway below a child, `beyond_bounds`", "_used": OWN_ID},
    KnownDefinitions: {
        "texts": "MOST_TEXTS for each gateway, `beyond_bounds`",
        "_text": "of `texts`",
        "unnamed": "of `_text`",
        "_queries": "of `_text` and `_published`",
        "_answers": "MOST_KNOWN",
        "_fits": "MOST_KNOWN",
        "_wide": "MOST_KNOWN",
        "_published": ITSELF,
        "_removed": "MOST_REMOVED",
        "_held": "MOST_HELD for each gateway, `beyond_bounds`",
        "_waiting": "of `_held`",
        "_claims": f"{OWN_ID}; MOST_CLAIMS of each",
        "_earlier": "MOST_EARLIER",
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
        case "Senders":
            return Senders(None)
        case "LetGo":
            return LetGo(Inbox(1))
        case "EarlierLives":
            return EarlierLives(Inbox(1))
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
        case "AgreedServings":
            return AgreedServings(ChildFrames(1, 60 * S), KnownDefinitions())
        case "LateSendings":
            return LateSendings({})
        case "SpooledNumbers":
            return SpooledNumbers({})
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
    assert len(list(let_go._holes("c", 12, None))) <= 2 * 10 + 2 * between
    assert len(let_go._waited_us["c"]) <= between  # only of the epoch in force, which speaks
    region.now_us += WAIT_US
    for _ in range(20):  # the epoch in force is silent
        region.now_us += 10 * S
        region.hears("c", Frame(12, 1, groups=(GroupPart(0, NOW_US),)))
    assert len(let_go._waited_us["c"]) <= 2 * 10 + between
    region.merger.parent.inbox.check()


@pytest.mark.parametrize(
    "define",
    [
        Define(groups=((0, replace(GROUP, cut=PunctuationCut("central", marker_id="i" * 5_000))),)),
        Define(groups=((0, replace(GROUP, by=("b" * 200,) * 25)),)),
        Define(groups=((0, GROUP),), plans=((0, 0, replace(COUNTED, basis=tuple(f"{n:0200}" for n in range(25)))),)),
    ],
    ids=["markers", "labels", "columns"],
)
def test_every_text_of_a_definition_counts_towards_the_bound_of_its_epoch(define: Define) -> None:
    """protocol 2.2: a group may name 60 kB of markers, and a plan as many columns."""
    with (
        mock.patch.object(epoch_dictionary, "MOST_BYTES", 5_000),
        pytest.raises(WireError, match="at most 5000 are kept"),
    ):
        EpochDictionary().learn(define)
