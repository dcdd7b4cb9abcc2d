"""The slicers of a gateway in its spool: slots of each group, written where they changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from edge_agent.algebra.query.query import Group
from edge_agent.machines.checkpoint.append_only import AppendOnlyTable
from edge_agent.machines.checkpoint.codec import group_from_plain, group_to_plain
from edge_agent.machines.checkpoint.paged_rows import PagedRows
from edge_agent.machines.gateway.slicer import Slicer

PREFIXES: Final = ("group/", "fed/", "keys/", "rows/")  # of the slots that are written here


class SlicerSlots:
    """What has been spooled of each group."""

    def __init__(self) -> None:
        self._spooled: dict[Group, tuple[AppendOnlyTable, PagedRows]] = {}  # keys and open rows

    def changes(self, group: Group, slicer: Slicer | None) -> dict[str, object]:
        """Slots that changed, None: gone. slicer: None once the group is no more.

        What is open is always among them; definitions and keys, of which there are many, when they changed.
        """
        name = str(group_to_plain(group))
        keys, rows = self._spooled.setdefault(group, (AppendOnlyTable(f"keys/{name}"), PagedRows(f"rows/{name}")))
        if slicer is None:
            del self._spooled[group]
            return {f"group/{name}": None, f"fed/{name}": None, **keys.changes((), anew=True), **rows.changes(None)[1]}
        opened, pages = rows.changes(slicer.snapshot_open())
        settled = slicer.snapshot_settled()
        return {
            f"group/{name}": {"group": group_to_plain(group), "scale": slicer.scale, "slicer": opened},
            **({} if settled is None else {f"fed/{name}": settled}),
            **keys.changes(slicer.keys),
            **pages,
        }

    @staticmethod
    def read(state: Mapping[str, object], node: str) -> Iterator[tuple[Group, Slicer]]:
        """The slicers as the spool holds them. state: all its slots; node: the gateway's."""
        for slot, plain in state.items():
            if slot.startswith("group/") and isinstance(plain, dict):
                group, name = group_from_plain(plain["group"]), slot.removeprefix("group/")
                slicer = Slicer(group, plain["scale"], node)
                settled = state.get(f"fed/{name}")
                parts = settled if isinstance(settled, dict) else {}
                opened = PagedRows.read(plain["slicer"], state)
                slicer.restore({**opened, **parts, "keys": AppendOnlyTable.read(f"keys/{name}", state)})
                yield group, slicer
