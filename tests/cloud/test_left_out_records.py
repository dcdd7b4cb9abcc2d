"""What is left out of a batch that fails, and who is told (docs/protocol.md 8.1; no Spark)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.ingest.intake import LeftOut, RecordError
from cloud_job.spark import batch_guard
from cloud_job.spark.batch_guard import BatchGuard
from cloud_job.spark.possible_work import REASON
from edge_agent.wire import landing
from tests.support.cloud.child_frames import START, tick


def test_a_record_that_fails_again_is_not_settled_and_then_it_is_not_the_records() -> None:
    """protocol 3.6. With several of one topic all its records are left out, but never those of the lander itself."""
    error, out = RuntimeError("why"), dict[Any, LeftOut]()
    records = [("topic", n, b"") for n in range(7)]
    batch_guard._leave_out(out, records[0], "first", error)
    batch_guard._leave_out(out, records[0], "second", error)
    assert out == {records[0]: LeftOut("first", settled=False)}
    with pytest.raises(RuntimeError, match="why"):
        batch_guard._leave_out(out, records[0], "third", error)
    for each in records[1:5]:
        batch_guard._leave_out(out, each, "why", error)
    assert [*out] == records[:5]
    batch_guard._leave_out(out, records[5], "why", error)
    assert out["topic"] == LeftOut("5 records of topic could not be handled")
    batch_guard._leave_out(out, records[6], "why", error)
    assert not out["topic"].settled
    with pytest.raises(RuntimeError, match="why"):
        batch_guard._leave_out(out, records[6], "why", error)
    batch_guard._leave_out(out, ("other", 1, b""), "why", error)
    own = [(landing.TICK_TOPIC, n, b"") for n in range(9)]
    for each in own:
        batch_guard._leave_out(out, each, "why", error)
    assert landing.TICK_TOPIC not in out
    assert all(each in out for each in (*own, ("other", 1, b"")))


def test_all_topics_of_a_file_but_the_lander_s_are_found_up_to_the_damage() -> None:
    content = tick(START) + b"".join(landing.encode(topic, START, b"x") for topic in ("a", "b", "a", "c"))
    assert batch_guard._topics(content) == ["a", "b", "c"]
    assert batch_guard._topics(content[:-1]) == ["a", "b"]


def test_a_record_that_raises_is_of_the_world_by_its_cause_alone() -> None:
    """Its text may contain any value of a child."""
    at: Any = ("topic", START, b"")
    for cause, of_the_world in ((OSError("disk"), True), (KeyError("No space left on device"), False)):
        error = RecordError(at, cause)
        error.__cause__ = cause
        if of_the_world:
            with pytest.raises(RecordError):
                batch_guard._raise_if_of_the_world(error)
        else:
            batch_guard._raise_if_of_the_world(error)
    with pytest.raises(RuntimeError):
        batch_guard._raise_if_of_the_world(RuntimeError("No space left on device"))


def test_what_a_start_could_not_carry_out_is_told() -> None:
    told: list[tuple[str, str]] = []
    job: Any = SimpleNamespace(impossible=[SimpleNamespace(why="ValueError: x", name="query q")])
    BatchGuard(lambda: job, lambda why, name: told.append((why, name)))
    assert told == [(f"{REASON}: ValueError: x", "query q")]
