"""The live table of the demo: redrawn in place on a terminal; else one line every ten seconds."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edge_agent.demo import delta_reader
from edge_agent.demo.broker_watch import BrokerWatch, NodeTraffic
from edge_agent.demo.processes import ChildProcess

EVERY_S: Final = 0.5
LINE_EVERY_S: Final = 10.0
COUNT_EVERY_S: Final = 2.0
HEAD: Final = "node                  produced   frames  spooled  receipted      bytes  B/reading"
# For comparison: one reading as a JSON message of QoS 1 to a topic such as plant/gw-1/boiler.
RAW: Final = json.dumps({"ts": 1_795_256_850_500_000, "value": 71.3, "site": "north", "series": "0"})
RAW_BYTES: Final = len(RAW) + len("plant/gw-1/boiler") + 8 + 4
HISTORY: Final = 1000  # most points of the traffic in the picture


class Dashboard:
    """Draws the table and records the traffic for the picture."""

    def __init__(
        self,
        folder: Path,
        gateways: Mapping[str, ChildProcess],
        regions: Mapping[str, ChildProcess],
        watch: BrokerWatch,
    ) -> None:
        """folder: of the Delta tables. gateways, regions: processes by node."""
        self._folder, self._gateways, self._regions, self._watch = folder, gateways, regions, watch
        self._terminal = sys.stdout.isatty()
        self._drawn = 0
        self._shown_s = self._line_s = self._counted_s = 0.0
        self._began = time.monotonic()
        self.rows = 0
        self.traffic: list[tuple[float, int, int, int]] = []  # (second, raw JSON, gateways, regions) bytes so far

    def event(self, text: str) -> None:
        self._erase()
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def show(self, text: str) -> None:
        """Draw the table if it is due. text: the current step."""
        now = time.monotonic()
        if now - self._shown_s < EVERY_S:
            return
        self._shown_s = now
        if now - self._counted_s > COUNT_EVERY_S:
            self._counted_s = now
            self.rows = delta_reader.count(self._folder)
        produced, sent, merged = self.totals()
        if len(self.traffic) < HISTORY:
            self.traffic.append((now - self._began, produced * RAW_BYTES, sent, merged))
        if self._terminal:
            self._draw(text)
        elif now - self._line_s > LINE_EVERY_S:
            self._line_s = now
            print(f"{now - self._began:6.1f} s  {self._summary()}; {text}", flush=True)

    def totals(self) -> tuple[int, int, int]:
        """(readings produced, bytes sent by gateways, bytes sent by regions)."""
        nodes = self._watch.nodes
        produced = sum(nodes[name].readings for name in self._gateways if name in nodes)
        sent = sum(nodes[name].bytes for name in self._gateways if name in nodes)
        merged = sum(nodes[name].bytes for name in self._regions if name in nodes)
        return produced, sent, merged

    def _summary(self) -> str:
        produced, sent, merged = self.totals()
        raw = produced * RAW_BYTES
        share = f"1/{raw // sent}" if sent else "-"
        return (
            f"{produced:,} readings, {_size(raw)} as raw JSON; gateways sent {_size(sent)} ({share}), "
            f"regions {_size(merged)}; {self.rows} rows in Delta"
        )

    def _draw(self, text: str) -> None:
        self._erase()
        lines = [HEAD]
        for name, child in {**self._gateways, **self._regions}.items():
            lines.append(_line(name, self._watch.nodes.get(name, NodeTraffic()), alive=child.alive))
        lines += [self._summary(), text]
        width = shutil.get_terminal_size().columns - 1
        for line in lines:
            print(line[:width])
        sys.stdout.flush()
        self._drawn = len(lines)

    def _erase(self) -> None:
        if self._drawn:
            sys.stdout.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def close(self) -> None:
        if self._terminal:
            self._draw("")
            self._drawn = 0
        else:
            print(f"{time.monotonic() - self._began:6.1f} s  {self._summary()}", flush=True)


def _line(name: str, node: NodeTraffic, *, alive: bool) -> str:
    state = "killed" if not alive else "online" if node.online else "offline"
    each = f"{node.bytes / node.readings:10.2f}" if node.readings else f"{'':10}"
    produced = f"{node.readings:>10,}" if node.readings else f"{'':10}"
    return (
        f"{name:10} {state:8} {produced} {node.frames:>8,} {node.spooled:>8,} {node.receipted:>10,} "
        f"{_size(node.bytes):>10} {each}"
    )


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
