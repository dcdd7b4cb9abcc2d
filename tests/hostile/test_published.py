"""Definitions and revisions count as the operator published them, whatever one child says (protocol 6.5)."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from edge_agent.algebra.frame import HORIZON_US, LOST, Frame, Serving
from edge_agent.algebra.query.query import Query
from edge_agent.config.definitions.definitions import canonical_query, parse_definition
from edge_agent.config.in_force import known_definitions
from edge_agent.config.in_force.known_definitions import (
    AHEAD_US,
    MOST_HELD,
    MOST_REMOVED,
    MOST_TEXTS,
    PATIENCE_US,
    KnownDefinitions,
    Publication,
    publication,
)
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.too_late import CONTRADICTED
from edge_agent.root.numpy.executor import NumpyRoot
from tests.hostile.fed_region import COUNTED, GROUP
from tests.hostile.published_queries import BEGIN_US, BEYOND, TOPIC, S, of, query
from tests.support.machines.scripted_child import GRACE, JOURNAL, Sender


def driven(*children: tuple[Sender, int], published: tuple[Publication, ...], claim: Frame | None = None) -> Any:
    """(rows by start, gaps) of a root that hears these for ten seconds. (sender, offset of its values)."""
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0, horizon_us=HORIZON_US)
    root.decider.published(published)
    rows: dict[tuple[str, int], Any] = {}
    for sender, _ in children:
        root.take(sender.node, sender.birth(), BEGIN_US)
    for n in range(90):
        now_us = BEGIN_US + (n + 1) * S
        for sender, offset in children:
            piece = (BEGIN_US + n * S, now_us, "", float(offset))
            root.take(sender.node, sender.send(piece, frontier_us=now_us), now_us)
        rows.update(((row.query, row.start), row) for row in root.step(now_us))
    return rows, [gap.reason for _, gap in root.decider.gaps], root


@pytest.mark.parametrize("revision", [2, BEYOND])
def test_a_revision_that_nobody_published_replaces_and_withdraws_no_row(revision: int) -> None:
    good, bad = Sender("good", query(1)), Sender("bad", query(revision))
    rows, gaps, _ = driven((good, 1), (bad, 666), published=(of(query(1)),))
    assert len(rows) >= 80
    assert all(not row.withdrawn and row.definition_revision == 1 for row in rows.values())
    assert all(666 not in row.values.values() for row in rows.values())
    why = f"revision {revision} of query q is not published for it, only up to revision 1"
    assert any(why in reason for reason in gaps)


def test_once_it_is_published_what_had_come_of_it_counts() -> None:
    new = Sender("new", query(2))
    rows, _, root = driven((new, 5), published=(of(query(1)),))
    assert not rows
    root.decider.published([of(query(2))])
    rows = {row.start: row for row in root.step(BEGIN_US + 200 * S)}
    assert len(rows) == 90
    assert {row.definition_revision for row in rows.values()} == {2}


@pytest.mark.parametrize(
    ("said", "published"),
    [
        *itertools.permutations(
            [
                {"type": "tumbling", "length": "1s"},
                {"type": "session", "gap": "5s"},
                {"type": "count_tumbling", "length": 5},
                {"type": "punctuation", "interpretation": "central"},
            ],
            2,
        )
    ],
)
def test_a_definition_of_another_type_of_window_ends_the_rows_of_the_one_before(
    said: dict[str, Any], published: dict[str, Any]
) -> None:
    """protocol 6.5: the root went through the windows of the old group with the new definition, and no decision on the
    operator's text could be taken."""
    first, then = (one_of(window) for window in (said, published))
    bad = Sender("bad", first)
    _, _, root = driven((bad, 5), published=())
    root.decider.published([of(then)])
    now_us = BEGIN_US + 91 * S
    piece = (BEGIN_US + 80 * S, BEGIN_US + 81 * S, "", 1.0)
    root.take("bad", bad.send(piece, frontier_us=now_us), now_us)
    after = root.step(now_us)
    assert not [row for row in after if not row.withdrawn and row.start >= BEGIN_US + 80 * S]
    assert not root.decider.servings.of[first.group]
    assert root.decider.serves(first.group, first.key) is False, "though its gateway says so: its rows expire"
    assert any(gap.detail == CONTRADICTED or gap.reason == LOST for _, gap in root.decider.gaps)
    good = Sender("good", then)
    root.take("good", good.birth(), now_us)
    for n in range(91, 110):
        piece = (BEGIN_US + n * S, BEGIN_US + n * S + S, "", 3.0)
        root.take("good", good.send(piece, frontier_us=BEGIN_US + (n + 1) * S), BEGIN_US + (n + 1) * S)
        root.step(BEGIN_US + (n + 1) * S)
    assert then.key in root.decider.servings.of[then.group]
    kept = (root.state.pending, root.state.sessions.tracks, root.state.markers.windows)
    assert [len(each) for each in kept] == [0, then.window.type == "session", then.window.type == "punctuation"]


