"""What tests of every room may ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

from edge_agent.algebra import windows
from edge_agent.config.definitions import window_table
from tests.support.fakes import FakeClock, Mosquitto, find_mosquitto

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No profile fails a test because the machine is slow. What gates a change tries the same examples in every run.
STEADY: Final = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None, print_blob=False
)
settings.register_profile("house", STEADY, max_examples=100)
settings.register_profile("quick", STEADY, max_examples=20)  # make quick
settings.register_profile("mutants", STEADY, max_examples=100, phases=[Phase.explicit, Phase.generate])  # make mutants
settings.register_profile("oldest", STEADY, max_examples=20)  # the edge once more, with the oldest libraries
settings.register_profile("explore", STEADY, max_examples=200, derandomize=False, print_blob=True)  # make explore
settings.load_profile("house")


@pytest.hookimpl(trylast=True)  # after Hypothesis has loaded the profile of the command line
def pytest_configure() -> None:
    """Hypothesis also draws constants of the modules loaded so far: the examples would depend on what was collected."""
    if settings.get_current_profile_name() != "explore":
        providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture
def without_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a version that does not carry count_tumbling yet: what is of a later one is no mistake."""
    known = {word: cls for word, cls in windows.ALL.items() if word != "count_tumbling"}
    monkeypatch.setattr(window_table, "ALL", known)
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


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests of a process: starting one takes ten seconds (two processes of three: two_sparks)."""
    from cloud_job import spark_session

    started = spark_session.start("headwater-tests")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def empty_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables without rows: a job takes half a second to make each."""
    from cloud_job.delta import tables

    folder = tmp_path_factory.mktemp("empty")
    tables.create(spark, tables.place(str(folder)))
    return folder
