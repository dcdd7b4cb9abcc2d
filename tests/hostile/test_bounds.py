"""What a child can make its parent keep has bounds, and what is beyond them is counted (protocol 2.2)."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from edge_agent.algebra.frame import LOST, Birth, Define, Frame, GroupPart, Leaf, Members, Plan, Serving
from edge_agent.algebra.query.query import Group
from edge_agent.config.in_force.known_definitions import KnownDefinitions
from edge_agent.errors import WireError
from edge_agent.machines.downlink import inbox, room
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.epochs import epoch_dictionary
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames
from edge_agent.machines.downlink.group_membership import GroupMembership
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.events import Arrived, Tick
from edge_agent.machines.region import merger as of_merger
from edge_agent.machines.region import partial_store
from edge_agent.machines.region.partial_store import PartialStore
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
        "ended": "inbox.MOST_ENDED for each child, `beyond_bounds`",
        "current": OWN_ID,
        "changed": COMMIT,
        "changed_ended": COMMIT,
        "rivals": OWN_ID,
        "restored": OWN_ID,
        "spoke_us": OWN_ID,
        "_unborn": OWN_ID,
    },
    EpochFrames: {"waiting": WAITING, "quarantined": "the newest 16 are kept over a commit; one for each frame sent"},
    EpochDictionary: dict.fromkeys(
        ("keys", "nodes", "groups", "plans"), "epoch_dictionary.MOST_BYTES, refused frames in `refused`"
    ),
    ChildFrames: {
        "dictionaries": LINES,
        "changed_dictionaries": COMMIT,
        "_forgetful": OWN_ID,
        "_beats": OWN_ID,
        "_unplaced": OWN_ID,
    },
    GroupMembership: {"members": OWN_ID, "_history": "a grace time"},
    Member: {
        "leaves": "room.MOST_LEAVES, refused frames in `refused`",
        "serving": "room.MOST_SERVINGS, refused frames in `refused`",
        "exceptions": "one frame says them all",
        "begins": "of `serving` and `leaves`",
        "ends": "of `serving` and `leaves`",
        "hints": "keys of an epoch",
        "held": "keys of an epoch",
        "reached": "of `leaves`",
        "unlisted": "of `leaves`",
        "older": "repeats.MOST_OLDER",
        "moved": "of `leaves`",
        "unheeded": "of `serving`",
    },
    PartialStore: {
        "plans": "partial_store.MOST_PLANS beside those with rows",
        "touched": COMMIT,
        "_stores": "rows of children, until their frontier",
        "_late": COMMIT,
        "_raw": COMMIT,
        "_dictionaries": LINES,
        "_stale": ITSELF,
    },
    KnownDefinitions: {
        "texts": "MOST_TEXTS, `beyond_bounds`",
        "_text": "MOST_TEXTS, `beyond_bounds`",
        "_queries": "of `_text` and `_published`",
        "_answers": "MOST_KNOWN",
        "_published": ITSELF,
        "_held": "MOST_HELD, `beyond_bounds`",
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
        case "GroupMembership":
            return GroupMembership(60 * S)
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
    with mock.patch.object(inbox, "MOST_LOST", 30), mock.patch.object(inbox, "MOST_ENDED", 50):
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
        assert len(box.ended["c"]) <= 50
        assert region.merger.counters()["beyond_bounds"]["epochs"] == box.forgotten > 0
        assert len(region.merger.parent.dictionaries) <= 33
        assert box.current["c"] == 149


def test_definitions_of_an_epoch_have_a_bound_and_the_frame_beyond_it_is_settled() -> None:
    with mock.patch.object(epoch_dictionary, "MOST_BYTES", 5_000):
        known = EpochDictionary()
        known.learn(Define(keys=(0, ("x" * 4_000,))))
        with pytest.raises(WireError, match="at most 5000 are kept"):
            known.learn(Define(keys=(1, ("y" * 4_000,))))
        assert len(known.keys) == 1


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


def test_definitions_of_sensors_are_bounded_and_counted() -> None:
    with mock.patch.object(of_merger, "MOST_TEXTS", 10):
        region = Region()
        region.hears("c", region.birth("c", COUNTED))
        texts = tuple(f'{{"id":"s-{n}"}}' for n in range(25))
        region.hears("c", Frame(7, 1, define=Define(sensors=texts)))
        assert len(region.merger._sensors) == 10
        assert region.merger.counters()["beyond_bounds"]["definitions"] == 15


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
