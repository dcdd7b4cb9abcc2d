"""What other packages bring: looked up once a process, and kept within bounds while it runs (docs/extend.md).

`install` is called by the entry points of processes: the command line, and the tasks of the Spark job. Calls of
packages' functions then go through a keeper. It remembers what was raised, measures what they take, ends by an alarm
what takes far too long, and leaves out what does not learn. What no alarm can end (a loop in compiled code) ends the
process; the next one finds the note of the call that never came back, and leaves that function out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FrameType
from typing import Final

from edge_agent.algebra import aggregates, windows
from edge_agent.algebra.aggregates import plugins as of_aggregates
from edge_agent.algebra.plugin_calls import TRIAL, Answer, Call, FailedError, said
from edge_agent.algebra.query.query import Query
from edge_agent.algebra.windows import plugins as of_windows
from edge_agent.config.definitions import drivers

GROUPS: Final = (of_aggregates.GROUP, of_windows.GROUP, drivers.GROUP)
SLOW_S: Final = 0.25  # a call on a node may take that: a quarter of the commit interval
IN_A_ROW: Final = 3  # longer calls without a quicker one between them, and the function is left out
EDGE_S: Final = 5.0  # no call on a node takes longer: half a grace time would pass in a few of them
ROOT_S: Final = 60.0  # nor at the root, where large batches are asked for at once
STUCK_S: Final = 10.0  # after so much more, twice its time, the alarm was of no use, and the process ends
MOST: Final = 100  # failures that are told, each once
NOTE: Final = "packages.running"  # beside the spool: the call under way, and a trace of one that never came back
LEFT_OUT: Final = "packages.off.json"  # beside the spool: what stays left out until its package changes
NOTE_BYTES: Final = 512
NOTHING: Final = b"\0" * NOTE_BYTES
NEVER: Final = "never came back, and the process was ended for it; left out"

Name = tuple[str, str]  # entry point, and component, function or window type


class _Overdue(BaseException):
    """The alarm rang in a call. No Exception: a package that catches these must not hold it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What people are told once. off: whether the function is not called any more."""

    call: Call
    why: str
    off: bool = False

    @property
    def text(self) -> str:
        """One line."""
        whose = f"package {self.call.package}" if self.call.package else f"entry point {self.call.point}"
        return f"{self.call.step} of {self.call.name} ({whose}): {self.why}"

    @property
    def hint(self) -> str:
        """What to do about it."""
        if self.why == NEVER:
            return f"its values have no answer; another version of it, or a start without {LEFT_OUT}, asks it again"
        if self.off:
            return "its values have no answer until it is quicker or asked for less; a restart asks it again"
        return "its values have no answer where it fails; install a package that is right, all else goes on"


class PluginGuard:
    """The watch of a process.

    longest_s: after that an alarm ends a call, in the main thread. slow_s: calls longer than that, IN_A_ROW of them,
    are the last ones; None: however long. timer: seconds, any origin.
    """

    def __init__(
        self, longest_s: float, slow_s: float | None = None, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._longest_s, self._slow_s, self._timer = longest_s, slow_s, timer
        self.ready = slow_s is None  # on a node once what is stuck would be ended, and remembered: after `keep`
        self._running: Call | None = None
        self._alarmed = False  # whether the alarm is set for it
        self._slow: dict[tuple[Name, str], int] = {}  # by step: a quick combine does not excuse a slow lift
        self._off: dict[Name, str] = {}
        self._told: dict[tuple[str, str, str, str], Failure] = {}
        self._why: dict[Name, str] = {}
        self._news: list[Failure] = []
        self._note: int | None = None  # file of the call under way
        self._armed_s: float | None = None  # since when the process is to end if a call does not

    # --- calls -----------------------------------------------------------------------------------------------------

    def call(self, what: Call, attempt: Callable[[], Answer]) -> Answer:
        """What the attempt returns. Raises: FailedError."""
        name = (what.point, what.name)
        if name in self._off:
            raise self._failed(what, self._off[name], off=True)
        if self._running is not None:  # one that calls another: the outer one is kept
            return attempt()
        began_s = self._timer()
        try:
            self._begin(what)
            try:
                answer = attempt()
            finally:
                self._end()
        except _Overdue:
            self._end()  # it may have rung in the other one
            why = f"took more than {self._longest_s:g} s on {what.rows} rows; left out"
            raise self._left_out(what, why) from None
        except (Exception, SystemExit) as err:
            why = f"SystemExit: {err}" if isinstance(err, SystemExit) else said(err)
            raise self._failed(what, why) from err
        took_s = self._timer() - began_s
        if self._slow_s is not None:
            step = (name, what.step)
            slow = self._slow[step] = self._slow.get(step, 0) + 1 if took_s > self._slow_s else 0
            if slow >= IN_A_ROW:
                why = (
                    f"took {took_s:.1f} s on {what.rows} rows, {slow} calls in a row above {self._slow_s:g} s; left out"
                )
                raise self._left_out(what, why)
        return answer

    def why(self, point: str, name: str) -> str:
        """Why a call of that name failed here last, '' if none did."""
        return self._why.get((point, name), "")

    def _left_out(self, what: Call, why: str) -> FailedError:
        self._off[what.point, what.name] = why
        return self._failed(what, why, off=True)

    def _failed(self, what: Call, why: str, *, off: bool = False) -> FailedError:
        """Remember it, to be told once. The kind of what was raised decides: its text may hold a value."""
        if what.step == TRIAL and not off:
            return FailedError(why)
        self._why[what.point, what.name] = why
        kind = (what.point, what.name, *(("", "off") if off else (what.step, why.partition(":")[0])))
        if kind not in self._told and len(self._told) < MOST:
            self._told[kind] = Failure(what, why, off)
            self._news.append(self._told[kind])
        return FailedError(why)

    def _begin(self, what: Call) -> None:
        """Nothing but the attempt itself lies between this and `_end`."""
        self._alarmed = _in_main_thread() and signal.getsignal(signal.SIGALRM) == self._ring
        self._running = what
        if self._note is not None:
            os.pwrite(self._note, _note(what), 0)
            self._arm(self._note)
        if self._alarmed:  # again every second: the function may hold the first one
            signal.setitimer(signal.ITIMER_REAL, self._longest_s, 1.0)

    def _end(self) -> None:
        self._running = None
        if self._alarmed:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._note is not None:
            os.pwrite(self._note, NOTHING, 0)

    def _arm(self, note: int) -> None:
        """End the process if neither `rest` nor another call comes for too long. A thread: not for every call."""
        now_s = self._timer()
        if self._armed_s is None or now_s > self._armed_s + self._longest_s:
            faulthandler.dump_traceback_later(2 * self._longest_s + STUCK_S, file=note, exit=True)
            self._armed_s = now_s

    def rest(self) -> None:
        """No call is under way, and none comes for a while."""
        if self._armed_s is not None:
            faulthandler.cancel_dump_traceback_later()
            self._armed_s = None

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        if self._running is not None:
            raise _Overdue

    def arm(self) -> None:
        """Let the alarm ring, if this is the main thread."""
        if _in_main_thread():
            signal.signal(signal.SIGALRM, self._ring)

    # --- what people are told ----------------------------------------------------------------------------------------

    def news(self) -> list[Failure]:
        """Failures that were not told yet."""
        news, self._news = self._news, []
        return news

    def failures(self) -> list[Failure]:
        """All that were told."""
        return list(self._told.values())

    # --- beyond the life of the process ------------------------------------------------------------------------------

    def keep(self, folder: Path, packages: Mapping[str, str] | None = None) -> None:
        """Find what the process before was stuck in, and note calls there from now on.

        packages: entry point -> distribution with version, as installed: what was left out of another is asked again.
        A folder that cannot be written stops nothing: then what is stuck is ended, and asked again.
        """
        with contextlib.suppress(OSError):
            self._keep(folder, distributions() if packages is None else packages)

    def _keep(self, folder: Path, packages: Mapping[str, str]) -> None:
        note, left_out = folder / NOTE, folder / LEFT_OUT
        known = _parsed(left_out.read_bytes()) if left_out.exists() else []
        stuck = note.read_bytes() if note.exists() else b""
        if len(stuck) > NOTE_BYTES:
            known += [replace(one, why=NEVER) for one in _parsed(stuck[:NOTE_BYTES].rstrip(b"\0"))]
        known = [one for one in known if packages.get(one.point, "") == one.package]
        if known or left_out.exists():
            fresh = left_out.with_suffix(".new")
            fresh.write_text(json.dumps([asdict(one) for one in known], indent=1) + "\n")
            fresh.rename(left_out)
        for one in known:
            self._left_out(Call(one.point, one.package, one.name, one.step, 0), one.why)
        self._note = os.open(note, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.pwrite(self._note, NOTHING, 0)
        os.lseek(self._note, NOTE_BYTES, os.SEEK_SET)  # where a trace begins
        self.ready = True


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A function that stays left out, as in the file."""

    point: str
    package: str
    name: str
    step: str
    why: str = ""


