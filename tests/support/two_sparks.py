"""A pytest plugin for `pytest -n 3`: two of the three run the modules of ROOMS, each with a Spark session.

A third session would take longer to start and to warm up than it saves on two cores; the third process takes what waits
for processes, and its cores go to Spark. Marks of `xdist_group` would keep modules together too, but pytest-xdist 3.8
hands them over in a field that pytest 9.2 does not read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

ROOMS: Final = ("tests/cloud/", "tests/faults/test_powercut_root.py")  # tests that start a session in their process
SESSIONS: Final = 2


class TwoSparks(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Each test is a unit of its own, but for a module of ROOMS, which is one unit."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self.with_spark: set[WorkerController] = set()

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0] if nodeid.startswith(ROOMS) else nodeid

    def _assign_work_unit(self, node: WorkerController) -> None:
        may = node in self.with_spark or len(self.with_spark) < SESSIONS
        unit = next_unit(self.workqueue, may)
        if unit.startswith(ROOMS):
            self.with_spark.add(node)
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)


def next_unit(queue: Iterable[str], may_have_spark: bool) -> str:
    """The first unit of the kind that the process is for; when none is left, the first."""
    units = list(queue)
    return next((unit for unit in units if unit.startswith(ROOMS) == may_have_spark), units[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TwoSparks:
    return TwoSparks(config, log)
