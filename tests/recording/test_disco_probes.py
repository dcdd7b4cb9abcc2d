"""What the published system gets wrong comes out right here, and in time."""

from __future__ import annotations

import json

import pytest

from edge_agent.algebra.frame import Frame
from edge_agent.recording.parser import Recording, parse
from edge_agent.recording.row_rendering import RowRenderer
from edge_agent.recording.streams import FAR_US
from edge_agent.recording.tree import JOURNAL, Tree
from edge_agent.root.numpy.executor import NumpyRoot
from edge_agent.root.numpy.rows import Row
from edge_agent.wire import frames
from tests.support.recording.probes import PROBES, Probe, ones, query, rows_of, tree


def recording_of(probe: Probe, name: str = "probe") -> Recording:
    """A probe as replay reads it."""
    recording = parse(json.dumps(probe.given), name)
    assert not recording.refused
    return recording


def holds_rows(payload: bytes) -> bool:
    """Whether a message brings readings."""
    message = frames.decode(payload)
    return isinstance(message, Frame) and any(part.sections or part.late for part in message.groups)


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_gives_its_rows(name: str) -> None:
    """protocol 4.2, 5.1, 5.3, 6.1."""
    probe = PROBES[name]
    recording = recording_of(probe)
    assert rows_of(RowRenderer(recording).final(Tree(recording).run())) == probe.rows, probe.why


@pytest.mark.parametrize("name", [name for name, probe in PROBES.items() if probe.in_time])
def test_a_probe_gives_its_rows_before_the_streams_end(name: str) -> None:
    """protocol 5.1: the bound closes a session, not its successor, and the frontier a window."""
    probe = PROBES[name]
    recording = recording_of(probe)
    running = Tree(recording)
    families = running.root.decider.parent.children.memberships
    early = (row for row in running.run() if all(family.published_us < running.end_us for family in families.values()))
    got = rows_of(RowRenderer(recording).final(early))
    assert {place: got.get(place) for place in probe.in_time} == {place: probe.rows[place] for place in probe.in_time}


def test_a_message_delivered_twice_counts_once() -> None:
    """T4, protocol 1.1: child 0's partial twice, then child 1's: 15, not 20 early."""
    given = tree(
        [query("sum", type="tumbling", length=100)], [[10, None, 10], [150, None, 0]], [[20, None, 5], [150, None, 0]]
    )
    recording = parse(json.dumps(given), "T4")
    running = Tree(recording)
    list(running.run())
    named = sorted({message.node for message in running.messages})
    root = NumpyRoot(JOURNAL, grace_us=FAR_US, named=named, horizon_us=FAR_US)
    rows: list[Row] = []
    known = next(n for n, message in enumerate(running.messages) if holds_rows(message.payload))
    for message in [*running.messages[:known], *sorted(running.messages[known:], key=lambda m: m.node)]:
        for _ in range(2):
            root.take(message.node, frames.decode(message.payload), running.now_us)
            rows += root.step(running.now_us)
    first = [row for row in rows if row.start == 0]
    assert [(row.values, row.revision) for row in first] == [({"sum": 15.0}, 0)]


def test_a_child_that_never_speaks_is_missing_from_a_row_not_a_reason_to_wait() -> None:
    """T6, protocol 4.4: after the grace time the row is there, and says who is not in it."""
    recording = parse(json.dumps(tree([query("sum", type="tumbling", length=100)], ones(0, 190))), "T6")
    running = Tree(recording)
    list(running.run())
    speaking = running.messages[0].node
    grace_us = 60_000_000
    root = NumpyRoot(JOURNAL, grace_us=grace_us, named=(speaking, "silent"))
    for message in running.messages:
        root.take(message.node, frames.decode(message.payload), message.received_us)
    now_us = running.messages[-1].received_us
    assert root.step(now_us) == []
    for message in running.messages[-1:]:  # heard of again, so that it is not silent itself
        root.take(message.node, frames.decode(message.payload), now_us + grace_us + 1)
    rows = root.step(now_us + grace_us + 1)
    assert [(row.start, row.values["sum"]) for row in rows] == [(0, 10.0), (100_000, 10.0)]
    assert [(row.expected, row.received, row.coverage.missing) for row in rows] == [(2, 1, (("silent", "behind"),))] * 2


def test_sessions_that_a_late_reading_joins_are_withdrawn() -> None:
    """protocol 5.4: the joined rows do not stand beside the one they became."""
    recording = recording_of(PROBES["late-joins"])
    told = [
        (row.start // 1000, row.values["sum"], row.withdrawn) for row in Tree(recording).run() if "key=1" in row.key
    ]
    assert told == [(100, 1.0, False), (200, 2.0, False), (200, 2.0, True), (100, 7.0, False), (500, 8.0, False)]
