"""Commands for a table's life: expiry, tags, consumers, and looking inside."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option, Typer

from tablestore import orphans
from tablestore.cli.audit import progress_bar
from tablestore.cli.base import console
from tablestore.cli.table import Client, Path, client_options
from tablestore.consumers import reset_consumer as reset
from tablestore.expire import expire as expire_table
from tablestore.expire import rules_of
from tablestore.inspect_tables import INSPECTED, inspected
from tablestore.opened import OpenedTable
from tablestore.orphans import AGE
from tablestore.tagging import delete_tag as remove_tag
from tablestore.tagging import make_tag

Json = Annotated[bool, Option("--json", help="One JSON object a line instead of tables.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only say what would be done.")]
Point = Annotated[str | None, Option("--snapshot", "-s", help="A snapshot's id, a tag or a time; else the newest.")]


def expire(
    path: Path,
    older_than: Annotated[str | None, Option(help="Replaced so long ago ('7 d') or before this time.")] = None,
    keep_last: Annotated[int | None, Option(help="So many of the newest snapshots stay.", min=1)] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    option: Client = None,
) -> None:
    """Expire old snapshots and what only they need; without limits, by the table's options."""
    table = OpenedTable.open(path, client_options(option))
    rules = rules_of(table, older_than, keep_last)
    with progress_bar("Removing files") as progress:
        report = expire_table(table, rules, dry_run=dry_run, progress=progress)
    tell(report, as_json)


def remove_orphans(
    path: Path,
    older_than: Annotated[str, Option(help="Only files written so long ago; an hour at least.")] = AGE,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove files that nothing points at, left by writers that died."""
    with progress_bar("Removing files") as progress:
        report = orphans.remove_orphans(OpenedTable.open(path), older_than, dry_run=dry_run, progress=progress)
    tell(report, as_json)


def tag(path: Path, name: str, snapshot: Point = None, as_json: Json = False) -> None:
    """Name a snapshot, which can then be read after it has expired."""
    made = make_tag(OpenedTable.open(path), name, snapshot)
    if as_json:
        print_json({"tag": made.name, "snapshot": made.snapshot.id})
    else:
        console.print(f"Tag {made.name} is snapshot {made.snapshot.id}.", highlight=False)


def tags(path: Path, as_json: Json = False) -> None:
    """List the tags."""
    show(inspected(OpenedTable.open(path), "tags"), as_json)


def delete_tag(path: Path, name: str, as_json: Json = False) -> None:
    """Remove a tag and, where its snapshot has expired, the files that only it kept."""
    gone = remove_tag(OpenedTable.open(path), name)
    if as_json:
        print_json({"tag": gone.name, "snapshot": gone.snapshot.id})
    else:
        console.print(f"Tag {gone.name} (snapshot {gone.snapshot.id}) is gone.", highlight=False)


def consumers(path: Path, as_json: Json = False, option: Client = None) -> None:
    """List the named consumers and how far each is behind."""
    show(inspected(OpenedTable.open(path, client_options(option)), "consumers"), as_json)


def reset_consumer(path: Path, name: str, snapshot: Point = None) -> None:
    """Forget a named consumer or, with --snapshot, set it to have read up to there."""
    reset(OpenedTable.open(path), name, snapshot)
    what = "is forgotten" if snapshot is None else f"begins after {snapshot}"
    console.print(f"Consumer {name} {what}.", highlight=False)


def inspect(
    path: Path,
    what: Annotated[str, Argument(help=f"One of {', '.join(INSPECTED)}.")],
    as_json: Json = False,
    option: Client = None,
) -> None:
    """Look inside a table."""
    show(inspected(OpenedTable.open(path, client_options(option)), what), as_json)


def add_to(app: Typer) -> None:
    """Put the commands at the top level."""
    for command in (expire, tag, tags, consumers, inspect):
        app.command()(command)
    app.command("delete-tag")(delete_tag)
    app.command("remove-orphans")(remove_orphans)
    app.command("reset-consumer")(reset_consumer)


def tell(report: Any, as_json: bool) -> None:
    """Show what was done, or would be."""
    if as_json:
        print_json(asdict(report))
    else:
        console.print(Text(str(report)), soft_wrap=True)


def show(found: pa.Table, as_json: bool) -> None:
    """Show a small table."""
    rows: Iterable[Mapping[str, object]] = found.to_pylist()
    if as_json:
        for row in rows:
            print_json(row)
        return
    view = Table()
    for name in found.column_names:
        view.add_column(Text(name))
    for row in rows:
        view.add_row(*(Text(_text(value)) for value in row.values()))
    console.print(view)


def print_json(value: Mapping[str, object]) -> None:
    """Print an object as one line."""
    Console(soft_wrap=True).print(json.dumps(value, default=str), markup=False, highlight=False)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.1f}" if isinstance(value, float) else str(value)
