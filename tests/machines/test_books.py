"""The books of a small tree, each number of which is needed: what differs is named with its place (protocol 9.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from edge_agent.root.books import Audit, Line, NodeBook, RootBook, audit

LEAF: dict[str, Any] = {
    "epoch": 7,
    "seq": 4,
    "sent": 78,
    "lost": 9,
    "lost_frames": 0,
    "whole": True,
    "taken": 100,
    "added": 7,
    "left": 90,
    "open": 8,
    "outside": 4,
    "dropped": 5,
    "waiting": 3,
    "refused": 11,
    "undated": 13,
}
REGION: dict[str, Any] = {
    "epoch": 9,
    "seq": 2,
    "sent": 50,
    "lost": 6,
    "lost_frames": 0,
    "whole": True,
    "received": 70,
    "open": 14,
    "children": {"gw-1": [7, 4, 70, 0]},
}
TABLES = RootBook("root", {"hall": Line(9, 2, 45)}, {"hall": 45}, {"hall": 45}, late=4)


def node(name: str, parent: str, book: Mapping[str, Any], **changes: Any) -> NodeBook:
    return NodeBook(name, parent, {**book, **changes})


def tree(
    gateway: Mapping[str, Any] | None = None,
    hall: Mapping[str, Any] | None = None,
    *others: NodeBook,
    root: RootBook = TABLES,
) -> Audit:
    """A gateway below a region below the root. gateway, hall: numbers that differ from LEAF and REGION."""
    return audit(
        root, [node("gw-1", "hall", {**LEAF, **(gateway or {})}), node("hall", "root", REGION, **(hall or {})), *others]
    )


def applied(readings: int | None, refused: int = 0, *, seq: int = 4) -> dict[str, Any]:
    """The book of the region which applied that from the gateway; it has lost or not yet sent nothing else."""
    return {
        "children": {"gw-1": [7, seq, readings, refused]},
        **({"received": readings, "open": readings - 56} if readings else {}),
    }


def test_they_balance_with_every_number_of_a_gateway_and_a_region() -> None:
    found = tree()
    assert (found.off, found.unknown, found.unheard) == ([], [], [])
    assert found.pending == {"gw-1": 8 + 3 + 78 - 70, "hall": 14 + 50 - 45}
    assert (found.produced, found.stored, found.lost, found.late, found.quarantined) == (127, 41, 15, 9, 24)
    assert (found.rest, found.former) == (0, 0)


ROWS, FRAMES = "gw-1: {} between sensors and rows", "gw-1: {} between rows and frames"


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("taken", {ROWS: 1}),
        ("added", {ROWS: 1}),
        ("left", {ROWS: -1, FRAMES: 1}),
        ("open", {ROWS: -1}),
        ("outside", {ROWS: -1}),
        ("dropped", {ROWS: -1}),
        ("sent", {FRAMES: -1}),
        ("lost", {FRAMES: -1}),
        ("waiting", {FRAMES: -1}),
    ],
)
def test_one_reading_more_in_a_book_of_a_gateway_is_off_where_it_is(name: str, off: dict[str, int]) -> None:
    words = {1: "1 reading lost", -1: "1 reading counted twice"}
    assert tree({name: LEAF[name] + 1}).off == [place.format(words[rest]) for place, rest in off.items()]


@pytest.mark.parametrize(("name", "rest"), [("received", 1), ("sent", -1), ("lost", -1), ("open", -1)])
def test_one_reading_more_in_a_book_of_a_region_is_off_there(name: str, rest: int) -> None:
    said = "1 reading lost" if rest > 0 else "1 reading counted twice"
    assert tree(hall={name: REGION[name] + 1}).off == [f"hall: {said} between children's frames and its own"]


def test_groups_that_are_off_are_named() -> None:
    for groups in ({"cold": 2, "warm": 1}, ["cold", "warm"]):
        assert tree({"taken": 103, "off": groups}).off == [
            "gw-1: 3 readings lost between sensors and rows (cold, warm)"
        ]


def test_a_spool_that_is_older_than_the_books_is_compared_with_nothing() -> None:
    found = tree({"whole": False, "left": 91, "taken": 101})
    assert found.off == []
    assert found.unknown[:1] == ["gw-1: its spool is older than its books"]
    assert "gw-1 -> hall: the books of child and parent do not begin at the same frame" in found.unknown
    assert tree({"whole": False, "taken": 101}).off, "its readings are its own"


def test_a_number_that_is_none_is_nought() -> None:
    assert tree({"dropped": "5"}).off == ["gw-1: 5 readings lost between sensors and rows"]


def test_readings_of_children_that_a_region_no_longer_counts_were_produced_too() -> None:
    found = tree(hall={"received": 75, "open": 19})
    assert (found.off, found.former, found.rest) == ([], 5, 0)
    assert found.unknown == ["hall: 5 readings came from a child's spool that was lost, if not counted twice"]
    many = {"gw-1": [7, 4, 70, 0], "gw-2": [1, 1, None, 0]}
    assert tree(hall={"received": 75, "open": 19, "children": many}).former == 0, "one of them may have sent them"


@pytest.mark.parametrize(
    ("book", "right"),
    [
        ({}, True),
        ({"children": {"gw-1": [7, 4, 70]}}, True),
        ({"children": {"gw-1": (7, 4, None, 0)}}, True),
        ({"children": [[7, 4, 70, 0]]}, False),
        ({"children": {"gw-1": [7, 4, 70, 0], "gw-2": [7, 4]}}, False),
        ({"children": {"gw-1": {7: 1, 4: 1, 70: 1}}}, False),
        ({"children": {"gw-1": [7, None, 70, 0]}}, False),
        ({"children": {"gw-1": [7, 4, "70", 0]}}, False),
        ({"parents": ["hall"]}, False),
        ({"off": "cold"}, False),
        ({"off": [1]}, False),
        ({"off": 7, "children": {"gw-1": [7, 4]}}, False),
        ({"off": None}, True),
    ],
)
def test_what_is_no_book_is_not_read(book: dict[str, Any], right: bool) -> None:
    assert NodeBook("hall", "root", book).readable == right


def test_what_is_no_book_does_not_end_the_audit_of_the_others() -> None:
    found = tree(None, None, NodeBook("evil", "hall", {"children": 5}))
    assert (found.off, found.unheard, len(found.nodes)) == ([], ["evil: its books are not those of a node"], 2)


def test_a_gateway_is_nobodys_parent_and_retires_nobody() -> None:
    below = NodeBook("gw-2", "gw-1", {**LEAF, "sent": 0, "left": 12, "open": 86}, retired=frozenset({"gw-9"}))
    known = {"children": {**REGION["children"], "gw-9": [1, 1, 0, 0]}}
    found = tree(None, known, below)
    assert "gw-1: it has no book; it is the parent of gw-2" in found.unheard
    assert "gw-9: it has no book; hall applied 0 readings from it" in found.unheard


def test_children_without_books_are_named_in_order() -> None:
    known = {"children": {"gw-9": [1, 1, None, 0], **REGION["children"], "gw-3": [1, 1, 1, 0]}}
    assert tree(None, known).unheard == [
        "gw-3: it has no book; hall applied 1 reading from it",
        "gw-9: it has no book; hall applied an unknown number of readings from it",
    ]


def test_what_the_root_applied_of_a_node_that_moved_below_a_region_counts() -> None:
    """protocol 1.5"""
    root = replace(TABLES, lines={**TABLES.lines, "gw-1": Line(5, 3, 8)}, applied={"hall": 45, "gw-1": 8})
    found = tree(root=replace(root, stored={"hall": 45, "gw-1": 8}))
    assert (found.off, found.unknown, found.pending["gw-1"], found.rest) == ([], [], 11, 0)


@pytest.mark.parametrize(
    ("says", "pending", "doubt"),
    [
        (8, 11, ""),
        (5, 14, ""),
        (0, 19, ""),
        (9, 19, "9 readings"),
        (-5, 19, "-5 readings"),
        (None, 19, "an unknown number of readings"),
    ],
)
def test_a_node_that_nobody_names_as_its_parent_accuses_no_child(says: int | None, pending: int, doubt: str) -> None:
    book = {**REGION, "received": 0, "sent": 0, "lost": 0, "open": 0, "children": {"gw-1": [7, 2, says, 0]}}
    found = tree(None, None, NodeBook("pose", "root", book, believed=False))
    doubts = [text for text in found.unknown if text.startswith("gw-1 -> hall")]
    said = f"gw-1 -> hall: pose says that it applied {doubt} of it, too, and no child names pose"
    assert (doubts, found.pending["gw-1"]) == ([said] if doubt else [], pending)
    assert not [text for text in found.off if "gw-1" in text]


def test_readings_of_earlier_spools_at_other_parents_were_produced_too() -> None:
    """protocol 1.5, 9.1: but not those at a parent that the child names, and none where nothing was applied."""
    others = {
        name: NodeBook(name, "root", {**REGION, **gone, "children": {"gw-1": [5, 9, readings, 0]}})
        for name, readings in {"z": 30, "b": 20, "y": 3, "a": 2, "named": 8, "none": 0, "unknown": None}.items()
        for gone in [{"received": 0, "sent": 0, "lost": 0, "open": 0}]
    }
    found = tree({"parents": {"named": True}}, None, *others.values())
    assert [text for text in found.unknown if text.startswith("gw-1: ")] == [
        f"gw-1: {name} applied {readings} readings of an earlier spool of it"
        for name, readings in {"a": 2, "b": 20, "y": 3, "z": 30}.items()
    ]
    assert (found.former, found.pending["gw-1"]) == (55, 11)


@pytest.mark.parametrize(("here", "there"), [(None, 5), (70, None), (None, None)])
@pytest.mark.parametrize("believed", [True, False])
def test_what_one_parent_does_not_count_is_not_compared(here: int | None, there: int | None, *, believed: bool) -> None:
    book = {**REGION, "received": 0, "sent": 0, "lost": 0, "open": 0, "children": {"gw-1": [5, 9, there, 0]}}
    other = NodeBook("other", "root", book, believed=believed)
    found = tree({"parents": {"other": True}}, {"children": {"gw-1": [7, 4, here, 0]}}, other)
    said = "gw-1 -> hall: the books of child and parent do not begin at the same frame"
    assert (said in found.unknown) == (here is None or believed)


def test_six_former_parents_without_books_are_five_and_one_more() -> None:
    parents = {f"old-{n}": True for n in range(5)}
    said = "; ".join(f"no book says how many readings {name}, a former parent, applied" for name in parents)
    start = "gw-1 -> hall: 8 readings sent and not known to be applied: "
    assert tree({"parents": {**parents, "hall": True}}).unknown == [start + said]
    assert tree({"parents": {**parents, "old-5": True}}).unknown == [f"{start}{said}; nor 1 more"]


def test_a_parent_that_lost_its_spool_once_may_have_applied_what_is_missing() -> None:
    found = tree({"journals": 1})
    why = "its parent lost its spool once, with what it had counted"
    assert found.unknown == [f"gw-1 -> hall: 8 readings sent and not known to be applied: {why}"]
    assert found.pending["gw-1"] == 19, "frames are still on their way"
    assert tree({"journals": 1}, applied(78)).unknown == [], "nothing is missing"


def test_the_last_frame_that_is_applied_makes_readings_on_their_way_lost_ones() -> None:
    assert tree(hall=applied(70, seq=5)).off == [
        "gw-1 -> hall: 8 readings lost: all frames applied, 78 sent, 70 applied"
    ]
    for waits in ({"former": 1}, {"epoch": 8}):
        assert tree(waits, applied(70, seq=5)).off == []
    assert (tree(hall=applied(78, seq=5)).off, tree(hall=applied(78, seq=5)).pending["gw-1"]) == ([], 11)
    assert tree(hall=applied(79)).off[0] == "gw-1 -> hall: 1 reading counted twice: 79 applied, 78 sent"


def test_a_child_of_which_its_parent_knows_nothing_has_everything_on_its_way() -> None:
    found = tree(hall={"received": 0, "sent": 0, "lost": 0, "open": 0, "children": {}}, root=RootBook(applied={}))
    assert (found.off, found.unknown, found.pending["gw-1"]) == ([], [], 11 + 78)


@pytest.mark.parametrize(
    ("book", "line", "frames"), [({"lost_frames": 2}, 1, 3), ({}, 2, 2), ({"lost_frames": 1}, 0, 1)]
)
def test_frames_without_content_may_have_what_is_missing(book: dict[str, Any], line: int, frames: int) -> None:
    said = [f"gw-1 -> hall: {frames} frames without usable content, of at most 8 readings"]
    on_their_way, through = tree(book, applied(70, line)), tree(book, applied(70, line, seq=5))
    assert (on_their_way.unknown, on_their_way.pending["gw-1"]) == (said, 19)
    assert (through.off, through.unknown[:1], through.pending["gw-1"]) == ([], said, 11)


@pytest.mark.parametrize(
    ("readings", "seq", "former", "pending"), [(80, 4, 2, 11), (70, 6, 0, 19), (70, 5, None, 0), (78, 4, None, 11)]
)
def test_the_last_book_of_a_silent_node_may_be_older_than_its_frames(
    readings: int, seq: int, former: int | None, pending: int
) -> None:
    late = NodeBook("gw-1", "hall", LEAF, late_word=True)
    found = audit(TABLES, [late, node("hall", "root", REGION, **applied(readings, seq=seq))])
    said = ["gw-1: it does not answer, and its last book is older than its last frames"]
    assert found.unheard == ([] if former is None else said)
    if former is not None:
        assert (found.off, found.former, found.pending["gw-1"]) == ([], former, pending)
    else:
        assert bool(found.off) == (seq == 5), "its book is up to date"


def test_a_silent_node_with_another_epoch_is_judged_by_its_readings_only() -> None:
    late = NodeBook("gw-1", "hall", {**LEAF, "epoch": 8}, late_word=True)
    assert audit(TABLES, [late, node("hall", "root", REGION, **applied(70, seq=99))]).unheard == []


def test_a_new_spool_and_what_its_parent_applied_before_both_count() -> None:
    """protocol 1.4"""
    found = tree({"epoch": 8}, applied(90))
    assert (found.off, found.former, found.pending["gw-1"]) == ([], 90, 11 + 78)
    assert [text for text in found.unknown if text.startswith("gw-1 -> hall: 90 applied, 78 sent: its spool is new")]


def test_a_row_that_occurs_twice_is_named() -> None:
    assert tree(root=replace(TABLES, doubled=("hall 9/1 part 1",))).off == [
        "bronze.messages: hall 9/1 part 1 occurs twice"
    ]


def test_the_rows_of_each_child_are_compared_with_the_decisions() -> None:
    for stored, said in ((44, "1 reading lost"), (46, "1 reading counted twice")):
        found = tree(root=replace(TABLES, stored={"hall": stored}))
        assert found.off == [f"bronze.messages, rows of hall: {said} between decisions and rows"]
    found = tree(root=replace(TABLES, stored={"hall": 45, "b": 2, "a": 1}))
    assert [text.partition(":")[0][-1] for text in found.off] == ["a", "b"]
    assert tree(root=replace(TABLES, applied={"hall": 45, "a": 1})).off == [
        "bronze.messages, rows of a: 1 reading lost between decisions and rows"
    ]


def test_rows_that_nobody_counted_are_unknown() -> None:
    old = tree(root=replace(TABLES, uncounted=3, stored={}))
    assert (old.off, old.unknown[0]) == (
        [],
        "bronze.messages: 3 rows of an older version do not count their readings",
    )
    never = tree(root=replace(TABLES, applied=None, stored={}))
    assert (never.off, never.unknown[0]) == (
        [],
        "ops.batches: no decision counts the readings in bronze.messages",
    )


def test_rows_of_a_spool_that_a_child_has_lost_were_produced_too() -> None:
    lines = {"hall": Line(9, 2, 42)}
    found = tree(root=replace(TABLES, lines=lines))
    assert (found.off, found.unknown, found.former) == ([], ["hall: 3 readings came from a spool that was lost"], 3)
    unknown = tree(root=replace(TABLES, lines={"hall": Line(9, 2, None)}))
    assert (unknown.former, len(unknown.unknown)) == (0, 2)


def test_the_whole_is_off_if_each_part_balances_and_the_sum_does_not() -> None:
    rows = {"hall": 45, "x": 5}
    assert tree(root=replace(TABLES, applied=rows, stored=rows)).off == ["the whole: 5 readings counted twice"]
    assert tree(root=replace(TABLES, applied={}, stored={}, late=0)).off == ["the whole: 45 readings lost"]


def test_the_whole_is_unknown_if_a_part_is() -> None:
    rows = {"hall": 45, "x": 5}
    found = tree({"journals": 1}, root=replace(TABLES, applied=rows, stored=rows))
    assert (found.off, found.unknown[-1]) == ([], "the whole: 5 readings too many")
    silent = tree(
        None, None, NodeBook("evil", "hall", {"children": 5}), root=replace(TABLES, applied={}, stored={}, late=0)
    )
    assert (silent.off, silent.unknown) == ([], ["the whole: 45 readings not accounted for"])


def test_only_gateways_have_readings_that_came_late_or_were_refused() -> None:
    found = tree(hall={"dropped": 1, "refused": 2, "undated": 4, "added": 8})
    assert (found.off, found.late, found.quarantined, found.produced) == ([], 9, 24, 127)