def one_of(window: dict[str, Any]) -> Query:
    value = parse_definition(
        "query", "q", {"source": "s", "window": window, "aggregates": ["sum"], "revision": 1}
    ).value
    assert isinstance(value, Query)
    return value


def test_the_state_of_a_root_has_what_is_published_and_what_waits() -> None:
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0, horizon_us=HORIZON_US)
    root.decider.published([of(query(1))])
    root.take("new", Sender("new", query(2)).birth(), BEGIN_US)
    root.step(BEGIN_US)
    again = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0, horizon_us=HORIZON_US)
    again.decider.restore(root.decider.snapshot(lambda f: f), lambda f: f)
    known = again.decider.parent.known
    assert isinstance(known, KnownDefinitions)
    assert known.published() == [of(query(1))]
    assert known.held == (canonical_query(query(2)),)


def test_the_operators_text_takes_the_place_of_one_that_came_before() -> None:
    evil = canonical_query(query(1, "7s"))
    known = KnownDefinitions([evil])
    known.publish(of(query(1)))
    assert list(known.texts) == [canonical_query(query(1))]
    assert known.corrected == [canonical_query(query(1))]
    assert known.add(evil) == ""
    garbage = json.dumps({"id": "q", "revision": 1, "nobody": "knows"})
    assert known.add(garbage) == ""


def test_the_root_computes_with_the_operators_text_whoever_was_quicker() -> None:
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0, horizon_us=HORIZON_US)
    root.take("bad", Sender("bad", query(1, "7s", "median")).birth(), BEGIN_US)
    root.step(BEGIN_US)
    root.decider.published([of(query(1))])
    good = Sender("good", query(1))
    root.take("good", good.birth(), BEGIN_US)
    rows = []
    for n in range(100):
        now_us = BEGIN_US + (n + 1) * S
        root.take("good", good.send((now_us - S, now_us, "", 3.0), frontier_us=now_us), now_us)
        rows += root.step(now_us)
    assert rows
    assert {row.end - row.start for row in rows} == {S}


def test_rows_with_other_functions_that_came_before_the_operators_text_are_lost_and_end_nothing() -> None:
    """protocol 6.5: the text counts even if a frame said something else before, and decisions had been made with it."""
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0, horizon_us=HORIZON_US)
    bad, good = Sender("bad", query(1, "1s", "max")), Sender("good", query(1))
    early = (BEGIN_US, BEGIN_US + S, "", 9.0), (BEGIN_US + S, BEGIN_US + 2 * S, "", 9.0)
    for sender in (bad, good):
        root.take(sender.node, sender.birth(), BEGIN_US)
    root.take("good", good.send(frontier_us=BEGIN_US + S), BEGIN_US)
    root.take("bad", bad.send(*early, frontier_us=BEGIN_US + S), BEGIN_US)
    assert [row.values for row in root.step(BEGIN_US)] == [{"max": 9.0}]
    root.decider.published([of(query(1))])
    rows = []
    for n in range(1, 6):
        now_us = BEGIN_US + n * S
        mine = (now_us, now_us + S, "", 3.0)
        root.take("good", good.send(mine, frontier_us=now_us + S), now_us)
        root.take("bad", bad.send(frontier_us=now_us + S), now_us)
        rows += root.step(now_us)
    assert {row.start: row.values for row in rows} == {BEGIN_US + n * S: {"sum": 3.0} for n in range(1, 6)}
    assert [row.start for row in rows if ("bad", "lost") in row.coverage.missing] == [BEGIN_US + S]
    (gap,) = [gap for node, gap in root.decider.gaps if node == "bad"]
    assert (gap.start_us, gap.end_us, gap.nodes) == (BEGIN_US, BEGIN_US + 2 * S, ("bad",))


def test_a_published_text_with_fewer_functions_takes_the_rows_there_are() -> None:
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0, horizon_us=HORIZON_US)
    sender = Sender("a", query(1, "1s", "sum", "count"))
    rows = (BEGIN_US, BEGIN_US + S, "", 3.0), (BEGIN_US + S, BEGIN_US + 2 * S, "", 4.0)
    root.take("a", sender.birth(), BEGIN_US)
    root.take("a", sender.send(*rows, frontier_us=BEGIN_US + S), BEGIN_US)
    root.step(BEGIN_US)
    root.decider.published([of(query(1))])
    root.take("a", sender.send(frontier_us=BEGIN_US + 2 * S), BEGIN_US)
    assert [row.values for row in root.step(BEGIN_US)] == [{"sum": 4.0}]
    assert root.decider.gaps == []


