"""``open_local`` and ``create_local``: tables in a Python program, without Spark and Java."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import wrap
from snapshot.delta.forked import is_forked
from snapshot.records import CommitId, Snapshot
from snapshot.schema.spec import TableSpec
from snapshot.staging.stage import StagedFile, Stager
from tablestore.context import TableContext
from tablestore.local.handle import LocalHandle
from tablestore.local.repeatable import repeatable, repeatable_loosely
from tablestore.local.staging import stage_rows
from tablestore.local.table_reader import LocalTableReader
from tablestore.options.value_types import names_of
from tablestore.table.handle import exclusive
from tablestore.write.arrow_input import delete_columns, deletes_reader
from tablestore.write.tabular_input import Tabular, open_loosely, read_tabular

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tablestore.dml.merge_clauses import Clause
    from tablestore.local.row_changes import Value
    from tablestore.table.alter import Alter


def open_local(
    path: str | os.PathLike[str],
    *,
    options: Mapping[str, object] | None = None,
    allow_references: Iterable[str] | None = None,
) -> LocalTable:
    """Open a table in this process, without Spark or Java.

    Args:
        path: the table's folder; a local path or the URL of an object store.
        options: Kafka client options (``kafka.*``) that are not stored with the table, such as a password.
        allow_references: which ``env:`` and ``file:`` references the table's stored options may contain; by default
            the list in ``TABLESTORE_ALLOWED_REFERENCES``. See ``docs/reference/options.md``.

    Raises:
        NotFoundError: there is no table at the path.
        InvalidInputError: an option is not a client option, options are given for a table without a log, or a stored
            client option may only be given by the opening program.
    """
    options = wrap(options or {})
    return LocalTable(TableContext.open(os.fspath(path), options, Allowed.of(allow_references)))


def create_local(  # noqa: PLR0913 - this is where all that makes a table has its name
    path: str | os.PathLike[str],
    schema: pa.Schema | StructType | str,
    *,
    primary_key: str | Sequence[str] = (),
    partition_by: str | Sequence[str] = (),
    log_system: str | None = None,
    options: Mapping[str, Any] | None = None,
    if_not_exists: bool = False,
    client_options: Mapping[str, object] | None = None,
    allow_references: Iterable[str] | None = None,
) -> LocalTable:
    """Create an empty table and, with a log system, its topic; without Spark or Java.

    Args:
        path: the table's folder; a local path or the URL of an object store.
        schema: the columns, as an Arrow schema, a Spark schema or DDL text such as ``"id bigint, name string"``.
        primary_key: as for ``TableStore.create``, and so are the others.
        partition_by: the partition columns of the base table.
        log_system: ``"kafka"`` or ``"files"`` (default).
        options: see ``docs/reference/options.md``.
        if_not_exists: open the table if there is one, as ``TableStore.create``.
        client_options: Kafka client options that are not stored.
        allow_references: as in ``open_local``.

    Raises:
        InvalidInputError: a column, key or option is wrong, or an existing topic does not fit; nothing was created.
        AlreadyExistsError: there is a table, or something else, at the path.
        UnavailableError: the broker or the file system does not answer.
    """
    # PySpark takes a moment to import, and only creating a table needs its types.
    from snapshot.schema.ddl_text import as_schema  # noqa: PLC0415
    from tablestore.ddl.create_drop import create  # noqa: PLC0415
    from tablestore.ddl.create_if_absent import create_if_absent  # noqa: PLC0415
    from tablestore.ddl.table_definition import TableDefinition  # noqa: PLC0415

    make = create_if_absent if if_not_exists else create
    definition = TableDefinition(
        os.fspath(path),
        as_schema(schema),
        primary_key=names_of(primary_key),
        partition_by=names_of(partition_by),
        log_system=log_system,
        options=options or {},
    )
    return LocalTable(make(definition, client_options, Allowed.of(allow_references)))


class LocalTable(LocalTableReader):
    """A table in this process: reads into Arrow and DuckDB, and writes what has Arrow columns.

    Get one with ``open_local(path)`` or ``create_local(path, schema, ...)``. Writes keep the promises of
    ``TableStore``: the same commits, the same publishing, the same options; Spark and local writers may work on one
    table concurrently. Use a handle from one thread at a time; any number of handles may work on a table.

    Attributes:
        maintenance: Expires snapshots and partitions, rolls back, removes orphaned files.
        tags: The tags.
        consumers: The named consumers.
        log: Repairs the log.
    """

    def __init__(self, table: TableContext) -> None:
        """Do not call this directly; use ``open_local``."""
        super().__init__(LocalHandle(table))

    def __reduce__(self) -> tuple[Callable[[str], LocalTable], tuple[str]]:
        """Pickle how the table is opened, client options included: another process gets a handle of its own."""
        table = self._table
        return partial(open_local, options=table.runtime, allow_references=table.allowed.entries), (self.path,)

    @property
    def alter(self) -> Alter:
        """Changes columns and options; see ``TableStore.alter``."""
        from tablestore.table.alter import Alter  # noqa: PLC0415 - PySpark takes a moment to import

        return Alter(self._handle)

    @exclusive
    def write(self, data: Tabular, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Write rows as one snapshot: append them or, in a table with a key, upsert them.

        A stream is read batch by batch and may be larger than memory: beyond 64 MB, its rows wait in a temporary file.

        Args:
            data: The table's columns, in any order: a pandas or polars frame, a PyArrow table, batch, batches or
                reader, a DuckDB relation, a list or iterator of dicts, or another object with
                ``__arrow_c_stream__``. In a table with a key, ``_change_type`` says what each row does, as in
                ``TableStore.write``.
            batch: Name and increasing number of the write, for callers that may repeat it after a crash; see
                ``TableStore.write``.

        Returns:
            The snapshot, committed and published; None if there are no rows.

        Raises:
            InvalidInputError: The rows do not fit the table; nothing was written.
            ConflictError: Other writers committed first too often; nothing was written.
            PublishPendingError: Committed, but the log's broker fails; the next write or ``recover()`` publishes it.
        """
        return self._write(data, self._handle.refresh().spec, batch)

    @exclusive
    def delete(self, where: str | Tabular, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Delete rows by condition or by key.

        Args:
            where: A condition in DuckDB's SQL, such as ``"price > 10"``; or rows with the key columns and those of
                ``sequence.field``, as for ``write``. Their other columns are ignored, and the table is not read.
            batch: As for ``write``.

        Returns:
            The snapshot; None if there is nothing to delete.

        Raises:
            InvalidInputError: The condition cannot be evaluated; rows were given and the table has no key, or they lack
                a key column; or the log's format has no deletes. Nothing was written.
            ConflictError: Other writers committed first too often; nothing was written.
        """
        if isinstance(where, str):
            return self._handle.finish(self._handle.verbs.delete(where, CommitId.of(batch)))
        table = self._handle.refresh()
        source = open_loosely(where, table.spec)
        keys = source.to_reader() if isinstance(source, pa.Table) else source
        kept = delete_columns(keys.schema.names, table.spec, table.rule)
        return self._write(deletes_reader(keys, table.spec, kept), table.spec, batch, kept)

    @exclusive
    def update(
        self,
        where: str | None,
        set: Mapping[str, Value],  # noqa: A002 - SQL's own word
        *,
        batch: tuple[str, int] | None = None,
    ) -> Snapshot | None:
        """Update columns of the rows that match a condition.

        Args:
            where: The condition in DuckDB's SQL; None selects all rows.
            set: New values by column: an expression in DuckDB's SQL over the current row as text, such as
                ``"price * 2"`` or ``"'text'"``, or a constant other than text. A key column may be set too.
            batch: As for ``write``.

        Returns:
            The snapshot; None if no row matches.

        Raises:
            InvalidInputError: The condition or a value cannot be evaluated, a value does not fit its column, or two
                rows would have the same primary key. Nothing was written.
            ConflictError: Other writers committed first too often; nothing was written.
        """
        return self._handle.finish(self._handle.verbs.update(where, set, CommitId.of(batch)))

    @exclusive
    def overwrite(
        self,
        data: Tabular,
        where: str | None = None,
        *,
        dynamic: bool = False,
        batch: tuple[str, int] | None = None,
    ) -> Snapshot | None:
        """Replace all rows, the rows that match a condition, or whole partitions.

        Args:
            data: The new rows, as for ``write``, without ``_change_type``.
            where: The rows to replace, in DuckDB's SQL; every new row must match it too.
            dynamic: Replace the partitions that occur in ``data``.
            batch: As for ``write``.

        Returns:
            The snapshot; None if there is nothing to remove or add.

        Raises:
            InvalidInputError: The rows do not fit the table or ``where``, or the table has no partitions. Nothing was
                written.
            ConflictError: Other writers committed first too often; nothing was written.
        """
        commit_id, spec = CommitId.of(batch), self._handle.refresh().spec
        with repeatable(read_tabular(data, spec), spec.since) as rows:
            return self._handle.finish(self._handle.verbs.overwrite(rows, where, commit_id, dynamic=dynamic))

    @exclusive
    def merge(
        self,
        source: Tabular,
        on: str | Sequence[str],
        when: Sequence[Clause],
        *,
        batch: tuple[str, int] | None = None,
    ) -> Snapshot | None:
        """Merge the rows of a source into the table, as SQL's ``MERGE`` does.

        Args:
            source: The source rows, as for ``write``, with any columns. In expressions its columns are ``source.x`` and
                the table's ``target.x``.
            on: The names of columns that both have, or a condition in DuckDB's SQL.
            when: Clauses made by ``when_matched(...)``, ``when_not_matched(...)`` and
                ``when_not_matched_by_source(...)``, with conditions and values in DuckDB's SQL, as for ``update``. The
                first clause whose condition holds applies to a row.
            batch: As for ``write``.

        Returns:
            The snapshot; None if nothing changes.

        Raises:
            InvalidInputError: An expression cannot be evaluated, a value does not fit its column, a clause is never
                reached, several source rows match one row of the table, or two rows would have the same primary key.
                Nothing was written.
            ConflictError: Other writers committed first too often; nothing was written.
        """
        commit_id = CommitId.of(batch)
        with repeatable_loosely(source, self._handle.refresh().spec) as rows:
            return self._handle.finish(self._handle.verbs.merge(rows, on, when, commit_id))

    @exclusive
    def truncate(self, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Delete all rows, and publish the deletes.

        Args:
            batch: As for ``write``.

        Returns:
            The snapshot; None if the table is empty.

        Raises:
            ConflictError: Other writers committed first too often; nothing was written.
        """
        return self._handle.finish(self._handle.verbs.truncate(CommitId.of(batch)))

    def close(self) -> None:
        """Close the connections to the broker; the next call that needs them opens them again."""
        # In a forked process they are its parent's, and a thread that is not there may hold the lock.
        if not is_forked():
            with self._handle.lock:
                self._handle.writer.discard()

    def _write(
        self, data: Tabular, spec: TableSpec, batch: tuple[str, int] | None, keys: Sequence[str] = ()
    ) -> Snapshot | None:
        """Write rows that fit ``spec``; ``keys`` are the columns that count in deletes by key."""
        commit_id = CommitId.of(batch)
        with repeatable(read_tabular(data, spec), spec.since) as rows:

            def stage(stager: Stager) -> list[StagedFile]:
                return stage_rows(rows.under(stager.spec, keys), stager)

            return self._handle.write(stage, commit_id)

    def __enter__(self) -> LocalTable:
        """Return this handle."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections to the broker."""
        self.close()
