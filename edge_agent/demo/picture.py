"""Draws demo.png: the windows of a sensor over its raw readings, and the bytes sent at each tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from edge_agent.demo.compare import DeltaRow
from edge_agent.demo.reference_answers import RawReadings

SHOWN_S: Final = 40.0  # seconds of event time in the picture, few enough to show single windows
DOTS: Final = 6_000  # most readings drawn


def draw(
    file: Path,
    raw: RawReadings,
    windows: Iterable[DeltaRow],
    traffic: Sequence[tuple[float, int, int, int]],
    title: str,
) -> None:
    """Write the picture. windows: tumbling, with the aggregates avg, min and max, of the same key as `raw`. traffic: as
    in Dashboard.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(11, 8), constrained_layout=True)
    rows = sorted(windows, key=lambda row: row.start_us)
    middle = rows[len(rows) // 2].start_us if rows else int(raw.time_us[len(raw.time_us) // 2])
    low, high = middle - int(SHOWN_S * 5e5), middle + int(SHOWN_S * 5e5)
    near = np.flatnonzero((raw.time_us >= low) & (raw.time_us < high))
    near = near[:: max(1, len(near) // DOTS)]
    above.plot((raw.time_us[near] - low) / 1e6, raw.value[near], ".", ms=1.5, color="0.75", label="readings")
    shown = [row for row in rows if low <= row.start_us < high]
    for name, colour in (("min", "tab:blue"), ("avg", "tab:red"), ("max", "tab:orange")):
        edges = [((row.start_us - low) / 1e6, (row.end_us - low) / 1e6, row.values.get(name)) for row in shown]
        for start, end, value in edges:
            if value is not None:
                above.plot([start, end], [value, value], color=colour, lw=1.8)
        above.plot([], [], color=colour, label=f"{name} of each window")
    above.set(title=title, xlabel="event time, s", ylabel="°C")
    above.legend(loc="upper right", ncols=4, fontsize=8)
    seconds = [point[0] for point in traffic]
    for at, name in ((1, "as raw JSON"), (2, "gateways sent"), (3, "regions sent")):
        below.plot(seconds, [max(point[at], 1) for point in traffic], label=name)
    below.set(title="bytes up the tree, so far", xlabel="s", ylabel="bytes", yscale="log")
    below.legend(loc="lower right")
    figure.savefig(file, dpi=110)
    plt.close(figure)
