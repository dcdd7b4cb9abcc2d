"""What nobody can know of is no reading of the truth, and nothing else is left out of it."""

from __future__ import annotations

import pytest

from edge_agent.algebra.frame import Heartbeat
from edge_agent.algebra.query.query import Aggregate, Query
from edge_agent.algebra.windows import Tumbling
from edge_agent.machines.downlink.losses.earlier_lives import EarlierLives
from edge_agent.wire.frames import encode, encode_heartbeat, envelope
from tests.support.machines.scripted_child import Sender
from tests.support.simulation import programme
from tests.support.simulation.lives import Lives
from tests.support.simulation.trees import Shape

QUERY = Query("q", 1, "s", Tumbling(5_000_000), (Aggregate("count", "count"),), lateness_us=0)
READINGS = list(range(10))
LIVE = {"disk.wiped", "process.crash", "source.live"}
FOUND_AFTER = [
    (3469, LIVE, Shape(tiers=2, gateways=3, seconds=24, share=0.125)),
    (5471, LIVE | {"disk.full", "network.drop"}, Shape(tiers=1, gateways=2, seconds=12, share=0.125)),
    (7765, {"disk.wiped", "epochs.many", "source.live"}, Shape(tiers=2, gateways=2, seconds=12)),
    (8313, LIVE | {"frames.birth"}, Shape(tiers=2, gateways=1, seconds=16, share=0.0625)),
]
KNOWN = FOUND_AFTER[2]


def two_lives() -> tuple[Lives, bytes]:
    """A gateway that is wiped after four readings, before which nobody listened to the first; and a frame of it."""
    lives, frame = Lives(), encode(Sender("g", QUERY).birth())
    lives.begins("g", 1)
    lives.speaks("g", frame)
    return lives, frame


def left(lives: Lives, *under_way: bytes) -> list[int]:
    """The truth, once the spool is lost."""
    lives.begins("g", 4)
    return lives.readings("g", READINGS, under_way)


def test_of_a_life_that_nobody_heard_of_no_reading_is_true() -> None:
    lives, _ = two_lives()
    assert left(lives) == READINGS[4:]


def test_a_frame_that_is_under_way_or_kept_holds_a_life_and_a_heartbeat_does_not() -> None:
    lives, frame = two_lives()
    assert left(lives, frame) == READINGS[1:]
    lives, frame = two_lives()
    lives.heard("m", frame)
    assert left(lives) == READINGS[1:]
    lives, frame = two_lives()
    beat = encode_heartbeat(Heartbeat(envelope(frame).epoch, 0, ()))
    lives.heard("m", beat)
    assert left(lives, beat) == READINGS[4:]


def test_a_parent_that_dies_knows_what_it_had_committed_whether_it_used_it_or_not() -> None:
    lives, frame = two_lives()
    lives.commits("m")
    lives.heard("m", frame)
    lives.committed("m")  # that commit was made before
    lives.died("m")
    assert left(lives) == READINGS[4:]
    lives, frame = two_lives()
    lives.heard("m", frame)
    lives.commits("m")
    lives.committed("m")
    lives.died("m")
    assert left(lives) == READINGS[1:]


def test_a_life_is_forgotten_with_the_last_disk_that_holds_a_word_of_it() -> None:
    lives, frame = two_lives()
    for host in ("m", "n"):
        lives.heard(host, frame)
        lives.commits(host)
        lives.committed(host)
    lives.disk_lost("m", [b"", frame])
    lives.disk_lost("n", [])
    assert left(lives) == READINGS[1:]
    lives.disk_lost("m", [])
    assert lives.readings("g", READINGS, ()) == READINGS[4:]


@pytest.mark.parametrize(("seed", "on", "shape"), FOUND_AFTER)
def test_what_a_gateway_lost_with_its_spool_is_declared_where_anyone_knows_of_it(
    seed: int, on: set[str], shape: Shape
) -> None:
    """protocol 1.2: in two of the worlds a parent knows of it; in the others no disk does."""
    assert programme.run(seed, on, shape).wrong == ()


def test_a_parent_that_forgets_what_it_knows_of_a_life_before_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control, protocol 1.2."""
    monkeypatch.setattr(EarlierLives, "losses", lambda *_: ())
    seed, on, shape = KNOWN
    wrong = programme.run(seed, on, shape).wrong
    assert any(line.startswith("missing") for line in wrong), wrong
