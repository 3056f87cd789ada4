"""``tablestore compact`` and ``tablestore drop``, which need neither Spark nor Java."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from typer import Abort, Exit, Option, confirm

from log_system.jars import waiting
from snapshot.errors import CorruptedError, InvalidInputError, NotFoundError, UnavailableError
from snapshot.storage import Storage
from tablestore.cli.console import INTERRUPTED, AsJson, Client, Path, client_options, console, result_console
from tablestore.cli.output import print_json
from tablestore.context import TableContext
from tablestore.ddl.intent import read_intent
from tablestore.local.threads import run_in_threads
from tablestore.maintenance.compact import compact as compact_table


def compact(path: Path, option: Client = None, as_json: AsJson = False) -> None:
    """Compact all changes into the base table, so that any Delta reader sees the newest snapshot."""
    console = result_console()
    table = TableContext.open(path, client_options(option))
    with waiting("Compacting ..."):
        snapshot = compact_table(table, run_in_threads)
    done = snapshot is not None
    if as_json:
        print_json(console, {"compacted": done, "snapshot": table.files.latest()})
        return
    what = "All changes are merged into the base table" if done else "There was nothing to compact"
    console.print(f"{what}; the newest snapshot is {table.files.latest()}.", soft_wrap=True)


def drop(
    path: Path,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    keep_topic: Annotated[
        bool, Option("--keep-topic", help="Keep the topic; the broker need not be available.")
    ] = False,
    option: Client = None,
    as_json: AsJson = False,
) -> None:
    """Drop a table, and its topic if creating the table created it. Also cleans up an interrupted drop or create."""
    from tablestore.ddl.create_drop import drop_at  # noqa: PLC0415 - PySpark takes a second to import

    console = result_console()
    given = client_options(option)
    name, topic = _asked(path, given, keep_topic=keep_topic)
    if not yes and (as_json or not _confirmed(f"Remove table {name!r}{topic}?")):
        msg = f"table {name!r} was not removed. To remove it, pass --yes."
        raise InvalidInputError(msg)
    try:
        deleted = drop_at(path, given, keep_topic=keep_topic)
    except UnavailableError as error:
        if not topic:
            raise
        msg = f"{error} To drop the table alone, without the broker, pass --keep-topic."
        raise UnavailableError(msg) from error
    if as_json:
        print_json(console, {"dropped": name, "deleted_topic": deleted})
    else:
        gone = f" and its topic {deleted!r}" if deleted is not None else ""
        console.print(f"Removed {name!r}{gone}.", soft_wrap=True, markup=False)


def _confirmed(question: str) -> bool:
    try:
        return confirm(question)
    except Abort as error:
        console.print()
        if not isinstance(error.__context__, EOFError):
            raise Exit(INTERRUPTED) from error
        # Nobody is there to answer.
        return False


def _asked(path: str, given: Mapping[str, object], *, keep_topic: bool) -> tuple[str, str]:
    """Return what the confirmation prompt names: the table's path, and a phrase for its topic (may be empty)."""
    try:
        table = TableContext.open(path, given)
    except (NotFoundError, CorruptedError):
        if read_intent(Storage.at(path)) is None:
            raise
        # The rest of an interrupted drop or create.
        return path, ""
    owns = table.spec.owns_topic and not keep_topic
    return table.path, f" and its topic {table.log.storage.name!r}" if owns else ""
