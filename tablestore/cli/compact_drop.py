"""``tablestore compact`` and ``tablestore drop``: verbs of a table, without Spark or Java."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypeVar

from rich.console import Console
from typer import Option, Typer, confirm

from log_system.jars import waiting
from snapshot.errors import CorruptedError, InvalidInputError, NotFoundError
from tablestore.cli.console import AsJson
from tablestore.cli.output import print_json
from tablestore.cli.recover import Client, Path, client_options
from tablestore.context import TableContext
from tablestore.local.split_threads import cores
from tablestore.maintenance.compact import compact as compact_table

Task = TypeVar("Task")


def compact(path: Path, option: Client = None, as_json: AsJson = False) -> None:
    """Fold all changes into the root, so that any Delta reader sees the newest snapshot."""
    console = Console(highlight=False)
    table = TableContext.open(path, client_options(option))
    with waiting("Compacting ..."):
        made = compact_table(table, run_in_threads)
    done = made is not None
    if as_json:
        print_json(console, {"compacted": done, "snapshot": table.files.latest()})
        return
    what = "All changes are folded into the root" if done else "There was nothing to fold"
    console.print(f"{what}; the newest snapshot is {table.files.latest()}.", soft_wrap=True)


def drop(
    path: Path,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
    keep_topic: Annotated[bool, Option("--keep-topic", help="Leave the topic; the broker need not answer.")] = False,
    option: Client = None,
    as_json: AsJson = False,
) -> None:
    """Remove a table, and its topic if the table's creation made it. Finishes a drop or create that did not end."""
    from tablestore.ddl.create_drop import drop_at  # noqa: PLC0415 - PySpark takes a second to import

    console = Console(highlight=False)
    given = client_options(option)
    name, topic = _asked(path, given, keep_topic=keep_topic)
    if not yes and (as_json or not confirm(f"Remove table {name!r}{topic}?")):
        msg = f"table {name!r} stays. To remove it, say --yes."
        raise InvalidInputError(msg)
    deleted = drop_at(path, given, keep_topic=keep_topic)
    if as_json:
        print_json(console, {"dropped": name, "deleted_topic": deleted})
    else:
        gone = f" and its topic {deleted!r}" if deleted is not None else ""
        console.print(f"Removed {name!r}{gone}.", soft_wrap=True, markup=False)


def _asked(path: str, given: Mapping[str, object], *, keep_topic: bool) -> tuple[str, str]:
    """Return what is to be removed: the table's path, and words for its topic."""
    try:
        table = TableContext.open(path, given)
    except (NotFoundError, CorruptedError):
        # Whether anything is left of a table, dropping it finds out.
        return path, ""
    owns = table.log is not None and table.spec.owns_topic and not keep_topic
    return table.path, f" and its topic {table.log.topic!r}" if owns and table.log is not None else ""


def add_to(app: Typer) -> None:
    """Put the commands at the top level."""
    app.command()(compact)
    app.command()(drop)


def run_in_threads(tasks: Sequence[Task], work: Callable[[Task], str]) -> list[str]:
    """Run tasks on this machine's cores; what the first that failed has raised is raised, after all have ended."""
    with ThreadPoolExecutor(cores(), thread_name_prefix="tablestore-compact") as pool:
        return list(pool.map(work, tasks))
