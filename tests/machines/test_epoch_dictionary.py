"""What the numbers of a child's epoch may mean (docs/protocol.md 2.4)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edge_agent.algebra.frame import Define, Frame, GroupPart, Plan
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.planner import plan as placed
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.windows import Session, Tumbling
from edge_agent.config.definitions.definitions import parse_definition
from edge_agent.errors import WireError
from edge_agent.machines.downlink.child_frames import ChildFrames
from edge_agent.machines.downlink.epochs import renumbering
from edge_agent.machines.downlink.epochs.definitions_ahead import DefinitionsAhead
from edge_agent.machines.downlink.epochs.epoch_dictionary import EpochDictionary
from tests.support.machines.scripted_child import JOURNAL, S, Sender

WINDOWS: dict[str, dict[str, Any]] = {
    "tumbling": {"type": "tumbling", "length": "10s"},
    "sliding": {"type": "sliding", "length": "1m", "slide": "7s"},
    "session": {"type": "session", "gap": "10s", "max": "1h"},
    "count": {"type": "count_tumbling", "length": 10},
    "order": {"type": "punctuation", "interpretation": "order"},
    "central": {"type": "punctuation", "interpretation": "central"},
}


def learnt(group: Group, *plans: Plan) -> list[Plan]:
    """Each plan as one child after the other defines it."""
    out = []
    for plan in plans:
        dictionary = EpochDictionary()
        define = Define((0, ()), (0, ()), ((0, group),), ((0, 0, plan),))
        dictionary.learn(define)
        again = EpochDictionary.restore(dictionary.snapshot())  # after a restart it is the same plan
        again.learn(define)
        assert again.plans == dictionary.plans
        out.append(dictionary.plans[0][1])
    return out


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_plan_with_the_hash_of_another_one_is_a_plan_of_its_own(window: dict[str, Any]) -> None:
    """Rows of equal hashes are merged, so a child could change the rows of others: protocol 2.4."""
    text = json.dumps({"source": "s", "window": window, "aggregates": ["sum", "count"], "revision": 1})
    query = parse_definition("query", "q", text).value
    assert isinstance(query, Query)
    for placement in placed((query,), -2):
        plan = placement.plan
        others = [
            replace(plan, scale=7),
            replace(plan, basis=(*plan.basis, "max")),
            replace(plan, queries=()),
            replace(plan, queries=(*plan.queries, ("x", 1))),
            replace(plan, kind="slice" if plan.kind == "window" else "window"),
        ]
        honest, *found = learnt(query.group, plan, *others)
        assert honest == plan
        assert len({each.hash for each in (honest, *found)}) == 1 + len(others)
        assert [replace(each, hash=plan.hash) for each in found] == others
        assert learnt(query.group, *others) == found, "whichever child sends it"


@pytest.mark.parametrize("text", [",", "k=1,k=1", "a=1,k=2,a=3", "Permission denied=1,Permission denied=2"])
def test_a_key_with_a_label_twice_is_refused(text: str) -> None:
    """Spark has no map for it: the window's rows of all keys would be left out."""
    dictionary = EpochDictionary()
    with pytest.raises(WireError, match="a label occurs twice"):
        dictionary.learn(Define(keys=(0, ("k=1", text))))
    assert dictionary == EpochDictionary()
    dictionary.learn(Define(keys=(0, ("", "k=", "k=1", "k=1%2Ck=1", "a=,b="))))


def test_a_definition_that_waits_is_learnt_though_a_bad_one_waits_before_it_and_not_once_its_turn_has_come() -> None:
    """protocol 2.4"""
    ahead, dictionary = DefinitionsAhead(), EpochDictionary()
    dictionary.learn(Define((0, ("a=1",))))
    ahead.add(Frame(1, 3, define=Define((0, ("b=1",)))))
    ahead.add(Frame(1, 4, define=Define((1, ("a=2",)))))
    ahead.add(Frame(1, 5, define=Define((2, ("a=3",)))))
    ahead.remove(5)
    assert ahead.learn(dictionary)
    assert dictionary.keys == ["a=1", "a=2"]
    assert not ahead.learn(dictionary)


def test_numbers_of_epochs_without_end_are_kept_of_a_few_and_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renumbering, "MOST_EPOCHS", 2)
    numbers, dictionaries = renumbering.Renumbering(), [EpochDictionary() for _ in range(6)]
    for n, dictionary in enumerate(dictionaries):
        dictionary.learn(Define((0, (f"a={n}", "a=0"))))
    for n, dictionary in enumerate([*dictionaries, *dictionaries]):
        assert numbers.maps(EpochKey("a", n % 6), dictionary)[0].tolist() == [n % 6, 0]
        assert len(numbers._maps) <= 2


def without(define: Define | None, what: str) -> tuple[Define, Define]:
    """(the section without the definitions of `what`, those alone)."""
    assert define is not None
    empty: dict[str, Any] = {what: {"keys": (define.keys[0], ()), "nodes": (define.nodes[0], ())}.get(what, ())}
    alone = Define(**{what: getattr(define, what)})
    return replace(define, **empty), alone


@pytest.mark.parametrize("what", ["keys", "nodes", "plans", "groups"])
def test_a_frame_waits_for_any_number_that_a_later_frame_defines(what: str) -> None:
    """protocol 2.4: it is not refused, whichever number is missing, and its rows count once that has come."""
    query = Query("q", 1, "s", Tumbling(10 * S), (Aggregate("first", "first"),), lateness_us=0)
    sender, parent = Sender("a", query), ChildFrames(JOURNAL, 60 * S)
    birth, rows = sender.birth(), sender.send((0, 10 * S, "k=1", 1.0), frontier_us=10 * S)
    if what == "groups":  # its members name the group, too
        kept, alone = without(birth.define, what)
        birth = replace(birth, define=kept)
    else:
        kept, alone = without(rows.define, what)
        rows = replace(rows, define=kept)
    came = [parent.take("a", frame, 0) for frame in (birth, rows, Frame(birth.epoch, rows.seq + 1, define=alone))]
    assert [len(applied) for applied in came] == ([0, 0, 3] if what == "groups" else [1, 0, 2])
    assert [each.effect.why for applied in came for each in applied if each.effect.frame is None] == []
    assert parent.received == 1


@pytest.mark.parametrize("part", [GroupPart(0, registers=((0, 5),)), GroupPart(7, 5)], ids=["register", "group"])
def test_a_frame_without_rows_waits_for_its_numbers_too(part: GroupPart) -> None:
    """protocol 2.4, 5.2"""
    query = Query("q", 1, "s", Session(5 * S), (Aggregate("sum", "sum"),), by=("k",), lateness_us=0)
    sender, parent = Sender("a", query), ChildFrames(JOURNAL, 60 * S)
    birth = sender.birth(0)
    frames = (
        Frame(birth.epoch, birth.seq + 1, groups=(part,)),
        Frame(*(birth.epoch, birth.seq + 2), define=Define(keys=(0, ("k=1",)), groups=((7, query.group),))),
    )
    assert [len(parent.take("a", frame, 0)) for frame in (birth, *frames)] == [1, 0, 2]
    assert parent.inbox.receipt("a", birth.epoch).quarantined == ()
