"""The four errors of the agent, each with one owner (docs/how-it-works.md, "Errors")."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration, as it stands in `state` and in the one line that a person reads.

    at: dotted path of the place. got: what came, JSON-able, None where something is missing. why: what is wrong.
    hint: the nearest valid word, or what to do; '' where there is nothing to add. line: of the text, 1-based, if known.
    """

    at: str
    got: object
    why: str
    hint: str = ""
    line: int | None = None


class ConfigError(Exception):
    """The user's configuration is wrong: refused at start; later the running one stays in force.

    problems: every mistake found, () where the message alone says it. str() is one line a problem.
    """

    def __init__(self, message: str = "", problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class NotSupported(ConfigError):  # noqa: N818 - reads as what it says: a known word that this version does not carry
    """The words are right, this version does not carry them yet: no mistake of the user's."""


class WireError(Exception):
    """A peer sent bytes that are not ours: quarantined with reason and bytes, acknowledged, passed over."""


class PortError(Exception):
    """The world failed (network, disk, sensor): back off and keep spooling."""


class ProtocolError(Exception):
    """Our own bug: crash and let the supervisor restart us."""
