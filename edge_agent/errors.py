"""The exceptions of the agent, one for each party that may be at fault (docs/how-it-works.md, "Errors")."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration. It is published in `state` and printed as one line.

    at: dotted path of the key. got: the value found, JSON-able; None if a value is missing. why: what is wrong. hint:
    the nearest valid word, or what to do; '' for none. line: line of the text, from 1, if known.
    """

    at: str
    got: object
    why: str
    hint: str = ""
    line: int | None = None


def advice(hint: str) -> str:
    """The hint of a problem as text for users. A single word becomes the question whether the user meant it."""
    return hint if not hint or " " in hint else f'did you mean "{hint}"?'


class ConfigError(Exception):
    """The user's configuration is invalid. At start the agent exits; later the running configuration stays in force.

    problems: all mistakes found, () if the message suffices.
    """

    def __init__(self, message: str = "", problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class NotSupported(ConfigError):  # noqa: N818 - a known word that this version does not support
    """The definition is valid, but this version does not support it."""


class WireError(Exception):
    """A peer sent invalid bytes. The message is quarantined with the reason, acknowledged and skipped."""


class PortError(Exception):
    """The environment failed (network, disk, sensor). The agent retries later and keeps spooling."""


class ProtocolError(Exception):
    """A bug of the agent. The process exits, and the supervisor restarts it."""
