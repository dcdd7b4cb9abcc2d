"""Sessions at the plain-Python root, by the frames it is given (docs/protocol.md 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn, overload

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import Session
from edge_agent.root.numpy.rows import Row
from edge_agent.root.numpy.session_rows import latest_first
from tests.support.machines.scripted_child import GRACE, SUM, S, Sender, root_of

VISITS = Query("visits", 1, "door", Session(5 * S), SUM, by=("k",))
X = "k=x"


def piece(first_s: int, last_s: int, value: float) -> tuple[int, int, str, float]:
    """Of the key X."""
    return first_s * S, last_s * S + 1, X, value


def hinted(frame: Frame, start_us: int | None) -> Frame:
    """With a register for the key numbered 0."""
    (part,) = frame.groups
    return replace(frame, groups=(replace(part, registers=((0, start_us),)),))


def told(rows: list[Row]) -> list[tuple[int, int, float | None, int, bool]]:
    """(start in s, end in s, sum, revision, withdrawn) of each, in order of start."""
    return sorted((r.start // S, r.end // S, r.values["sum"], r.revision, r.withdrawn) for r in rows)


def test_a_session_waits_for_the_earliest_start_that_a_child_still_holds() -> None:
    """protocol 5.1: the lesser of frontier and hint."""
    a, b = Sender("a", VISITS), Sender("b", VISITS)
    root = root_of(a, b)
    root.take("a", hinted(a.send(piece(10, 12, 1.0), frontier_us=60 * S), 15 * S), S)
    root.take("b", b.send(frontier_us=60 * S), S)
    assert root.step(S) == []
    root.take("a", a.send(piece(15, 16, 2.0), frontier_us=61 * S), S)
    assert told(root.step(S)) == [(10, 21, 3.0, 0, False)]


def test_a_partial_of_a_key_clears_its_register_and_none_does_so_without_one() -> None:
    """protocol 5.2."""
    a = Sender("a", VISITS)
    root = root_of(a)
    root.take("a", hinted(a.send(piece(10, 12, 1.0), frontier_us=20 * S), 15 * S), S)
    assert root.step(S) == []
    root.take("a", hinted(a.send(piece(15, 16, 2.0), frontier_us=60 * S), 16 * S), S)  # stated again: it remains
    assert root.step(S) == []
    root.take("a", hinted(a.send(frontier_us=61 * S), None), S)
    assert told(root.step(S)) == [(10, 21, 3.0, 0, False)]


def test_a_late_piece_joins_two_rows_into_one_and_the_other_is_withdrawn() -> None:
    """protocol 5.4."""
    a = Sender("a", VISITS)
    root = root_of(a)
    root.take("a", a.send(piece(10, 12, 1.0), piece(20, 22, 2.0), frontier_us=60 * S), S)
    assert told(root.step(S)) == [(10, 17, 1.0, 0, False), (20, 27, 2.0, 0, False)]
    root.take("a", a.send(piece(16, 16, 4.0), late=True), S)
    assert told(root.step(S)) == [(10, 27, 7.0, 1, False), (20, 27, 2.0, 1, True)]


def test_a_late_piece_waits_for_an_open_one_that_joins_the_same_row() -> None:
    """protocol 5.4: the row of all of them holds the readings of all of them."""
    a = Sender("a", VISITS)
    root = root_of(a)
    root.take("a", a.send(piece(10, 12, 1.0), piece(20, 22, 2.0), frontier_us=28 * S), S)
    assert told(root.step(S)) == [(10, 17, 1.0, 0, False), (20, 27, 2.0, 0, False)]
    root.take("a", a.send(piece(16, 16, 4.0), piece(26, 27, 8.0), late=True), S)
    assert root.step(S) == []
    root.take("a", a.send(frontier_us=60 * S), S)
    assert told(root.step(S)) == [(10, 32, 15.0, 1, False), (20, 27, 2.0, 1, True)]


def test_a_late_piece_does_not_wait_for_an_open_one_that_no_row_joins_to_it() -> None:
    """protocol 5.4: late pieces of one open session after the other hold up no row of the past."""
    a = Sender("a", VISITS)
    root = root_of(a)
    root.take("a", a.send(piece(10, 12, 1.0), piece(50, 50, 2.0), frontier_us=57 * S), S)
    root.step(S)
    root.take("a", a.send(piece(16, 16, 4.0), piece(56, 57, 8.0), late=True), S)
    assert told(root.step(S)) == [(10, 21, 5.0, 1, False)]


def test_the_longest_duration_cuts_at_its_multiples_and_nothing_joins_across() -> None:
    """protocol 5.5."""
    a = Sender("a", replace(VISITS, window=Session(5 * S, 20 * S)))
    root = root_of(a)
    root.take("a", a.send(piece(16, 19, 1.0), piece(20, 21, 2.0), piece(24, 25, 4.0), frontier_us=60 * S), S)
    assert told(root.step(S)) == [(16, 24, 1.0, 0, False), (20, 30, 6.0, 0, False)]


def test_rows_of_sessions_are_revised_no_more_often_than_revise_every() -> None:
    """protocol 8.3: what was put off comes when the time is up, or when the holder flushes."""
    a = Sender("a", VISITS)
    root = root_of(a, revise_every_us=60 * S)
    root.take("a", a.send(piece(10, 12, 1.0), frontier_us=60 * S), S)
    assert told(root.step(S)) == [(10, 17, 1.0, 0, False)]
    late = [a.send(piece(at, at, 1.0), late=True) for at in (13, 14, 15, 16)]
    root.take("a", late[0], 2 * S)
    assert told(root.step(2 * S)) == [(10, 18, 2.0, 1, False)]
    root.take("a", late[1], 3 * S)
    root.take("a", late[2], 4 * S)
    assert root.step(4 * S) == []
    assert told(root.step(62 * S)) == [(10, 20, 4.0, 2, False)]
    root.take("a", late[3], 63 * S)
    assert root.step(63 * S) == []
    assert told(root.step(63 * S, flush=True)) == [(10, 21, 5.0, 3, False)]


def test_a_session_no_longer_than_the_horizon_keeps_its_first_piece_while_it_may_change() -> None:
    """protocol 5.4: it is made again from all its pieces."""
    a = Sender("a", VISITS)
    root = root_of(a, horizon_us=100 * S)
    for at in range(10, 114, 4):
        root.take("a", a.send(piece(at, at, 1.0), frontier_us=(at + 1) * S), S)
        assert root.step(S) == []
    root.take("a", a.send(piece(300, 300, 1.0), frontier_us=214 * S), S)
    assert told(root.step(S)) == [(10, 115, 26.0, 0, False)]
    root.take("a", a.send(piece(112, 112, 1.0), late=True), S)
    assert told(root.step(S)) == [(10, 117, 27.0, 1, False)]


def test_pieces_of_a_session_beyond_the_horizon_are_dropped() -> None:
    a = Sender("a", VISITS)
    root = root_of(a, horizon_us=20 * S)
    for at in range(0, 4000, 10):
        root.take("a", a.send(piece(at, at + 2, 1.0), frontier_us=(at + 3) * S), at * S)
        if at % 100 == 50:
            root.take("a", a.lose((at - 5) * S, at * S), at * S)
        root.step(at * S)
    assert sum(len(index) for index in root.kept.indexes.values()) <= 10


def test_a_session_made_again_still_lacks_a_member_that_holds_a_piece_of_it() -> None:
    """protocol 4.7 and 5.2: a member that is back counts, and its register lies before a row written without it."""
    a, b = Sender("a", VISITS), Sender("b", VISITS)
    root = root_of(a, b)
    root.take("b", hinted(b.send(piece(1, 1, 1.0), frontier_us=12 * S), 11 * S), S)
    root.take("a", a.send(piece(10, 12, 1.0), frontier_us=60 * S), GRACE + 2 * S)
    (_, row) = root.step(GRACE + 2 * S)
    assert (row.start, row.coverage.missing) == (10 * S, (("b", "behind"),))
    root.take("b", b.send(frontier_us=60 * S), GRACE + 3 * S)
    assert root.step(GRACE + 3 * S) == []
    root.take("b", hinted(b.send(piece(11, 13, 2.0)), None), GRACE + 4 * S)
    (again,) = root.step(GRACE + 4 * S)
    assert (told([again]), again.complete) == ([(10, 18, 3.0, 1, False)], True)


class LookedAt(Sequence[int]):
    """The starts 0, 10, 20 and so on. Counts how often one is read, and refuses to be copied."""

    def __init__(self, many: int) -> None:
        self.many, self.looks = many, 0

    def __len__(self) -> int:
        return self.many

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> NoReturn: ...
    def __getitem__(self, at: int | slice) -> int:
        assert isinstance(at, int), "a copy for each row takes the square of the sessions of a key"
        self.looks += 1
        return 10 * at


def test_a_row_costs_the_same_however_many_sessions_its_key_has() -> None:
    starts = LookedAt(1_000_000)
    found = latest_first(starts, 5_000_004)
    assert [next(found), next(found)] == [5_000_000, 4_999_990]
    assert starts.looks < 25
    assert list(latest_first([1, 2, 2, 3], 2)) == [2, 2, 1]
