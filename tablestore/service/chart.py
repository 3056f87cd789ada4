"""The curves of committed and published snapshots over time, as SVG."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from snapshot.records import Snapshot
from tablestore.service.watcher import Sample

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 10, 26
_SECOND = 1_000
_STEPS_MS = tuple(
    _SECOND * each
    for each in (
        *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
        *(86_400, 172_800, 604_800, 2_592_000, 31_536_000),
    )
)
_DAY_MS = 86_400 * _SECOND
Point = tuple[float, int]


@dataclass(frozen=True)
class _Frame:
    """Where times and snapshots are in the picture."""

    width: int
    height: int
    first_ms: float
    last_ms: float
    low: int
    high: int

    def x(self, at_ms: float) -> float:
        span = max(1.0, self.last_ms - self.first_ms)
        share = min(1.0, max(0.0, (at_ms - self.first_ms) / span))
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def y(self, snapshot: int) -> float:
        share = (min(max(snapshot, self.low), self.high) - self.low) / max(1, self.high - self.low)
        return self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM)


def curves(shown: Sequence[Snapshot], samples: Sequence[Sample], published: int | None) -> str:
    """Return the curves and their legend.

    Args:
        shown: snapshots, newest first; all of a range, or some of it.
        samples: what the service saw since it began to watch.
        published: the newest snapshot in the log; None without a log.
    """
    snapshots = list(reversed(shown))
    if len(snapshots) < 2:
        return "<p>Not enough snapshots for a picture yet.</p>"
    newest = snapshots[-1]
    committed = [(float(each.timestamp_ms), each.id) for each in snapshots]
    in_log = None if published is None else _published(snapshots, samples, published)
    end = max(committed[-1][0], in_log[-1][0] if in_log else 0.0)
    if published is not None and published < newest.id:
        end = max(end, time.time() * 1000)
    end += (end - committed[0][0]) * 0.02
    label = f"Snapshots {snapshots[0].id:,} to {newest.id:,}"
    legend = f'<span><b class="committed"></b>committed: {newest.id:,}</span>'
    if published is not None:
        label += f"; {min(published, newest.id):,} is the newest in the log"
        legend += f'<span><b class="published"></b>in the log: {min(published, newest.id):,}</span>'
    pictures = "".join(
        _picture(
            _Frame(width, height, committed[0][0], end, snapshots[0].id, newest.id), committed, in_log, label, name
        )
        for name, width, height in (("wide", 1080, 280), ("narrow", 400, 240))
    )
    if published is not None and samples and samples[0].at_ms > committed[0][0]:
        since = _utc(samples[0].at_ms).strftime("%Y-%m-%d %H:%M:%S")
        legend += f"<span>Until {since} UTC, when this service began to watch, both curves show the commits.</span>"
    return f'{pictures}<div class="legend">{legend}</div>'


def _published(snapshots: Sequence[Snapshot], samples: Sequence[Sample], published: int) -> list[Point]:
    """Return when the log held which snapshot: as seen, and before that, as if each was published with its commit."""
    first, last = snapshots[0].id, snapshots[-1].id
    known_from = samples[0].published if samples else published
    found = [(float(each.timestamp_ms), each.id) for each in snapshots if each.id <= known_from]
    found += [(each.at_ms, min(each.published, last)) for each in samples if each.published > known_from]
    return [(at, snapshot) for at, snapshot in found if snapshot >= first]


def _picture(frame: _Frame, committed: Sequence[Point], in_log: Sequence[Point] | None, label: str, name: str) -> str:
    lines = [f'<polyline class="committed" points="{_steps(frame, committed)}"/>']
    if in_log:
        lines.append(f'<polyline class="published" points="{_steps(frame, in_log)}"/>')
    if in_log is not None and (not in_log or in_log[-1][1] < frame.high):
        # What the log lacks now.
        since = next(at for at, snapshot in committed if not in_log or snapshot > in_log[-1][1])
        x, y = frame.x(since), frame.y(in_log[-1][1] if in_log else frame.low)
        size = f'width="{frame.width - _RIGHT - x:.1f}" height="{y - _TOP:.1f}"'
        lines.insert(0, f'<rect class="gap" x="{x:.1f}" y="{_TOP}" {size}/>')
    return (
        f'<svg class="chart {name}" viewBox="0 0 {frame.width} {frame.height}" role="img">'
        f"<title>{escape(label)}</title>{_axes(frame)}{''.join(lines)}</svg>"
    )


def _steps(frame: _Frame, points: Sequence[Point]) -> str:
    """Return a curve that keeps each snapshot until the next one."""
    found: list[str] = []
    before: float | None = None
    for at, snapshot in points:
        x, y = frame.x(at), frame.y(snapshot)
        if before is not None:
            found.append(f"{x:.1f},{before:.1f}")
        found.append(f"{x:.1f},{y:.1f}")
        before = y
    found.append(f"{frame.x(frame.last_ms):.1f},{before:.1f}")
    return " ".join(found)


def _axes(frame: _Frame) -> str:
    bottom, right = frame.height - _BOTTOM, frame.width - _RIGHT
    parts: list[str] = []
    for snapshot in _snapshot_ticks(frame.low, frame.high):
        y = frame.y(snapshot)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{snapshot:,}</text>')
    step = next((s for s in _STEPS_MS if (frame.last_ms - frame.first_ms) / s <= frame.width / 90), _STEPS_MS[-1])
    at = math.ceil(frame.first_ms / step) * step
    while at <= frame.last_ms:
        x = frame.x(at)
        anchor = "start" if x < _LEFT + 20 else "middle"
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        if x < right - 25:
            parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{_time(at, step)}</text>')
        at += step
    return "".join(parts)


def _snapshot_ticks(low: int, high: int) -> list[int]:
    steps = (factor * 10**power for power in range(19) for factor in (1, 2, 5))
    step = next(each for each in steps if (high - low) / each <= 5)
    first = math.ceil(low / step) * step
    return list(range(first, high + 1, step))


def _time(at_ms: float, step_ms: float) -> str:
    at = _utc(at_ms)
    if step_ms >= _DAY_MS:
        return f"{at:%b %d}"
    if step_ms < _SECOND:
        return f"{at:%H:%M:%S}.{at.microsecond // 100_000}"
    if at_ms % _DAY_MS == 0:
        return f"{at:%b %d}"
    return f"{at:%H:%M}" if step_ms >= 60 * _SECOND else f"{at:%H:%M:%S}"


def _utc(at_ms: float) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
