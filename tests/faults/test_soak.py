"""A soak of half a minute runs and is sampled; what grows is found in samples of any length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.soak import MB, Sample, growing, growth, soak
from tests.faults.tree import Plan


def test_what_grows_is_found_and_what_breathes_is_not() -> None:
    flat = [Sample(40 * MB + n % 3 * 100_000, 12, 5 * MB + n % 7 * 90_000) for n in range(60)]
    assert growing({"a": flat}) == []
    leaking = [Sample(40 * MB + n * 200_000, 12 + n // 10, 5 * MB + n * 70_000) for n in range(60)]
    assert [line.split(" grows")[0] for line in growing({"a": flat, "b": leaking})] == [
        "b: memory",
        "b: descriptors",
        "b: disk",
    ]
    assert growth(flat[:8]) == {}


@pytest.mark.broker
@pytest.mark.slow
def test_every_process_of_a_tree_is_sampled_and_its_rows_are_right(tmp_path: Path) -> None:
    plan = Plan(regions=1, gateways=1, keys=40, tick_s=1.0, rhythm="200ms")
    samples, outcome = soak(tmp_path, plan, 12.0)
    assert set(samples) == {"root", "region-1", "gw-1-1"}
    last = [seen[-1] for seen in samples.values()]  # the first may be of a process that has just been started
    assert all(sample.memory > 10 * MB and sample.descriptors > 5 for sample in last)
    assert outcome.exact, outcome.summary()
