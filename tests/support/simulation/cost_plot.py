"""A plot of cost by size, both logarithmic, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Final

WIDE, HIGH, LEFT, LOW = 560, 340, 70, 50  # pixels, and the margins for the axes
INK: Final = 'stroke="#888" fill="none"'


def drawn(costs: Sequence[tuple[int, float]], seconds: int) -> str:
    """costs: (nodes, seconds of a processor). The dashed line: as much a node as at the largest size."""
    sizes, cpu = [log10(nodes) for nodes, _ in costs], [log10(max(s, 1e-3)) for _, s in costs]
    left, right, low, high = floor(min(sizes)), ceil(max(sizes)), floor(min(cpu)), ceil(max(cpu))

    def place(size: float, cost: float) -> tuple[float, float]:
        x = LEFT + (size - left) / max(right - left, 1) * (WIDE - LEFT - 20)
        return x, HIGH - LOW - (cost - low) / max(high - low, 1) * (HIGH - LOW - 40)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" font-size="12">'
    ]
    out.append(f'<rect width="{WIDE}" height="{HIGH}" fill="#fff"/>')
    for power in range(left, right + 1):
        x, y = place(power, low)
        out.append(f'<path d="M{x:.0f} {y:.0f}V40" {INK} opacity="0.3"/>')
        out.append(f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle">{10**power:,}</text>')
    for power in range(low, high + 1):
        x, y = place(left, power)
        out.append(f'<path d="M{x:.0f} {y:.0f}H{WIDE - 20}" {INK} opacity="0.3"/>')
        out.append(f'<text x="{x - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{10.0**power:g}</text>')
    (x1, y1), (x2, y2) = place(sizes[0], cpu[-1] + sizes[0] - sizes[-1]), place(sizes[-1], cpu[-1])
    out.append(f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}" {INK} stroke-dasharray="5 4"/>')
    points = [place(size, cost) for size, cost in zip(sizes, cpu, strict=True)]
    out.append(f'<path d="M{"L".join(f"{x:.0f} {y:.0f}" for x, y in points)}" stroke="#06c" fill="none"/>')
    for (x, y), (nodes, cpu_s) in zip(points, costs, strict=True):
        out.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="#06c"/>')
        each = f"{cpu_s / nodes * 1e3:.0f} ms a node"
        out.append(f'<text x="{x - 8:.0f}" y="{y - 8:.0f}" text-anchor="end">{each}</text>')
    out.append(
        f'<text x="{WIDE / 2}" y="22" text-anchor="middle">{seconds} s simulated: processor seconds by nodes</text>'
    )
    return "\n".join([*out, "</svg>\n"])
