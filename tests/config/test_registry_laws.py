"""What holds of a registry whatever comes, in whatever order, and however often it starts again."""

from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config.in_force.registry import DefinitionRegistry
from tests.support.config.registries import STATE, item, lengths, query, removal, started

WORDS = st.tuples(
    st.sampled_from(["all", "node"]),
    st.sampled_from(["x", "y"]),
    st.integers(1, 6),
    st.sampled_from(["1m", "2m", "removed", "bad", "unnumbered"]),
)


def payload(word: tuple[str, str, int, str]) -> bytes:
    _, name, revision, what = word
    if what == "removed":
        return removal(revision)
    if what == "bad":
        return query("nonsense", revision)
    return query(
        what if what != "unnumbered" else "3m", None if what == "unnumbered" else revision, lateness=f"{len(name)}s"
    )


@given(st.lists(WORDS, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter_where_a_number_has_one_content(
    words: list[tuple[str, str, int, str]], order: random.Random
) -> None:
    once = {(w[1], w[2]): w for w in words if w[3] != "unnumbered"}.values()
    registries = started(), started()
    for registry, sequence in zip(registries, (list(once), order.sample(list(once), len(once))), strict=True):
        for word in sequence:
            registry.take(word[0], "query", word[1], payload(word))
    assert registries[0].in_force() == registries[1].in_force()
    assert registries[0].state()["hash"] == registries[1].state()["hash"]


@given(st.lists(WORDS, max_size=12), st.integers(0, 12))
def test_a_restart_off_line_changes_nothing(words: list[tuple[str, str, int, str]], at: int) -> None:
    straight, broken = started(), started()
    for n, word in enumerate(words):
        if n == at:
            broken = DefinitionRegistry("press-1", state=json.loads(json.dumps(broken.snapshot())))
        assert straight.take(word[0], "query", word[1], payload(word)) == broken.take(
            word[0], "query", word[1], payload(word)
        )
        assert straight.in_force() == broken.in_force()
        STATE.validate(straight.state())
    assert straight.state() == broken.state()


@given(st.lists(WORDS, max_size=12))
def test_the_version_rises_exactly_when_what_is_in_force_changes(words: list[tuple[str, str, int, str]]) -> None:
    registry = started()
    for word in words:
        before, version = registry.in_force(), registry.state()["version"]
        changed = registry.take(word[0], "query", word[1], payload(word))
        assert changed == (registry.in_force() != before)
        assert registry.state()["version"] == version + changed


@given(st.binary(max_size=100), st.sampled_from(["sensor", "query"]))
def test_no_payload_breaks_the_registry(content: bytes, kind: str) -> None:
    registry = started()
    registry.take("all", kind, "x", content)
    STATE.validate(json.loads(json.dumps(registry.state())))


def test_a_snapshot_of_another_version_is_told_and_not_lost_for_the_rest() -> None:
    registry = started()
    registry.take("all", "query", "x", query())
    registry.take("all", "query", "y", query("2m"))
    state = json.loads(json.dumps(registry.snapshot()))
    state["accepted"][1][3] = state["accepted"][1][3].replace("tumbling", "hopping")
    restored = DefinitionRegistry("press-1", state=state)
    assert lengths(restored) == {"y": (1, 120)}
    assert item(restored)["errors"]
