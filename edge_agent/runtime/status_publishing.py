"""Publishes a retained status, or a shorter one if the broker does not accept so long a message."""

from __future__ import annotations

import logging
from collections.abc import Callable

from edge_agent.errors import PortError
from edge_agent.ports.mqtt.connection import Connection

log = logging.getLogger("headwater")


def publish_fitting(connection: Connection, topic: str, status: bytes, shorter: Callable[[], bytes]) -> bool:
    """Publish a status; the shorter one if it exceeds the broker's maximum packet size.

    Returns whether there is nothing left to do, also if neither fits. False: not connected, so try again later.
    """
    try:
        return connection.publish(topic, status, retain=True) is not None
    except PortError as err:
        log.warning("status.not_published", extra={"why": str(err)})
    try:
        return connection.publish(topic, shorter(), retain=True) is not None
    except PortError as err:
        log.warning("status.not_published", extra={"why": f"without its long lists, too: {err}"})
        return True
