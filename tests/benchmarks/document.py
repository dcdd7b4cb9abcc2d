"""The figures of build/bench.json as a section of docs/performance.md."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

from tests.benchmarks.bench import ROOT, load
from tests.benchmarks.targets import TARGETS

PAGE: Final = ROOT / "docs" / "performance.md"
BEGIN: Final = "<!-- figures -->\n"
END: Final = "<!-- /figures -->"


def write_down() -> None:
    """Put the figures kept so far, with the machine, between the two marks of the page."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + section(load(), machine()) + END + after)


def section(entries: list[dict[str, object]], where: str) -> str:
    """A table of the figures, those with a target first and in its order."""
    order = list(TARGETS)
    entries = sorted(entries, key=lambda one: order.index(str(one["name"])) if one["name"] in TARGETS else len(order))
    lines = [f"Machine: {where}.", "", "| figure | value | target | how |", "|---|---|---|---|"]
    for entry in entries:
        target = TARGETS.get(str(entry["name"]))
        bound = f"{'at most' if target.at_most else 'at least'} {readable(target.bound)}" if target else ""
        unit = "" if entry["unit"] == "1" else f" {entry['unit']}"
        value = readable(float(str(entry["value"]))) + unit
        lines.append(f"| `{entry['name']}` | {value} | {bound} | {entry['how']}, {str(entry['at'])[:10]} |")
    return "\n".join(lines) + "\n"


def readable(value: float) -> str:
    """Three digits with M or k: 431 M, 0.62, 38."""
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if value >= size * 10 or (value >= size and size == 1e6):
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def machine() -> str:
    """Processor, cores, memory, Python: what a reader needs to compare."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory_gb:.0f} GiB, Python {platform.python_version()}"
