"""Draws the ratios of docs/reference/benchmarks.md: ``python -m benchmarks.chart`` writes benchmarks.svg beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "benchmarks.md"
CHART = PAGE.with_suffix(".svg")
_ROW = re.compile(r"\| (?P<what>[^|]+) \| [^|]+ \| [^|]+ \| (?P<other>[^|]+) \| (?P<times>[\d.]+)x \|")
_LABELS, _BARS, _STEP, _TOP = 470, 320, 22, 46
_TICKS = (0.25, 0.5, 1, 2, 5, 10, 20)


@dataclass(frozen=True)
class Bar:
    """One row of the table.

    Attributes:
        what: what was measured.
        other: what it is compared with, without its figure.
        times: how many times as fast ours is.
    """

    what: str
    other: str
    times: float


def bars(page: str) -> list[Bar]:
    """Return the rows of the page's table that have a ratio."""
    found = (_ROW.match(line) for line in page.splitlines())
    return [
        Bar(_plain(each["what"]), _plain(each["other"]).partition(",")[0], float(each["times"]))
        for each in found
        if each
    ]


def draw(found: Sequence[Bar]) -> str:
    """Return an SVG picture: a bar from 1x to the ratio of each row, on a logarithmic scale."""
    height = _TOP + _STEP * len(found) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LABELS + _BARS + 70} {height}" '
        'font-family="sans-serif" font-size="12" role="img" aria-label="How many times as fast">',
        f'<text x="{_LABELS}" y="16" font-weight="bold">times as fast as the alternative</text>',
    ]
    for tick in _TICKS:
        x = _place(tick)
        stroke = "#555" if tick == 1 else "#ddd"
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{height - 8}" stroke="{stroke}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_TOP - 12}" text-anchor="middle" fill="#555">{tick:g}x</text>')
    for number, bar in enumerate(found):
        y = _TOP + number * _STEP
        left, right = sorted((_place(1), _place(bar.times)))
        color = "#2a7f62" if bar.times >= 1 else "#c4733b"
        text = f'{escape(bar.what)} <tspan fill="#777">/ {escape(bar.other)}</tspan>'
        parts.append(f'<text x="{_LABELS - 8}" y="{y + 11}" text-anchor="end">{text}</text>')
        parts.append(
            f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 1):.1f}" height="{_STEP - 8}" fill="{color}"/>'
        )
        parts.append(f'<text x="{right + 5:.1f}" y="{y + 11}">{bar.times:g}x</text>')
    return "\n".join([*parts, "</svg>", ""])


def _place(times: float) -> float:
    low, high = math.log(0.2), math.log(40)
    return _LABELS + (math.log(times) - low) / (high - low) * _BARS


def _plain(text: str) -> str:
    return re.sub(r"[`*]", "", text).strip()


if __name__ == "__main__":
    CHART.write_text(draw(bars(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
