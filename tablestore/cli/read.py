"""``describe``, ``read``, ``changes`` and ``tail``: commands that read one table without Spark or Java."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import pyarrow as pa
from rich.table import Table
from rich.text import Text
from typer import Option

from snapshot.schema.json_types import sql_columns
from tablestore.cli.console import AsJson, Client, Path, Point, client_options, result_console
from tablestore.cli.output import BatchPrinter, print_json, show_batches, show_rows
from tablestore.context import TableContext
from tablestore.local.table import LocalTable, open_local
from tablestore.read.time_travel import is_tag

_STARTS = ("latest", "earliest", "full")


def describe(path: Path, option: Client = None, as_json: AsJson = False) -> None:
    """Show a table's columns, primary key, options and newest snapshot."""
    console = result_console()
    table = TableContext.open(path, client_options(option))
    spec, newest = table.spec, table.files.snapshot(table.files.latest())
    columns = [
        {"name": name, "type": kind, "null": null, "key": name in spec.primary_key}
        for name, kind, null in sql_columns(spec.schema_json)
    ]
    facts: dict[str, object] = {
        "path": table.path,
        "primary_key": list(spec.primary_key),
        "partition_by": list(spec.partition_by),
        "snapshot": newest.id,
        "committed": newest.time.isoformat(timespec="milliseconds"),
    }
    options = dict(sorted(spec.properties.items()))
    if as_json:
        print_json(console, {"columns": columns, **facts, "options": options})
        return
    show_rows(console, ("column", "type", "null", "key"), (tuple(each.values()) for each in columns), as_json=False)
    view = Table(show_header=False, box=None)
    view.add_column(overflow="fold")
    view.add_column(overflow="fold")
    for name, value in facts.items():
        text = ", ".join(map(str, value)) or "-" if isinstance(value, list) else str(value)
        view.add_row(name.replace("_", " "), Text(text))
    for name, text in options.items():
        view.add_row(name, Text(text))
    console.print(view)


def read(
    path: Path,
    column: Annotated[
        list[str] | None, Option("--column", "-c", help="A column to read; repeatable. Default: all columns.")
    ] = None,
    where: Annotated[str | None, Option("--where", help="Condition on the rows, in DuckDB SQL.")] = None,
    snapshot: Point = None,
    limit: Annotated[int | None, Option(help="Maximum number of rows; their order is not defined.", min=1)] = None,
    count: Annotated[bool, Option("--count", help="Print only the number of rows.")] = False,
    option: Client = None,
    as_json: AsJson = False,
) -> None:
    """Show the rows of a table."""
    console = result_console()
    table = open_local(path, options=client_options(option))
    if count:
        show_rows(console, ("rows",), [(table.count(where, snapshot=snapshot),)], as_json=as_json)
        return
    batches = _first(table.to_batches(column, where, snapshot=snapshot), limit)
    show_batches(console, table.schema_of(column), batches, as_json=as_json)


def _first(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield batches up to a number of rows."""
    for batch in batches:
        yield batch if limit is None else batch.slice(0, limit)
        if limit is not None:
            limit -= batch.num_rows
            if limit <= 0:
                return


def changes(
    path: Path,
    first: Annotated[str, Option("--from", help="Print changes after this snapshot id, tag or time.")] = "0",
    last: Annotated[str | None, Option("--to", help="Last snapshot to include. Default: the newest.")] = None,
    option: Client = None,
    as_json: AsJson = False,
) -> None:
    """Show the changes between two snapshots."""
    table = open_local(path, options=client_options(option))
    show_batches(result_console(), table.feed_schema, table.changes(first, last), as_json=as_json)


def tail(
    path: Path,
    start: Annotated[
        str,
        Option("--from", help="latest, earliest, full (all rows first), a snapshot id, a tag, or a time."),
    ] = "latest",
    follow: Annotated[bool, Option(help="Wait for more changes until Ctrl-C.")] = True,
    option: Client = None,
    as_json: AsJson = False,
) -> None:
    """Follow a table's changes as they are committed, from its log if it has one."""
    table = open_local(path, options=client_options(option))
    printer = BatchPrinter(result_console(), table.feed_schema, as_json=as_json)
    try:
        for batch in _tailed(table, start, follow):
            printer.show(batch)
    except KeyboardInterrupt:
        # Ctrl-C is the normal way to stop following.
        return
    printer.end()


def _tailed(table: LocalTable, start: str, follow: bool) -> Iterator[pa.RecordBatch]:
    if start in _STARTS:
        return table.tail(scan_mode=start, follow=follow)
    if start.isdigit():
        return table.tail(snapshot=int(start), follow=follow)
    if is_tag(start):
        return table.tail(tag=start, follow=follow)
    return table.tail(timestamp=start, follow=follow)
