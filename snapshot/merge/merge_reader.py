"""Merge on read: merges a bucket's base with its changes, in DuckDB inside one task.

A base file has one row per key; change files may have several changes of a key. The change with the largest (snapshot,
``_seq``) wins: ``DELETE`` removes the row, ``INSERT`` and ``UPDATE_AFTER`` set it, ``UPDATE_BEFORE`` is ignored.

1. Scan the keys of the changes, and find the place of the winner of each key. DuckDB holds no other column, because it
   cannot spill large values.
2. Scan the base files, all partitions at once, and drop the rows with a changed key: by an anti join whose hash table
   holds the changed keys, never the base, or by a bitmap if the key is one integer.
3. Scan the changes again, and emit the winners that are not deletes.

A filter is applied to the base in its Parquet scan. It can be applied to changes only after the winners are known,
unless it reads only key columns: then it holds for all changes of a key or for none.

In DuckDB, columns are named ``c0``, ``c1``, ... so that a user's column cannot hide an internal one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import duckdb
import fsspec
import pyarrow as pa

from snapshot.errors import InvalidInputError
from snapshot.merge.deduplicate import last_per_key
from snapshot.merge.duckdb_engine import (
    BATCH_BYTES,
    BATCH_ROWS,
    MEMORY_LIMIT,
    bound_list,
    errors_mapped,
    file_arguments,
    load,
    read,
    read_parquet,
    spilling,
)
from snapshot.merge.key_bitmap import KeyBitmap
from snapshot.merge.predicate import Predicate
from snapshot.merge.remote_files import remote_files
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.duckdb_types import type_name
from snapshot.schema.physical_names import is_mixed, without_dropped
from snapshot.schema.system_columns import SEQ, SNAPSHOT

_EVERY_ROW = Predicate()
RANK = "_rank"
"""Column of staged changes: the rank of their snapshot among the merged snapshots."""
_PLACE = "file_index::INTEGER + 1"
"""The place of a row's file among those of its scan, from 1."""
_ROW = "_row"
"""Column of changes: the place of the row among those of all scanned files."""


@dataclass(frozen=True)
class BaseFile:
    """A file of a bucket's base.

    Attributes:
        path: Its path in the file system.
        partition_values: Values of the partition columns, which are not in the file, as Python values.
        size: Its size in bytes; 0 if unknown.
        rows: Its number of rows; 0 if unknown.
    """

    path: str
    partition_values: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    rows: int = 0


@dataclass(frozen=True)
class ChangeFile:
    """A file of a bucket's changes.

    Attributes:
        path: Its path in the file system.
        snapshot: The snapshot that it belongs to.
        size: Its size in bytes; 0 if unknown.
        rows: Its number of rows; 0 if unknown.
    """

    path: str
    snapshot: int
    size: int = 0
    rows: int = 0


def _batch_rows(files: Iterable[BaseFile | ChangeFile], wanted: pa.Schema) -> int:
    """Return how many rows of files to read at a time: fewer where they have large values."""
    if all(pa.types.is_primitive(field.type) for field in wanted):
        return BATCH_ROWS
    widest = max((file.size / file.rows for file in files if file.rows > 0), default=0.0)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1.0, widest))))


@dataclass(frozen=True)
class BucketFiles:
    """The files with the rows of a bucket in one snapshot. Picklable.

    Attributes:
        base: Its base files.
        changes: The change files that are not yet merged into the base.
    """

    base: tuple[BaseFile, ...] = ()
    changes: tuple[ChangeFile, ...] = ()


