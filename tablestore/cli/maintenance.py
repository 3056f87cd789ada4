"""Maintenance commands: expiry, rollback, tags, consumers and metadata tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import pyarrow as pa
from rich.text import Text
from typer import Argument, Option

from log_system.jars import waiting
from snapshot.messages import counted
from tablestore.cli.console import AsJson, Client, Path, Point, client_options, console
from tablestore.cli.output import print_json, progress_bar, show_rows
from tablestore.context import TableContext
from tablestore.inspect.metadata_tables import INSPECTED, inspected
from tablestore.local.threads import run_in_threads
from tablestore.maintenance import remove_orphans as orphans
from tablestore.maintenance.change_tags import delete_tag as remove_tag
from tablestore.maintenance.change_tags import make_tag
from tablestore.maintenance.expire_partitions import expiration_of
from tablestore.maintenance.expire_snapshots import expire as expire_table
from tablestore.maintenance.expire_snapshots import rules_of
from tablestore.maintenance.remove_orphans import AGE
from tablestore.streaming.consumers import reset_consumer as reset

DryRun = Annotated[bool, Option("--dry-run", help="Only show what would be done.")]
Tag = Annotated[str, Argument(help="Name of the tag.")]
Retained = Annotated[
    str | None, Option("--retained", help="After how long the next expiry deletes it, such as '7 d'. Default: never.")
]


def expire(
    path: Path,
    older_than: Annotated[
        str | None, Option(help="Expire snapshots that were replaced this long ago ('7 d') or before this time.")
    ] = None,
    keep_last: Annotated[int | None, Option(help="Number of newest snapshots to keep.", min=1)] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    option: Client = None,
) -> None:
    """Expire old snapshots and remove the files only they need. Without limits, the table's options apply."""
    table = TableContext.open(path, client_options(option))
    rules = rules_of(table, older_than, keep_last, dry_run=dry_run)
    with progress_bar("Removing files") as progress:
        report = expire_table(table, rules, dry_run=dry_run, progress=progress)
    tell(report, as_json)


def remove_orphans(
    path: Path,
    older_than: Annotated[str, Option(help="Minimum age of the files; at least 1 h.")] = AGE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove orphan files: files left by failed writers that no snapshot or tag refers to."""
    with progress_bar("Removing files") as progress:
        report = orphans.remove_orphans(TableContext.open(path), older_than, dry_run=dry_run, progress=progress)
    tell(report, as_json)


def rollback(
    path: Path,
    to: Annotated[str, Argument(help="A snapshot id, a tag or a time.")],
    as_json: AsJson = False,
    option: Client = None,
) -> None:
    """Restore an earlier state of the table as a new snapshot, and publish the changes it makes."""
    # PySpark takes a second to import.
    from tablestore.maintenance.rollback import rollback as rollback_table  # noqa: PLC0415
    from tablestore.write.writer import Writer  # noqa: PLC0415

    table = TableContext.open(path, client_options(option))
    with table.open_publisher() as publisher:
        snapshot = rollback_table(table, Writer(table, publisher), run_in_threads, to)
    if as_json:
        done = {"snapshot": None, "rows": 0} if snapshot is None else {"snapshot": snapshot.id, "rows": snapshot.rows}
        print_json(console, done)
    elif snapshot is None:
        console.print("Nothing differs.", highlight=False)
    else:
        console.print(f"Snapshot {snapshot.id} reverts {counted(snapshot.rows, 'change')}.", highlight=False)


def expire_partitions(path: Path, dry_run: DryRun = False, as_json: AsJson = False, option: Client = None) -> None:
    """Delete partitions older than 'partition.expiration-time'. Starts Spark."""
    from tablestore.session import session  # noqa: PLC0415 - PySpark takes a second to import
    from tablestore.spark.object_stores import storage_of  # noqa: PLC0415
    from tablestore.table.store import TableStore  # noqa: PLC0415

    given = client_options(option)
    # Spark takes seconds to start.
    expiration_of(TableContext.open(path, given), {})
    with waiting("Reading partitions ..."):
        table = TableStore.open(session(storage=storage_of(path)), path, options=given)
        report = table.maintenance.expire_partitions(dry_run=dry_run)
    tell(report, as_json)


def tag(path: Path, name: Tag, snapshot: Point = None, retained: Retained = None, as_json: AsJson = False) -> None:
    """Tag a snapshot, so that it can still be read after it expires."""
    created = make_tag(TableContext.open(path), name, snapshot, retained)
    if as_json:
        print_json(console, {"tag": created.name, "snapshot": created.snapshot.id})
    else:
        console.print(f"Tag {created.name} is snapshot {created.snapshot.id}.", highlight=False)


def tags(path: Path, as_json: AsJson = False) -> None:
    """List the tags."""
    show(inspected(TableContext.open(path), "tags"), as_json)


def delete_tag(path: Path, name: Tag, as_json: AsJson = False) -> None:
    """Delete a tag and, if its snapshot has expired, the files that only the tag kept."""
    gone = remove_tag(TableContext.open(path), name)
    if as_json:
        print_json(console, {"tag": gone.name, "snapshot": gone.snapshot.id})
    else:
        console.print(f"Deleted tag {gone.name} (snapshot {gone.snapshot.id}).", highlight=False)


def consumers(path: Path, as_json: AsJson = False, option: Client = None) -> None:
    """List the named consumers and their lag."""
    show(inspected(TableContext.open(path, client_options(option)), "consumers"), as_json)


def reset_consumer(
    path: Path,
    name: Annotated[str, Argument(help="Name of the consumer.")],
    snapshot: Annotated[
        str | None,
        Option("--snapshot", "-s", help="The last snapshot read: id, tag or time. Default: delete the consumer."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete a named consumer or, with --snapshot, mark everything up to that snapshot as read."""
    reset(TableContext.open(path), name, snapshot)
    if as_json:
        print_json(console, {"consumer": name, "snapshot": snapshot})
        return
    what = "is deleted" if snapshot is None else f"starts after {snapshot}"
    console.print(Text(f"Consumer {name} {what}."), soft_wrap=True)


def inspect(
    path: Path,
    what: Annotated[str, Argument(help=f"One of {', '.join(INSPECTED)}.")],
    as_json: AsJson = False,
    option: Client = None,
) -> None:
    """Show one of the table's metadata tables."""
    show(inspected(TableContext.open(path, client_options(option)), what), as_json)


def tell(report: Any, as_json: bool) -> None:
    """Print a report of what was done or, in a dry run, would be done."""
    if as_json:
        print_json(console, asdict(report))
    else:
        console.print(Text(str(report)), soft_wrap=True)


def show(found: pa.Table, as_json: bool) -> None:
    """Print a small Arrow table."""
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    show_rows(console, found.column_names, rows, as_json=as_json)
