"""Builds a process from settings: opens the spool, chooses the machine, creates the connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, NamedTuple

from edge_agent.algebra.frame import Frame
from edge_agent.config.definitions.definitions import Definition
from edge_agent.config.node_file.node_tables import UplinkTable
from edge_agent.config.node_file.settings import Settings
from edge_agent.errors import ConfigError, PortError, WireError
from edge_agent.machines.checkpoint.slots import COMMITTED, NUMBERER, REGISTRY
from edge_agent.machines.events import Restored, SpooledFrame
from edge_agent.machines.gateway.gateway import Gateway
from edge_agent.machines.parents import NodeSettings
from edge_agent.ports.clock import JudgedClock
from edge_agent.ports.mqtt.connection import Connection
from edge_agent.ports.mqtt.link import Link
from edge_agent.ports.sensors.file_access import FileAccess
from edge_agent.ports.spool import Spool
from edge_agent.ports.waiter import Waiter
from edge_agent.runtime.action_executor import RuntimeParts
from edge_agent.runtime.gateway import GatewayLoop
from edge_agent.runtime.guard import Guard
from edge_agent.runtime.links import from_children, from_sensors, link
from edge_agent.runtime.quarantine import QUARANTINE, QuarantineFile
from edge_agent.runtime.start_record import NAME as START_RECORD
from edge_agent.runtime.status_and_commands import NodeStatus
from edge_agent.wire import frames

if TYPE_CHECKING:
    from edge_agent.runtime.region import RegionLoop


class _Opened(NamedTuple):
    """The parts that every node has. load: reads a frame from the spool. parts: called with machine, up and others."""

    settings: Settings
    uplink: UplinkTable
    node: NodeSettings
    restored: Restored
    load: Callable[[int, int], Frame]
    link: Link
    parts: Callable[..., RuntimeParts]


def build(
    settings: Settings,
    version: str,
    read_again: Callable[[], Iterable[Definition]] = tuple,
    guard: Guard | None = None,
) -> GatewayLoop | RegionLoop:
    """Open the spool and assemble the process. Call `run` of the result to serve.

    read_again: reads the definitions of the local file again, for `reload`. Raises: ConfigError, PortError.
    """
    opened = _open(settings, version, guard)
    return _gateway(opened, read_again) if settings.node.role == "gateway" else _region(opened)


def _open(settings: Settings, version: str, guard: Guard | None) -> _Opened:
    """Open the spool, the clock and the status of a node."""
    uplink = settings.uplink
    if uplink is None:
        raise ConfigError("[uplink] is missing: add it, with the parent and its broker")
    spool = Spool(Path(settings.spool.path), settings.node.id, frames.encode)
    restored = _with_births(spool.open(), spool)
    if guard is not None and guard.without_definitions:
        restored = replace(restored, state={name: of for name, of in restored.state.items() if name != REGISTRY.name})
    node = NodeSettings(
        settings.node.id,
        version,
        settings.spool.commit_interval_us,
        uplink.heartbeat_us,
        uplink.in_flight,
        quota_bytes=settings.spool.quota_bytes,
        parents=uplink.in_order,
        away_us=uplink.away_us,
        back_us=uplink.back_us,
    )

    def load(epoch: int, seq: int) -> Frame:
        frame = frames.decode(spool.payload(epoch, seq))
        assert isinstance(frame, Frame)
        return frame

    status = NodeStatus(node.node, settings.node.role, uplink.in_order[0], version)
    trust, floor_us = settings.clock, COMMITTED.read(restored.state) or 0
    parts = partial(
        RuntimeParts,
        spool=spool,
        clock=JudgedClock(trust=trust.trust, max_error_us=trust.max_error_us, floor_us=floor_us),
        waiter=Waiter(),
        status=status,
        quarantine=quarantine_of(settings) if guard is None else guard.quarantine,
    )
    return _Opened(settings, uplink, node, restored, load, link(uplink, node.node, will=status.will()), parts)


def file_access(settings: Settings) -> FileAccess:
    """The files that sensors of this node may read, without those that sensors in its own file name."""
    spool = Path(settings.spool.path)
    own = (str(spool), str(spool.with_name(QUARANTINE)), str(spool.with_name(START_RECORD)))
    return FileAccess(settings.files.folders, secrets=settings.secrets, own=own)


def _gateway(opened: _Opened, read_again: Callable[[], Iterable[Definition]]) -> GatewayLoop:
    settings, restored = opened.settings, opened.restored
    up = Connection(opened.link)
    local = None if settings.local is None else Connection(from_sensors(settings.local, opened.node.node))
    return GatewayLoop(
        opened.parts(
            machine=Gateway(opened.node, SystemRandom(), restored, opened.load),
            up=up,
            others=_others(opened.uplink, opened.link, up),
        ),
        restored=restored.state,
        limits=settings.limits,
        access=file_access(settings),
        definitions=settings.definitions,
        local=local,
        read_again=read_again,
    )


def _region(opened: _Opened) -> RegionLoop:
    from edge_agent.config.in_force.known_definitions import KnownDefinitions, published_in
    from edge_agent.machines.region.merger import Merger  # not imported on gateways
    from edge_agent.runtime.region import RegionLoop, pack, unpack

    settings, restored = opened.settings, opened.restored
    if settings.lower is None:
        raise ConfigError("[lower] is missing: a region needs it for its children")
    known = KnownDefinitions(published=published_in(NUMBERER.read(restored.state)))
    merger = Merger(
        opened.node,
        SystemRandom(),
        restored,
        opened.load,
        grace_us=settings.grace_us,
        named=settings.lower.members,
        gateways_only=None if settings.lower.tiers is None else settings.lower.tiers == 1,
        definitions=known,
        pack=pack,
        unpack=unpack,
    )
    if settings.one_broker:
        up = lower = Connection(from_children(opened.link))
    else:
        up, lower = Connection(opened.link), Connection(from_children(link(settings.lower, opened.node.node)))
    others = _others(opened.uplink, opened.link, up, lower)
    if lower in others.values():  # a parent is on this broker too, and needs the last will
        lower.link = replace(lower.link, will=opened.link.will)
    parts = opened.parts(machine=merger, up=up, others=others)
    return RegionLoop(parts, restored=restored.state, lower=lower, known=known, retired=settings.lower.retired)


def _others(table: UplinkTable, uplink: Link, *known: Connection) -> dict[str, Connection]:
    """Parent -> its connection, for parents not on the broker of the first parent. One connection per broker."""
    by_url = {connection.link.url: connection for connection in known}
    first = known[0].link.url
    found = {}
    for name, url in table.brokers:
        if url != first:
            found[name] = by_url[url] = by_url.get(url) or Connection(replace(uplink, url=url))
    return found


def quarantine_of(settings: Settings) -> QuarantineFile:
    """The file of bad bytes, beside the spool."""
    return QuarantineFile(Path(settings.spool.path).with_name(QUARANTINE))


def _with_births(restored: Restored, spool: Spool) -> Restored:
    """Decode births: one written before the parent's journal was known has to be written again with the journal."""
    return replace(restored, frames=tuple(_decoded(f, spool) if f.seq == 0 else f for f in restored.frames))


def _decoded(found: SpooledFrame, spool: Spool) -> SpooledFrame:
    if found.damaged:
        return found
    try:
        frame = frames.decode(spool.payload(found.epoch, found.seq))
    except (WireError, PortError) as err:
        return replace(found, damaged=str(err))
    return replace(found, frame=frame if isinstance(frame, Frame) else None)
