"""Worlds drawn from seeds, with every kind of fault whose rule is built: the fixed part of `make simulate`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.effort import seeds
from tests.support.simulation import programme
from tests.support.simulation.failpoints import NOT_YET

SHOWN_BY = {  # a failpoint that is left out -> a seed that shows why, and the failpoints that it takes
    "frames.flush": (11, {"frames.flush", "process.crash"}),
    "frames.birth": (7, {"frames.birth", "process.crash", "network.drop"}),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.seeded
@pytest.mark.parametrize("first", [0, 20])
def test_worlds_with_every_fault_of_the_gate_give_the_oracles_rows(first: int) -> None:
    """protocol 1 to 8: each failpoint of the gate, at once and alone."""
    assert [(outcome.seed, outcome.wrong) for outcome in programme.wrong_ones(seeds(first, 20))] == []


@pytest.mark.parametrize("name", NOT_YET)
def test_what_the_gate_leaves_out_is_still_wrong(name: str) -> None:
    """Where this fails the rule is built: move the failpoint into the gate (tests/support/simulation/failpoints.py)."""
    seed, on = SHOWN_BY[name]
    assert programme.run(seed, on).wrong
