"""The books of a simulated fleet, as `headwater audit` would find them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from edge_agent.algebra.frame import Frame
from edge_agent.algebra.query.key import EpochKey
from edge_agent.root.books import Audit, Line, NodeBook, RootBook, audit
from edge_agent.root.numpy.executor import NumpyRoot
from tests.support.simulation.fleets import Fleet
from tests.support.simulation.world import Host


def books_of(fleet: Fleet) -> list[NodeBook]:
    """What every node that is up says of itself, as JSON carries it."""
    hosts = [host for host in fleet.world.hosts.values() if isinstance(host, Host)]
    return [
        NodeBook(host.name, host.parent, json.loads(json.dumps(host.machine.book())))
        for host in hosts
        if host.machine is not None
    ]


def root_book(fleet: Fleet) -> RootBook:
    """What the root applied; stored: from the landed frames themselves, each once."""
    files = fleet.root_host.files[: fleet.root_host.read_files]
    frames = ((sender, content) for _, objects in files for sender, content, _ in objects if isinstance(content, Frame))
    return numpy_root_book(
        fleet.root_host.root, ((sender, each.epoch, each.seq, each.readings) for sender, each in frames)
    )


def numpy_root_book(root: NumpyRoot, landed: Iterable[tuple[str, int, int, int]]) -> RootBook:
    """What a numpy root applied. landed: (sender, epoch, seq, readings) of every frame, also of repeats."""
    stored: dict[str, int] = {}
    seen: set[tuple[str, int, int]] = set()
    for sender, epoch, seq, readings in landed:
        applied = root.state.applied.get(EpochKey(sender, epoch), [])
        if (sender, epoch, seq) not in seen and any(low <= seq <= high for low, high in applied):
            seen.add((sender, epoch, seq))
            stored[sender] = stored.get(sender, 0) + readings
    lines = {
        node: Line(root.decider.parent.inbox.current[node], line.applied.next, line.readings, line.refused)
        for node, line in root.decider.parent.inbox.lines().items()
    }
    late = sum(each.readings for each in root.beyond)
    return RootBook("root", lines, root.state.readings, stored, late=late)


def audited(fleet: Fleet) -> Audit:
    """The root first, then its children and theirs: whatever is sent is at least what is applied."""
    return audit(root_book(fleet), books_of(fleet))
