"""``python -m benchmarks [--small] [name...]``: runs each benchmark group in its own process and prints one table."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.alone import run_alone
from benchmarks.harness import Result, show


class Group(StrEnum):
    """The benchmark groups, in the order in which they run."""

    UPSERT = "upsert"
    ENGINES = "engines"
    VERBS = "verbs"
    COMMIT = "commit"
    APPEND = "append"
    READ = "read"
    SMALL_WRITES = "small_writes"
    LOCAL = "local"
    LOCAL_WRITE = "local_write"
    LOOKUP = "lookup"
    OBJECT_STORE = "object_store"
    PEERS = "peers"
    STREAM = "stream"
    INGEST = "ingest"
    PAIMON = "paimon"
    EVENTUAL = "eventual"
    CONNECTORS = "connectors"
    FLINK = "flink"
    EVENTUAL_KEYS = "eventual_keys"
    EVENTUAL_LATENCY = "eventual_latency"
    LATENCY = "latency"
    FIRST_ANSWER = "first_answer"
    MEMORY = "memory"
    VERIFY = "verify"
    SQL = "sql"
    LIFE = "life"
    GROWTH = "growth"
    SCALE = "scale"


def main(
    names: Annotated[list[Group] | None, typer.Argument(help="which groups; all without one")] = None,
    *,
    small: Annotated[bool, typer.Option("--small", help="smaller sizes: minutes, for a first look")] = False,
) -> None:
    """Run benchmarks and print one table with the results and targets."""
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
            results += run_alone(group.value, small=small, say=lambda text: progress.update(line, description=text))
            progress.advance(line)
    show(console, results, small=small)
    raise typer.Exit(any(r.what.endswith("failed") for r in results))


if __name__ == "__main__":
    typer.run(main)
