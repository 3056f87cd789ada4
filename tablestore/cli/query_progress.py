"""Progress of running queries, one line each: rows per second, lag, and rows in state."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from snapshot.messages import counted


class Screen:
    """The progress area at the bottom of a terminal; other output scrolls above it.

    Without a terminal no progress is shown.
    """

    def __init__(self, console: Console, *, silent: bool) -> None:
        """Create an area on ``console`` or, if its output goes to a file or a pipe, on standard error."""
        place = console if console.is_terminal else Console(stderr=True, highlight=False)
        self._place = place
        self._is_silent = silent or not place.is_terminal
        self._console = console
        self._lines: dict[str, str] = {}
        self._table: RenderableType | None = None
        self._live: Live | None = None
        self.keeps_last = False
        """Whether the last table stays on the screen when the area is closed."""

    def __enter__(self) -> Self:
        """Start displaying."""
        if not self._is_silent:
            self._live = Live(console=self._place, transient=not self.keeps_last, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop displaying and release the screen."""
        if self._live is not None:
            self._lines.clear()
            self._draw()
            self._live.stop()
            self._live = None
        elif self._table is not None and self.keeps_last:
            # Without a terminal the table cannot be redrawn, so only its last state is printed.
            self._console.print(self._table)
        self._table = None

    def tell(self, name: str, text: str) -> None:
        """Display a line, replacing the previous line of the same name."""
        self._lines[name] = text
        self._draw()

    def show(self, table: RenderableType) -> None:
        """Display a table above the lines, replacing the previous table."""
        self._table = table
        self._draw()

    def _draw(self) -> None:
        if self._live is not None:
            lines = [Text(text, style="dim") for text in self._lines.values() if text]
            self._live.update(Group(*([self._table] if self._table is not None else []), *lines), refresh=True)


def progress_text(progress: Mapping[str, Any] | None) -> str:
    """Return a query's progress as one line, from Spark's progress report on its last micro-batch."""
    if not progress:
        return "starting"
    rate = progress.get("processedRowsPerSecond") or 0.0
    parts = [f"micro-batch {int(progress.get('batchId', 0)):,}", f"{rate:,.0f} rows/s"]
    for unit, count in lag_of(progress).items():
        parts.append(f"{counted(count, unit.removesuffix('s'))} behind")
    state = sum(int(each.get("numRowsTotal") or 0) for each in progress.get("stateOperators") or [])
    if progress.get("stateOperators"):
        parts.append(f"{state:,} rows in state")
    return " · ".join(parts)


def lag_of(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how far a query is behind its sources.

    Returns:
        The number of ``snapshots`` of store tables and of ``records`` of Kafka topics. Sources that do not report their
        latest offset are left out.
    """
    lag: dict[str, int] = {}
    for source in progress.get("sources") or []:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if not end or not latest:
            continue
        unit = "snapshots" if set(latest) == {("snapshot",)} else "records"
        behind = sum(max(0, latest[place] - end.get(place, 0)) for place in latest)
        lag[unit] = lag.get(unit, 0) + behind
    return lag


def _offsets(given: Any) -> dict[tuple[str, ...], int]:
    """Flatten a source's offset to one number per position; for an eventual log these are Kafka offsets."""
    offset = _read(given) if isinstance(given, str) else given
    if not isinstance(offset, Mapping):
        return {}
    for part in ("at", "offsets"):
        if offset.get(part):
            return dict(_leaves(offset[part]))
    return dict(_leaves({name: value for name, value in offset.items() if name != "table"}))


def _read(text: str) -> Any:
    """Parse an offset as JSON or as the Python literal PySpark makes of it; None for another source's own format."""
    for reader in (json.loads, ast.literal_eval):
        try:
            return reader(text)
        except (ValueError, SyntaxError):
            continue
    return None


def _leaves(value: Any, place: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], int]]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [(place, value)]
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [leaf for name, inner in items for leaf in _leaves(inner, (*place, str(name)))]
