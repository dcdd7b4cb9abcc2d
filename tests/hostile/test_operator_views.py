"""What a node publishes about itself cannot stop `headwater status`, `peek` or `audit`, nor control a terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.cli.audit import books, lines, named
from edge_agent.cli.fleet.status import COLUMNS, refused_messages, report, summary, table
from edge_agent.cli.support.fleet_listener import HeardNode, Retained
from edge_agent.cli.support.message_rendering import MessageRenderer, json_of, line
from edge_agent.config import topics
from edge_agent.root.books import Line, NodeBook, RootBook, audit

NOW_US = 1_795_424_400_000_000
GOOD = {"status": {"online": True, "role": "gateway", "parent": "root"}, "books": {"spool": {"frames": 2}}}
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=4))
NAMES = st.one_of(
    st.text(max_size=4),
    st.sampled_from(
        [
            *("online", "role", "parent", "version", "clock", "synced", "failing", "queries", "in_doubt", "frames"),
            *("since_us", "alarms", "refused", "count", "left_out", "upkeep_failed", "parent_journals_lost", "items"),
            *(
                "errors",
                "warnings",
                "ok",
                "spool",
                "frontier_us",
                "at_us",
                "why",
                "undated",
                "children",
                "off",
                "whole",
            ),
            *("whole", "taken", "left", "sent", "lost", "received", "readings", "parents", "journals"),
        ]
    ),
)
JSON = st.recursive(
    LEAVES, lambda each: st.one_of(st.lists(each, max_size=4), st.dictionaries(NAMES, each, max_size=5)), max_leaves=30
)
TABLES = st.dictionaries(NAMES, JSON, max_size=8)


@given(st.fixed_dictionaries({}, optional={"status": TABLES, "state": TABLES, "books": TABLES}))
def test_whatever_a_node_publishes_the_others_are_shown(node: dict[str, Any]) -> None:
    found = report("evil", node, NOW_US)
    assert found.row[0] == "evil"
    assert "1 gateway" in summary({"good": GOOD, "evil": {**node, "status": {}}}, NOW_US)
    summary({"good": GOOD, "evil": node}, NOW_US)
    assert len(table([found.row, report("good", GOOD, NOW_US).row]).splitlines()) == 3


@pytest.mark.parametrize(
    "node",
    [
        {"books": {"spool": 5}},
        {"state": {"items": {"query/q": {"ok": False, "errors": 5}}}},
        {"status": {"failing": [{"queries": 5}]}},
        {"status": {"in_doubt": {"r": {"frames": 1, "since_us": 10**25}}}},
    ],
)
def test_shapes_that_once_ended_the_command_are_named_or_left_out(node: dict[str, Any]) -> None:
    found = report("evil", node, NOW_US)
    assert found.wrong
    assert len(found.row) == len(COLUMNS)


@given(st.dictionaries(st.sampled_from(["a", "b"]), TABLES, max_size=2))
def test_whatever_a_book_contains_the_audit_ends_with_a_verdict(found: dict[str, dict[str, Any]]) -> None:
    books = [NodeBook("good", "root", {"taken": 0, "whole": True}), *(NodeBook(n, "root", b) for n, b in found.items())]
    assert lines(audit(RootBook(), books))


@pytest.mark.parametrize("children", [{"a": 5}, {"a": [1]}, {"a": [1, 2, "x"]}, 7])
def test_a_book_that_is_none_is_named_by_the_audit(children: object) -> None:
    done = audit(RootBook(), [NodeBook("evil", "root", {"children": children})])
    assert done.unheard == ["evil: its books are not those of a node"]


@pytest.mark.parametrize("payload", [b"[" * 20_000, b'{"a":' * 20_000, b'"' + b"\\u001b[2J" + b'"', b"9" * 5_000])
def test_a_payload_that_no_node_sends_is_a_line_of_printable_text(payload: bytes) -> None:
    json_of(payload)
    shown = line(MessageRenderer().render(topics.status("evil"), payload))
    assert shown.isprintable()


@given(JSON)
def test_texts_within_json_do_not_reach_the_terminal_with_control_characters(value: object) -> None:
    try:
        payload = json.dumps({"why": value}).encode()
    except ValueError:
        return
    assert str(json_of(payload)).isprintable()


def test_messages_that_a_node_refuses_are_shown_with_count_reason_and_example() -> None:
    refused = {f"reason {n}": {"count": 9 - n, "example": "x"} for n in range(5)}
    found = refused_messages({"status": {"refused": refused}})
    assert found[0] == "refused 9 times: reason 0; such as x"
    assert found[-1] == "refused for 2 further reasons: see --json"
    assert refused_messages({"status": {"refused": 5}}) == []


HALL = {"received": 5, "sent": 5, "whole": True, "children": {"good": [1, 4, 5, 0]}}
GOOD_BOOK = {"taken": 5, "left": 5, "sent": 5, "epoch": 1, "seq": 3, "whole": True}
TREE = RootBook("?", {"good": Line(1, 4, 5)}, {"good": 5}, {"good": 5})


def heard(parent: str, book: dict[str, Any], **status: object) -> HeardNode:
    status = {"online": True, "role": "gateway", "parent": parent, **status}
    return HeardNode({0: Retained(status, {"parent": parent, "final": True, "at_us": 1, **book} if book else {})})


def verdict(nodes: dict[str, HeardNode], root: RootBook = TREE) -> list[str]:
    return lines(audit(named(root, nodes), books(nodes)))


@pytest.mark.parametrize("with_root", [True, False])
def test_the_root_has_the_name_that_its_children_give_it(*, with_root: bool) -> None:
    """Neither a gateway that says it is the root takes the name away, nor a child that moved."""
    status = {"root": HeardNode({0: Retained({"online": True, "role": "root"}, {})})} if with_root else {}
    for evil in (heard("", {}, role="root"), heard("evil", {}, role="root"), heard("good", {}, role="root")):
        nodes = {"evil": evil, "good": heard("root", GOOD_BOOK), **status}
        assert verdict(nodes)[-1] == "balanced"
    moved = dict.fromkeys(("gw-1", "gw-2", "gw-3"), heard("hall", {}))
    tree = RootBook("?", dict.fromkeys(("hall", *moved), Line(1, 4, 5)))
    assert named(tree, {**moved, "hall": heard("root", {}, role="region"), **status}).name == "root"
    assert named(RootBook("?"), {"evil": heard("evil", {}, role="root"), **status, "a": heard("root", {})}).name == (
        "root" if with_root else "evil"
    )


def test_a_gateway_that_poses_as_a_region_accuses_nobody() -> None:
    nodes = {"bad": heard("root", HALL, role="region"), "good": heard("root", GOOD_BOOK)}
    said = verdict(nodes)
    assert said[-1].startswith("balanced, as far as is known")
    assert "unknown: good -> root: bad says that it applied 5 readings of it, too, and no child names bad" in said


def test_a_region_that_a_child_names_is_believed_about_all_its_children() -> None:
    """Also one that only the status at a former broker names."""
    nodes = {"hall": heard("root", HALL, role="region"), "good": heard("root", GOOD_BOOK), "gw-2": heard("hall", {})}
    wrong = "off: good -> root: 5 readings counted twice: 10 applied, 5 sent"
    assert wrong in verdict(nodes)
    nodes["gw-2"] = heard("root", {})
    nodes["good"].by_broker[1] = Retained({"online": False, "parent": "hall"}, {})
    assert wrong in verdict(nodes)
