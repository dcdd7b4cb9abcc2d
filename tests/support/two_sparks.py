"""A pytest plugin for `pytest -n 3`: two of the three run a half of tests/cloud each, with one Spark session for it.

Marks of `xdist_group` would say the same, but pytest-xdist 3.8 hands them over in a field that pytest 9.2 does not
read.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

ROOM: Final = "tests/cloud/"
SECOND_HALF: Final = "tests/cloud/test_r"  # the files from here on take about as long as those before


class TwoSparks(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Each test is a unit of its own, but for those of tests/cloud, which are two units."""

    def _split_scope(self, nodeid: str) -> str:
        if not nodeid.startswith(ROOM):
            return nodeid
        return SECOND_HALF if nodeid >= SECOND_HALF else ROOM


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TwoSparks:
    return TwoSparks(config, log)
