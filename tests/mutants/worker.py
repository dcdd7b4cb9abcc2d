"""The process of a copy: it imports and collects all tests once; each mutant then runs in a fork of it.

`python -m tests.mutants.worker FILE...` reads jobs and writes verdicts, one line of JSON each, on its standard streams.
A verdict is `caught by TEST`, `survived`, `elsewhere` (the break is not in a function, so that it needs a new process)
or `ended: WHY`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import pytest

from tests.mutants.in_memory import put_in

TEST_S: Final = 120  # of one test: a mutant may make it wait for ever, which counts as a failure
# Warnings from threads that a fork does not have, and times of tests, say nothing about a mutant. Of an example that
# fails, no smaller one is searched.
OPTIONS: Final = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "-rf", "--durations=0", "--durations-min=1000"),
    *("--hypothesis-profile=mutants", "-o", f"timeout={TEST_S}"),
)


class Forks:
    """A plugin of pytest that runs jobs instead of the tests it has collected."""

    def __init__(self, jobs: IO[str], verdicts: IO[str], folder: Path) -> None:
        self._jobs, self._verdicts, self._folder = jobs, verdicts, folder
        self._failed = False  # in a fork: whether a test has failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer jobs until there are no more."""
        self._tell(f"collected {len(session.items)}")
        for line in self._jobs:
            job = json.loads(line)
            self._tell(self._forked(job, chosen(session.items, job["tests"])))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test has failed."""
        self._failed = self._failed or report.failed

    def _tell(self, verdict: str) -> None:
        self._verdicts.write(json.dumps(verdict) + "\n")
        self._verdicts.flush()

    def _forked(self, job: dict[str, Any], items: list[pytest.Item]) -> str:
        """Run the tests of a job in a fork, up to the first that fails."""
        told, tells = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            os.setsid()  # so that what the tests have started can be ended
            os.close(told)
            code = 1
            with suppress(BaseException):
                self._run(job, items, tells)
                code = 0
            os._exit(code)
        os.close(tells)
        try:
            return self._watched(told, job["longest_s"])
        finally:
            os.close(told)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def _run(self, job: dict[str, Any], items: list[pytest.Item], tells: int) -> None:
        """In a fork: write the name of each test before it begins, and then the verdict."""
        if job["broken"] and not put_in(self._folder, job["file"], job["whole"], job["broken"]):
            os.write(tells, b"elsewhere\n")
            return
        if not items:
            os.write(tells, b"ended: no such tests\n")
        for item, following in zip(items, [*items[1:], None], strict=True):
            os.write(tells, f"{item.nodeid}\n".encode())
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                os.write(tells, f"caught by {item.nodeid}\n".encode())
                with suppress(BaseException):  # end what fixtures of more than one test have started
                    item.session._setupstate.teardown_exact(None)
                return
        if items:
            os.write(tells, b"survived\n")

    @staticmethod
    def _watched(told: int, longest_s: float) -> str:
        """The verdict of a fork. One that does not end is caught by the test in which it is."""
        end_s, text, begun = time.monotonic() + longest_s, b"", ""
        while True:
            rest_s = min(end_s - time.monotonic(), 2 * TEST_S)
            if rest_s <= 0 or not select.select([told], [], [], rest_s)[0]:
                return f"caught by {begun}, which did not end" if rest_s > 0 else f"ended: no end within {longest_s} s"
            if not (more := os.read(told, 65_536)):
                return f"ended: the process of {begun or 'the mutant'} ended"
            *lines, text = (text + more).split(b"\n")
            for line in lines:
                begun = line.decode()
                if begun in ("survived", "elsewhere") or begun.startswith(("caught by ", "ended: ")):
                    return begun


def chosen(items: Iterable[pytest.Item], selections: Iterable[str]) -> list[pytest.Item]:
    """The items of selections of pytest (`FILE`, `FILE::TEST`, `FILE::TEST[CASE]`), in the order of the selections."""
    by_name: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        for each in {item.nodeid, name, name.partition("::")[0]}:
            by_name.setdefault(each, []).append(item)
    return list(dict.fromkeys(item for selection in selections for item in by_name.get(selection, ())))


def main() -> int:
    jobs, verdicts = (os.fdopen(os.dup(at), mode) for at, mode in ((0, "r"), (1, "w")))
    os.dup2(2, 1)  # what pytest writes
    forks = Forks(jobs, verdicts, Path.cwd())
    return int(pytest.main([*OPTIONS, *sys.argv[1:]], plugins=[forks]))


if __name__ == "__main__":
    sys.exit(main())
