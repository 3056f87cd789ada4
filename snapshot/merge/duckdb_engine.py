"""DuckDB as the vectorised engine of one Python task: its names for Arrow types, values and files.

DuckDB downloads nothing: extensions are neither installed nor loaded, and file systems other than the local one are
fsspec file systems registered in the connection.
"""

from __future__ import annotations

import datetime as dt
import getpass
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from snapshot.arrow_slices import unsliced
from snapshot.duckdb_connection import batches_of, connect, give_back, interruptible, take
from snapshot.errors import GONE, CorruptedError, DataLostError, UnavailableError
from snapshot.merge.remote_files import RemoteFiles
from snapshot.quoting import text_literal
from snapshot.schema.duckdb_types import type_name
from snapshot.schema.nested_nulls import cast_to
from snapshot.schema.system_columns import relabelled

BATCH_ROWS = 65_536
BATCH_BYTES = 4 << 20
"""Limits of the Arrow batches that are read: rows, and bytes as they are in files, where they take an eighth or so."""
_READ_BYTES = 32 << 20
"""Limit of the batches that are read without DuckDB, in bytes as they are in memory."""
MEMORY_LIMIT = "288MB"
"""The memory limit of a session of a merge."""
_NO_SPILL = "max_temp_directory_size"
"""In DuckDB's message, where the disk of its temporary files is full."""
_TRACEBACK = "Traceback (most recent call last):\n"

_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)


def microseconds(moment: dt.datetime) -> int:
    """Return the microseconds from the epoch to a moment; a moment without a time zone is in UTC."""
    if moment.tzinfo is not None:
        moment = moment.astimezone(dt.UTC).replace(tzinfo=None)
    return (moment - _EPOCH) // _MICROSECOND


def bound(value: Any, data_type: pa.DataType) -> tuple[str, Any]:
    """Return an SQL expression with one ``?`` for a value of a non-nested type, and what to bind to it.

    Args:
        value: A Python value that the type can hold, or None.
        data_type: The type the expression has.
    """
    name = type_name(data_type)
    if value is not None and pa.types.is_timestamp(data_type):
        return ("make_timestamp(?)" if data_type.tz is None else "make_timestamptz(?)"), microseconds(value)
    if value is not None and pa.types.is_decimal(data_type):
        value = format(Decimal(value), "f")
    elif isinstance(value, bytearray | memoryview):
        value = bytes(value)
    return f"CAST(? AS {name})", value


def bound_list(values: Sequence[Any], data_type: pa.DataType, place: str) -> tuple[str, list[Any]]:
    """Return an SQL expression with one ``?`` for a value of a non-nested type at a place in a list, and what to bind.

    Args:
        values: Python values that the type can hold, or None.
        data_type: The type the expression has.
        place: An SQL expression for the place, from 1.
    """
    bindable = [bound(value, data_type)[1] for value in values]
    if pa.types.is_timestamp(data_type):
        make = "make_timestamp" if data_type.tz is None else "make_timestamptz"
        return f"{make}(list_extract(?::BIGINT[], {place}))", bindable
    if pa.types.is_decimal(data_type):
        return f"CAST(list_extract(?::VARCHAR[], {place}) AS {type_name(data_type)})", bindable
    return f"list_extract(?::{type_name(data_type)}[], {place})", bindable


def read_parquet(columns: Iterable[tuple[str, str, str]]) -> str:
    """Return a table function whose parameter is a list of Parquet files; a column that a file lacks is NULL.

    Args:
        columns: For each column its name in the files, its name in the result, and the DuckDB type to cast it to.
    """
    schema = ", ".join(
        f"{text_literal(name)}: {{name: {text_literal(inner)}, type: {text_literal(kind)}, default_value: NULL}}"
        for name, inner, kind in columns
    )
    return f"read_parquet(?, schema = MAP {{{schema}}}, hive_partitioning = false)"


