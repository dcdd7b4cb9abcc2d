"""From settings to a loop that is ready to run: opens the spool, chooses the machine, names the connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from edge_agent.algebra.frame import Frame
from edge_agent.config.definitions.definitions import Definition
from edge_agent.config.node_file.node_tables import LocalTable, LowerTable, UplinkTable
from edge_agent.config.node_file.settings import Settings
from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.machines.events import Restored, SpooledFrame
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.node import NodeSettings
from edge_agent.ports.clock import SystemClock
from edge_agent.ports.link import Link
from edge_agent.ports.mqtt import Connection
from edge_agent.ports.spool import Spool
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime.action_executor import RuntimeParts
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.quarantine import QuarantineFile
from edge_agent.runtime.status_and_commands import NodeStatus
from edge_agent.wire import frames

if TYPE_CHECKING:
    from edge_agent.runtime.region import RegionLoop

SESSION_S: Final = 14 * 86_400  # a merger's session outlives a fortnight of repair; gateways need none
SENSOR_READ_EVERY_S: Final = 0.05  # a thousand small messages a second are read in twenty pieces
QUARANTINE: Final = "quarantine.jsonl"


def build(
    settings: Settings, version: str, read_again: Callable[[], Iterable[Definition]] = tuple
) -> GatewayLoop | RegionLoop:
    """Open the spool and put everything together; `run` of the answer begins.

    read_again: reads the definitions of the local file anew, for `reload`. Raises: ConfigError, PortError.
    """
    if settings.uplink is None:
        raise ConfigError("[uplink] is missing")
    path = Path(settings.spool.path)
    spool = Spool(path, settings.node.id, frames.encode, quota_bytes=settings.spool.quota_bytes)
    restored = _with_births(spool.open(), spool)
    node = NodeSettings(
        settings.node.id,
        version,
        settings.spool.commit_interval_us,
        settings.uplink.heartbeat_us,
        settings.uplink.in_flight,
    )

    def load(epoch: int, seq: int) -> Frame:
        frame = frames.decode(spool.payload(epoch, seq))
        assert isinstance(frame, Frame)
        return frame

    persona = NodeStatus(node.node, settings.node.role, settings.uplink.parent, version)
    keep = QuarantineFile(path.with_name(QUARANTINE))
    clock, waiter, random = SystemClock(), Waiter(), SystemRandom()
    link = replace(_link(settings.uplink, node.node), will=persona.will())
    if settings.node.role == "gateway":
        outfit = RuntimeParts(
            Gateway(node, random, restored, load), spool, clock, waiter, Connection(link), persona, keep
        )
        local = None if settings.local is None else Connection(_local_link(settings.local, node.node))
        return GatewayLoop(
            outfit,
            restored=restored.state,
            limits=settings.limits,
            definitions=settings.definitions,
            local=local,
            read_again=read_again,
        )
    from edge_agent.machines.region.merger import Merger  # a gateway needs none of them
    from edge_agent.runtime.region import RegionLoop, pack, unpack

    if settings.lower is None:
        raise ConfigError("[lower] is missing")
    named = settings.lower.members
    merger = Merger(node, random, restored, load, grace_us=settings.grace_us, named=named, pack=pack, unpack=unpack)
    if settings.one_broker:
        up = lower = Connection(_heard_below(link))
    else:
        up, lower = Connection(link), Connection(_heard_below(_link(settings.lower, node.node)))
    outfit = RuntimeParts(merger, spool, clock, waiter, up, persona, keep)
    return RegionLoop(outfit, restored=restored.state, lower=lower, retired=settings.lower.retired)


def _with_births(restored: Restored, spool: Spool) -> Restored:
    """Births come decoded: one that was written before the parent's journal was known is written again with it."""
    return replace(restored, frames=tuple(_decoded(f, spool) if f.seq == 0 else f for f in restored.frames))


def _decoded(found: SpooledFrame, spool: Spool) -> SpooledFrame:
    if found.damaged:
        return found
    try:
        frame = frames.decode(spool.payload(found.epoch, found.seq))
    except (WireError, PortError) as err:
        return replace(found, damaged=str(err))
    return replace(found, frame=frame if isinstance(frame, Frame) else None)


def _link(side: UplinkTable | LowerTable, node: str) -> Link:
    keepalive_us = side.keepalive_us if isinstance(side, UplinkTable) else 30_000_000
    return Link(
        url=side.broker or "",
        client_id=node,
        user=side.user,
        password_file=_path(side.password_file),
        ca_file=_path(side.ca_file),
        cert_file=_path(side.cert_file),
        key_file=_path(side.key_file),
        keepalive_s=keepalive_us // 1_000_000,
    )


def _heard_below(link: Link) -> Link:
    """Children are heard through a session that outlives us, and acknowledged after the commit."""
    return replace(link, clean_start=False, session_expiry_s=SESSION_S, manual_ack=True)


def _local_link(local: LocalTable, node: str) -> Link:
    return Link(
        url=local.broker,
        client_id=f"{node}-sensors",
        version=4,
        clean_start=False,
        manual_ack=True,
        confirm_acks=True,
        user=local.user,
        password_file=_path(local.password_file),
        ca_file=_path(local.ca_file),
        cert_file=_path(local.cert_file),
        key_file=_path(local.key_file),
        keepalive_s=local.keepalive_us // 1_000_000,
        read_every_s=SENSOR_READ_EVERY_S,
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
