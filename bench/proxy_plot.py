"""Bars of CPU ms a call, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

COLORS = ("#9aa5b1", "#52606d", "#2f80ed", "#56ccf2", "#f2994a", "#9b51e0")
BAR, GAP, LEFT, WIDTH = 18, 14, 230, 760


def plot(bars: Sequence[tuple[str, str, float]]) -> str:
    """(cell, candidate, milliseconds), grouped by cell."""
    candidates = list(dict.fromkeys(name for _, name, _ in bars))
    scale = (WIDTH - LEFT - 60) / max(value for *_, value in bars)
    parts, y, before = [], 10, ""
    for what, name, value in sorted(bars, key=lambda bar: (bar[0], candidates.index(bar[1]))):
        if what != before:
            y += GAP if before else 0
            before = what
        color = COLORS[candidates.index(name) % len(COLORS)]
        parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{what}: {name}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{value * scale:.1f}" height="{BAR - 4}" fill="{color}"/>')
        parts.append(f'<text x="{LEFT + value * scale + 6:.1f}" y="{y + 12}">{value:.2f} ms</text>')
        y += BAR
    size = f'width="{WIDTH}" height="{y + 10}" font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, *parts, "</svg>"])
