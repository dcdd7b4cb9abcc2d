"""What a child can make the lander keep has bounds, and what is beyond them is turned away and counted (2.2, 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from unittest import mock

import pytest

from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines import lander as rules
from edge_agent.machines.downlink.epochs import landed_ranges
from edge_agent.machines.downlink.epochs.landed_ranges import LAST_SEQ
from edge_agent.machines.events import Tick
from edge_agent.machines.lander import (
    Land,
    Landed,
    Lander,
    LanderEvent,
    LanderMessage,
    LanderSettings,
    MessagesArrived,
)
from tests.support.machines.lander_runs import SECOND, Run

OWN_ID = "one entry for each child: a child writes below its own id only (docs/operate.md)"
KNOWN = "lander.MOST_KNOWN epochs of each child"
WAITING = "lander.MOST_WAITING while no file is written, `refused`; emptied with every file"
GROWS = {
    "received": f"{KNOWN}; landed_ranges.MOST_RANGES of each child",
    "_epochs": KNOWN,
    "_looked_at": OWN_ID,
    "_forgotten": f"{KNOWN}; emptied with every file",
    "_objects": WAITING,
    "_beats": OWN_ID,
    "_fresh": WAITING,
    "_owed": WAITING,
    "_landing": WAITING,
    "_tokens": "receive_maximum of the connection; emptied with every file",
    "_acks": "of `_tokens`",
    "_newest": OWN_ID,
    "_unstated": "of `received` and `_fresh`",
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landed_ranges, "MOST_RANGES", 10)


def ranges(run: Run) -> int:
    return sum(len(received.above) for received in run.lander.received.values())


def test_every_second_frame_behind_a_settled_hole_is_turned_away_beyond_the_bound() -> None:
    """The root, and so the lander, settles what has been missing for long; behind it nothing waits for a hole."""
    run = Run()
    run.take(7, 0, 2**50)
    for _ in range(100):
        run.now_us += 9 * SECOND
        run.take(7, 0)
    for seq in range(3, 103, 2):
        run.take(7, seq)
    run.take(7, *range(103, 203, 2))  # many in one file
    assert ranges(run) == 10
    assert run.lander.refused == 100 - 9
    run.take(8, 5)
    assert (ranges(run), run.lander.refused) == (10, 92), "over all epochs of the child"
    run.take(7, 5, node="other")
    assert ranges(run) == 11
    again = Run(run.received)
    again.take(7, 999)
    assert (ranges(again), again.lander.refused) == (11, 1), "also after a restart"


def test_frames_in_order_and_those_that_close_a_hole_always_land() -> None:
    """A child that has used up its ranges, by whatever accident, goes on and closes them."""
    run = Run()
    run.take(7, 0, 2**50)
    for _ in range(100):
        run.now_us += 9 * SECOND
        run.take(7, 0)
    run.take(7, *range(3, 23, 2))
    refused = run.lander.refused
    for seq in range(1, 40):
        run.take(7, seq)
    assert run.lander.refused == refused
    assert run.received["gw/7"] == [40, [[2**50, 2**50]]]
    run.take(8, *range(100))
    assert run.received["gw/8"] == [100, []], "many in order in one file"
    run.take(7, 40, 42)
    assert run.received["gw/7"] == [41, [[42, 42], [2**50, 2**50]]], "there is room again"


def test_a_gap_record_counts_for_all_frames_that_it_replaces() -> None:
    """protocol 3.5: else each one left a hole for ever; a run without an end does not leave the range of seqs."""
    run = Run()
    for first in range(0, 400, 4):
        run.take(7, first, run=3)
        run.take(7, first + 3)
    assert run.received["gw/7"] == [400, []]
    run.take(7, 400, run=2**62)
    assert run.received["gw/7"] == [LAST_SEQ + 1, []]
    run.take(8, 5, 3)
    run.take(8, 0, run=5)
    assert run.received["gw/8"] == [6, []]


def test_epochs_of_a_child_that_never_sends_a_birth_are_forgotten() -> None:
    with mock.patch.multiple(rules, MOST_KNOWN=100, UNDER_WAY=5):
        run = Run()
        for epoch in range(1, 1_000):
            run.now_us += 40 * SECOND
            run.take(epoch, 0)
            run.take(epoch, None)  # type: ignore[arg-type]
        assert len(run.received) <= 120
        assert len(run.lander._ahead._lines) <= 120
        assert EpochKey("gw", 999) in run.lander.received


FLOODS: dict[str, tuple[int, Callable[[int], tuple[int | None, int | None]]]] = {  # size, (epoch, seq) of a message
    "frames": (100, lambda number: (7, number)),
    "large frames": (100_000, lambda number: (7, number)),
    "heartbeats": (100, lambda number: (number, None)),
    "no frames": (100, lambda number: (None, None)),
}


@pytest.mark.parametrize("what", FLOODS)
def test_what_comes_while_a_file_cannot_be_written_is_bounded_and_comes_again(what: str) -> None:
    """protocol 3.2: of QoS 0 a broker keeps nothing back; a lander on a full disk took it until its memory was full."""
    size, of = FLOODS[what]
    lander = Lander(1, LanderSettings(flush_frames=50, flush_bytes=1_000_000))
    landed = list[object]()

    def do(event: LanderEvent, now_us: int = 0) -> None:
        landed.extend(number for act in lander.handle(event, now_us) if isinstance(act, Land) for number in act.objects)

    def come(numbers: Iterable[int]) -> None:
        for number in numbers:
            do(MessagesArrived((LanderMessage("gw", *of(number), number, size),)))

    do(Tick())
    come(range(5_000))
    assert landed == []
    assert lander._size_bytes <= 2_000_000
    assert len(lander._objects) + len(lander._owed) <= 100
    assert len(lander._unstated) + sum(map(len, lander._fresh.values())) <= 101
    assert lander.refused >= 4_900
    do(Landed())
    waited = len(landed)
    if what.endswith("frames") and what != "no frames":
        assert landed == [*range(waited)]
        for now_us in range(1, 200):
            do(Landed())
            come(range(120))
            do(Tick(), now_us * SECOND)
        assert landed == [*range(120)]


def test_every_container_of_a_lander_that_a_child_can_grow_is_listed_with_its_bound() -> None:
    lander = Lander(1, LanderSettings())
    grows = {name for name, value in vars(lander).items() if hasattr(value, "__len__")}
    assert grows == GROWS.keys()


def test_epochs_that_only_heartbeats_name_are_not_kept_for_the_next_statement() -> None:
    """protocol 3.2: nothing of them has landed; a child may name any number of them in a minute."""
    run = Run()
    run.take(7, 0)
    for epoch in range(100, 1_100):
        run.do(MessagesArrived((LanderMessage("gw", epoch, None, None, 100),)))
    run.take(7, 1)
    assert run.lander._unstated.keys() == {EpochKey("gw", 7)}
