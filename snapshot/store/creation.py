"""Which table is in a folder: who created it, and whether it is still the one that was opened.

The first commit of a Delta table names the table of the store for which it was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from snapshot.delta.log import DeltaLog
from snapshot.errors import (
    ConflictError,
    CorruptedError,
    DataLostError,
    NotFoundError,
    TableReplacedError,
    UnavailableError,
)
from snapshot.storage import Storage
from snapshot.store.table_files import TABLE, TableFiles


def is_of_another(storage: Storage, table_id: str) -> bool:
    """Return whether a folder contains a Delta table that was not created for the table with this id."""
    first = DeltaLog(storage).entry(0)
    return first is not None and first.info.get(TABLE) != table_id


def check_created(files: TableFiles) -> None:
    """Check that the store created the table, and no other tool as a clone, which has the definition of another one.

    Whoever publishes or drops by that definition would do so to the log of the table that was cloned, and the files of
    a clone are elsewhere. Where the first commit has expired, nothing is checked.

    Raises:
        NotFoundError: this is the commit table of a table with a key, whose folder is above it.
        CorruptedError: another tool created it.
    """
    if files.spec.has_key and files.log.storage.root == files.storage.root:
        msg = f"{files.storage.root}: these are changes of a table with a primary key. Open the folder of the table."
        raise NotFoundError(msg)
    first = files.log.entry(0)
    if first is None:
        return
    if "kind" not in first.info or first.info.get(TABLE, files.spec.table_id) != files.spec.table_id:
        root = files.log.storage.root
        msg = (
            f"{root}: another tool made this Delta table ({first.operation or 'no operation given'}) with "
            "the definition of a table of the store, as a clone has it: its log and its files are that table's. "
            "Nothing was changed. Read it by Delta's own readers, or write its rows to a table that the store creates. "
            "To remove it, delete the folder."
        )
        raise CorruptedError(msg)


def check_same(files: TableFiles) -> None:
    """Check that the table in the folder is still the one that was opened, by opening it again.

    Raises:
        NotFoundError: the table was dropped.
        TableReplacedError: the table was dropped and created again.
    """
    if TableFiles.open(files.storage).spec.table_id != files.spec.table_id:
        raise replaced(files.storage.root)


def replaced(path: str) -> TableReplacedError:
    """Return the error of a table that was dropped and created again."""
    return TableReplacedError(
        f"table {path!r} was dropped and created again since it was opened. Open the table again; a query has to be "
        "started again."
    )


@contextmanager
def dropped_on_error(files: TableFiles) -> Iterator[None]:
    """Report that the table was dropped, where that is why its files and entries are gone or have changed.

    Raises:
        NotFoundError: the table was dropped.
        TableReplacedError: the table was dropped and created again.
    """
    try:
        yield
    except (ConflictError, CorruptedError, DataLostError):
        check_same(files)
        raise
    except UnavailableError:
        # A file cannot be written to a local folder that is gone.
        with suppress(UnavailableError):
            if files.storage.is_local:
                check_same(files)
        raise
