"""Worlds drawn from seeds, with every kind of fault whose rule is built: the fixed part of `make simulate`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.effort import seeds
from tests.support.simulation import programme
from tests.support.simulation.failpoints import NOT_YET

SHOWN_BY: dict[str, tuple[int, set[str]]] = {}  # of NOT_YET -> a seed that shows why, and the failpoints that it takes
ONCE_WRONG = [
    (11, {"frames.flush", "process.crash"}),
    (7, {"frames.birth", "process.crash", "network.drop"}),
]


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


def test_what_the_gate_leaves_out_is_still_wrong() -> None:
    """Where this fails the rule is built: move the failpoint into the gate (tests/support/simulation/failpoints.py)."""
    for name in NOT_YET:
        seed, on = SHOWN_BY[name]
        assert programme.run(seed, on).wrong


@pytest.mark.parametrize(("seed", "on"), ONCE_WRONG, ids=lambda each: str(each) if isinstance(each, int) else "")
def test_worlds_that_showed_a_hole_give_the_oracles_rows(seed: int, on: set[str]) -> None:
    """protocol 1.2, 1.3: flushes and births of several frames."""
    assert not programme.run(seed, on).wrong
