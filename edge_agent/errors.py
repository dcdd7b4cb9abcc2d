"""The four errors of the agent, each with one owner (docs/how-it-works.md, "Errors")."""

from __future__ import annotations


class ConfigError(Exception):
    """The user's configuration is wrong: refused at start; later the running one stays in force."""


class WireError(Exception):
    """A peer sent bytes that are not ours: quarantined with reason and bytes, acknowledged, passed over."""


class PortError(Exception):
    """The world failed (network, disk, sensor): back off and keep spooling."""


class ProtocolError(Exception):
    """Our own bug: crash and let the supervisor restart us."""