@pytest.mark.parametrize("more", [{"lateness": "5s"}, {"where": "value > 0"}, {"by": ["x"]}], ids=repr)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_rows_of_a_plan_in_another_group_before_its_definition_is_known_keep_no_row_of_others_away(
    more: dict[str, Any], known: bool, early: bool
) -> None:
    """protocol 6.5: the identity of a plan has no group, and the group in which it came first was taken for its own."""
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0, horizon_us=HORIZON_US)
    root.decider.published([of(query(1))] if known else [])
    bad, good, rows = Sender("bad", query(2, **more)), Sender("good", query(2)), []
    birth = bad.birth()
    assert birth.define is not None
    root.take("bad", replace(birth, define=replace(birth.define, queries=())), BEGIN_US)
    root.take("bad", bad.send((BEGIN_US, BEGIN_US + S, "", 666.0), frontier_us=BEGIN_US + S), BEGIN_US)
    rows += root.step(BEGIN_US)
    if not early:
        root.decider.published([of(query(2))])
    root.take("good", good.birth(), BEGIN_US)
    for n in range(1, 20):
        now_us = BEGIN_US + (n + 1) * S
        root.take("good", good.send((now_us - S, now_us, "", 3.0), frontier_us=now_us), now_us)
        if n == 5 and early:
            root.decider.published([of(query(2))])
        rows += root.step(now_us)
    assert {row.start for row in rows} >= {BEGIN_US + n * S for n in range(1, 20)}
    assert {row.values["sum"] for row in rows if row.start > BEGIN_US} == {3.0}
    assert all(row.complete for row in rows)


def serving(revision: int, from_us: int | None = None, until_us: int | None = None) -> Serving:
    return Serving("q", revision, from_us, until_us)


def test_what_counts_of_what_a_child_serves() -> None:
    known = KnownDefinitions(published=[of(query(3)), of(query(5), "other")])
    now_us = BEGIN_US

    def counts(claim: Serving, child: str = "c", leaves: tuple[str, ...] = ("c",)) -> bool:
        return known.serves(child, leaves, claim, now_us)

    assert counts(serving(3)), "the newest"
    assert counts(serving(2, None, 7)), "an older one ends"
    assert not counts(serving(3, None, 7)), "the newest ends where the operator says so"
    assert not counts(serving(4))
    assert not counts(serving(5)), "published for another node"
    assert counts(serving(5), "other", ("other",))
    assert counts(serving(5), "region", ("x", "other")), "a region with that node below it"
    assert counts(serving(3, now_us + AHEAD_US))
    assert not counts(serving(3, now_us + AHEAD_US + 1)), "begins in a future that nobody asked for"
    assert known.serves("c", (), Serving("free", 9), now_us), "an id that nobody published"
    known.publish(Publication("", "q", 6, ""))
    assert not counts(serving(6)), "a removal is served by nobody"
    assert counts(serving(3, None, None))


def test_a_revision_may_begin_as_late_as_the_operator_says() -> None:
    late = query(1, effective_from="2027-01-01T00:00:00Z")
    known = KnownDefinitions([canonical_query(late)], [of(late)])
    assert late.effective_from_us is not None
    assert known.serves("c", ("c",), serving(1, late.effective_from_us), BEGIN_US)
    assert not known.serves("c", ("c",), serving(1, late.effective_from_us + 1), BEGIN_US)


def test_a_claim_is_reported_once_and_not_before_the_parent_can_know_better() -> None:
    known = KnownDefinitions(published=[of(query(1))])
    for n in range(3):
        assert not known.serves("c", ("c",), serving(2), BEGIN_US + n)
    assert known.overdue(BEGIN_US + PATIENCE_US - 1) == []
    assert [child for child, _ in known.overdue(BEGIN_US + PATIENCE_US)] == ["c"]
    assert known.overdue(BEGIN_US + 9 * PATIENCE_US) == []
    known.publish(of(query(2)))
    assert known.serves("c", ("c",), serving(2), BEGIN_US)


