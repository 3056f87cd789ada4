"""How running queries do, on one line each: rows a second, what waits, how much is kept in state."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text


class Screen:
    """The lower part of a terminal, where progress is shown; what is printed meanwhile scrolls above it.

    Where there is no terminal, nothing is shown.
    """

    def __init__(self, console: Console, *, silent: bool) -> None:
        """Show on ``console`` or, where its output goes into a file or a pipe, on standard error."""
        place = console if console.is_terminal else Console(stderr=True, highlight=False)
        self._place = place
        self._is_silent = silent or not place.is_terminal
        self._console = console
        self._lines: dict[str, str] = {}
        self._table: RenderableType | None = None
        self._live: Live | None = None
        self.keeps_last = False
        """Whether what was shown last stays when following ends."""

    def __enter__(self) -> Self:
        """Begin to show."""
        if not self._is_silent:
            self._live = Live(console=self._place, transient=not self.keeps_last, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the screen to what comes next."""
        if self._live is not None:
            self._lines.clear()
            self._draw()
            self._live.stop()
            self._live = None
        elif self._table is not None and self.keeps_last:
            # Without a terminal a table cannot change: its last state is what there is to show.
            self._console.print(self._table)
        self._table = None

    def tell(self, name: str, text: str) -> None:
        """Show a line under its name, in place of the one before."""
        self._lines[name] = text
        self._draw()

    def show(self, table: RenderableType) -> None:
        """Show a table above the lines, in place of the one before."""
        self._table = table
        self._draw()

    def _draw(self) -> None:
        if self._live is not None:
            lines = [Text(text, style="dim") for text in self._lines.values() if text]
            self._live.update(Group(*([self._table] if self._table is not None else []), *lines), refresh=True)


def progress_text(progress: Mapping[str, Any] | None) -> str:
    """Say how a query does, from what Spark says of its last micro-batch."""
    if not progress:
        return "starting"
    rate = progress.get("processedRowsPerSecond") or 0.0
    parts = [f"micro-batch {int(progress.get('batchId', 0)):,}", f"{rate:,.0f} rows/s"]
    for unit, count in lag_of(progress).items():
        parts.append(f"{count:,} {unit} behind")
    state = sum(int(each.get("numRowsTotal") or 0) for each in progress.get("stateOperators") or [])
    if progress.get("stateOperators"):
        parts.append(f"{state:,} rows in state")
    return " · ".join(parts)


def lag_of(progress: Mapping[str, Any]) -> dict[str, int]:
    """Count what waits in a query's sources.

    Returns:
        How many ``snapshots`` of store tables and ``records`` of Kafka topics; nothing of sources that do not say.
    """
    found: dict[str, int] = {}
    for source in progress.get("sources") or []:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if not end or not latest:
            continue
        unit = "snapshots" if set(latest) == {("snapshot",)} else "records"
        behind = sum(max(0, latest[place] - end.get(place, 0)) for place in latest)
        found[unit] = found.get(unit, 0) + behind
    return found


def _offsets(given: Any) -> dict[tuple[str, ...], int]:
    """Flatten a source's offset: a number for each place it counts. An eventual log's are Kafka's."""
    offset = _read(given) if isinstance(given, str) else given
    if not isinstance(offset, Mapping):
        return {}
    for part in ("at", "offsets"):
        if offset.get(part):
            return dict(_leaves(offset[part]))
    return dict(_leaves({name: value for name, value in offset.items() if name != "table"}))


def _read(text: str) -> Any:
    """Read an offset: JSON, or what PySpark makes of JSON; of other sources it may be anything."""
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
