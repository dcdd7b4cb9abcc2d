"""Topics of received messages are parsed once, except those that are too long to keep."""

from __future__ import annotations

from edge_agent.config import topics
from edge_agent.config.topics import TopicCache
from edge_agent.ports.mqtt.packets import LONGEST_CACHED, MAX_TOPICS


def test_neither_many_nor_long_topics_fill_the_cache() -> None:
    cache = TopicCache()
    for n in range(2 * MAX_TOPICS):
        assert cache.parse(f"hw/{n}") == topics.parse(f"hw/{n}")
        assert cache.parse(f"hw/{n}" * LONGEST_CACHED) is None
    assert len(cache._known) <= MAX_TOPICS
    assert max(map(len, cache._known)) <= LONGEST_CACHED
    assert cache.parse(topics.status("press-1")) == topics.parse(topics.status("press-1"))
