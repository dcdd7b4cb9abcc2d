"""The Spark root over what simulated fleets sent it: the rows of the plain-Python root, revision by revision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.support.cloud import recorded_fleets
from tests.support.cloud.jobs import CrashError, Roots, same
from tests.support.cloud.recorded_fleets import wanted_of
from tests.support.simulation.faults import everything, lossy
from tests.support.simulation.world import SECOND

pytestmark = pytest.mark.spark
BATCHES = 5


def run(root: Roots, groups: list[list[recorded_fleets.File]], journal: int) -> None:
    for group in groups:
        paths = recorded_fleets.write(group, journal, root.landing, root.files)
        root.files += len(paths)
        root.batch(paths)
    root.job.finish()


@pytest.mark.parametrize(
    ("seed", "chaos", "changes", "limits"),
    [
        (3, lossy, False, {}),
        (7, everything, True, {}),
        (11, lossy, True, {"revise_every_us": 7 * SECOND, "horizon_us": 100 * SECOND}),
    ],
)
def test_the_same_rows_as_the_numpy_root_and_the_oracle(
    roots: Callable[..., Roots],
    seed: int,
    chaos: Callable[[Random], recorded_fleets.Chaos],
    changes: bool,
    limits: dict[str, int],
) -> None:
    """protocol 2.2, 4.2, 4.4, 4.7, 6.2, 6.3, 7.1, 8.1 to 8.3: every rule at once, over losses, duplicates, disorder."""
    fleet, files = recorded_fleets.fleet(seed, chaos(Random(seed)), changes=changes)
    journal = fleet.world.hosts["root"].journal  # type: ignore[union-attr]
    groups = recorded_fleets.grouped(files, BATCHES, Random(seed))
    rows = recorded_fleets.plain_rows(groups, journal, **limits)
    wanted = wanted_of(rows)
    root = roots(**limits)
    run(root, groups, journal)
    assert len(wanted) > 10
    assert same(root.results(), wanted) == []
    final = {(row.query, row.key, row.start): row for row in rows}
    assert fleet.differences(final) == []
    # as many gateways stand in each row of both (`same`); the table has no names of them
    judged = {place: replace(row, coverage=final[place].coverage) for place, row in root.judged().items()}
    assert fleet.differences(judged) == []


def test_a_crash_after_any_step_changes_nothing(roots: Callable[..., Roots]) -> None:
    """protocol 8.1, 8.2, 8.5: after each step of a batch in turn the process dies, and its files come again."""
    fleet, files = recorded_fleets.fleet(5, lossy(Random(5)))
    journal = fleet.world.hosts["root"].journal  # type: ignore[union-attr]
    groups = recorded_fleets.grouped(files, 6, Random(5))
    wanted = wanted_of(recorded_fleets.plain_rows(groups, journal))
    assert any(row["revision"] for row in wanted.values()), "the recording must revise something"
    root = roots()
    for number, (group, step) in enumerate(
        zip(groups, ("store", "decision", "results", "revisions", "tables", None), strict=True)
    ):
        paths = recorded_fleets.write(group, journal, root.landing, root.files)
        root.files += len(paths)
        root.job.crash = None if step is None else (step, number)
        if step is not None:
            with pytest.raises(CrashError):
                root.batch(paths)
            root.start()
        root.batch(paths)  # Spark hands a batch over again that did not return
    root.job.finish()
    assert same(root.results(), wanted) == []
    assert list(root.landing.glob("*.cborseq")) == []
