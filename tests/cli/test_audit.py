"""`headwater audit` at a real broker: retained books, nodes that answer, and what its last line says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cloud_job.audit import root_book
from edge_agent.cli.audit import books, lines
from edge_agent.cli.main import main
from edge_agent.cli.support.fleet_listener import HeardNode, Retained
from edge_agent.config import topics
from edge_agent.root.books import Audit, Line, NodeBook, RootBook, audit
from tests.support.fakes import Mosquitto
from tests.support.processes.broker_clients import publish

pytestmark = pytest.mark.broker
LEAF = {
    "epoch": 7,
    "seq": 4,
    "sent": 90,
    "lost": 0,
    "lost_frames": 0,
    "spooled": 0,
    "whole": True,
    "taken": 100,
    "added": 0,
    "left": 90,
    "open": 6,
    "outside": 1,
    "dropped": 3,
    "waiting": 0,
    "refused": 3,
    "undated": 2,
}
REGION = {
    "epoch": 9,
    "seq": 2,
    "sent": 70,
    "lost": 0,
    "lost_frames": 0,
    "spooled": 1,
    "whole": True,
    "received": 80,
    "open": 10,
    "children": {"gw-1": [7, 4, 80, 0]},
}
TABLES = RootBook("root", {"hall": Line(9, 2, 60)}, {"hall": 60}, {"hall": 60}, late=4)


def _audit(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **books: dict[str, Any]
) -> tuple[int, list[str]]:
    monkeypatch.setattr(root_book, "root_book", lambda _folder: replace(TABLES, name="?"))
    parents = {"gw-1": "hall", "hall": "root"}
    for node, parent in parents.items():
        book = {"parent": parent, "at_us": 1, "final": True, **books[node.replace("-", "_")]}
        role = "gateway" if node == "gw-1" else "region"
        publish(mosquitto.url, topics.status(node), json.dumps({"online": False, "role": role, "parent": parent}))
        publish(mosquitto.url, topics.books(node), json.dumps(book))
    code = main(["audit", "--broker", mosquitto.url, "--tables", "/nowhere"])
    return code, capsys.readouterr().out.splitlines()


def test_it_says_where_every_reading_is(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """protocol 9.1"""
    code, said = _audit(mosquitto, monkeypatch, capsys, gw_1=LEAF, hall=REGION)
    assert (code, said[-1]) == (0, "balanced")
    assert said[-2] == "produced 104 = stored 56 + pending 36 + declared lost 0 + late 7 + quarantined 5"
    assert said[1].split() == ["gw-1", "gateway", "hall", "104", "90", "6", "10", "0", "3", "5"]
    assert said[2].split() == ["hall", "region", "root", "80", "70", "10", "10", "0", "0", "0"]


def test_what_is_off_is_named_with_its_place_and_size(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = {**REGION, "received": 84, "open": 14, "children": {"gw-1": [7, 5, 94, 0]}}
    code, said = _audit(mosquitto, monkeypatch, capsys, gw_1=LEAF, hall=twice)
    assert (code, said[-1]) == (1, "off: gw-1 -> hall: 4 readings counted twice: 94 applied, 90 sent")
    lost = {**REGION, "children": {"gw-1": [7, 5, 80, 0]}}
    code, said = _audit(mosquitto, monkeypatch, capsys, gw_1=LEAF, hall=lost)
    assert (code, said[-1]) == (1, "off: gw-1 -> hall: 10 readings lost: all frames applied, 90 sent, 80 applied")


def test_frames_without_usable_content_make_it_an_inequality(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {**REGION, "children": {"gw-1": [7, 5, 80, 2]}}
    code, said = _audit(mosquitto, monkeypatch, capsys, gw_1=LEAF, hall=refused)
    assert code == 0
    assert said[-1].startswith("balanced, as far as is known")
    assert "unknown: gw-1 -> hall: 2 frames without usable content, of at most 10 readings" in said
    assert "produced 104 >= stored 56 + pending 26" in said[-2]


def test_a_node_that_is_not_heard_leaves_it_unproved(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {**REGION, "received": 85, "open": 15, "children": {"gw-1": [7, 4, 80, 0], "gw-2": [3, 1, 5, 0]}}
    code, said = _audit(mosquitto, monkeypatch, capsys, gw_1=LEAF, hall=more)
    assert (code, said[-1]) == (1, "not proved: 1 of the books could not be read; --also names further brokers")
    assert "unknown: gw-2: it has no book; hall applied 5 readings from it" in said


@pytest.mark.parametrize("by", ["root", "hall"])
def test_what_a_retired_node_had_is_unknown_once_its_books_are_deleted(by: str) -> None:
    """protocol 9.1, 1.5: its parent counted what it applied; nobody can say what else it had. `audit` never ended."""
    more = {**REGION, "received": 85, "open": 15, "children": {"gw-1": [7, 4, 80, 0], "gw-2": [3, 1, 5, 0]}}
    hall = NodeBook("hall", "root", more, retired=frozenset({"gw-2"} if by == "hall" else ()))
    root = replace(TABLES, retired=frozenset({"gw-2"} if by == "root" else ()))
    found = audit(root, [book("gw-1", "hall", LEAF), hall])
    assert (found.off, found.unheard, found.former) == ([], [], 5)
    assert found.unknown == ["gw-2: it is retired and its books are deleted; hall applied 5 readings from it"]
    said = lines(found)
    assert said[-1].startswith("balanced, as far as is known")


def test_children_of_a_retired_region_whose_books_are_deleted_are_not_compared_with_it() -> None:
    """protocol 9.1, 1.5: their last books name it."""
    root = replace(TABLES, lines={}, applied={}, stored={}, late=0, retired=frozenset({"hall"}))
    found = audit(root, [book("gw-1", "hall", LEAF)])
    assert (found.off, found.unheard) == ([], [])
    assert found.unknown[0] == "hall: it is retired and its books are deleted; it is the parent of gw-1"


def test_a_gateway_that_poses_as_a_region_retires_nobody() -> None:
    """protocol 9.1"""
    more = {**REGION, "received": 85, "open": 15, "children": {"gw-1": [7, 4, 80, 0], "gw-2": [3, 1, 5, 0]}}
    false = NodeBook("gw-3", "hall", {**REGION, "children": {}}, retired=frozenset({"gw-2"}), believed=False)
    found = audit(TABLES, [book("gw-1", "hall", LEAF), book("hall", "root", more), false])
    assert "gw-2: it has no book; hall applied 5 readings from it" in found.unheard


def test_the_status_of_a_region_says_who_is_retired_there() -> None:
    """A node may publish anything as its status."""
    for text in (["gw-2"], "gw-2", 7, [7], None):
        kept = Retained(status={"role": "region", "parent": "root", "retired": text})
        (found,) = books({"hall": HeardNode({0: kept}, {"books": REGION})})
        assert found.retired == (frozenset({"gw-2"}) if text == ["gw-2"] else frozenset())


def book(node: str, parent: str, numbers: dict[str, Any]) -> NodeBook:
    return NodeBook(node, parent, numbers)


def test_what_parents_applied_that_a_node_has_left_is_part_of_what_it_sent() -> None:
    """protocol 9.1, 1.5: neither lost on its way to the present one, nor of an unknown node."""
    hall = {**REGION, "received": 30, "sent": 30, "open": 0, "children": {"gw-1": [7, 5, 30, 0]}}
    left = {**REGION, "received": 50, "sent": 50, "open": 0, "children": {"gw-1": [5, 9, 50, 0]}}
    root = RootBook("root", {"hall": Line(9, 3, 30), "old": Line(9, 3, 50)}, stored={}, applied={})
    nodes = [book("hall", "root", hall), book("old", "root", left)]
    waits = audit(root, [book("gw-1", "hall", {**LEAF, "former": 2}), *nodes])
    assert (waits.off[:-1], waits.pending["gw-1"]) == ([], 16)
    lost = audit(root, [book("gw-1", "hall", LEAF), *nodes])
    assert "gw-1 -> hall: 10 readings lost: all frames applied, 90 sent, 80 applied" in lost.off


def test_repeats_of_a_lost_spool_that_had_not_sent_them_are_not_balanced_away() -> None:
    """protocol 1.2, 9.1: found where a gateway's spool was wiped; what it had not sent was subtracted from produced."""
    hall = {**REGION, "received": 80, "sent": 80, "open": 0, "children": {"gw-1": [7, 5, 90, 0]}}
    root = RootBook("root", {"hall": Line(9, 3, 80)}, {"hall": 80}, {"hall": 80})
    found = audit(root, [book("gw-1", "hall", LEAF), book("hall", "root", hall)])
    assert (found.off, found.former, found.rest) == ([], 0, 10)
    assert found.unknown == [
        "hall: 10 readings of its children left out as repeats of a lost spool",
        "the whole: 10 readings not accounted for",
    ]


