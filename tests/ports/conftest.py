"""The connections of a test and its spool, closed after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.ports.spool import Spool
from tests.support.ports.connections import Net
from tests.support.ports.spools import reopened


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    yield made
    made.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "var" / "spool.db"


@pytest.fixture
def spool(path: Path) -> Iterator[Spool]:
    opened = reopened(path)
    opened.open()
    yield opened
    opened.close()
