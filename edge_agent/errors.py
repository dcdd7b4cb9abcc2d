"""The four errors of the agent, each with one owner (docs/how-it-works.md, "Errors")."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration, as published in `state` and printed as one line.

    at: dotted path. got: the value found, JSON-able, None if something is missing. why: what is wrong.
    hint: the nearest valid word, or what to do; '' for none. line: of the text, 1-based, if known.
    """

    at: str
    got: object
    why: str
    hint: str = ""
    line: int | None = None


def advice(hint: str) -> str:
    """The hint of a problem as it is shown: a single word is the nearest valid one."""
    return hint if not hint or " " in hint else f'did you mean "{hint}"?'


class ConfigError(Exception):
    """The user's configuration is wrong: refused at start; later the running configuration stays in force.

    problems: every mistake found, () if the message is enough. str() is one line a problem.
    """

    def __init__(self, message: str = "", problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class NotSupported(ConfigError):  # noqa: N818 - a known word that this version does not support
    """The definition is valid, but this version does not support it."""


class WireError(Exception):
    """A peer sent invalid bytes: quarantined with reason, acknowledged, skipped."""


class PortError(Exception):
    """The environment failed (network, disk, sensor): back off and keep spooling."""


class ProtocolError(Exception):
    """Our own bug: crash and let the supervisor restart us."""
