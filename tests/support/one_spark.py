"""A pytest plugin for `pytest -n 2`: one of the two runs all of tests/cloud, so that one Spark session serves all.

Marks of `xdist_group` would say the same, but pytest-xdist 3.8 hands them over in a field that pytest 9.2 does not
read.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

ROOM: Final = "tests/cloud/"


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Each test is a unit of its own, but for those of one room, which are one unit."""

    def _split_scope(self, nodeid: str) -> str:
        return ROOM if nodeid.startswith(ROOM) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark:
    return OneSpark(config, log)