class MergeReader:
    """Merges and sorts the files of one table, single-threaded, in bounded memory, spilling to disk. A context manager.

    The iterators it returns read as they are consumed, may be open at the same time, and must be consumed before the
    engine is closed. They raise `DataLostError` if a file is missing, `CorruptedError` if a file does not match the
    schema, and `UnavailableError` if the memory limit is too low or a file system operation fails.

    Attributes:
        remote: What it reads in an object store; None for local files.
    """

    def __init__(
        self,
        schema: pa.Schema,
        primary_key: Sequence[str],
        *,
        stored: pa.Schema | None = None,
        memory_limit: str = MEMORY_LIMIT,
        filesystem: fsspec.AbstractFileSystem | None = None,
        temp_directory: str | None = None,
    ) -> None:
        """Create the reader; nothing is opened before the context is entered.

        Args:
            schema: The table's columns.
            primary_key: Names of the key columns; empty for a table without a key, which can only be ordered.
            stored: The same columns as they are scanned from files (``TableSpec.scanned``); None if they are equal. A
                column that a file lacks is NULL, and a narrower type is cast.
            memory_limit: DuckDB's memory limit.
            filesystem: Opens the files; None for local files.
            temp_directory: Parent of the folder for spilled data; None for the system's temporary folder.
        """
        self._schema = schema
        self._in_files = schema if stored is None else stored
        self._primary_key = tuple(primary_key)
        self._memory_limit = memory_limit
        self.remote = remote_files(filesystem)
        self._temp_parent = temp_directory
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Open DuckDB."""
        opened = spilling(memory_limit=self._memory_limit, remote=self.remote, parent=self._temp_parent)
        self._connection = self._stack.enter_context(opened)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close DuckDB and remove its spilled data."""
        self._connection = None
        self._stack.__exit__(kind, error, traceback)

    def merged(
        self,
        base: Sequence[BaseFile],
        changes: Sequence[ChangeFile],
        *,
        columns: Sequence[str] | None = None,
        predicate: Predicate | None = None,
        emit_changes: bool = True,
        keys: pa.Table | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the merged rows of a bucket, in no particular order.

        Args:
            base: The base files, or a part of them.
            changes: All change files of the bucket that are not yet merged into the base.
            columns: The columns to return, in schema order; None for all.
            predicate: The rows to return; may read columns that are not returned.
            emit_changes: Whether to return the rows set by changes too. If several tasks read a bucket's base, only one
                of them returns these rows.
            keys: The keys to look up, with columns in the order of the primary key; None for all rows.

        Yields:
            The requested columns, as the schema describes them.

        Raises:
            InvalidInputError: A column is unknown, or there are changes but no primary key.
        """
        predicate = predicate or _EVERY_ROW
        wanted = self._wanted(columns)
        if changes and not self._primary_key:
            message = "primary_key: changes are merged by key, but this table has no key. Pass the table's key"
            raise InvalidInputError(message)
        return self._merged(base, changes, wanted, predicate, emit_changes, keys)

    def row_of(
        self,
        base: Sequence[BaseFile],
        changes: Sequence[ChangeFile],
        key: Predicate,
        *,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatch | None:
        """Return the row with a key, as ``merged`` does with a fraction of its work; None if there is none.

        Args:
            base: The base files of the key's bucket.
            changes: All change files of the bucket that are not yet merged into the base.
            key: The condition that each key column has one value.
            columns: As for ``merged``.
        """
        wanted = self._wanted(columns)
        with errors_mapped("lookup"), self._cursor() as cursor:
            if changes:
                source, parameters = self._scan_changes(changes, dict.fromkeys([*self._primary_key, *wanted.names]))
                nullable = [field.with_nullable(True) for field in wanted]
                sql = (
                    f"SELECT {self._list(wanted.names)}, {KIND} FROM {source} "
                    f"WHERE {KIND} <> {int(RowKind.UPDATE_BEFORE)} AND {key.sql_with(self._internal)} "
                    f"ORDER BY {RANK} DESC, {SEQ} DESC LIMIT 1"
                )
                last = pa.schema([*nullable, pa.field(KIND, pa.int8())])
                for row in read(cursor, sql, [*parameters, *key.parameters], last):
                    if row.num_rows:
                        return None if row.column(KIND)[0].as_py() == RowKind.DELETE else row.select(wanted.names)
            if base:
                sql, parameters = self._base_query(base, wanted, key, changed=False)
                for row in read(cursor, sql, parameters, wanted):
                    if row.num_rows:
                        return row
        return None

    def changed_keys(self, changes: Sequence[ChangeFile]) -> Iterator[pa.RecordBatch]:
        """Yield the distinct keys of all changes, in no particular order; columns are in the order of the schema."""
        with errors_mapped("changed keys"), self._cursor() as cursor:
            self._find_winners(cursor, changes, _EVERY_ROW)
            keys = self._wanted(self._primary_key)
            yield from read(cursor, f"SELECT {self._list(keys.names)} FROM winners", [], keys)

    def last_changes(self, changes: Sequence[ChangeFile]) -> Iterator[pa.RecordBatch]:
        """Yield the last change of each key, deletes included, in no particular order.

        Yields:
            All columns, nullable except for the key, ``_kind`` int8 and ``_seq`` int64.
        """
        schema = self._change_schema(self._schema, pa.field(SEQ, pa.int64()))
        with errors_mapped("minor compaction"), self._cursor() as cursor:
            self._find_winners(cursor, changes, _EVERY_ROW, rows=True)
            selected = ", ".join([*map(self._internal, self._schema.names), KIND, SEQ])
            source, parameters = self._scan_winners(changes, self._schema.names)
            sql = f"SELECT {selected} FROM {source}"
            yield from read(cursor, sql, parameters, schema, _batch_rows(changes, schema))

    def changes_in_order(
        self, files: Sequence[ChangeFile], *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield every change, ordered by snapshot and ``_seq``.

        Args:
            files: The change files, in any order.
            columns: The columns to return, in schema order; None for all.

        Yields:
            The columns, nullable except for the key (a delete may have only the key), ``_kind`` int8 and
            ``_snapshot`` int64.
        """
        wanted = self._wanted(columns)
        schema = self._change_schema(wanted, pa.field(SNAPSHOT, pa.int64()))
        return self._changes_in_order(files, wanted.names, schema) if files else iter(())

    def last_per_key(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the row with the largest ``_seq`` of each key; ``_seq`` must differ between rows of one key.

        Args:
            batches: Rows of one schema with the key columns, ``_seq`` and any others. They are read to the end before
                the first batch is returned; their errors are raised here.

        Yields:
            The remaining rows, ordered by ``_seq``, in the schema of the input.
        """
        with errors_mapped("staged rows"), self._cursor() as cursor:
            yield from last_per_key(cursor, self._primary_key, batches, self._temp_parent)

    def _merged(
        self,
        base: Sequence[BaseFile],
        changes: Sequence[ChangeFile],
        wanted: pa.Schema,
        predicate: Predicate,
        emit_changes: bool,
        keys: pa.Table | None,
    ) -> Iterator[pa.RecordBatch]:
        with errors_mapped("merge"), self._cursor() as cursor:
            asked = keys is not None
            if keys is not None:
                names = [self._internal(name) for name in self._primary_key]
                load(cursor, "asked", keys.rename_columns(names).schema, keys.rename_columns(names).to_batches())
            if changes:
                on_key = predicate.on(self._primary_key)
                self._find_winners(cursor, changes, on_key, rows=emit_changes, asked=asked)
            changed = self._changed_bits(cursor) if base and changes and not asked else None
            joined = bool(changes) and changed is None
            seen = wanted if changed is None else self._with_key(wanted)
            batch_rows = _batch_rows((*base, *changes), wanted)
            if base:
                sql, parameters = self._base_query(base, seen, predicate, changed=joined, asked=asked)
                rows = read(cursor, sql, parameters, seen, batch_rows)
                yield from rows if changed is None else self._unchanged(rows, changed, wanted)
            if changes and emit_changes:
                alive = f"{KIND} <> {int(RowKind.DELETE)} AND {predicate.sql_with(self._internal)}"
                source, parameters = self._scan_winners(changes, [*wanted.names, *predicate.columns])
                sql = f"SELECT {self._list(wanted.names)} FROM {source} WHERE {alive}"
                yield from read(cursor, sql, [*parameters, *predicate.parameters], wanted, batch_rows)

    def _find_winners(
        self,
        cursor: duckdb.DuckDBPyConnection,
        files: Sequence[ChangeFile],
        on_key: Predicate,
        *,
        rows: bool = False,
        asked: bool = False,
    ) -> None:
        """Create the table ``winners`` of the changed keys and, if ``rows``, the place of the last change of each."""
        keys = self._list(self._primary_key)
        source, parameters = self._scan_changes(files, self._primary_key)
        source = f"{source} AS staged" + (f" SEMI JOIN asked ON {self._same_key('asked', 'staged')}" if asked else "")
        source += f" WHERE {KIND} <> {int(RowKind.UPDATE_BEFORE)} AND {on_key.sql_with(self._internal)}"
        last = f"{keys}, max_by({_ROW}, ({RANK}::HUGEINT << 64) + {SEQ}) AS {_ROW}"
        found = f"SELECT {last} FROM {source} GROUP BY {keys}" if rows else f"SELECT DISTINCT {keys} FROM {source}"
        cursor.execute(f"CREATE TEMP TABLE winners AS {found}", [*parameters, *on_key.parameters])

    def _scan_winners(self, files: Sequence[ChangeFile], columns: Iterable[str]) -> tuple[str, list[Any]]:
        """Return a scan as ``_scan_changes`` does, of the last change of each key only."""
        source, parameters = self._scan_changes(files, dict.fromkeys(columns))
        return f"{source} AS staged SEMI JOIN winners ON winners.{_ROW} = staged.{_ROW}", parameters

    def _base_query(
        self, files: Sequence[BaseFile], wanted: pa.Schema, predicate: Predicate, *, changed: bool, asked: bool = False
    ) -> tuple[str, list[Any]]:
        """Return one scan of base files of any partitions, without the keys in ``winners`` if ``changed``."""
        constants = files[0].partition_values
        needed = dict.fromkeys([*wanted.names, *predicate.columns, *(self._primary_key if changed or asked else ())])
        stored = [name for name in needed if name not in constants]
        if not stored:
            # Without any column, the scan would lose the number of rows.
            stored = [name for name in self._schema.names if name not in constants][:1]
        selected = list(map(self._scanned, stored))
        parameters: list[Any] = []
        for name in needed:
            if name in constants:
                values = [file.partition_values[name] for file in files]
                expression, parameter = bound_list(values, self._schema.field(name).type, _PLACE)
                selected.append(f"{expression} AS {self._internal(name)}")
                parameters.append(parameter)
        source = f"SELECT {', '.join(selected)} FROM {read_parquet(self._stored(stored))}"
        paths = file_arguments({file.path: file.size for file in files}, self.remote)
        parameters += [paths, *predicate.parameters]
        sql = f"SELECT {self._list(wanted.names, 'base.')} FROM ({source}) AS base"
        if asked:
            sql += f" SEMI JOIN asked ON {self._same_key('asked', 'base')}"
        if changed:
            sql += f" ANTI JOIN winners ON {self._same_key('winners', 'base')}"
        sql += f" WHERE {predicate.sql_with(lambda name: f'base.{self._internal(name)}')}"
        return sql, parameters

    def _changed_bits(self, cursor: duckdb.DuckDBPyConnection) -> KeyBitmap | None:
        """Return a bitmap of the keys in ``winners``; None if they are not whole numbers or too far apart."""
        name, *others = self._primary_key
        field = self._schema.field(name)
        if others or not KeyBitmap.can_hold(field.type):
            return None
        key, alone = self._internal(name), pa.schema([field.with_nullable(True)])
        (ends,) = read(cursor, f"SELECT unnest([min({key}), max({key})]) FROM winners", [], alone)
        keys = read(cursor, f"SELECT {key} FROM winners", [], alone)
        return KeyBitmap.of(ends.column(0), (batch.column(0) for batch in keys))

    def _with_key(self, wanted: pa.Schema) -> pa.Schema:
        (key,) = self._primary_key
        return wanted if key in wanted.names else wanted.append(self._schema.field(key))

    def _unchanged(
        self, rows: Iterable[pa.RecordBatch], changed: KeyBitmap, wanted: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            kept = batch.select(wanted.names).filter(changed.lacks(batch.column(self._primary_key[0])))
            if kept.num_rows:
                yield kept

    def _changes_in_order(
        self, files: Sequence[ChangeFile], columns: Sequence[str], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        snapshots = sorted({file.snapshot for file in files})
        selected = ", ".join([*map(self._internal, columns), KIND, f"list_extract(?::BIGINT[], {RANK} + 1)"])
        with errors_mapped("changes"), self._cursor() as cursor:
            source, parameters = self._scan_changes(files, columns)
            sql = f"SELECT {selected} FROM {source} ORDER BY {RANK}, {SEQ}"
            yield from read(cursor, sql, [snapshots, *parameters], schema, _batch_rows(files, schema))

    def _scan_changes(self, files: Sequence[ChangeFile], columns: Iterable[str]) -> tuple[str, list[Any]]:
        """Return a scan of change files with some columns, ``_kind``, ``_seq`` and the rank of each file's snapshot."""
        columns = list(columns)
        ranks = {snapshot: rank for rank, snapshot in enumerate(sorted({file.snapshot for file in files}))}
        rank = f"list_extract(?::INTEGER[], {_PLACE}) AS {RANK}"
        scan = read_parquet([*self._stored(columns), (KIND, KIND, "TINYINT"), (SEQ, SEQ, "BIGINT")])
        row = f"(file_index::BIGINT << 40) + file_row_number AS {_ROW}"
        selected = ", ".join([*map(self._scanned, columns), KIND, SEQ, rank, row])
        paths = file_arguments({file.path: file.size for file in files}, self.remote)
        return f"(SELECT {selected} FROM {scan})", [[ranks[file.snapshot] for file in files], paths]

    def _change_schema(self, wanted: pa.Schema, last: pa.Field) -> pa.Schema:
        """Return the schema of changes: a delete may have only the key."""
        fields = [each if each.name in self._primary_key else each.with_nullable(True) for each in wanted]
        return pa.schema([*fields, pa.field(KIND, pa.int8()), last])

    def _scanned(self, name: str) -> str:
        """Return the selection of a scanned column, without dropped fields of structs."""
        number, column = self._schema.get_field_index(name), self._internal(name)
        held = self._in_files.field(number)
        if not is_mixed(held):
            return column
        kind = type_name(without_dropped(held.type, self._schema.field(number).type))
        # Of a bare column, DuckDB would read only the fields that a filter needs, by their places in another file.
        return f"(CASE WHEN {column} IS NOT NULL THEN {column} END)::{kind} AS {column}"

    def _stored(self, columns: Iterable[str]) -> list[tuple[str, str, str]]:
        fields = [(name, self._in_files.field(self._schema.get_field_index(name))) for name in columns]
        return [(field.name, self._internal(name), type_name(field.type)) for name, field in fields]

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """Open a separate session, so that temporary tables and results belong to one call."""
        assert self._connection is not None, "a MergeReader is used inside its with statement"
        cursor = self._connection.cursor()
        cursor.execute("SET TimeZone = 'UTC'")
        return cursor

    def _wanted(self, columns: Sequence[str] | None) -> pa.Schema:
        if columns is None:
            return self._schema
        unknown = sorted(set(columns) - set(self._schema.names))
        if unknown or not columns:
            message = f"columns: expected some of {self._schema.names}, got {unknown or 'none'}"
            raise InvalidInputError(message)
        return pa.schema([each for each in self._schema if each.name in set(columns)])

    def _same_key(self, left: str, right: str) -> str:
        return " AND ".join(f"{left}.{key} = {right}.{key}" for key in map(self._internal, self._primary_key))

    def _internal(self, name: str) -> str:
        return f"c{self._schema.get_field_index(name)}"

    def _list(self, names: Iterable[str], prefix: str = "") -> str:
        return ", ".join(prefix + self._internal(name) for name in names)
