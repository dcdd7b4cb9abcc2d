"""Which waiting frames belong to another flush: as if all were looked at, and without looking at all (protocol 1.3)."""

from __future__ import annotations

from heapq import nlargest
from unittest import mock

from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.algebra.frame import Flush, Frame
from edge_agent.machines.downlink.epochs.epoch_frames import EpochFrames, apart
from edge_agent.machines.downlink.epochs.flushes_ahead import FlushesAhead
from edge_agent.machines.events import BadFrame

FLUSHES = st.one_of(st.none(), st.builds(Flush, st.integers(-1, 8), st.sampled_from([None, 1, 2])))
FRAMES = st.builds(
    lambda seq, flush, leave: Frame(7, seq, flush=flush, leave=leave),
    st.integers(0, 9),
    FLUSHES,
    st.sampled_from([None, None, 5]),
)
MESSAGES = st.one_of(FRAMES, st.builds(lambda seq: BadFrame(7, seq, "bad", b""), st.integers(0, 9)))


@example([Frame(7, 3, flush=Flush(0, 1))], Flush(0, 2))
@example([Frame(7, 3)], Flush(0))
@given(st.lists(MESSAGES, max_size=40), st.builds(Flush, st.integers(-1, 8), st.sampled_from([None, 1, 2])))
def test_the_answers_are_those_of_all_waiting_frames(messages: list[Frame | BadFrame], flush: Flush) -> None:
    """A frame with a seq that is there takes it out instead."""
    known = EpochFrames()
    for message in messages:
        if message.seq in known.waiting:
            known.take_out(message.seq)
        else:
            known.store(message.seq, message)
        frames = [each for each in known.waiting.values() if isinstance(each, Frame)]
        contradict = any(
            each.flush is not None and each.flush.after == flush.after and not each.flush.agrees(flush)
            for each in frames
        )
        others = any(
            each.seq > flush.after and not apart(each) and (each.flush is None or each.flush.after != flush.after)
            for each in frames
        )
        assert known.flushes.contradict(flush) == contradict
        assert known.flushes.has_others(flush.after) == others


def test_frames_whose_turn_comes_are_not_compared_with_all_that_wait() -> None:
    """10 000 frames of 30 bytes held up their parent for a minute when the one before them came."""
    known, most = EpochFrames(), 2_000
    for seq in range(1, most):
        known.store(seq, Frame(7, seq, flush=Flush(0, 9)))
    with mock.patch(f"{FlushesAhead.__module__}.nlargest", wraps=nlargest) as looked:
        for seq in range(1, most):
            message = known.take_out(seq)
            assert isinstance(message, Frame)
            assert not known.refuses(message)
    assert looked.call_count <= 1
    assert not known.flushes._seqs
    assert not known.flushes._flushes
