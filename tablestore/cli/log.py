"""``tablestore log``: the log offsets of each snapshot, and how far the log is behind the table."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Annotated

from rich.text import Text
from typer import Option

from log_system.index import IndexEntry
from snapshot.errors import InvalidInputError
from snapshot.messages import counted
from snapshot.records import Snapshot
from tablestore.cli.console import AsJson, Client, Path, client_options, result_console
from tablestore.cli.output import print_json, show_rows
from tablestore.context import TableContext
from tablestore.inspect.metadata_tables import lag


def log(
    path: Path,
    limit: Annotated[int, Option(help="Maximum number of snapshots, newest first.", min=1)] = 20,
    option: Client = None,
    as_json: AsJson = False,
) -> None:
    """Show the log offsets of each snapshot, and how far the log is behind the table."""
    console = result_console()
    table = TableContext.open(path, client_options(option))
    log = table.options.log
    if log is None:
        msg = f"table {table.path!r} has no log: streams read its files. 'tablestore snapshots {path}' lists them."
        raise InvalidInputError(msg)
    latest = list(islice(table.files.snapshots(), limit))
    entries = [(each, table.index.get(each.id)) for each in latest]
    newest, published = table.files.latest(), table.newest_visible()
    behind = lag(table.files, published, newest)
    offsets = table.log.offsets()
    if as_json:
        for snapshot, entry in entries:
            print_json(console, _fields(snapshot, entry))
        print_json(
            console,
            {
                "topic": log.kafka.topic,
                "format": log.format,
                "partitions": [asdict(each) for each in offsets],
                "newest": newest,
                "published": published,
                "lag": asdict(behind),
            },
        )
        return
    names = ("snapshot", "kind", "rows", "in the log", "offsets")
    show_rows(console, names, (_cells(*each) for each in entries), as_json=False)
    where = "  ".join(f"{each.partition}: {each.first}-{each.end}" for each in offsets)
    console.print(Text(f"Topic {log.kafka.topic!r} ({log.format}) has offsets {where}."), soft_wrap=True)
    if not behind.snapshots:
        console.print(Text(f"The log contains every snapshot up to {newest}."))
        return
    what = f"{counted(behind.snapshots, 'snapshot')}, {counted(behind.rows, 'change')}, {behind.seconds:,.0f} s"
    console.print(
        Text(f"The log ends with snapshot {published}, the table with {newest}: it is {what} behind."),
        style="yellow",
        soft_wrap=True,
    )
    console.print(Text(f"A running writer publishes them; otherwise run 'tablestore recover {path}'."), soft_wrap=True)


def _fields(snapshot: Snapshot, entry: IndexEntry | None) -> dict[str, object]:
    ranges = [] if entry is None else [(p, r) for p, r in enumerate(entry.partitions) if r.rows]
    return {
        "snapshot": snapshot.id,
        "kind": snapshot.operation,
        "rows": snapshot.rows,
        "published": entry is not None,
        "offsets": [{"partition": p, "start": r.start, "end": r.end, "rows": r.rows} for p, r in ranges],
    }


def _cells(snapshot: Snapshot, entry: IndexEntry | None) -> tuple[object, ...]:
    ranges = [] if entry is None else [f"{p}: {r.start}-{r.end}" for p, r in enumerate(entry.partitions) if r.rows]
    return snapshot.id, snapshot.operation, snapshot.rows, "not yet" if entry is None else "yes", "  ".join(ranges)
