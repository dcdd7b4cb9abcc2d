"""Finds definitions of a file that a gateway with this file alone would not serve, by the rules of the registry."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Final

from edge_agent.config.in_force.crosscheck import too_much
from edge_agent.config.in_force.registry import DefinitionRegistry
from edge_agent.config.node_file.settings import Settings
from edge_agent.errors import Problem

SHOWN: Final = 3  # definitions that are listed; the others are only counted


def unserved(settings: Settings) -> tuple[list[Problem], int]:
    """Returns (problems of the first SHOWN definitions and one for all others; number of definitions not served)."""
    refused = DefinitionRegistry(settings.node.id, settings.limits, settings.definitions).refused()
    listed = [replace(why, at=f"{kind}.{item}.{why.at}") for (kind, item), why in islice(refused.items(), SHOWN)]
    if len(refused) > SHOWN:
        values = [definition.value for definition in settings.definitions]
        whole = too_much("query", "", values, settings.limits) or next(iter(refused.values()))
        more = f"{len(refused) - SHOWN} more are not served: {whole.why}"
        listed.append(Problem("query", None, more, whole.hint))
    return listed, len(refused)
