"""``python -m benchmarks [--small] [name...]``: all measurements, each group in a process of its own, one table."""

from __future__ import annotations

import importlib
import multiprocessing
import time
import traceback
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.harness import Bench, Result, show


class Group(StrEnum):
    """The groups, in the order they run."""

    UPSERT = "upsert"
    COMMIT = "commit"
    APPEND = "append"
    READ = "read"
    STREAM = "stream"
    LATENCY = "latency"
    MEMORY = "memory"


def main(
    names: Annotated[list[Group] | None, typer.Argument(help="which groups; all without one")] = None,
    *,
    small: Annotated[bool, typer.Option("--small", help="smaller sizes: minutes, for a first look")] = False,
) -> None:
    """Measure, and print one table with the targets."""
    console = Console()
    groups = names or list(Group)
    results: list[Result] = []
    columns = (
        TextColumn("[bold]{task.fields[group]}"),
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task("", total=len(groups), group="")
        for group in groups:
            progress.update(line, group=group)
            results += _run_alone(group, small=small, say=lambda text: progress.update(line, description=text))
            progress.advance(line)
    show(console, results, small=small)
    raise typer.Exit(any(r.what.endswith("failed") for r in results))


def _run_alone(group: Group, *, small: bool, say) -> list[Result]:  # noqa: ANN001 - a callable that shows a text
    """Run a group in a new process, so that none inherits another's memory, caches or session."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_in_process, args=(theirs, group.value, small))
    process.start()
    theirs.close()
    try:
        while isinstance(message := mine.recv(), str):
            say(message)
    except EOFError:
        message = [Result(f"{group} failed", f"its process ended with exit code {process.exitcode}")]
    process.join()
    return message


def _in_process(end: Connection, group: str, small: bool) -> None:
    start = time.monotonic()
    try:
        with Bench(small=small, say=end.send) as bench:
            results = importlib.import_module(f"benchmarks.{group}").run(bench)
    except Exception as error:  # noqa: BLE001 - one group's failure must not cost the others their table
        traceback.print_exc()
        results = [Result(f"{group} failed", f"{type(error).__name__} after {time.monotonic() - start:.0f} s")]
    end.send(results)


if __name__ == "__main__":
    typer.run(main)
