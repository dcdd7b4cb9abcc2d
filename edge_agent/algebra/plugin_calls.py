"""Calls of functions that other packages bring: each goes through a watch, which knows what to do when one goes wrong.

The algebra says what is called and goes on without an answer when the watch says that there is none. Whoever measures
time, ends what hangs and tells people is handed in from outside (edge_agent/packages.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

TRIAL: Final = "trial"  # step of a call that nobody asked for: what fails in it is told when somebody does
MOST_TEXT: Final = 200  # characters of what a function raised
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a package's function.

    point: name of its entry point. package: its distribution with version, '' if not known. name: of the component,
    function or window type. step: 'lift', 'combine', 'lower', 'cut', ... rows: how many readings or states go in.
    """

    point: str
    package: str
    name: str
    step: str
    rows: int


class FailedError(Exception):
    """A package's function gave nothing that can be used; the text says why."""


class Watch(Protocol):
    """Where calls of packages' functions go through."""

    @property
    def ready(self) -> bool:
        """Whether a call that nobody needs may be made: it would be ended, whatever it did."""

    def call(self, what: Call, attempt: Callable[[], Answer]) -> Answer:
        """What the attempt returns. Raises: FailedError, whatever went wrong."""

    def why(self, point: str, name: str) -> str:
        """Why a call of that name failed here last, '' if none did."""


class Plain:
    """The watch that neither measures nor tells."""

    ready = True

    def call(self, what: Call, attempt: Callable[[], Answer]) -> Answer:
        """What the attempt returns. Raises: FailedError."""
        del what
        try:
            return attempt()
        except Exception as err:
            raise FailedError(said(err)) from err

    def why(self, point: str, name: str) -> str:
        """It remembers nothing."""
        del point, name
        return ""


PLAIN: Final = Plain()


def said(err: Exception) -> str:
    """What was raised, as one line."""
    text = " ".join(f"{type(err).__name__}: {err}".split())
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."
