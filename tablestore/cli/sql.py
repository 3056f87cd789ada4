"""``tablestore sql``: run SQL, show what it gives, and let continuous queries run until Ctrl-C."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Option, Typer

from log_system.jars import waiting
from snapshot.errors import InvalidInputError, TableStoreError
from snapshot.rowkind import CHANGE_TYPE
from tablestore.session import session
from tablestore.sql.catalog import Catalog
from tablestore.sql.parse import parse
from tablestore.sql.results import Result

#: So many rows are shown as one table; more are shown as several, and never all kept.
_PAGE_ROWS = 500
_SIGNS = {"insert": "+I", "update_preimage": "-U", "update_postimage": "+U", "delete": "-D"}


def sql(
    file: Annotated[list[Path] | None, Option("--file", "-f", help="Run the statements of a file.")] = None,
    text: Annotated[list[str] | None, Option("--execute", "-e", help="Run these statements.")] = None,
    warehouse: Annotated[
        str, Option("--warehouse", "-w", help="Folder of tables and their definitions.")
    ] = "warehouse",
    setting: Annotated[
        list[str] | None, Option("--set", "-s", help="A setting before all statements: KEY=VALUE.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object a line instead of tables.")] = False,
) -> None:
    """Run SQL. Files come first, then -e; without either, what comes on standard input."""
    console = Console(highlight=False, soft_wrap=as_json)
    texts = [each.read_text() for each in file or []] + list(text or [])
    if not texts:
        if sys.stdin.isatty():
            msg = "expected -f FILE or -e TEXT, or statements on standard input; there is no prompt yet."
            raise InvalidInputError(msg)
        texts = [sys.stdin.read()]
    # A mistake in the last file is told before the first is run.
    statements = [statement for each in texts for statement in parse(each)]
    settings = dict(pair.partition("=")[::2] for pair in setting or [])
    catalog = Catalog(session, warehouse, settings=settings)
    queries: list[StreamingQuery] = []
    try:
        for statement in statements:
            result = catalog.execute(statement)
            queries += result.queries
            queries += _show(catalog, result, console, as_json)
        _wait(queries, console, as_json)
    except KeyboardInterrupt:
        console.print("" if as_json else "Stopped. The same INSERT goes on where it was.")
    except PySparkException as error:
        # Spark's message goes on with its plan and with Java's stack.
        raise TableStoreError(str(error).split("\n\nJVM stacktrace")[0].split("\n\tat ")[0].strip()) from error
    finally:
        for query in queries:
            query.stop()


def add_to(app: Typer) -> None:
    """Put the command at the top level."""
    app.command()(sql)


def _show(catalog: Catalog, result: Result, console: Console, as_json: bool) -> list[StreamingQuery]:
    """Show what a statement gives; give the query that goes on showing it."""
    if result.frame is not None and result.frame.isStreaming:

        def show_batch(frame: DataFrame, number: int) -> None:
            _show_frame(frame, console, as_json, result.output_mode)

        return [catalog.follow(result, show_batch)]
    if result.frame is not None:
        with waiting("Reading ..."):
            rows = result.frame.toLocalIterator()
        _show_rows(result.frame.columns, map(tuple, rows), console, as_json)
    elif result.columns == ("statement",) or result.columns in {("view",), ("plan",)}:
        for row in result.rows:
            console.print(json.dumps({result.columns[0]: row[0]}) if as_json else Text(f"{row[0]};"), soft_wrap=True)
    elif result.columns:
        _show_rows(result.columns, result.rows, console, as_json)
    else:
        console.print(
            json.dumps({"message": result.message}) if as_json else Text(f"{result.message}."), soft_wrap=True
        )
    return []


def _show_frame(frame: DataFrame, console: Console, as_json: bool, mode: str) -> None:
    """Show a micro-batch, each row with what it does to the result."""
    has_changes = CHANGE_TYPE in frame.columns
    names = [name for name in frame.columns if name != CHANGE_TYPE]
    usual = "+I" if mode == "append" else "+U"

    def rows() -> Iterator[tuple[object, ...]]:
        for row in frame.toLocalIterator():
            sign = _SIGNS[row[CHANGE_TYPE]] if has_changes else usual
            yield (sign, *(row[number] for number, name in enumerate(frame.columns) if name != CHANGE_TYPE))

    _show_rows(["op", *names], rows(), console, as_json, empty=False)


def _show_rows(
    names: Iterable[str], rows: Iterable[tuple[object, ...]], console: Console, as_json: bool, *, empty: bool = True
) -> None:
    names, rows = list(names), iter(rows)
    is_first = empty
    while (page := list(islice(rows, _PAGE_ROWS))) or is_first:
        is_first = False
        if as_json:
            for row in page:
                console.print(json.dumps(dict(zip(names, row, strict=True)), default=str), markup=False)
            continue
        view = Table()
        for name in names:
            view.add_column(Text(name))
        for row in page:
            view.add_row(*(Text("NULL" if value is None else str(value)) for value in row))
        console.print(view)


def _wait(queries: list[StreamingQuery], console: Console, as_json: bool) -> None:
    """Let queries run; one that fails ends all, with its error."""
    if queries and not as_json:
        console.print("Running. Ctrl-C ends it.", style="dim")
    while any(query.isActive for query in queries):
        for query in queries:
            query.awaitTermination(1)
    for query in queries:
        error = query.exception()
        if error is not None:
            raise error
