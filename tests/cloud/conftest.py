"""One Spark session for all tests of the cloud job: starting one takes ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from cloud_job import session

    started = session.start("headwater-tests")
    yield started
    started.stop()
