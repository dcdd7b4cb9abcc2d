"""The root's loop over landing files: order, size of a batch, --once, and no haste where nothing comes (no Spark)."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud_job.ingest import landing_loop
from cloud_job.ingest.landing_loop import LandingLoop
from cloud_job.spark.job import JobSettings
from edge_agent.errors import PortError
from edge_agent.root.decision.root_state import RootLimits
from edge_agent.wire.landing import encode_tick


class TakingJob:
    """Takes files like a job; those of its last batch still lie there."""

    def __init__(self, folder: str) -> None:
        """folder: of the landing files."""
        self.settings = JobSettings(folder)
        self.batches: list[list[str]] = []
        self.asked = self.finished = 0

    def took(self, name: str) -> bool:
        self.asked += 1
        return bool(self.batches) and name in self.batches[-1]

    def process(self, files: list[tuple[str, bytes]]) -> None:
        for name in self.batches[-1] if self.batches else ():
            (Path(self.settings.landing) / name).unlink()
        self.batches.append([name for name, _ in files])

    def finish(self) -> None:
        self.finished += 1


def land(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(bytes(10))


def loop(job: TakingJob, **limits: Any) -> LandingLoop:
    return LandingLoop(job, **limits)  # type: ignore[arg-type]


def test_files_are_taken_in_the_order_of_their_names_and_once_ends_with_those_that_were_there(tmp_path: Path) -> None:
    """protocol 8.1"""
    job = TakingJob(str(tmp_path))
    land(tmp_path, "3.cborseq", "1.cborseq", ".4.cborseq", ".4.cborseq.tmp", "notes.txt", "2.cborseq")
    process = job.process

    def more(files: list[tuple[str, bytes]]) -> None:
        process(files)
        land(tmp_path, "9.cborseq")  # a lander goes on writing

    job.process = more  # type: ignore[method-assign]
    loop(job, once=True, max_bytes=15).run()
    assert job.batches == [["1.cborseq", "2.cborseq"], ["3.cborseq"]]
    assert job.finished == 1


def test_a_batch_spans_a_quarter_of_the_horizon_so_that_no_reading_becomes_too_late_while_it_waits(
    tmp_path: Path,
) -> None:
    """protocol 4.2. A root that came back after more than a horizon left out what had been late when it came."""
    job, hour_us = TakingJob(str(tmp_path)), 3_600_000_000
    job.settings = replace(job.settings, limits=RootLimits(horizon_us=8 * hour_us))
    for at, clock in enumerate((0, 1, 2, 3, None, 5, 6, 100, 7)):  # None: damaged; 100: the clock steps, and back
        content = b"bad" if clock is None else encode_tick(10**15 + clock * hour_us, 1, connected=True)
        (tmp_path / f"{at}.cborseq").write_bytes(content)
    loop(job, once=True).run()
    assert [len(batch) for batch in job.batches] == [3, 3, 1, 2]


def test_a_batch_has_no_more_files_than_the_guard_allows(tmp_path: Path) -> None:
    """After a start that was killed. Between two batches the loop answers to systemd, and stops if it is told to."""
    job, alive = TakingJob(str(tmp_path)), list[int]()
    land(tmp_path, *(f"{n}.cborseq" for n in range(7)))
    allowed = iter([1, 1, 2, None])
    loop(job, once=True, most_files=lambda: next(allowed, None)).run(lambda: alive.append(len(job.batches)))
    assert [len(batch) for batch in job.batches] == [1, 1, 2, 3]
    assert alive[:4] == [0, 1, 2, 3]


def test_what_is_no_regular_file_is_left_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder or a link to nothing ended each start, and a pipe blocked the root for ever."""
    job = TakingJob(str(tmp_path))
    (tmp_path / "1.cborseq").mkdir()
    os.mkfifo(tmp_path / "2.cborseq")
    (tmp_path / "3.cborseq").symlink_to("nothing")
    (tmp_path / "4.cborseq").symlink_to("4.cborseq")
    land(tmp_path, "5", "7.cborseq")
    (tmp_path / "6.cborseq").symlink_to("5")
    running = loop(job, once=True)
    for _ in range(2):
        running.run()
    assert job.batches == [["6.cborseq", "7.cborseq"]]
    told = [(record.message, Path(vars(record)["file"]).name) for record in caplog.records]
    assert told == [("landing.not_a_file", f"{number}.cborseq") for number in range(1, 5)]


