"""A pytest plugin: says what was skipped, and with CI=true makes a skip a failure (`pytest -p tests.support.skips`)."""

from __future__ import annotations

import os

import pytest
from _pytest.terminal import TerminalReporter


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    for report in skipped:
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"skipped: {report.nodeid}: {reason}")
    if skipped and forbidden():
        terminalreporter.write_line(f"{len(skipped)} skipped, and CI=true allows none", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(reporter, TerminalReporter) and reporter.stats.get("skipped") and forbidden():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def forbidden() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")