def test_readings_of_no_child_are_not_balanced_away() -> None:
    """protocol 9.1: of a lost spool or counted twice, nobody can tell; they were added to `produced` without a word."""
    hall = {**REGION, "received": 84, "sent": 84, "open": 0, "children": {"gw-1": [7, 5, 80, 0]}}
    root = RootBook("root", {"hall": Line(9, 3, 84)}, {"hall": 84}, {"hall": 84})
    found = audit(root, [book("gw-1", "hall", {**LEAF, "sent": 80, "lost": 10}), book("hall", "root", hall)])
    assert (found.off, found.former) == ([], 4)
    assert found.unknown == ["hall: 4 readings came from a child's spool that was lost, if not counted twice"]
    assert lines(found)[-1].startswith("balanced, as far as is known")


def test_frames_that_an_earlier_parent_could_not_use_are_no_loss_on_the_way_to_the_present_one() -> None:
    """protocol 9.1, 1.5"""
    hall = {**REGION, "received": 30, "sent": 30, "open": 0, "children": {"gw-1": [7, 5, 30, 0]}}
    left = {**REGION, "received": 50, "sent": 50, "open": 0, "children": {"gw-1": [5, 9, 50, 1]}}
    root = RootBook("root", {"hall": Line(9, 3, 30), "old": Line(9, 3, 50)}, stored={}, applied={})
    found = audit(root, [book("gw-1", "hall", LEAF), book("hall", "root", hall), book("old", "root", left)])
    assert not [text for text in found.off if "gw-1" in text]
    assert "gw-1 -> hall: 1 frames without usable content, of at most 10 readings" in found.unknown


