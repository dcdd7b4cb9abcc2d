"""A root makes no windows without end of queries that nobody published (protocol 6.5)."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import HORIZON_US, Serving
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import overlap
from edge_agent.config.definitions.definitions import canonical_query, parse_definition
from edge_agent.config.in_force import known_definitions
from edge_agent.config.in_force.known_definitions import PATIENCE_US, KnownDefinitions
from edge_agent.root.completeness import Decider
from edge_agent.root.decision.root_state import UNPUBLISHED_OVERLAP
from edge_agent.root.numpy.executor import NumpyRoot
from tests.hostile.published_queries import BEGIN_US, S, of
from tests.support.machines.scripted_child import GRACE, JOURNAL, Sender


def sliding(length: str, slide: str, revision: int = 1) -> Query:
    window = {"type": "sliding", "length": length, "slide": slide}
    said = {"source": "s", "window": window, "aggregates": ["sum"], "revision": revision}
    value = parse_definition("query", "q", said).value
    assert isinstance(value, Query)
    return value


WIDE, MOST = sliding("24h", "1s"), sliding("1h", "1s")


def root_of(decider: Decider | None = None) -> NumpyRoot:
    root = NumpyRoot(JOURNAL, grace_us=GRACE, revise_every_us=0, horizon_us=HORIZON_US)
    root.decider = decider or Decider(JOURNAL, GRACE, overlap=UNPUBLISHED_OVERLAP)
    return root


def fed(root: NumpyRoot, sender: Sender, seconds: int = 20) -> list[int]:
    """The starts of the rows of a child that sends a reading a second, the first time as its birth."""
    root.take(sender.node, sender.birth(), BEGIN_US)
    rows = []
    for n in range(seconds):
        now_us = BEGIN_US + (n + 1) * S
        piece = (now_us - S, now_us, "", 1.0)
        root.take(sender.node, sender.send(piece, frontier_us=now_us), now_us)
        rows += root.step(now_us)
    return [row.start for row in rows]


def test_a_query_that_nobody_published_has_rows_up_to_an_hour_that_slides_by_a_second() -> None:
    assert overlap(MOST.window) == UNPUBLISHED_OVERLAP
    assert len(fed(root_of(), Sender("a", MOST))) == 20


def test_one_with_more_windows_has_no_rows_and_one_line_says_so_and_its_readings_expire() -> None:
    root = root_of()
    assert fed(root, Sender("a", WIDE)) == []
    (gap,) = [gap for _, gap in root.decider.gaps]
    assert gap.nodes == ("a",)
    assert gap.reason == (
        "quarantined: query q revision 1 is published by nobody, and each of its readings would be in 86400 windows, "
        "at most 3600: publish it, or give it a longer slide"
    )
    assert root.decider.serves(WIDE.group, WIDE.key) is False, "though its gateway says so: its rows expire"


@pytest.mark.parametrize(
    ("window", "most"),
    [
        ({"type": "tumbling", "length": "1s"}, 1),
        ({"type": "sliding", "length": "10s", "slide": "3s"}, 4),
        ({"type": "count_tumbling", "length": 1_000_000}, 1),
        ({"type": "count_sliding", "length": 1_000_000, "slide": 3}, 333_334),
        ({"type": "session", "gap": "1h"}, 1),
        ({"type": "punctuation", "interpretation": "central"}, 1),
    ],
)
def test_in_how_many_windows_a_reading_may_be(window: dict[str, object], most: int) -> None:
    """Each reading of a count window that slides by one has the root compute a row of a million readings."""
    value = parse_definition("query", "q", {"source": "s", "window": window, "aggregates": ["sum"]}).value
    assert isinstance(value, Query)
    assert overlap(value.window) == most


def test_once_it_is_published_it_has_all_its_rows() -> None:
    root, sender = root_of(), Sender("a", WIDE)
    fed(root, sender)
    root.decider.published([of(WIDE)])
    assert len(root.step(BEGIN_US + 21 * S)) == 20


def test_a_revision_that_was_published_keeps_its_last_windows_when_the_next_one_is() -> None:
    root, sender = root_of(), Sender("a", WIDE)
    fed(root, sender)
    root.decider.published([of(WIDE)])
    root.step(BEGIN_US + 21 * S)
    root.decider.published([of(sliding("1h", "1s", 2))])
    again = Decider(JOURNAL, GRACE, overlap=UNPUBLISHED_OVERLAP)
    again.restore(root.decider.snapshot(lambda frame: frame), lambda frame: frame)
    for decider in (root.decider, again):
        assert WIDE.key in decider.decide(BEGIN_US + 22 * S).groups[WIDE.group].serving


def test_an_earlier_revision_has_its_rows_also_if_its_frames_come_after_the_next_was_published() -> None:
    """A gateway that was offline while both were published; its rows never came."""
    root = root_of()
    root.decider.published([of(WIDE)])
    root.decider.published([of(sliding("1h", "1s", 2))])
    again = root_of(Decider(JOURNAL, GRACE, overlap=UNPUBLISHED_OVERLAP))
    again.decider.restore(root.decider.snapshot(lambda frame: frame), lambda frame: frame)
    for each in (root, again):
        assert len(fed(each, Sender("a", WIDE))) == 20
        assert not each.decider.gaps


def test_an_earlier_revision_that_is_published_by_nobody_has_the_bound_still() -> None:
    root = root_of()
    root.decider.published([of(sliding("1h", "1s", 2))])
    assert fed(root, Sender("a", WIDE)) == []


def test_an_earlier_text_that_was_published_counts_and_not_that_of_a_child() -> None:
    known = KnownDefinitions(overlap=UNPUBLISHED_OVERLAP)
    for each in (WIDE, sliding("1h", "1s", 2)):
        known.publish(of(each))
    assert known.add(canonical_query(sliding("24h", "2s")), "a") == canonical_query(WIDE)
    assert known.fits(WIDE.key, WIDE.group)


def test_earlier_publications_are_remembered_up_to_a_bound_and_not_after_the_query_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_definitions, "MOST_EARLIER", 10)
    monkeypatch.setattr(known_definitions, "MOST_REMOVED", 1)
    known = KnownDefinitions(overlap=UNPUBLISHED_OVERLAP)
    for revision in range(1, 50):
        known.publish(of(sliding("24h", "1s", revision)))
    assert [each.revision for each in known.publications()] == [*range(39, 50)]
    for name in ("q", "other"):
        known.publish(known_definitions.Publication("", name, 50, ""))
    assert [each.query for each in known.publications()] == ["other"], "else a start would publish q again"


def test_narrow_publications_are_not_remembered() -> None:
    known = KnownDefinitions(overlap=UNPUBLISHED_OVERLAP)
    for revision in (1, 2):
        known.publish(of(sliding("1h", "1s", revision)))
    assert known.publications() == known.published()


def test_a_published_text_that_a_child_gave_second_has_no_bound() -> None:
    """It replaced the first text, and was still that of the child."""
    known = KnownDefinitions(overlap=UNPUBLISHED_OVERLAP)
    for text in (canonical_query(sliding("24h", "2s")), canonical_query(WIDE)):
        known.add(text, "a")
    known.publish(of(WIDE))
    assert known.serves("a", ("a",), Serving("q", 1), BEGIN_US)


def test_a_published_text_has_no_bound_after_an_upgrade() -> None:
    """Earlier versions left it with the child that gave it before it was published."""
    root = root_of()
    fed(root, Sender("a", WIDE), 3)
    root.decider.published([of(WIDE)])
    root.step(BEGIN_US + 4 * S)
    state = root.decider.snapshot(lambda frame: frame)
    again = Decider(JOURNAL, GRACE, overlap=UNPUBLISHED_OVERLAP)
    again.restore({**state, "senders": [["a"], [], []]}, lambda frame: frame)
    assert WIDE.key in again.decide(BEGIN_US + 5 * S).groups[WIDE.group].serving


def test_a_restart_changes_nothing() -> None:
    root = root_of()
    fed(root, Sender("a", WIDE), 3)
    again = Decider(JOURNAL, GRACE, overlap=UNPUBLISHED_OVERLAP)
    again.restore(root.decider.snapshot(lambda frame: frame), lambda frame: frame)
    assert WIDE.key not in again.decide(BEGIN_US + 4 * S).groups[WIDE.group].serving


def test_publications_of_others_do_not_have_it_reported_again() -> None:
    known = KnownDefinitions(overlap=UNPUBLISHED_OVERLAP)
    known.add(canonical_query(WIDE), "a")
    for n in range(3):
        now_us = BEGIN_US + n * PATIENCE_US
        assert not known.serves("a", ("a",), Serving("q", 1), now_us)
        assert len(known.overdue(now_us)) == (n == 1)
        known.publish(known_definitions.Publication("", f"other-{n}", 1, ""))


def test_one_that_is_published_for_a_newer_version_is_reported_as_such() -> None:
    """It was said to be published by nobody. What a child gives in its place is not what the operator published."""
    known = KnownDefinitions(overlap=UNPUBLISHED_OVERLAP)
    known.publish(known_definitions.Publication("", "q", 1, None))
    known.add(canonical_query(WIDE), "a")
    assert not known.serves("a", ("a",), Serving("q", 1), BEGIN_US)
    ((child, why),) = known.overdue(BEGIN_US + PATIENCE_US)
    assert child == "a"
    assert why == (
        "query q revision 1 is published in a form that this version cannot read, and each of its readings would be in "
        "86400 windows, at most 3600: install the version of its publisher, or give it a longer slide"
    )


def test_a_recording_has_every_window_that_it_asks_for() -> None:
    assert len(fed(root_of(Decider(JOURNAL, GRACE)), Sender("a", WIDE))) == 20


def test_answers_about_widths_without_end_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_definitions, "MOST_KNOWN", 10)
    known = KnownDefinitions(overlap=UNPUBLISHED_OVERLAP)
    for n in range(50):
        assert known.serves("a", ("a",), Serving(f"q-{n}", 1), BEGIN_US)
    assert len(known._wide) <= 10
