"""Starts and ends of single leaves: equal to those found query by query, also where queries share them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.algebra.frame import LATEST_US, NEVER_US, Leaf, Members, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.machines.checkpoint.slots import AgreementState
from edge_agent.machines.downlink.member import Member
from edge_agent.machines.downlink.serving_agreement import ServingAgreement

KEYS = [QueryKey(name, 1) for name in "pqrs"]
TIMES = st.none() | st.integers(1, 4)
LEAVES = st.lists(
    st.builds(Leaf, st.sampled_from("abc"), st.just(1), st.none() | st.just(7)), unique_by=lambda x: x.node
)
STATED = st.builds(
    lambda key, start_us, end_us, node: Serving(key.query, key.revision, start_us, None, end_us, node),
    st.sampled_from(KEYS),
    TIMES | st.just(LATEST_US + 1),
    TIMES,
    st.sampled_from(["", "", "a", "b"]),
)
CHANGES = st.lists(st.tuples(st.integers(0, 2), LEAVES, st.lists(STATED, max_size=6), st.booleans()), max_size=8)
ON_WAY = st.lists(STATED.filter(lambda each: each.node), max_size=3)
STARTS = st.dictionaries(st.sampled_from(KEYS), TIMES | st.just(LATEST_US + 2))


def start_us(member: Member, key: QueryKey) -> int:
    return member.serving[key].from_us if key in member.serving else member.former.get(key, LATEST_US)


def begins_one_by_one(
    key: QueryKey, agreed: int | None, members: list[Member], on_way: list[Serving]
) -> dict[str, int]:
    agreed_us, found = NEVER_US if agreed is None else agreed, dict[str, int]()
    for member in members:
        own_us = start_us(member, key)
        found |= dict.fromkeys(member.leaves, own_us) if own_us > agreed_us else {}
        begins = member.begins.get(key, {}).items()
        found |= {leaf: us for leaf, us in begins if us > max(own_us, agreed_us) and leaf in member.leaves}
    for leaf in [leaf for leaf in found if any(leaf in member.moved for member in members)]:
        mine = [member for member in members if leaf in member.leaves]
        found[leaf] = min(max(start_us(m, key), m.begins.get(key, {}).get(leaf, NEVER_US)) for m in mine)
    found = {leaf: us for leaf, us in found.items() if us > agreed_us}
    return found | {each.node: each.from_us for each in on_way if each.key == key and each.from_us > agreed_us}


def ends_one_by_one(key: QueryKey, members: list[Member], on_way: list[Serving]) -> dict[str, int]:
    served = [(member, member.serving[key].bounds_us[2]) for member in members if key in member.serving]
    served += [(m, m.former_us) for m in members if key in m.former and key not in m.serving]
    away = [(each.node, each.bounds_us[2]) for each in on_way if each.key == key and each.from_us < LATEST_US]
    last_us = max(us for _, us in (*served, *away)) if served else -NEVER_US
    found = {leaf: us for leaf, us in away if us < last_us}
    for member, own_us in served:
        found |= dict.fromkeys(member.leaves, own_us) if own_us < last_us else {}
        ends = member.ends.get(key, {}).items()
        found |= {leaf: us for leaf, us in ends if us < own_us and leaf in member.leaves}
    for leaf in [leaf for leaf in found if any(leaf in member.moved for member in members)]:
        mine = [(m, us) for m, us in served if leaf in m.leaves]
        if mine:
            found[leaf] = max(min(us, m.ends.get(key, {}).get(leaf, -NEVER_US)) for m, us in mine)
    return {leaf: us for leaf, us in found.items() if us < last_us}


@given(STARTS, CHANGES, ON_WAY)
def test_queries_that_share_their_starts_and_results_kept_from_before_change_nothing(
    starts: dict[QueryKey, int | None],
    changes: list[tuple[int, list[Leaf], list[Serving], bool]],
    on_way: list[Serving],
) -> None:
    """protocol 4.5, 6.3: each query as if it were the only one, after each change of a member."""
    agreement = ServingAgreement.restore(60, AgreementState(dict.fromkeys(starts, 0), starts))
    members = [Member(), Member(), Member()]
    for place, leaves, servings, forgets in changes:
        members[place].change(Members(0, tuple(leaves), (), tuple(servings)))
        if forgets:  # a gateway that does not know its past
            members[place].since_us = 3
            members[place].forget_line()
        for ways in ([], on_way):
            begins = {key: begins_one_by_one(key, us, members, ways) for key, us in starts.items()}
            assert agreement.begins(members, ways) == {key: found for key, found in begins.items() if found}
            ends = {key: ends_one_by_one(key, members, ways) for key in starts}
            if not any(each.node in member.moved for each in ways for member in members):  # they are listed by nobody
                assert agreement.ends(members, ways) == {key: found for key, found in ends.items() if found}


def test_a_leaf_on_its_way_has_ended_a_query_though_nobody_else_serves_it() -> None:
    """Found by seed 42082 of the simulation: the range for all leaves came from a member that listed it no longer."""
    (key, *_), way = KEYS, Serving("p", 1, end_until_us=3, node="a")
    agreement = ServingAgreement.restore(60, AgreementState({key: 0}, {key: None}))
    assert agreement.ends([], [way]) == {key: {"a": 3}}
    member = Member()
    member.change(Members(0, (Leaf("b", 1),), (), (Serving("p", 1, end_until_us=3),)))
    assert agreement.ends([member], [way]) == {}


def test_a_leaf_of_a_lost_journal_serves_what_is_stated_once_it_is_back() -> None:
    """protocol 3.7: until then it may serve all that the journal had stated, also if another member lists it too."""
    p, q = KEYS[:2]
    leaf = Leaf("x", 1, 7)
    region, other, third = Member(), Member(), Member()
    for member, leaves in ((region, (leaf,)), (other, (Leaf("y", 1),))):
        member.change(Members(0, leaves, (), (Serving(*p), Serving(*q))))
    third.change(Members(0, (leaf,)))
    agreement = ServingAgreement.restore(0, AgreementState({}, {p: None, q: None}))
    members = [region, other, third]
    assert agreement.begins(members) == {}
    region.lose("region", 0)
    region.begin(anew=True)
    assert agreement.begins(members) == agreement.begins(members[:2]) == {}
    region.change(Members(0, (leaf,), (), (Serving(*p),)))
    assert agreement.begins(members) == {}
    region.promise(10, 10)
    assert agreement.begins(members) == {q: {"x": LATEST_US}}
