"""Printing of rows: as tables for people, or as one JSON object per line for programs."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from log_system import report as reports
from log_system.formats.changes_schema import relabel
from log_system.formats.duckdb_json import (
    can_be_unusual,
    check_values,
    is_unusual,
    numbered_types,
    object_sql,
    write_sql,
)
from log_system.formats.thread_duckdb import Duck
from snapshot.python_values import printable

PAGE_ROWS = 500
"""Maximum rows per printed table; a longer result is printed as several tables and never held in memory as a whole."""
_WIDTH_MAX = 60


class RowPrinter:
    """Prints rows as they arrive, page by page, under one heading."""

    def __init__(self, console: Console, names: Iterable[str], *, as_json: bool) -> None:
        """Create a printer for rows with the columns ``names``."""
        self._console = console
        self._names = list(names)
        self._as_json = as_json
        self._widths = [len(name) for name in self._names]
        self._is_first = True

    def show(self, rows: Iterable[Sequence[object]], *, empty: bool = False) -> None:
        """Print rows.

        Args:
            rows: consumed lazily, one page at a time.
            empty: whether to print the heading if no row has been printed.
        """
        rows = iter(rows)
        while page := list(islice(rows, PAGE_ROWS)):
            self._page(page)
        if empty and self._is_first:
            self._page([])

    def _page(self, rows: Sequence[Sequence[object]]) -> None:
        if self._as_json:
            for row in rows:
                print_json(self._console, dict(zip(self._names, row, strict=True)))
            return
        cells = [[text_of(value) for value in row] for row in rows]
        for number, texts in enumerate(zip(*cells, strict=True)):
            widest = max(len(line) for text in texts for line in text.split("\n"))
            self._widths[number] = max(self._widths[number], min(widest, _WIDTH_MAX))
        if sum(self._widths) + 3 * len(self._widths) + 1 > self._console.width:
            self._one_below_the_other(cells)
            return
        # Later pages have no heading of their own.
        view = Table(show_header=self._is_first)
        for name, width in zip(self._names, self._widths, strict=True):
            view.add_column(Text(name), min_width=min(width, _WIDTH_MAX), overflow="fold")
        for row in cells:
            view.add_row(*map(Text, row))
        self._console.print(view)
        self._is_first = False

    def _one_below_the_other(self, rows: Sequence[Sequence[str]]) -> None:
        """Print each value of a row on a line of its own: the terminal is too narrow for the columns."""
        if not rows:
            self._console.print(Text(f"No rows. Columns: {', '.join(self._names)}."))
        for row in rows:
            view = Table(show_header=False)
            view.add_column(overflow="fold")
            view.add_column(overflow="fold")
            for name, value in zip(self._names, row, strict=True):
                view.add_row(Text(name), Text(value))
            self._console.print(view)
        self._is_first = False


class BatchPrinter:
    """Prints Arrow batches. With ``--json``, values are written as the log's ``json`` format writes them, in bulk."""

    def __init__(self, console: Console, schema: pa.Schema, *, as_json: bool) -> None:
        """Create a printer for batches of ``schema``."""
        self._console = console
        self._rows = None if as_json else RowPrinter(console, schema.names, as_json=False)
        self._lines = JsonLines(schema) if as_json else None

    def show(self, batch: pa.RecordBatch) -> None:
        """Print a batch."""
        if self._rows is not None:
            self._rows.show(zip(*map(printable, batch.columns), strict=True))
        elif self._lines is not None and batch.num_rows:
            self._console.file.write("\n".join(self._lines.of(batch)) + "\n")
            self._console.file.flush()

    def end(self) -> None:
        """Print the heading if no row was printed."""
        if self._rows is not None:
            self._rows.show((), empty=True)


class JsonLines:
    """Writes the rows of Arrow batches as JSON objects."""

    def __init__(self, schema: pa.Schema) -> None:
        """Create a writer for batches of ``schema``, whose types are those of a table."""
        self._schema = schema
        self._seen = numbered_types(schema)
        self._unusual = [i for i, kind in enumerate(schema.types) if can_be_unusual(kind)]
        self._duck = Duck("256MB")

    def of(self, batch: pa.RecordBatch) -> list[str]:
        """Return one JSON object per row.

        Raises:
            InvalidInputError: a column has one of the few dates and timestamps that cannot be written in JSON.
        """
        check_values(batch)
        unusual = any(is_unusual(batch.column(i)) for i in self._unusual)
        fields = {f.name: write_sql(f.type, f"c{i}", unusual=unusual) for i, f in enumerate(self._schema)}
        rows = relabel(batch, self._seen)
        lines: list[str] = self._duck.run(f"SELECT {object_sql(fields)} FROM rows", rows=rows).column(0).to_pylist()
        return lines


def show_rows(console: Console, names: Iterable[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """Print rows, or only the heading if there are none."""
    RowPrinter(console, names, as_json=as_json).show(rows, empty=True)


def show_batches(console: Console, schema: pa.Schema, batches: Iterator[pa.RecordBatch], *, as_json: bool) -> None:
    """Print the rows of batches, page by page, or only the heading if there are none."""
    if not as_json:
        rows = chain.from_iterable(zip(*map(printable, batch.columns), strict=True) for batch in batches)
        show_rows(console, schema.names, rows, as_json=False)
        return
    printer = BatchPrinter(console, schema, as_json=True)
    for batch in batches:
        printer.show(batch)


def print_json(console: Console, fields: Mapping[str, object]) -> None:
    """Print one JSON object on one line."""
    console.print(json.dumps(_plain(fields), ensure_ascii=False), markup=False, highlight=False, soft_wrap=True)


def text_of(value: object) -> str:
    """Return a value as human-readable text."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        # Values with a time zone are in UTC.
        text = value.replace(tzinfo=None).isoformat(" ")
        return (text.rstrip("0").rstrip(".") if "." in text else text) + ("Z" if value.tzinfo else "")
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _plain(value: Any) -> Any:
    """Convert a value to one that JSON can represent."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if hasattr(value, "asDict"):
        return _plain(value.asDict())
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)


@contextmanager
def progress_bar(what: str) -> Iterator[reports.Progress]:
    """Yield a callback that updates a progress bar on standard error; the bar is shown only in a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    shown = Console(stderr=True)
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        line = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)
