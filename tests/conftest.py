"""What tests of every room may ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from edge_agent.config.definitions import window_table
from tests.support.fakes import FakeClock, Mosquitto, find_mosquitto

# nothing fails because a machine is slow; what runs once more with the oldest libraries asks whether these do the same
settings.register_profile("house", settings(), deadline=None)
settings.register_profile("oldest", settings(), deadline=None, max_examples=20)
settings.load_profile("house")


@pytest.fixture
def without_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a version that does not carry count_tumbling yet: what is of a later one is no mistake."""
    known = {word: keys for word, keys in window_table.WINDOWS.items() if word != "count_tumbling"}
    monkeypatch.setattr(window_table, "WINDOWS", known)
    monkeypatch.setattr(window_table, "LATER_WINDOWS", ("count_tumbling",))


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
