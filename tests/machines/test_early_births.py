"""Births that came before what they follow are passed over until that changes, and nothing else differs (1.2, 1.4)."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any

import pytest

from edge_agent.algebra.frame import BEGAN, LOST, Birth, Flush, Frame, Gap
from edge_agent.algebra.query.key import EpochKey
from edge_agent.machines.downlink.children import Children
from edge_agent.machines.downlink.epochs.early_births import EarlyBirths
from edge_agent.machines.downlink.epochs.epoch_frames import Effect, EpochFrames
from edge_agent.machines.downlink.inbox import Inbox
from edge_agent.machines.downlink.losses.earlier_lives import EarlierLives
from edge_agent.machines.events import BadFrame
from tests.support.effort import seeds
from tests.support.machines.inbox_frames import GROUP, JOURNAL, born

S = 1_000_000
EPOCHS = 9


def messages(random: Random) -> list[Frame | BadFrame]:
    """Frames of a few epochs of one child: lines that follow each other, copies, losses, flushes, in any order."""
    out: list[Frame | BadFrame] = []
    for epoch in range(1, EPOCHS):
        named = (random.choice([epoch - 1, random.randrange(1, EPOCHS)]), random.randrange(3))
        predecessor = random.choice([named, named, named, named, None, LOST])
        held = random.choice([None, tuple(random.sample(range(1, EPOCHS), 3))])
        frames = random.choice([1, 1, 1, 2])
        out.append(Frame(epoch, 0, Birth(epoch << 32, JOURNAL, predecessor, "1", frames, held)))
        for seq in range(1, random.randrange(4)):
            flush = Flush(seq - 1, epoch + 1) if random.random() < 0.2 else None
            gone = BadFrame(epoch, seq, "bad", b"", random.choice([0, 0, 2]))
            out.append(gone if random.random() < 0.1 else Frame(epoch, seq, flush=flush))
    random.shuffle(out)
    return [*out, *random.sample(out, len(out) // 2)]


def told(inbox: Inbox, random: Random, arrivals: list[Frame | BadFrame]) -> list[list[Effect]]:
    out, now_us = [], 0
    for message in arrivals:
        now_us += random.choice([0, S, 40 * S])
        out.append(inbox.take("a", message, now_us))
        inbox.check()
        if random.random() < 0.2:
            out.append(inbox.look("a", now_us))
        if random.random() < 0.02:
            inbox.retire("a")
    return out


@pytest.mark.seeded
@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_passing_over_births_that_wait_changes_nothing(
    bounded: bool, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.machines.downlink.inbox.MOST_EPOCHS", 6)
    for seed in seeds(first, 100):
        arrivals = messages(Random(seed))
        passing = told(Inbox(JOURNAL, silence_us=60 * S, bounded=bounded), Random(seed), arrivals)
        with monkeypatch.context() as all_of_them:
            all_of_them.setattr(EarlyBirths, "of", lambda *_: {})
            looking = told(Inbox(JOURNAL, silence_us=60 * S, bounded=bounded), Random(seed), arrivals)
        assert passing == looking, seed


def test_births_in_reverse_order_are_looked_at_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """protocol 1.2: before, each one was looked at with every other: 2 700 of them cost a parent 23 s."""
    looks = 0
    look = Inbox._may_be_born

    def counted(self: Inbox, key: EpochKey, frames: EpochFrames, now_us: int) -> Generator[Effect, None, bool]:
        nonlocal looks
        looks += 1
        return look(self, key, frames, now_us)

    monkeypatch.setattr(Inbox, "_may_be_born", counted)
    inbox, many = Inbox(JOURNAL), 200
    for epoch in range(many, 1, -1):
        assert inbox.take("a", born(epoch, (epoch - 1, 0))) == []
    effects = inbox.take("a", born(1))
    assert [effect.epoch for effect in effects] == [*range(1, many + 1)]
    assert looks <= 4 * many
    assert not inbox._early._of
    assert not inbox._early._followers


def test_births_that_wait_for_each_other_are_looked_at_once_for_a_record_of_a_beginning() -> None:
    """protocol 1.2: whose life they are of is asked with each record."""
    looks = 0

    class Named(tuple[int, int]):
        def __getitem__(self, at: Any) -> Any:
            nonlocal looks
            looks += 1
            return super().__getitem__(at)

    inbox, many = Inbox(JOURNAL), 200
    inbox.take("a", born(1))
    for epoch in range(many, 2, -1):
        inbox.take("a", born(epoch, (epoch - 1, 0)))
    for frames in inbox.lines_of("a").values():
        if isinstance(frames.predecessor, tuple):
            frames.predecessor = Named(frames.predecessor)
    gap = Gap((GROUP,), 0, 9 * S, -1, ("a",), BEGAN)
    assert list(EarlierLives(inbox).losses("a", Frame(2, 1, gaps=(gap,)), Children(S), None, 0)) == []
    assert 0 < looks <= 3 * many
