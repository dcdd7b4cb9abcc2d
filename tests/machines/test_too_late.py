"""Which pieces of sessions are declared lost because they began too early (docs/protocol.md 8.4)."""

from __future__ import annotations

import pytest

from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Session
from edge_agent.root.decision.too_late import BEFORE
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.machines.scripted_child import SUM, Piece, S, Sender, root_of

HORIZON_US = 100 * S
FRONTIER_US = 1_000 * S
FLOOR_US, BEGUN_US = FRONTIER_US - HORIZON_US, FRONTIER_US - 2 * HORIZON_US
GAP_US = 5 * S
VISITS = Query("visits", 1, "boiler", Session(GAP_US), SUM, lateness_us=0)


def away() -> tuple[NumpyRoot, Sender]:
    """A root whose rows go back to BEGUN_US, and a gateway that was away for longer."""
    here, there = Sender("here", VISITS), Sender("there", VISITS)
    root = root_of(here, there, horizon_us=HORIZON_US)
    now_us = FRONTIER_US
    root.take("here", here.send((999 * S, 999 * S + 1, "k=x", 1.0), frontier_us=FRONTIER_US), now_us)
    root.step(now_us)
    assert list(root.state.begun.values()) == [BEGUN_US]
    return root, there


def declared(root: NumpyRoot) -> list[tuple[int, int]]:
    """Start and end of each gap record for such pieces."""
    root.step(FRONTIER_US + S)
    return [(gap.start_us, gap.end_us) for _, gap in root.decider.gaps if gap.detail == BEFORE]


EARLY: Piece = (BEGUN_US - 1, FLOOR_US + 1, "k=x", 1.0)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("start_us", "end_us", "found"),
    [
        (BEGUN_US - 1, FLOOR_US + 1, True),
        (BEGUN_US, FLOOR_US + 1, False),
        (BEGUN_US - 1, FLOOR_US - GAP_US + 2, True),
        (BEGUN_US - 1, FLOOR_US - GAP_US + 1, False),
    ],
)
def test_a_piece_is_lost_if_it_began_before_all_that_is_kept_and_reaches_beyond_the_horizon(
    start_us: int, end_us: int, found: bool, late: bool
) -> None:
    """protocol 8.4, 4.2: one that ends before the horizon is late and not lost; a node's own rows may be on time."""
    root, there = away()
    root.take("there", there.send((start_us, end_us, "k=x", 1.0), late=late), FRONTIER_US + S)
    assert declared(root) == [(start_us, end_us)] * found


def test_a_loss_spans_the_pieces_that_began_too_early_and_no_others() -> None:
    """protocol 8.4: in every frame of a decision, also behind one that has none."""
    root, there = away()
    pieces: list[Piece] = [
        (BEGUN_US - 9 * S, FLOOR_US + S, "k=x", 1.0),
        (BEGUN_US - 5 * S, FLOOR_US + 7 * S, "k=y", 1.0),
        (BEGUN_US + 20 * S, FLOOR_US + 50 * S, "k=z", 1.0),
        (BEGUN_US - 50 * S, BEGUN_US - 20 * S, "k=z", 1.0),
    ]
    for sent in (pieces[2:], pieces, [EARLY]):
        root.take("there", there.send(*sent), FRONTIER_US + S)
    assert declared(root) == [(BEGUN_US - 9 * S, FLOOR_US + 7 * S), EARLY[:2]]
