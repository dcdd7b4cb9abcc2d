"""What tests of every room may ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeClock, Mosquitto, find_mosquitto


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[..., Mosquitto]]:
    """Starts brokers on free ports: brokers("max_packet_size 2000", ...)."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    started: list[Mosquitto] = []

    def start(*extra: str) -> Mosquitto:
        started.append(Mosquitto(tmp_path, *extra))
        return started[-1]

    yield start
    for broker in started:
        broker.kill()


@pytest.fixture
def mosquitto(brokers: Callable[..., Mosquitto]) -> Mosquitto:
    """One broker with the settings a gateway's local one has."""
    return brokers()