def test_a_file_whose_name_is_no_text_is_left_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No decision could name it, so no batch with it was ever written: each start ended at it."""
    job = TakingJob(str(tmp_path))
    land(tmp_path, "1.cborseq", "2-\udcff.cborseq", "3-\u00e4.cborseq")
    running = loop(job, once=True)
    for _ in range(2):
        running.run()
    assert job.batches == [["1.cborseq", "3-\u00e4.cborseq"]]
    assert [record.message for record in caplog.records] == ["landing.not_a_file"]


def test_a_batch_ends_with_the_file_that_fills_it_and_has_at_least_one(tmp_path: Path) -> None:
    for most, sizes in ((0, [1, 1, 1]), (19, [2, 1]), (20, [2, 1]), (21, [3])):
        job = TakingJob(str(tmp_path / str(most)))
        running = loop(job, once=True, max_bytes=most)
        land(tmp_path / str(most), "1.cborseq", "2.cborseq", "3.cborseq")
        running.run()
        assert [len(batch) for batch in job.batches] == sizes


def test_a_short_horizon_does_not_make_batches_shorter_than_a_root_can_take(tmp_path: Path) -> None:
    job = TakingJob(str(tmp_path))
    job.settings = replace(job.settings, limits=RootLimits(horizon_us=1_000_000))
    for at, second in enumerate((0, 7, 15, 16, 31, 32)):
        (tmp_path / f"{at}.cborseq").write_bytes(encode_tick(10**15 + second * 1_000_000, 1, connected=True))
    loop(job, once=True).run()
    assert [len(batch) for batch in job.batches] == [3, 2, 1]


class Turns:
    """A clock that passes only while the loop waits or works, and that stops the loop at its end."""

    def __init__(self, until_s: float) -> None:
        self.now_s, self.until_s = 0.0, until_s
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def is_set(self) -> bool:
        return self.now_s >= self.until_s

    def wait(self, for_s: float) -> bool:
        self.waits.append(for_s)
        self.now_s = round(min(self.now_s + for_s, self.until_s), 6)
        return self.is_set()


def test_batches_begin_at_the_trigger_and_an_idle_loop_looks_and_says_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep runs between batches and while nothing comes; a stop ends a wait at once."""
    job, turns = TakingJob(str(tmp_path)), Turns(6.3)
    between, alive, began = list[float](), list[float](), list[float]()
    lands = {0.0: "1", 2.0: "2", 3.0: "3"}
    process = job.process

    def takes(files: list[tuple[str, bytes]]) -> None:
        began.append(turns.now_s)
        turns.now_s += 0.25
        process(files)

    def comes() -> None:
        for name in [lands.pop(at_s) for at_s in list(lands) if at_s <= turns.now_s]:
            land(tmp_path, f"{name}.cborseq")
        between.append(turns.now_s)

    job.process = takes  # type: ignore[method-assign]
    monkeypatch.setattr(landing_loop, "time", turns)
    running = loop(job, trigger_us=2_000_000, between=comes)
    running._stopping = turns  # type: ignore[assignment]
    running.run(lambda: alive.append(turns.now_s))
    assert began == [0.5, 3.0, 5.0], "no sooner than the trigger after the batch before"
    assert between == [0.0, 0.75, 2.5, 3.25, 5.25]
    assert max(turns.waits) <= landing_loop.POLL_S
    assert alive[:8] == [0.0, 0.5, 0.5, 1.25, 1.75, 2.25, 2.5, 2.5]
    assert job.finished == 1
    assert turns.now_s == turns.until_s, "it does not end because nothing comes, and not later than it is told"


def test_files_that_did_not_fit_do_not_wait_for_the_trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, turns, began = TakingJob(str(tmp_path)), Turns(9.0), list[float]()
    process = job.process
    job.process = lambda files: (began.append(turns.now_s), process(files))[1]  # type: ignore[method-assign, func-returns-value]
    land(tmp_path, "1.cborseq", "2.cborseq", "3.cborseq")
    monkeypatch.setattr(landing_loop, "time", turns)
    running = loop(job, trigger_us=2_000_000, max_bytes=1)
    running._stopping = turns  # type: ignore[assignment]
    running.run()
    assert began == [0.0, 0.0, 0.0]


def test_a_loop_that_is_to_end_after_what_is_there_does_nothing_between_batches(tmp_path: Path) -> None:
    job, between = TakingJob(str(tmp_path)), list[int]()
    land(tmp_path, "1.cborseq", "2.cborseq")
    began_s = time.monotonic()
    running = loop(job, once=True, max_bytes=1, trigger_us=30_000_000, between=lambda: between.append(1))
    running.run()
    assert (job.batches, between) == ([["1.cborseq"], ["2.cborseq"]], [])
    assert time.monotonic() - began_s < 20, "it does not wait for the trigger"


def test_an_empty_folder_is_looked_at_now_and_then(tmp_path: Path) -> None:
    """Also with a trigger of 0 s, which means: as soon as there is something."""
    job = TakingJob(str(tmp_path / "landing"))
    running = loop(job, trigger_us=0)
    land(tmp_path / "landing", "1.cborseq")
    thread = threading.Thread(target=running.run)
    thread.start()
    time.sleep(1.2)
    running.stop()
    thread.join(10)
    assert job.batches == [["1.cborseq"]]
    assert job.asked < 10


def test_a_folder_that_cannot_be_listed_is_one_clear_line() -> None:
    with pytest.raises(PortError, match="s3://here is not one: mount it"):
        loop(TakingJob("s3://here"))


def test_a_folder_that_is_gone_does_not_look_like_one_without_new_files(tmp_path: Path) -> None:
    folder = tmp_path / "landing"
    running = loop(TakingJob(str(folder)), once=True)
    folder.rmdir()
    with pytest.raises(PortError, match="cannot list the landing files"):
        running.run()
