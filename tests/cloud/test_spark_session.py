"""The settings of a session, of ours and of others. No Spark is started."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from cloud_job import spark_session


class Session:
    """The session of a cluster. refuses: as serverless compute, it lets a job set few settings."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.conf, self.settings, self._refuses = self, dict[str, str](), refuses
        self.stopped = False

    def set(self, name: str, value: str) -> None:
        if self._refuses:
            raise RuntimeError(f"[CONFIG_NOT_AVAILABLE] Configuration {name} is not available.\nand more")
        self.settings[name] = value

    def appName(self, name: str) -> Session:
        return self

    def getOrCreate(self) -> Session:
        return self

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("refuses", [False, True])
def test_a_session_of_databricks_gets_the_settings_on_which_rows_depend(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refuses: bool
) -> None:
    """A key of a child that has a label twice failed the rows of its windows there."""
    from pyspark.sql import SparkSession

    session: Any = Session(refuses=refuses)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    monkeypatch.setattr(SparkSession, "builder", session)
    started: Any = spark_session.start()
    assert started is session
    assert session.settings == ({} if refuses else {"spark.sql.mapKeyDedupPolicy": "LAST_WIN"})
    assert [record.message for record in caplog.records] == ["root.setting_refused"] * refuses


def test_the_session_of_a_cluster_goes_on_after_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the work of everybody else on the cluster."""
    session: Any = Session()
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    spark_session.stop(session)
    assert not session.stopped
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION")
    spark_session.stop(session)
    assert session.stopped


class Builder:
    """The builder of a session of ours; it starts nothing."""

    def __init__(self) -> None:
        self.settings = dict[str, str]()

    def appName(self, name: str) -> Builder:
        return self

    master = appName

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Builder:
        return self


@pytest.mark.spark  # it needs Java and the jars
@pytest.mark.parametrize("language", ["ar", "fa"])
def test_the_language_of_the_machine_is_not_that_of_the_names_of_files(
    monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    """Delta named commits with Arabic digits, and did not find them: each batch was in no table."""
    from pyspark.sql import SparkSession

    builder: Any = Builder()
    monkeypatch.setattr(SparkSession, "builder", builder)
    spark_session.start()
    options = builder.settings["spark.driver.extraJavaOptions"].split()
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": f"-Duser.language={language} -Duser.country=EG"}
    command = ["java", *options, "-XshowSettings:locale", "-version"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stderr
    assert "default format locale = English (United States)" in shown


ENCODING = """
import os, subprocess
from pyspark.sql import SparkSession
from cloud_job import spark_session
from tests.cloud.test_spark_session import Builder

SparkSession.builder = Builder()
spark_session.start()
subprocess.run(["java", "-XshowSettings:properties", "-version"], timeout=60, check=True)
"""


@pytest.mark.spark  # it needs Java and the jars
@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_a_folder_of_tables_has_any_name_whatever_the_locale(locale: str) -> None:
    """A service without a locale has C. Python then takes names for UTF-8, and the JVM had no name with an umlaut."""
    environment = {**os.environ, "LC_ALL": locale}
    command = [sys.executable, "-c", ENCODING]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stderr
    assert "sun.jnu.encoding = UTF-8" in shown