def rows_at_a_time(file: pq.FileMetaData) -> int:
    """Return how many rows of a Parquet file to read at a time: no more than a row group has, few of large values."""
    groups = [group for group in map(file.row_group, range(file.num_row_groups)) if group.num_rows]
    most = max((group.num_rows for group in groups), default=BATCH_ROWS)
    widest = max((group.total_byte_size / group.num_rows for group in groups), default=1)
    return max(1, min(BATCH_ROWS, most, int(_READ_BYTES / max(1, widest))))


def file_arguments(sizes: Mapping[str, int], remote: RemoteFiles | None) -> list[str]:
    """Return files, given by path with their sizes, as DuckDB takes them; those of an object store are fetched.

    Raises:
        FileNotFoundError: a file in an object store does not exist.
    """
    if remote is not None:
        paths = {str(remote.unstrip_protocol(path)): size for path, size in sizes.items()}
        remote.fetch(paths)
        return list(paths)
    return [_unglobbed(path.removeprefix("file://")) for path in sizes]


def _unglobbed(path: str) -> str:
    if not any(character in path for character in "*?["):
        return path
    return "".join(f"[{character}]" if character in "*?[" else character for character in path)


@dataclass(frozen=True)
class _Database:
    """An open DuckDB and the folder that it creates when it spills."""

    connection: duckdb.DuckDBPyConnection
    folder: Path

    def close(self) -> None:
        """Close DuckDB and remove what it has spilled."""
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _opened(memory_limit: str, parent: str | None) -> _Database:
    """Return a DuckDB with one thread and bounded memory that spills to a folder of its own."""
    folder = Path(private_folder() if parent is None else parent) / uuid.uuid4().hex
    connection = connect(
        memory_limit=memory_limit,
        temp_directory=str(folder),
        # A file is read once; what it held would stay in the memory of an idle database.
        enable_external_file_cache=False,
        # DuckDB estimates a scan with a declared schema at one row and would hash the base instead of the changes.
        disabled_optimizers="build_side_probe_side,join_order",
    )
    return _Database(connection, folder)


@cache
def private_folder() -> str:
    """Return the folder for spilled data, which only this user can read."""
    folder = Path(tempfile.gettempdir()) / f"tablestore-{os.getuid() if hasattr(os, 'getuid') else getpass.getuser()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        is_private = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
        if stat.S_ISDIR(found.st_mode) and is_private:
            return str(folder)
    return tempfile.mkdtemp(prefix="tablestore-")


