from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import topics
from edge_agent.config.topics import Topic

NODES = st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True)
ITEMS = st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True).filter(topics.is_item_id)


@given(NODES, NODES, ITEMS, st.sampled_from(topics.KINDS))
def test_every_topic_that_is_built_is_taken_apart_again(node: str, parent: str, item: str, kind: str) -> None:
    assert topics.parse(topics.frames(node, parent)) == Topic("frame", node, parent)
    assert topics.parse(topics.status(node)) == Topic("status", node)
    assert topics.parse(topics.state(node)) == Topic("state", node)
    assert topics.parse(topics.books(node)) == Topic("books", node)
    assert topics.parse(topics.answer(node, item)) == Topic("answer", node, item)
    assert topics.parse(topics.ack(node)) == Topic("ack", node)
    assert topics.parse(topics.commands(node)) == Topic("cmd", node, scope="node")
    assert topics.parse(topics.commands_to_all()) == Topic("cmd", scope="all")
    assert topics.parse(topics.definition(kind, item)) == Topic("definition", "", item, kind, "all")
    assert topics.parse(topics.definition(kind, item, node)) == Topic("definition", node, item, kind, "node")


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "hw/1",
        "hw/2/up/a/status",
        "/hw/1/up/a/status",
        "hw/1/up/a/status/",
        "hw/1/up//status",
        "hw/1/up/+/status",
        "hw/1/up/#",
        "hw/1/up/A/status",
        "hw/1/up/é/status",
        "hw/1/up/a\x00/status",
        f"hw/1/up/{'a' * 33}/status",
        "hw/1/up/a/f/Root",
        "hw/1/up/a/f",
        "hw/1/up/a/w",
        "hw/1/up/a/cmd/X",
        f"hw/1/up/a/cmd/{'x' * 65}",
        "hw/1/up/a/live/s",
        "hw/1/down/a/cfg/sensors/x",
        "hw/1/down/a/cfg/query",
        "hw/1/down/a/cfg/query/x/y",
        "hw/1/all/cfg/query/X",
        f"hw/1/all/cfg/query/{'x' * 65}",
        "$SYS/broker/uptime",
        "hw/1/up/а/status",  # a Cyrillic letter that looks like an a
        "hw/1/up/a/status\n",
    ],
)
def test_foreign_topics_are_none_of_ours(topic: str) -> None:
    assert topics.parse(topic) is None


@given(st.text(max_size=80))
def test_no_topic_breaks_the_parser(topic: str) -> None:
    parsed = topics.parse(topic)
    assert parsed is None or topic.startswith(topics.PREFIX)


@pytest.mark.parametrize("table", ["results", "gaps", "messages", "gold", "late"])
def test_a_query_is_not_named_like_a_table(table: str) -> None:
    assert not topics.is_item_id(table)


def test_filters_hold_the_topics_they_are_for() -> None:
    assert topics.frames_of_children("root") == "hw/1/up/+/f/root"
    assert topics.definitions_for("press-1") == ("hw/1/all/cfg/+/+", "hw/1/down/press-1/cfg/+/+")
    assert topics.definitions_below() == ("hw/1/all/cfg/+/+", "hw/1/down/+/cfg/+/+")
    assert (topics.status(), topics.state()) == ("hw/1/up/+/status", "hw/1/up/+/state")
