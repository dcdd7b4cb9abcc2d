"""Parses the topics of received messages. The last few thousand are cached."""

from __future__ import annotations

from edge_agent.config import topics
from edge_agent.ports.mqtt.packets import LONGEST_CACHED, MAX_TOPICS


class TopicCache:
    """Topic name -> its parts. Long names are not cached: those of Headwater are short."""

    def __init__(self) -> None:
        self._known: dict[str, topics.Topic | None] = {}

    def parse(self, name: str) -> topics.Topic | None:
        """The parts of a topic; None if it is none of Headwater."""
        if name in self._known:
            return self._known[name]
        topic = topics.parse(name)
        if len(name) <= LONGEST_CACHED:
            if len(self._known) >= MAX_TOPICS:
                self._known.clear()
            self._known[name] = topic
        return topic
