"""How many examples a property test tries: a share of what the Hypothesis profile in use tries."""

from __future__ import annotations

from hypothesis import settings


def examples(percent: int) -> settings:
    """A decorator: `percent` of the examples of the profile in use, at least one. "house" tries 100."""
    return settings(max_examples=max(1, settings().max_examples * percent // 100))
