"""How much a test that draws tries, by the Hypothesis profile in use: "house" in every run, "explore" to search."""

from __future__ import annotations

import os

from hypothesis import settings


def examples(percent: int) -> settings:
    """A decorator: `percent` of the examples of the profile in use, at least one. "house" tries 100."""
    return settings(max_examples=max(1, settings().max_examples * percent // 100))


def exploring() -> bool:
    """Whether seeds are new ones: what holds of the usual seeds only need not hold."""
    return settings.get_current_profile_name() == "explore"


def seeds(first: int, count: int) -> range:
    """Seeds of a test with the mark `seeded`: always the same; of an exploration, new ones by HEADWATER_SEED."""
    new = 1_000_000 * (1 + int(os.environ.get("HEADWATER_SEED", "0"))) if exploring() else 0
    return range(new + first, new + first + count)
