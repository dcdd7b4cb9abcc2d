"""A step of upkeep that fails for long: how often it is tried and told (no Spark)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_job.delta import driver_rows
from cloud_job.delta.retention import Kept
from cloud_job.delta.upkeep import FAILED, MOST_RETRY_S, RETRY_S, TELL_S, Upkeep, UpkeepStep


def fails(_: object) -> None:
    raise ValueError("no space left")


class Failing:
    """Upkeep with one step that fails. told: rows of ops.gaps so far; pauses_s: from each failure to the next try."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.told, self.pauses_s = 0.0, 0, list[float]()
        self.rows, self.noted, self.did = list[Any](), list[tuple[str, str]](), list[str]()
        self.append_fails: Exception | None = None
        monkeypatch.setattr(driver_rows, "rows", lambda _spark, _table, content: self.rows.extend(content))
        self.step = UpkeepStep("clean", 1.0, fails)
        self.upkeep = Upkeep(
            Kept(1, 1), 1_000_000, lambda: self.now_s, [self.step], lambda *why: self.noted.append(why)
        )
        place = SimpleNamespace(append=self._append)
        state = SimpleNamespace(number=1)
        self.root: Any = SimpleNamespace(state=state, spark=None, place=place, committed=self.did.append)

    def _append(self, *_: object) -> None:
        if self.append_fails is not None:
            raise self.append_fails
        self.told += 1

    def once(self) -> None:
        self.now_s = self.step.due_s
        self.upkeep.between(self.root)
        self.pauses_s.append(self.step.due_s - self.now_s)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


def test_it_is_tried_again_with_pauses_that_double_up_to_an_hour(failing: Failing) -> None:
    for _ in range(12):
        failing.once()
    assert failing.pauses_s == [min(RETRY_S * 2**n, MOST_RETRY_S) for n in range(12)]
    assert failing.upkeep.failed == 12


def test_it_is_told_once_a_day(failing: Failing) -> None:
    while failing.now_s < TELL_S / 2:
        failing.once()
    assert failing.told == 1
    while failing.now_s < 2.5 * TELL_S:
        failing.once()
    assert failing.told == 3


def test_it_is_tried_every_hour_however_often_it_has_failed(failing: Failing) -> None:
    failing.step.failures = 5_000
    failing.once()
    assert failing.pauses_s == [MOST_RETRY_S]


def test_its_row_says_what_failed_and_is_durable(failing: Failing) -> None:
    failing.step.act = raising(ValueError(f"no space left{'!' * 300}\nmore"))
    failing.once()
    ((row),) = failing.rows
    why = f"ValueError: {('no space left' + '!' * 300)[:200]}"
    assert row["detail"] == f"clean, 1 in a row: {why}"
    assert (row["reason"], row["start"], row["end"], row["readings"], row["batch"]) == (FAILED, 0, 0, 0, 1)
    assert failing.did == ["upkeep"]
    assert failing.noted == [(why, "clean, 1 in a row")]
    failing.step.act = raising(ValueError())
    failing.once()
    assert failing.noted[1:] == [("ValueError: ", "clean, 2 in a row")]


def test_a_row_that_could_not_be_written_is_written_with_the_next_failure(failing: Failing) -> None:
    failing.append_fails = OSError("no space left")
    failing.once()
    assert (failing.told, failing.did) == (0, [])
    failing.append_fails = None
    failing.once()
    assert (failing.told, failing.did) == (1, ["upkeep"])


@pytest.mark.parametrize("where", ["act", "append"])
def test_without_a_jvm_the_root_ends(failing: Failing, where: str) -> None:
    """While no messages arrive, nothing else would notice."""
    if where == "act":
        failing.step.act = raising(ConnectionRefusedError())
    else:
        failing.append_fails = ConnectionRefusedError()
    with pytest.raises(ConnectionRefusedError):
        failing.once()


def raising(error: Exception) -> Callable[[object], None]:
    def act(_: object) -> None:
        raise error

    return act
