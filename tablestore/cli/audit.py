"""``tablestore verify`` and ``tablestore repair``: check that the log matches the table, and repair differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

from rich.text import Text
from typer import Exit, Option

from log_system.report import RepairReport, Report
from snapshot.messages import counted
from tablestore.cli.console import AsJson, Client, Path, client_options, console
from tablestore.cli.output import print_json, progress_bar, show_rows
from tablestore.context import TableContext
from tablestore.write.publish import recover

DIFFERENT = 1


def verify(
    path: Path,
    option: Client = None,
    from_snapshot: Annotated[
        int | None, Option(help="The first snapshot to compare. Default: all that are still in the log.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the log with the table, record by record. Exits with code 1 if they differ."""
    table = TableContext.open(path, client_options(option))
    with progress_bar("Comparing log and table") as progress:
        report = table.verify(progress, from_snapshot)
    if as_json:
        _show_json(report)
    else:
        _show(path, report)
    if not report.ok and not as_json:
        console.print(Text(f"Run 'tablestore repair {path}' to fix what can be fixed."), soft_wrap=True)
    if not report.ok:
        raise Exit(DIFFERENT)


def repair(path: Path, option: Client = None, as_json: AsJson = False) -> None:
    """Repair the log index, the register and the end of the log. Exits with code 1 if differences remain."""
    table = TableContext.open(path, client_options(option))
    with table.open_publisher() as publisher, progress_bar("Repairing the log") as progress:
        done = table.log.repair(publisher, partial(recover, table, publisher), progress)
    if as_json:
        _show_json(done.report, {"actions": done.actions, "advice": done.advice})
    else:
        _show_repair(path, done)
    if not done.ok:
        raise Exit(DIFFERENT)


def _show_repair(path: str, done: RepairReport) -> None:
    if done.actions:
        show_rows(console, ("repaired",), ((action,) for action in done.actions), as_json=False)
    else:
        console.print("Nothing to repair.", highlight=False)
    _show(path, done.report)
    for text in done.advice:
        console.print(Text(text), soft_wrap=True)


def _show(path: str, report: Report) -> None:
    """Print a table of differences and a one-line summary of what was compared."""
    if not report.ok:
        rows = [
            (
                each.kind.value,
                *("" if v is None else v for v in (each.snapshot, each.partition, each.offset, each.key)),
                each.text,
            )
            for each in report.differences
        ]
        show_rows(console, ("what", "snapshot", "partition", "offset", "key", "difference"), rows, as_json=False)
    if report.more:
        console.print(f"Not shown: {counted(report.more, 'more difference')}.", highlight=False)
    compared = ((report.snapshots, "snapshot"), (report.records, "record"), (report.rows, "change"))
    counts = ", ".join(counted(*each) for each in compared)
    verdict = "Log and table [green]agree[/]" if report.ok else "Log and table [red]differ[/]"
    console.print(f"{verdict}: {counts} compared.", highlight=False)
    if report.pending:
        text = f"committed but not yet published; 'tablestore recover {path}' does that."
        console.print(Text(f"{counted(len(report.pending), 'snapshot')} {text}"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"Note: {note}"), soft_wrap=True)


def _show_json(report: Report, more: Mapping[str, object] | None = None) -> None:
    """Print one JSON line per difference, then a summary line."""
    for difference in report.differences:
        print_json(console, asdict(difference))
    facts = asdict(replace(report, differences=()))
    count = len(report.differences) + report.more
    print_json(console, {"ok": report.ok, **facts, "differences": count, **(more or {})})
