"""Errors of actions on frames whose snapshot has expired: one ``DataLostError`` in place of Spark's and Py4J's.

A frame is read when the user acts on it, long after ``read()`` has returned. Spark converts the JVM's errors into
Python's in one function, whatever the action; this module extends it by the files of the store's tables.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

from pyspark.errors.exceptions import captured

from snapshot.errors import GONE, DataLostError, TableReplacedError, TableStoreError
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles

_MISSING: Final = re.compile(
    r"(?:FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file "
    r"|java\.io\.FileNotFoundException: (?:File |No such file or directory: ))(.+?\.(?:parquet|json))(?=[. ]|$)",
    re.MULTILINE,
)
_UNKNOWN_STATE: Final = "[DELTA_STATE_RECOVER_ERROR]"
"""Delta reads the log of a frame when the frame is first used, and found entries of another table. It names none."""
_RAISED: Final = re.compile(
    r"the Python worker:\s+tablestore\.read\.spark_splits\.FrameError: (.+?)\s*(?:SQLSTATE: \w+)?\Z", re.DOTALL
)
_CAUSES_MAX: Final = 10
_convert = captured.convert_exception
_tables: dict[str, tuple[Storage, list[str]]] = {}
"""By its place, the folder of each table of which frames were made, and its ids, the last of which is the newest."""


def explain_lost_files(table: TableFiles) -> None:
    """Let actions on frames of a table raise ``DataLostError`` or ``TableReplacedError`` if files are gone."""
    _, ids = _tables.setdefault(_place(table.storage.root), (table.storage, []))
    if table.spec.table_id not in ids:
        ids.append(table.spec.table_id)
    captured.convert_exception = _converted  # type: ignore[assignment]


def _converted(error: Any) -> Any:
    """Return the Python error for one of the JVM, as PySpark's own function of this name does."""
    cause, seen = error, 0
    while cause is not None and seen < _CAUSES_MAX:
        text = str(cause.toString())
        if (found := _MISSING.search(text)) is not None and (table := _table_of(found[1])) is not None:
            return _lost(*table, found[1])
        if (raised := _RAISED.search(text)) is not None:
            return DataLostError(raised[1])
        if _UNKNOWN_STATE in text and (replaced := _replaced()):
            which = f"table {replaced[0]!r}" if len(replaced) == 1 else f"one of the tables {replaced}"
            return TableReplacedError(
                f"{which} was dropped and created again since this frame was made. Open it again, then read it again."
            )
        cause, seen = cause.getCause(), seen + 1
    return _convert(error)


def _table_of(file: str) -> tuple[Storage, str] | None:
    place = _place(unquote(file))
    held = [root for root in _tables if place.startswith(f"{root}/")]
    if not held:
        return None
    storage, ids = _tables[max(held, key=len)]
    return storage, ids[-1]


def _replaced() -> list[str]:
    """Return the folders of tables of which frames were made and that are other tables now."""
    found = []
    for storage, ids in _tables.values():
        with suppress(TableStoreError):
            if ids != [TableFiles.open(storage).spec.table_id]:
                found.append(storage.root)
    return found


def _lost(table: Storage, table_id: str, file: str) -> TableStoreError:
    what = f"table {table.root!r}: this frame reads file {file}, which is gone"
    try:
        now = TableFiles.open(table)
        oldest = now.oldest()
    except TableStoreError as error:
        return DataLostError(f"{what}. {error}")
    if now.spec.table_id != table_id:
        return TableReplacedError(f"{what}: the table was dropped and created again. Open it again.")
    if not oldest:
        return DataLostError(f"{what}. {GONE}")
    return DataLostError(
        f"{what}: the snapshot that it reads has expired since read() returned; the oldest one now is {oldest}. Call "
        "read() again. To keep a snapshot for longer, tag it."
    )


def _place(path: str) -> str:
    """Return a path without its scheme: Spark writes ``file:/t``, ``file:///t`` or ``s3a://b/t``."""
    return "/" + re.sub(r"^[a-z0-9]+:", "", path).strip("/")
