"""The parent's side: numbers for those who do not count, and the way down the tree."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import topics
from edge_agent.config.in_force.registry import DefinitionRegistry
from edge_agent.config.in_force.revision_numbering import (
    MOST_TAUGHT,
    SETTLE_US,
    NumberedDefinition,
    RevisionNumberer,
)

X = topics.definition("query", "x")
X_AT_1 = topics.definition("query", "x", "press-1")
LATER_US = 10**7


def query(length: str = "1m", revision: int | None = None, **more: Any) -> bytes:
    table = {"source": "b", "window": {"type": "tumbling", "length": length}, "aggregates": ["avg"], **more}
    return json.dumps(table if revision is None else {**table, "revision": revision}).encode()


def said(publications: Iterable[NumberedDefinition]) -> list[tuple[str, int, Any]]:
    """(topic, revision, length or 'removed')."""
    tables = [(p.topic, json.loads(p.payload)) for p in publications]
    return [(t, d["revision"], "removed" if d.get("removed") else d["window"]["length"]) for t, d in tables]


def heard(*messages: tuple[str, bytes]) -> RevisionNumberer:
    numberer = RevisionNumberer()
    for topic, payload in messages:
        numberer.hear(topic, payload, 0)
    return numberer


def test_a_definition_without_a_revision_gets_the_next_free_number() -> None:
    numberer = heard((X, query("1m", 4)), (X, query("2m")))
    assert said(numberer.due(LATER_US)) == [(X, 5, "2m")]
    assert numberer.due(LATER_US) == ()


def test_a_number_is_free_only_if_no_scope_has_it() -> None:
    other = topics.definition("query", "x", "press-2")
    numberer = heard((X, query("1m", 2)), (other, query("1m", 7)), (X_AT_1, query("3m")))
    assert said(numberer.due(LATER_US)) == [(X_AT_1, 8, "3m")]


def test_definitions_of_one_id_that_come_together_get_different_numbers() -> None:
    """An id with a revision has one content in the whole fleet."""
    numberer = heard((X, query("1m")), (X_AT_1, query("2m")))
    assert said(numberer.due(LATER_US)) == [(X, 1, "1m"), (X_AT_1, 2, "2m")]


def test_of_a_state_without_end_the_beginning_is_read() -> None:
    numberer, items = RevisionNumberer(), {f"query/q{n}": {"ok": True, "revision": 3} for n in range(MOST_TAUGHT + 1)}
    numberer.hear_state(json.dumps({"items": items}).encode())
    first, last = (topics.definition("query", f"q{n}") for n in (0, MOST_TAUGHT))
    for topic in (first, last):
        numberer.hear(topic, query(), 0)
    assert {topic: number for topic, number, _ in said(numberer.due(LATER_US))} == {first: 4, last: 1}


def test_numbers_that_local_files_have_taken_are_not_free() -> None:
    numberer = heard((X_AT_1, query()))
    numberer.hear_state(b'{"version": 1, "hash": "", "items": {"query/x": {"ok": true, "revision": 3}, "query/y": 1}}')
    assert said(numberer.due(LATER_US)) == [(X_AT_1, 4, "1m")]


def test_the_same_content_keeps_its_number() -> None:
    numberer = heard((X, query("1m", 4)), (X, b" " + query("1m")))
    assert said(numberer.due(LATER_US)) == [(X, 4, "1m")]


def test_toml_is_numbered_too() -> None:
    text = b"""
        source = "b"
        aggregates = ["avg"]
        effective_from = 2026-11-21T00:00:00Z
        window = { type = "tumbling", length = "1m" }
    """
    (made,) = heard((X, text)).due(LATER_US)
    assert json.loads(made.payload)["effective_from"] == "2026-11-21T00:00:00Z"
    registry = DefinitionRegistry("press-1")
    registry.take("all", "sensor", "b", b'{"driver": "host", "revision": 1}')
    assert registry.take("all", "query", "x", made.payload)


def test_an_empty_payload_becomes_a_removal() -> None:
    numberer = heard((X, query("1m", 4)), (X, b""))
    assert said(numberer.due(LATER_US)) == [(X, 5, "removed")]
    numberer.hear(X, b"", LATER_US)
    assert said(numberer.due(LATER_US)) == [(X, 5, "removed")], "an emptied removal is put back"


def test_what_was_never_there_needs_no_removal() -> None:
    assert heard((X, b"")).due(LATER_US) == ()


def test_nothing_is_numbered_before_the_retained_definitions_are_known() -> None:
    numberer = RevisionNumberer(settle_us=1000)
    numberer.connected(0)
    numberer.hear(X, query("2m"), 10)
    assert numberer.due(999) == ()
    assert numberer.wake_us() == 1000
    numberer.hear(X_AT_1, query("1m", 6), 500)
    assert said(numberer.due(1000)) == [(X, 7, "2m")]
    assert numberer.wake_us() is None


def test_what_cannot_be_read_or_is_foreign_is_left_to_the_nodes_to_tell() -> None:
    messages = [
        (X, b"\xff"),
        (X, b"{"),
        (X, query(revision=True)),
        ("hw/1/all/cfg/query/X!", query()),
        ("a/b", query()),
    ]
    numberer = heard(*messages)
    numberer.hear_state(b"nonsense")
    numberer.hear_state(b'{"items": []}')
    assert numberer.due(LATER_US) == ()


def test_only_a_higher_revision_than_any_seen_below_is_passed_down() -> None:
    numberer = heard((X, query("1m", 4)))
    numberer.hear_above(X, query("2m", 4))
    numberer.hear_above(X, query("2m", 3))
    assert numberer.due(LATER_US) == ()
    numberer.hear_above(X, query("2m"))
    assert numberer.due(LATER_US) == (), "what has no number yet waits for the parent above"
    numberer.hear_above(X, query("2m", 5))
    assert numberer.due(LATER_US) == (NumberedDefinition(X, query("2m", 5)),)
    assert numberer.due(LATER_US) == ()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_lower_broker_that_lost_its_definitions_gets_those_from_above_again(restarted: bool) -> None:
    """Without its retained messages, a gateway that is new or lost its spool would have no query."""
    below, lost = topics.definition("query", "y"), topics.definition("query", "z")
    numberer = heard((X, query("1m", 4)), (below, query("1m", 9)), (lost, query("1m", 2)))
    from_above = ((X, query("1m", 4)), (below, query("1m", 8)), (lost, query("1m", 2)))
    for message in from_above:
        numberer.hear_above(*message)
    assert numberer.due(LATER_US) == ()
    if restarted:
        numberer = RevisionNumberer.restore(numberer.snapshot())
    numberer.connected(2 * LATER_US)
    assert numberer.wake_us() == (None if restarted else 2 * LATER_US + SETTLE_US)
    if restarted:
        for message in from_above:
            numberer.hear_above(*message)
    numberer.hear(X, query("1m", 4), 2 * LATER_US)
    assert numberer.due(3 * LATER_US) == (NumberedDefinition(lost, query("1m", 2)),), "nobody has revision 9 any more"
    assert numberer.due(3 * LATER_US) == ()
    numberer.connected(4 * LATER_US)
    for message in ((X, query("1m", 4)), (lost, query("1m", 2))):
        numberer.hear(*message, 4 * LATER_US)
    assert numberer.due(5 * LATER_US) == ()


def test_what_is_for_one_node_is_not_passed_down() -> None:
    numberer = heard()
    numberer.connected(0)
    numberer.hear_above(X_AT_1, query("2m", 5))
    assert numberer.due(LATER_US) == ()


def test_a_restart_forgets_no_number() -> None:
    numberer = heard((X, query("1m", 4)))
    again = RevisionNumberer.restore(json.loads(json.dumps(numberer.snapshot())))
    again.hear(X, query("1m"), 0)
    assert said(again.due(LATER_US)) == [(X, 4, "1m")]
    again.hear(X, query("2m"), LATER_US)
    assert said(again.due(LATER_US)) == [(X, 5, "2m")]
    assert RevisionNumberer.restore(None).due(LATER_US) == ()


def test_a_restart_forgets_no_number_whose_topic_is_another_or_empty_by_now() -> None:
    """An id with a revision has one content in the whole fleet: revision 7 of the other topic may be in rows."""
    other = topics.definition("query", "x", "press-2")
    numberer = heard((other, query("1m", 7)))
    state = json.loads(json.dumps(numberer.snapshot()))
    state["seen"].pop(other)
    again = RevisionNumberer.restore(state)
    again.hear(X, query("2m"), 0)
    assert said(again.due(LATER_US)) == [(X, 8, "2m")]


class Broker:
    """Retained messages; every client hears every one, its own too."""

    def __init__(self) -> None:
        self.retained: dict[str, bytes] = {}
        self.log: list[NumberedDefinition] = []

    def publish(self, publication: NumberedDefinition) -> None:
        self.log.append(publication)
        if publication.payload:
            self.retained[publication.topic] = publication.payload
        else:
            self.retained.pop(publication.topic, None)


def settle(broker: Broker, parents: list[RevisionNumberer], above: Broker | None = None) -> int:
    """Let everybody hear and answer until it is quiet; how many answers it took."""
    answers, heard_to, above_to = 0, 0, 0
    for _ in range(50):
        fresh, heard_to = broker.log[heard_to:], len(broker.log)
        for message in fresh:
            for parent in parents:
                parent.hear(message.topic, message.payload, 0)
        if above is not None:
            for message in above.log[above_to:]:
                for parent in parents:
                    parent.hear_above(message.topic, message.payload)
            above_to = len(above.log)
        made = [p for parent in parents for p in parent.due(LATER_US)]
        answers += len(made)
        for publication in made:
            broker.publish(publication)
        if not made and heard_to == len(broker.log):
            return answers
    raise AssertionError("two parents answer each other for ever")


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([X, X_AT_1, topics.definition("query", "y")]),
        st.sampled_from([b"", query("1m"), query("2m"), query("1m", 2), query("2m", 3), query("3m", 5)]),
    ),
    max_size=8,
)


@given(MESSAGES, MESSAGES, st.integers(1, 3), st.booleans())
def test_parents_on_one_broker_come_to_rest_and_every_definition_has_a_number(
    messages: list[tuple[str, bytes]], from_above: list[tuple[str, bytes]], parents: int, same_broker: bool
) -> None:
    broker = Broker()
    above = broker if same_broker else Broker()
    numberers = [RevisionNumberer() for _ in range(parents)]
    for numberer in numberers:
        numberer.connected(0)
    for topic, payload in messages:
        broker.publish(NumberedDefinition(topic, payload))
        if not same_broker and from_above:
            above.publish(NumberedDefinition(*from_above.pop()))
        assert settle(broker, numberers, above) <= 4 * parents
    for payload in broker.retained.values():
        assert "revision" in json.loads(payload)


@given(MESSAGES)
def test_a_node_below_a_parent_ends_with_the_last_word(messages: list[tuple[str, bytes]]) -> None:
    """People need not count: what was published last, without a number, is what runs."""
    broker, numberer = Broker(), RevisionNumberer()
    numberer.connected(0)
    registry = DefinitionRegistry("press-1")
    registry.take("all", "sensor", "b", b'{"driver": "host", "revision": 1}')
    for topic, payload in [*messages, (X_AT_1, query("7m"))]:
        broker.publish(NumberedDefinition(topic, payload))
        settle(broker, [numberer])
    for message in broker.log:
        parsed = topics.parse(message.topic)
        assert parsed is not None
        registry.take(parsed.scope, parsed.kind, parsed.other, message.payload)
    found = {q.id: q.time_window.longest_us for q in registry.in_force()[1]}
    assert found["x"] == 7 * 60_000_000
