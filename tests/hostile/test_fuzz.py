"""The short, fixed part of `make hostile`."""

from __future__ import annotations

from tests.hostile.fuzz import fuzz_frames, fuzz_texts


def test_good_frames_between_bad_ones_all_count() -> None:
    assert fuzz_frames(2_000, seed=7).good >= 2_000


def test_good_definitions_between_bad_texts_are_all_in_force() -> None:
    assert fuzz_texts(1_500, seed=7).good == 3