def test_a_removed_query_that_is_forgotten_is_not_reported() -> None:
    known = KnownDefinitions(published=[Publication("", "q", 1, "")])
    assert not known.serves("c", ("c",), serving(2), BEGIN_US)
    for n in range(MOST_REMOVED):
        known.publish(Publication("", f"x-{n}", 1, ""))
    assert known.overdue(BEGIN_US + PATIENCE_US) == []


def test_texts_that_children_send_have_bounds_and_a_counter() -> None:
    known = KnownDefinitions(published=[of(query(1))])
    for n in range(MOST_HELD + 5):
        known.add(json.dumps({"id": "q", "revision": 2 + n}), "bad")
    assert len(known.held) == MOST_HELD
    assert known.not_taken == 5
    known.add(json.dumps({"id": "q", "revision": 2}) + " ", "good")
    assert len(known.held) == MOST_HELD + 1
    for n in range(MOST_TEXTS + 5):
        known.add(json.dumps({"id": f"x-{n}"}), "bad")
    assert len(known.texts) == MOST_TEXTS
    assert known.not_taken == 10
    assert known.add(json.dumps({"id": "y"}), "good"), "a sibling has a share of its own"
    assert known.add(canonical_query(query(1)), "bad"), "what is published always has room"


def test_invented_old_revisions_of_a_published_query_count_in_the_share_of_their_child() -> None:
    known = KnownDefinitions(published=[of(query(MOST_TEXTS))])
    for n in range(1, MOST_TEXTS):
        known.add(json.dumps({"id": "q", "revision": n}), "bad")
        known.add(json.dumps({"id": "q", "revision": n, "again": True}), "bad")
    assert len(known.texts) == MOST_TEXTS


def test_the_root_knows_after_a_restart_whose_definitions_it_keeps() -> None:
    root = Decider(1, 60 * S)
    root.published([of(query(1))])
    texts = [json.dumps({"id": "x", "at": n}) for n in range(3)] + [json.dumps({"id": "q", "revision": 2})]
    root.parent.defined("g", texts)
    root.decide(BEGIN_US)
    again = Decider(1, 60 * S)
    state = root.snapshot(lambda frame: frame)
    again.restore(json.loads(json.dumps(state)), lambda frame: frame)
    assert [shares.of for shares in again._texts.shares] == [shares.of for shares in root._texts.shares]
    assert [*again._texts.texts.of.values()] == ["g"] * 3
    assert [*again._texts.shares[1].of.values()] == ["g"]
    again.restore({name: value for name, value in state.items() if name != "senders"}, lambda frame: frame)
    assert [*again._texts.texts.of.values()] == [""] * 3, "a state of an older version"


def test_texts_that_name_no_query_take_no_room() -> None:
    """A frame has room for 20 000 of them: no later query that is only in files would get a row."""
    known = KnownDefinitions()
    for text in ("1f", "{}", "", "[1]", json.dumps({"id": 5}), json.dumps({"id": "q", "revision": "1"})):
        assert not known.add(text)
    assert not known.texts
    assert known.not_taken == 6


def test_what_is_on_a_topic() -> None:
    assert publication(TOPIC, canonical_query(query(4)).encode()) == of(query(4))
    for_node = publication("hw/1/down/g-1/cfg/query/q", canonical_query(query(4)).encode())
    assert for_node == of(query(4), "g-1")
    assert publication(TOPIC, b'{"removed": true, "revision": 9}') == Publication("", "q", 9, "")
    assert publication(TOPIC, b'{"revision": 9, "of": "a newer version"}') == Publication("", "q", 9, None)
    assert publication(TOPIC, b'source = "s"') is None, "it has no number yet"
    assert publication("hw/1/all/cfg/sensor/q", b"{}") is None


def test_answers_about_plans_without_end_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_definitions, "MOST_KNOWN", 10)
    known = KnownDefinitions()
    for n in range(100):
        assert known.contradicts(replace(GROUP, source=f"s{n}"), COUNTED) == ""
    assert len(known._answers) <= 10


def test_revisions_that_are_not_published_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_definitions, "MOST_CLAIMS", 10)
    known = KnownDefinitions(published=(of(query(1)),))
    for n in range(100):
        known.publish(of(replace(query(1), id=f"q{n}")))
        assert not known.serves("c", (), Serving(f"q{n}", 2), 0)
    assert len(known.claims()) == 10
    assert not known.serves("other", (), Serving("q", 2), 0)
    assert [child for child, _ in known.overdue(PATIENCE_US)] == ["c"] * 10 + ["other"], "each child has its own share"
    assert not known.serves("c", (), Serving("q0", 3), 0)
    assert ["c", "q0", 3, -1] in known.claims(), "a claim that is known changes"
