"""Logs: one line an event, whatever the values hold; repetition is thinned and counted."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.log import BURST, MAX_VALUE, PERIOD_S, Logfmt, Thin, setup


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    setup("info", stream)
    yield stream
    root.handlers[:], root.level = before, level


def record(event: str = "slice.late", level: int = logging.WARNING, **extra: object) -> logging.LogRecord:
    return logging.getLogger("headwater").makeRecord("headwater", level, "f", 1, event, (), None, extra=extra)


def test_an_event_is_its_name_and_its_fields(lines: io.StringIO) -> None:
    logging.getLogger("headwater").warning("slice.late", extra={"sensor": "boiler", "late_by_s": 7.2, "why": 'a "b" c'})
    logging.getLogger("headwater").debug("not.shown")
    (line,) = lines.getvalue().splitlines()
    assert re.fullmatch(
        r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warning slice\.late sensor=boiler late_by_s=7\.2 why="a \\"b\\" c"',
        line,
    )


@given(st.one_of(st.text(), st.binary(), st.integers(), st.floats(), st.none(), st.lists(st.text(), max_size=2)))
def test_no_value_breaks_the_line_or_fakes_a_field(value: object) -> None:
    line = Logfmt().format(record(got=value, after="yes"))
    assert line.isprintable()
    assert line.endswith(" after=yes")
    fields = re.findall(r' (\w+)=("(?:[^"\\]|\\.)*"|[^ "=]*)', line)
    assert [name for name, _ in fields] == ["got", "after"]


def test_a_long_value_is_cut_and_says_how_long_it_was() -> None:
    line = Logfmt().format(record(got="x" * 100_000))
    assert len(line) < MAX_VALUE + 100
    assert line.endswith("…(100000)")


def test_messages_of_libraries_and_tracebacks_stay_on_one_line(lines: io.StringIO) -> None:
    logging.getLogger("paho").warning("Caught %s\nin callback", "it")
    try:
        raise ValueError("oh\nno")
    except ValueError:
        logging.getLogger("headwater").exception("bug")
    first, second = lines.getvalue().splitlines()
    assert 'paho message="Caught it\\nin callback"' in first
    assert "traceback=" in second
    assert "ValueError" in second


def test_repetition_is_thinned_and_the_next_line_says_how_many_were_left_out() -> None:
    now = 0.0
    thin = Thin(lambda: now)
    assert sum(thin.filter(record()) for _ in range(100)) == BURST
    assert thin.filter(record("other"))
    assert thin.filter(record(sensor="boiler"))
    now = PERIOD_S
    next_one = record()
    assert thin.filter(next_one)
    assert Logfmt().format(next_one).endswith(f" left_out={100 - BURST}")


def test_an_error_that_goes_on_is_a_line_per_period_and_a_new_reason_is_always_one() -> None:
    """On a full disk it was a line per second."""
    now = 0.0
    thin = Thin(lambda: now)
    lines: list[str] = []

    def error(why: str, retry_s: float) -> int:
        one = record("commit.failed", level=logging.ERROR, why=why, retry_s=retry_s)
        if passed := thin.filter(one):
            lines.append(Logfmt().format(one))
        return passed

    assert sum(error("disk is full", n) for n in range(20)) == BURST
    assert error("another", 1.0)
    for period in range(1, 4):
        now = period * PERIOD_S
        assert sum(error("disk is full", n) for n in range(30)) == 1
    assert [line.rpartition(" ")[2] for line in lines[-3:]] == [f"left_out={n}" for n in (20 - BURST, 29, 29)]
    now += 2 * PERIOD_S
    assert sum(error("disk is full", n) for n in range(20)) == BURST, "it had ended"