def _note(what: Call) -> bytes:
    told = json.dumps([asdict(_Kept(what.point, what.package, what.name, what.step))])
    return told.encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")


def _parsed(text: bytes) -> list[_Kept]:
    try:
        return [_Kept(**{str(key): str(value) for key, value in one.items()}) for one in json.loads(text)]
    except (ValueError, TypeError, AttributeError):
        return []  # not ours, or damaged: then everything is asked again


# --- of this process -------------------------------------------------------------------------------------------------

_keepers: Final[list[PluginGuard]] = []


def install(*, edge: bool = False) -> PluginGuard:
    """Fill the registries with what packages bring, once; the keeper of their calls.

    edge: a node, which must not fall behind. Else a root or a command, which may take its time.
    """
    if not _keepers:
        keeper = PluginGuard(EDGE_S, SLOW_S) if edge else PluginGuard(ROOT_S)
        _keepers.append(keeper)
        if any(points := [installed(group) for group in GROUPS]):
            keeper.arm()
            aggregates.add(points[0], keeper)
            windows.add(points[1], keeper)
            drivers.DRIVERS.add(points[2])
    return _keepers[0]


def some() -> bool:
    """Whether any package has brought anything that can be used."""
    return bool(aggregates.TRIALS or windows.WHOSE)


