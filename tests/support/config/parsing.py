"""A query from its definition, without the envelope of ids and revisions."""

from __future__ import annotations

from edge_agent.algebra.query.query import Query
from edge_agent.config.definitions.definitions import Payload, parse_definition
from edge_agent.errors import ConfigError


def parse_query(item: str, payload: Payload) -> Query:
    """Raises: ConfigError (of a removal too), NotSupported."""
    value = parse_definition("query", item, payload).value
    if not isinstance(value, Query):
        raise ConfigError(f'query "{item}": wanted a query, got a removal')
    return value