def _moved(gateway: dict[str, Any], hall: dict[str, Any]) -> Audit:
    """The books of a gateway below `hall`, which applied 60 of its 90 readings."""
    below = {**REGION, "received": 60, "sent": 60, "open": 0, "children": {"gw-1": [7, 5, 60, 0]}, **hall}
    root = RootBook("root", {"hall": Line(9, 3, 60)}, {"hall": 60}, {"hall": 60})
    return audit(root, [book("gw-1", "hall", {**LEAF, **gateway}), book("hall", "root", below)])


@pytest.mark.parametrize(
    ("gateway", "why"),
    [
        ({"parents": {"old": True}}, "no book says how many readings old, a former parent, applied"),
        ({"parents": {"hall": False}}, "no book says how many readings hall, a former parent, applied"),
        ({"journals": 2}, "its parent lost its spool 2 times, with what it had counted"),
    ],
    ids=["a former parent that is gone", "frames that were given up", "a parent that lost its spool"],
)
def test_what_no_parent_counts_any_more_is_unknown_and_not_lost(gateway: dict[str, Any], why: str) -> None:
    """protocol 9.1"""
    found = _moved(gateway, {})
    assert found.off == []
    assert f"gw-1 -> hall: 30 readings sent and not known to be applied: {why}" in found.unknown
    assert found.pending["gw-1"] == 6


def test_a_new_spool_is_not_compared_with_what_its_parent_applied_of_the_one_before() -> None:
    """protocol 9.1, 1.4: until the parent takes its frames."""
    found = _moved({"epoch": 8, "sent": 30, "left": 30, "taken": 40}, {})
    assert [text for text in found.off if "gw-1" in text] == []
    said = "60 applied, 30 sent: its spool is new or a copy, and hall has not taken its frames yet"
    assert f"gw-1 -> hall: {said}" in found.unknown


def test_readings_of_an_earlier_spool_at_another_parent_do_not_count_as_sent() -> None:
    hall = {**REGION, "received": 90, "sent": 90, "open": 0, "children": {"gw-1": [7, 5, 90, 0]}}
    other = {**REGION, "received": 50, "sent": 50, "open": 0, "children": {"gw-1": [5, 9, 50, 0], "gw-2": [5, 0, 0, 0]}}
    root = RootBook("root", {"hall": Line(9, 3, 90), "old": Line(9, 3, 50)}, stored={}, applied={})
    nodes = [book("hall", "root", hall), book("old", "root", other), book("gw-2", "old", {**LEAF, "sent": 0})]
    found = audit(root, [book("gw-1", "hall", {**LEAF, "parents": {}}), *nodes])
    assert [text for text in found.off if "gw-1" in text] == []
    assert "gw-1: old applied 50 readings of an earlier spool of it" in found.unknown


def test_readings_of_a_node_without_a_book_are_as_many_as_its_parent_applied() -> None:
    root = RootBook("root", {"gw-9": Line(1, 2, 10)}, {"gw-9": 10}, {"gw-9": 10})
    found = audit(root, [])
    assert (found.produced, found.stored, found.rest) == (10, 10, 0)


def test_no_reason_of_a_loss_controls_the_terminal() -> None:
    root = RootBook(unknown={"restart\x1b[2J\nbalanced": 1})
    assert all(text.isprintable() for text in lines(Audit(root, ())))


def test_reasons_of_one_child_share_lines() -> None:
    """A gateway that sent damaged frames for two minutes gave a hundred lines, each with another number."""
    many = {f"quarantined: group: wanted an integer of 0..65535, got {n}": 1 for n in range(70_000, 70_100)}
    few = {"quarantined: keys are cut at byte 7": 2}
    others = {f"reason {''.join(chr(97 + int(digit)) for digit in str(n))}": 1 for n in range(100)}
    said = [
        text for text in lines(Audit(replace(TABLES, unknown={**few, **others, **many}), ())) if "of unknown" in text
    ]
    assert said[:2] == [
        "declared in ops.gaps: 100 losses of unknown size: quarantined: group: wanted an integer of #..#, got #",
        "declared in ops.gaps: 2 losses of unknown size: quarantined: keys are cut at byte 7",
    ]
    assert said[-1] == "declared in ops.gaps: 70 losses of unknown size, for 70 further reasons: see ops.gaps"
    assert len(said) == 33
