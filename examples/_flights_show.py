"""The demo's output: progress bars in a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from _flights_readers import Reading
from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

console = Console(highlight=False, soft_wrap=True)


class Bars(Progress):
    """Progress bars that read their counts whenever they are drawn; nothing is shown outside a terminal."""

    def __init__(self, total: int, counts: dict[str, Callable[[], int]]) -> None:
        """Create one bar per count, each with the same total."""
        columns = (
            TextColumn("  {task.description:<22}"),
            BarColumn(bar_width=36),
            TextColumn("{task.completed:>9,.0f} changes"),
            TimeElapsedColumn(),
        )
        shown = console.is_terminal
        super().__init__(*columns, console=console, transient=True, redirect_stderr=False, disable=not shown)
        self._counts: dict[int, Callable[[], int]] = {}
        for name, count in counts.items():
            self._counts[self.add_task(name, total=total)] = count

    def get_renderables(self) -> Iterable[RenderableType]:
        """Update the counts and return what to draw."""
        for task in self.tasks:
            if task.id in self._counts:
                task.completed = self._counts[task.id]()
        return super().get_renderables()


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Redirect standard error, to which Java and Spark log, to a file, so that it does not garble the bars."""
    kept = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def say(text: str) -> None:
    console.print(text)


def show(readings: Sequence[Reading]) -> None:
    """Print the readings side by side."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("read by")
    table.add_column("flights", justify="right")
    table.add_column("minutes late", justify="right")
    table.add_column("SHA-256")
    table.add_column("from")
    for reading in readings:
        agrees = reading.checksum == readings[0].checksum
        table.add_row(
            reading.reader,
            f"{reading.rows:,}",
            f"{reading.delay_minutes:,}",
            f"{reading.checksum[:8]} " + ("[green]=[/]" if agrees else "[red]differs[/]"),
            reading.seen,
        )
    console.print(table)