def brought() -> set[str]:
    """The functions that packages have brought."""
    return aggregates.FUNCTIONS.keys() - {f.name for family in aggregates.BUILT_IN for f in family.functions}


def complain() -> None:
    """Say on standard error what failed since it was last asked: of commands, and of the tasks of a job."""
    for failure in install().news():
        sys.stderr.write(f"headwater: {failure.text}; {failure.hint}\n")


def installed(group: str) -> list[EntryPoint]:
    """The entry points there are, in the order of their names: the same on every node."""
    return sorted(entry_points(group=group), key=lambda point: (point.name, point.value))


def distributions() -> dict[str, str]:
    """Entry point -> the distribution that brings it, with its version."""
    points = [point for group in GROUPS for point in installed(group)]
    return {point.name: f"{point.dist.name} {point.dist.version}" for point in points if point.dist is not None}


def users(name: str, queries: Iterable[Query]) -> list[str]:
    """Queries that ask for a component, a function or a window type."""
    known = aggregates.FUNCTIONS.values()
    asking = {f.name for f in known if f.name == name or name in _needed((*f.needs, *(f.scaled or ())))}
    return [q.id for q in queries if q.window.type == name or any(a.fn in asking for a in q.aggregates)]


def _needed(components: Iterable[str]) -> set[str]:
    found = set(components)
    for one in tuple(found):
        found |= _needed(aggregates.COMPONENTS[one].needs)
    return found
