"""Readings beyond the correction horizon: what decoding leaves out of rows that are written later. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cloud_job.ingest.decode import pieces_of, windows_of
from cloud_job.ingest.decode_lookup import DecodeLookups
from cloud_job.ingest.intake import Intake
from cloud_job.spark import decision_checkpoint
from edge_agent.algebra.frame import NEVER_US
from edge_agent.algebra.partials.partial import Partials
from edge_agent.algebra.query.key import EpochKey
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.span import FAR_US
from edge_agent.algebra.windows import Session, Sliding, Tumbling
from edge_agent.machines.uplink.step import GroupStep
from edge_agent.root.completeness import Decider
from edge_agent.root.decision import decide
from edge_agent.root.decision.root_state import RootLimits, RootState
from edge_agent.root.decision.transition import decided
from edge_agent.root.decision.work import TooLate, Work
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.executor import _parts as numpy_parts
from edge_agent.root.numpy.rows import Row
from edge_agent.wire import frames
from edge_agent.wire.heads import Parts
from tests.support.cloud.child_frames import JOURNAL, SECOND, START, Child, at, query, record, tick
from tests.support.machines.scripted_child import SUM, S, Sender, root_of

GRACE_US = 20 * SECOND
GAP = query(window=Session(2 * SECOND), fns=("count",))


def sent(child: Child, frontier: float, *seconds: float, late: bool = False) -> bytes:
    """A frame with one reading at each of these times."""
    return child.rows(at(frontier), np.array([at(second) for second in seconds], np.int64), length_us=1, late=late)


class Driver:
    """What the job does on the driver: frames to a decision, its bytes and back, and reads of all that is stored."""

    def __init__(self, **limits: int) -> None:
        self.limits = RootLimits(**{"revise_every_us": 0, "horizon_us": 10 * SECOND, **limits})
        self.decider, self.state, self.parts = Decider(JOURNAL, GRACE_US), RootState(self.limits), Parts()
        self.stored: list[pa.Table] = []
        self.now_us = at(0)

    def batch(self, child: Child, *payloads: bytes, flush: bool = False) -> Work:
        self.now_us += SECOND
        intake = Intake(self.decider, self.parts, self.state.number + 1, "run", self.state.decided_us)
        records = [tick(self.now_us), *(record(child, self.now_us, payload) for payload in payloads)]
        intake.read(b"".join(records), "file")
        self.stored.append(intake.table())
        decision = self.decider.decide(intake.now_us)
        applied = {
            key: found for e in decision.effects if (found := self.parts.pop(key := (e.node, e.epoch, e.seq), None))
        }
        self.state.own(intake.batch, "run")
        dictionaries, gaps = self.decider.parent.dictionaries, self.decider.gaps
        work = decide.step(self.state, decision, applied, dictionaries, gaps, flush=flush)
        packed = decision_checkpoint.dumps(self.decider, self.state, self.parts)
        self.decider, self.state, self.parts = decision_checkpoint.loads(packed, self.limits, GRACE_US)
        return work

    def pieces(self, work: Work) -> int:
        """Readings in the pieces of sessions that the read requests of a work give."""
        lookup = self._lookups().of(work, {order.number: [(NEVER_US, FAR_US)] for order in work.orders})
        return sum(batch["count"].to_numpy().sum() for batch in pieces_of(lookup)(self._batches()))

    def windows(self, work: Work) -> dict[float, int]:
        """Start of each window that is made again -> readings in it."""
        found: dict[float, int] = {}
        for batch in windows_of(self._lookups().of_windows(work, work.revising))(self._batches()):
            for start, count in zip(batch["start"].to_pylist(), batch["count"].to_pylist(), strict=True):
                found[(start - START) / SECOND] = found.get((start - START) / SECOND, 0) + count
        return found

    def _lookups(self) -> DecodeLookups:
        return DecodeLookups(self.decider.parent.dictionaries, self.state)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        return iter(
            [batch for table in self.stored for batch in table.filter(pc.greater(table["part"], 0)).to_batches()]
        )


def test_pieces_that_came_too_late_are_in_no_session_however_long_it_is() -> None:
    """protocol 4.2: while the session is open, after it has its row, and whenever that is made again."""
    driver, child = Driver(), Child("gw", (GAP,))
    driver.batch(child, child.birth(), sent(child, 94.1, *range(95)))
    assert len(driver.batch(child, sent(child, 94.2, 30.5, late=True)).beyond) == 1
    first = driver.batch(child, sent(child, 100))
    assert (first.islands[0].low_us, driver.pieces(first)) == (at(0), 95)
    assert len(driver.batch(child, sent(child, 100, 31.5, late=True)).beyond) == 1
    again = driver.batch(child, sent(child, 100.1, 93.5, late=True))
    assert again.islands[0].revises
    assert driver.pieces(again) == 96


def test_what_came_too_late_is_forgotten_when_no_row_can_hold_it() -> None:
    """Nothing grows for ever: a row that may change reaches back by the longest session there was."""
    driver, child = Driver(), Child("gw", (GAP,))
    driver.batch(child, child.birth(), sent(child, 40, *range(20), *range(30, 35)))
    driver.batch(child, sent(child, 40, 10.5, 12.5, late=True))
    assert [len(rows) for rows in driver.state.too_late.values()] == [1]
    driver.batch(child, sent(child, 45))
    assert driver.state.too_late
    for frontier in (60, 61):
        driver.batch(child, sent(child, frontier))
    assert not driver.state.too_late


@pytest.mark.parametrize(
    ("window", "wanted"),
    [(Tumbling(SECOND), {24.0: 2}), (Sliding(30 * SECOND, 10 * SECOND), {0.0: 32})],
    ids=["tumbling", "sliding"],
)
def test_a_revision_that_was_put_off_takes_nothing_that_came_beyond_the_horizon(
    window: Tumbling | Sliding, wanted: dict[float, int]
) -> None:
    """protocol 4.2, 8.3: what was put off does not expire, what comes meanwhile is too late."""
    driver, child = Driver(revise_every_us=600 * SECOND), Child("gw", (query(window=window, fns=("count",)),))
    driver.batch(child, child.birth(), sent(child, 30, *range(30)))
    assert driver.batch(child, sent(child, 30, 25.5, late=True)).revising
    assert not driver.batch(child, sent(child, 30, 24.5, late=True)).revising
    driver.batch(child, sent(child, 100, *range(30, 100)))
    assert len(driver.batch(child, sent(child, 100, 24.6, late=True)).beyond) == 1
    assert driver.windows(driver.batch(child, flush=True)) == wanted
    driver.batch(child)
    assert not driver.state.too_late


def test_a_bound_of_late_readings_does_not_concern_those_on_time_in_the_same_frame() -> None:
    """protocol 6.3: late rows before a revision's first window are in no result; a part on time may begin there, and
    another late part of the frame, which does not, takes nothing back."""
    driver, child = Driver(), Child("gw", (GAP,))
    driver.batch(child, child.birth(), sent(child, 5, 1))
    line, seq = EpochKey("gw", child.epoch), child.seq - 1
    ((number, of),) = driver.decider.parent.dictionaries[line].plans.items()
    for part, second in ((2, 4), (3, 2)):
        found = TooLate("gw", child.epoch, seq, part, "s", at(second), lasting=True)
        driver.state.set_apart(found, *of, late=True)
    packed = decision_checkpoint.dumps(driver.decider, driver.state, driver.parts)
    driver.decider, driver.state, driver.parts = decision_checkpoint.loads(packed, driver.limits, GRACE_US)
    page = driver._lookups().page(line)
    assert page is not None
    start = np.array([at(1), at(3), at(5)])
    rows = Partials(start, start + 1, np.zeros(3, np.int64), {"count": np.ones(3, np.int64)})
    left = {late: page.in_time(rows, seq, number, late=late).start.tolist() for late in (False, True)}
    assert left == {False: start.tolist(), True: [at(5)]}


def test_the_numpy_root_makes_a_session_that_is_longer_than_the_horizon_again_from_its_first_piece() -> None:
    """protocol 5.4: it was made of its last two horizons, and the row of all of it was withdrawn."""
    root, child = NumpyRoot(JOURNAL, grace_us=GRACE_US, horizon_us=10 * SECOND), Child("gw", (GAP,))
    rows: dict[int, Row] = {}
    frontier_and_rows: tuple[tuple[float, Sequence[float], bool], ...] = (
        *((second + 0.1, [second], False) for second in range(95)),
        (94.2, [30.5], True),
        (100, [], False),
        (100.5, [93.5], True),
        (101.5, [92.5], True),
    )
    payloads = [child.birth(), *(sent(child, us, *seconds, late=late) for us, seconds, late in frontier_and_rows)]
    for number, payload in enumerate(payloads):
        root.take("gw", frames.decode(payload), at(number))
        rows |= {row.start: row for row in root.step(at(number))}
    assert [(row.start, row.readings, row.revision) for row in rows.values()] == [(at(0), 97, 2)]
    assert [each.start for each in root.beyond] == [at(30.5)]


def test_rows_of_a_group_that_ends_with_them_can_be_listed() -> None:
    """Its plans are forgotten in that decision; the epoch still says what their columns are."""
    asked = Query("q", 1, "s", Tumbling(10 * S), SUM, lateness_us=0)
    senders = [Sender(node, asked) for node in ("here", "away")]
    root, begin_us, now_us = root_of(*senders, horizon_us=100 * S), 1_000_000 * S, 1_000_500 * S
    for sender in senders:
        frame = sender.send((begin_us, begin_us + S, "", 1.0), frontier_us=now_us)
        root.take(sender.node, frame, now_us)
    root.step(now_us)
    root.take("away", senders[1].send((begin_us + 20 * S, begin_us + 21 * S, "", 5.0), late=True), now_us)
    for sender in senders:
        root.take(sender.node, sender._put(GroupStep(asked.group, None, dropped=(sender.node,))), now_us)
    _, work = decided(root.decider, root.state, now_us, numpy_parts)
    (found,) = work.beyond
    lookups, line = DecodeLookups(root.decider.parent.dictionaries, root.state), EpochKey(found.node, found.epoch)
    page = lookups.page(line)
    assert page is not None
    assert not root.state.plans
    assert lookups.bases([line]).keys() == {*page.plans.values()}
