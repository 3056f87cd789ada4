"""``tablestore snapshots`` and ``tablestore recover``: list a table's snapshots, and publish what a crash left out."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Annotated

from typer import Option

from log_system.jars import waiting
from snapshot.messages import counted
from tablestore.cli.console import AsJson, Client, Path, client_options, console
from tablestore.cli.output import print_json, show_rows
from tablestore.context import TableContext
from tablestore.write import publish
from tablestore.write.foreign_commits import Adoption, adopt


def snapshots(
    path: Path,
    limit: Annotated[int, Option(help="Maximum number of snapshots, newest first.", min=1)] = 20,
    option: Client = None,
    as_json: AsJson = False,
) -> None:
    """List a table's snapshots and whether each is in the log."""
    table = TableContext.open(path, client_options(option))
    if as_json:
        for snapshot in islice(table.files.snapshots(), limit):
            known = {
                "snapshot": snapshot.id,
                "kind": snapshot.operation,
                "rows": snapshot.rows,
                "committed": snapshot.time,
            }
            in_log = None if not table.log.publishes else table.index.get(snapshot.id) is not None
            print_json(console, known | {"published": in_log})
        return
    rows = []
    for snapshot in islice(table.files.snapshots(), limit):
        entry = table.index.get(snapshot.id)
        ranges = "  ".join(f"{p}: {r.start}-{r.end}" for p, r in enumerate(entry.partitions) if r.rows) if entry else ""
        published = "-" if not table.log.publishes else "yes" if entry else "not yet"
        committed = f"{snapshot.time:%Y-%m-%d %H:%M:%S}"
        rows.append((snapshot.id, snapshot.operation, f"{snapshot.rows:,}", committed, published, ranges))
    show_rows(console, ("snapshot", "kind", "rows", "committed (UTC)", "in the log", "offsets"), rows, as_json=False)


def recover(
    path: Path,
    skip_version: Annotated[
        list[int] | None,
        Option(help="Leave a version of another Delta writer out of the log permanently; repeatable."),
    ] = None,
    option: Client = None,
    as_json: AsJson = False,
) -> None:
    """Publish committed snapshots that are missing from the log, including changes made by other Delta writers."""
    table = TableContext.open(path, client_options(option))
    publisher = table.log.publisher()
    adopted = adopt(table, skip_version or ())
    adoption = {} if adopted is None else {"adopted": asdict(adopted)}
    if adopted is not None and not as_json:
        _show(adopted)
    if publisher is None and as_json:
        print_json(console, {"published": [], **adoption})
        return
    if publisher is None:
        if adopted is None:
            console.print("This table has no log; there is nothing to recover.", highlight=False)
        return
    try:
        with waiting("Publishing missing snapshots ..."):
            done = publish.recover(table, publisher)
    finally:
        publisher.discard()
    if as_json:
        published = [{"snapshot": entry.snapshot, "rows": entry.rows} for entry in done]
        print_json(console, {"published": published, "newest": table.files.latest(), **adoption})
        return
    rows = sum(entry.rows for entry in done)
    what = "nothing was missing"
    if done:
        what = f"published {counted(len(done), 'snapshot')} with {counted(rows, 'change')}"
    console.print(
        f"The log contains every snapshot up to {table.files.latest()}; {what}.", highlight=False, soft_wrap=True
    )


def _show(adopted: Adoption) -> None:
    """Print which versions of other Delta writers were published or skipped."""
    if adopted.published:
        versions = ", ".join(map(str, adopted.published))
        what = f"snapshot {adopted.snapshot} contains the changes of other Delta writers in versions {versions}"
        console.print(f"Adopted: {what}, {counted(adopted.rows, 'change')}.", highlight=False, soft_wrap=True)
    for skipped in adopted.skipped:
        console.print(f"Left out of the log permanently: {skipped}.", highlight=False, soft_wrap=True)
