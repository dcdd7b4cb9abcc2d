"""A pytest plugin of `make explore`: prints each failing example as the lines that keep it in its test."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

import pytest
from _pytest.terminal import TerminalReporter

Reported = Generator[None, pytest.TestReport, pytest.TestReport]

FOUND = pytest.StashKey[list[str]]()
CASE = re.compile(r"(?:Falsifying|Failing)[a-z ]*: \w+\(")
DRAWN = "@example cannot repeat what st.data() draws: give the test a strategy, or write the case as a test of its own"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FOUND] = []


def notes(error: BaseException) -> Iterator[str]:
    """What Hypothesis has written to an error: the failing example, what was drawn, how to repeat it."""
    yield from getattr(error, "__notes__", ())
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from notes(part)


def finding(item: pytest.Item, error: BaseException) -> str:
    """The test, its error and the decorator to add above it."""
    lines = [f"found: {item.nodeid}", *f"{type(error).__name__}: {error}".splitlines()[:3]]
    written = [note.strip() for note in notes(error) if note.strip()]
    if any(note.startswith("Draw ") for note in written):
        written.append(DRAWN)
    if not any(CASE.match(note) for note in written):
        lines.append(f"add: the seed of {item.name} to those of every run")
    return "\n".join([*lines, *(CASE.sub("add above the test:\n@example(", note) for note in written)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Reported:
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if report.failed and error is not None:
        item.config.stash[FOUND].append(finding(item, error))
    return report


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("findings")
    for text in config.stash[FOUND]:
        terminalreporter.write_line(text)
