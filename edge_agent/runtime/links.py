"""Turns settings tables into settings of connections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from edge_agent.config.node_file.node_tables import LocalTable, LowerTable, UplinkTable
from edge_agent.ports.mqtt.link import Link

SESSION_S: Final = 14 * 86_400  # a parent's session survives two weeks of repair; gateways need no session
TLS_SPREAD_S: Final = 30.0  # a TLS handshake costs a broker milliseconds; without TLS connections are cheap
SENSOR_READ_EVERY_S: Final = 0.05  # a thousand small messages a second are read in twenty pieces


def link(table: UplinkTable | LowerTable | LocalTable, client_id: str, **more: Any) -> Link:
    """Settings of the connection of one table. more: other fields of Link."""
    if not isinstance(table, LowerTable):
        more["keepalive_s"] = table.keepalive_us // 1_000_000
    if isinstance(table, UplinkTable):
        more["spread_s"] = spread_s(table)
    for name in ("password_file", "ca_file", "cert_file", "key_file"):
        text = getattr(table, name)
        more[name] = None if text is None else Path(text)
    return Link(url=table.broker or "", client_id=client_id, user=table.user, **more)


def spread_s(table: UplinkTable) -> float:
    """The time over which the clients of this broker reconnect after its restart."""
    if table.spread_us is not None:
        return table.spread_us / 1e6
    return TLS_SPREAD_S if table.broker.startswith("mqtts:") else 0.0


def from_children(link: Link) -> Link:
    """The connection to children: its session survives a restart; messages are acknowledged after the commit."""
    return replace(link, clean_start=False, session_expiry_s=SESSION_S, manual_ack=True)


def from_sensors(table: LocalTable, node: str) -> Link:
    """The connection to the broker of local sensors. It uses MQTT 3.1.1, because receiving costs half."""
    return link(
        table,
        f"{node}-sensors",
        version=4,
        clean_start=False,
        manual_ack=True,
        confirm_acks=True,
        read_every_s=SENSOR_READ_EVERY_S,
    )
