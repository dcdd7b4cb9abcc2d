"""Figures are kept whole, whoever else is writing, and judged against the right side of their targets."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import bench, lanes
from tests.benchmarks.bench_decision import Driver
from tests.benchmarks.document import readable, section
from tests.benchmarks.targets import TARGETS
from tests.support.cloud.child_frames import SECOND, START


@pytest.fixture(autouse=True)
def _own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_BENCH", str(tmp_path / "deep" / "bench.json"))


def test_a_figure_replaces_its_own_older_entry_and_no_other() -> None:
    bench.record("a", 1, "s", "once")
    bench.record("b", 2, "s", "once")
    bench.record("a", 3, "s", "again")
    assert {entry["name"]: (entry["value"], entry["how"]) for entry in bench.load()} == {
        "a": (3.0, "again"),
        "b": (2.0, "once"),
    }
    assert all(set(entry) == {"name", "value", "unit", "how", "at"} for entry in bench.load())


def test_what_takes_long_runs_only_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[bench.Benchmark] = []
    chosen: list[list[str]] = []
    for place in (bench, benchmarks):
        monkeypatch.setattr(place, "REGISTERED", registered)
    monkeypatch.setattr(benchmarks, "find", lambda: None)

    def run_all(found: list[bench.Benchmark]) -> int:
        chosen.append([each.names[0] for each in found])
        return 0

    monkeypatch.setattr(benchmarks, "run_all", run_all)
    bench.bench("short")(lambda: None)
    bench.bench("long", alone=True)(lambda: None)
    for names in ([], ["long"], ["short"]):
        benchmarks.main(names)
    assert chosen == [["short"], ["long"], ["short"]]


def test_batches_that_lie_minutes_apart_close_their_windows() -> None:
    """The benchmarks of the root measure nothing where it does not believe the time of their landing files."""
    root, nodes, first, closing = Driver(), lanes.fleet(lanes.WINDOWS[lanes.ONE], 1, 1), 0, []
    for until in (1_200, 1_800, 2_400):
        _, _, work = root.batch(lanes.landed(nodes, first, until))
        closing += [(span.low_us, span.high_us) for span in work.closing]
        first = until
    assert [high for _, high in closing] == [START + (until - 1) * SECOND for until in (1_200, 1_800, 2_400)]


def test_writers_at_one_time_lose_nothing() -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: bench.record(f"n{number}", number, "1", ""), range(40)))
    assert sorted(entry["value"] for entry in json.loads(bench.results_file().read_text())) == list(range(40))


def test_targets_know_their_good_side() -> None:
    assert TARGETS["lander_frames"].met(15e3)
    assert not TARGETS["lander_frames"].met(14.9e3)
    assert TARGETS["gateway_rss_mb"].met(52)
    assert not TARGETS["gateway_rss_mb"].met(52.1)


def test_the_table_of_figures_shows_those_with_a_target_first() -> None:
    bench.record("other", 5, "s", "so")
    bench.record("slicer_1_key", 431e6, "readings/s", "so")
    rows = [line for line in section(bench.load(), "here").splitlines() if line.startswith("| `")]
    assert rows[0].startswith("| `slicer_1_key` | 431 M readings/s | at least 400 M | so, ")
    assert rows[1].startswith("| `other` | 5 s |  | so, ")


@pytest.mark.parametrize(
    ("value", "text"), [(4e8, "400 M"), (70e3, "70 k"), (2.5, "2.5"), (0.0001, "0.0001"), (40, "40")]
)
def test_figures_are_written_with_three_digits(value: float, text: str) -> None:
    assert readable(value) == text
