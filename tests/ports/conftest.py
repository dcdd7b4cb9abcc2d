"""The connections of a test, closed after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ports.net import Net


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    yield made
    made.close()