@contextmanager
def spilling(
    *, memory_limit: str = "256MB", remote: RemoteFiles | None = None, parent: str | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB session in UTC with one thread and bounded memory, which spills to a folder; remove the folder.

    A task that merges a bucket takes 10 ms, opening a database 20 ms. So the database of a session that has ended
    without an error, and has not spilled, serves the next session of the process.

    Args:
        memory_limit: What DuckDB may hold in memory, as in ``"512MB"``.
        remote: Opens paths that are not local; None when all are.
        parent: Folder in which to create the temporary folder; None for the system's.
    """
    kind = (memory_limit, parent)
    database: _Database = take(kind) or _opened(*kind)
    try:
        with interruptible(), database.connection.cursor() as session:
            session.execute("SET TimeZone = 'UTC'")
            if remote is not None:
                session.register_filesystem(remote)
            yield session
            for name in session.list_filesystems():
                session.unregister_filesystem(name)
    except BaseException:
        database.close()
        raise
    if database.folder.exists():
        database.close()
    else:
        give_back(kind, database)


@contextmanager
def errors_mapped(what: str) -> Iterator[None]:
    """Convert DuckDB's errors into the store's, and interrupts into ``KeyboardInterrupt``; ``what`` is what is read."""
    try:
        with interruptible():
            yield
    except FileNotFoundError as error:
        raise DataLostError(_lost(what, error)) from error
    except duckdb.OutOfMemoryException as error:
        raise no_memory(what, error) from error
    except duckdb.IOException as error:
        if "No files found" in str(error) or "No such file" in str(error):
            raise DataLostError(_lost(what, error)) from error
        message = f"{what}: a file cannot be read: {error}. Check the file system, then try again"
        raise UnavailableError(message) from error
    except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
        message = f"{what}: a file does not match the table's schema: {error}"
        raise CorruptedError(message) from error
    except duckdb.Error as error:
        if not str(error).startswith(_TRACEBACK):
            raise
        # An error of the object store, as Python prints it: its cause (from Python 3.12 on), indented lines, the error.
        _, _, last = str(error).rpartition(_TRACEBACK)
        reason = next((line for line in last.splitlines() if line and not line.startswith(" ")), "")
        if reason.startswith("FileNotFoundError"):
            raise DataLostError(_lost(what, reason)) from error
        if reason.startswith("EOFError"):
            message = f"{what}: a file is damaged: {reason.partition(': ')[2]}"
            raise CorruptedError(message) from error
        message = f"{what}: a file cannot be read: {reason}. Check the object store, then try again"
        raise UnavailableError(message) from error


def no_memory(what: str, error: duckdb.OutOfMemoryException) -> UnavailableError:
    """Return the error that rows do not fit into DuckDB's memory, or on its disk."""
    # The first line is DuckDB's message; its advice does not apply here.
    reason, _, more = str(error).partition("\n")
    if _NO_SPILL in more:
        return no_room(what, reason)
    return UnavailableError(
        f"{what}: the rows do not fit into the memory of the task's engine: {reason}. It spills rows to disk, but not "
        "values longer than about 2 KB: take fewer of them at a time, or store a path to them"
    )


def no_room(what: str, reason: object) -> UnavailableError:
    """Return the error that the disk of temporary files is full."""
    folder = tempfile.gettempdir()
    return UnavailableError(
        f"{what}: no room for temporary files in {folder}: {reason}. Make room, or set TMPDIR to another folder"
    )


def _lost(what: str, error: object) -> str:
    # The first line is DuckDB's message; the query follows.
    reason = str(error).partition("\n")[0]
    return f"{what}: {reason}. {GONE}"


def load(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    selected: str = "*",
) -> None:
    """Load batches into a new temporary table; an exception raised by the iterator of batches propagates unchanged."""
    with streamed(connection, "_incoming", schema, batches):
        connection.execute(f"CREATE TEMP TABLE {table} AS SELECT {selected} FROM _incoming")


@contextmanager
def streamed(
    connection: duckdb.DuckDBPyConnection, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[None]:
    """Register batches as a relation that one query can read once; their own exceptions propagate unchanged."""
    raised: list[Exception] = []

    def watched() -> Iterator[pa.RecordBatch]:
        try:
            yield from map(unsliced, batches)
        except Exception as error:
            raised.append(error)
            raise

    connection.register(name, pa.RecordBatchReader.from_batches(schema, watched()))
    try:
        yield
    except Exception:
        if raised:
            # What DuckDB and Arrow made of it says less.
            raise raised[0] from raised[0].__cause__
        raise
    finally:
        # If the query was abandoned, its connection may be closed, which ends the relation too.
        with suppress(duckdb.ConnectionException):
            connection.unregister(name)


def read(
    session: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: list[Any],
    schema: pa.Schema,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the result of a query in batches with exactly this schema."""
    yield from shaped(session.sql(sql, params=parameters).to_arrow_reader(batch_rows), schema)


def shaped(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches with exactly this schema, by position: cast, or relabelled if the buffers are the same."""
    types = list(zip(reader.schema.types, schema.types, strict=True))
    same_buffers = all(_same_buffers(actual, wanted) for actual, wanted in types)
    for batch in batches_of(reader):
        if same_buffers:
            yield relabelled(batch, schema)
        else:
            arrays = [cast_to(array, wanted) for array, wanted in zip(batch.columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _same_buffers(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether two types differ only in names, nullability and time zone."""
    if pa.types.is_timestamp(actual) and pa.types.is_timestamp(wanted):
        return bool(actual.unit == wanted.unit and (actual.tz is None) == (wanted.tz is None))
    if actual.id != wanted.id or actual.num_fields != wanted.num_fields:
        return False
    if actual.num_fields == 0:
        return bool(actual == wanted)
    return all(_same_buffers(actual.field(i).type, wanted.field(i).type) for i in range(actual.num_fields))
