"""``TableStore``: the handle of one table."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import wrap
from snapshot.errors import CorruptedError, NotFoundError
from snapshot.records import CommitId, Snapshot
from snapshot.schema.ddl_text import as_schema
from snapshot.storage import Storage
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.create_if_absent import create_if_absent
from tablestore.ddl.table_definition import TableDefinition
from tablestore.dml.conditions import Condition, Value
from tablestore.dml.merge_clauses import Clause
from tablestore.dml.merge_join import On
from tablestore.options.value_types import names_of
from tablestore.spark.connect import running
from tablestore.streaming.stream_write import start_stream
from tablestore.table.alter import Alter
from tablestore.table.batch_writer import BatchWriter
from tablestore.table.handle import exclusive
from tablestore.table.readable import ReadableTable
from tablestore.table.spark_handle import SparkHandle
from tablestore.write.frame_input import deletes_of, frame_of, is_tabular, stage_frame
from tablestore.write.tabular_input import Tabular

_MOVED = {
    "add_column": "alter.add_column",
    "allow_null": "alter.allow_null",
    "comment_column": "alter.comment_column",
    "delete_tag": "tags.delete",
    "drop_column": "alter.drop_column",
    "expire": "maintenance.expire",
    "expire_partitions": "maintenance.expire_partitions",
    "move_column": "alter.move_column",
    "remove_orphans": "maintenance.remove_orphans",
    "rename_column": "alter.rename_column",
    "repair": "log.repair",
    "reset_consumer": "consumers.reset",
    "reset_options": "alter.reset_options",
    "rollback": "maintenance.rollback",
    "set_options": "alter.set_options",
    "tag": "tags.create",
    "widen_column": "alter.widen_column",
}
"""Where to find the verbs that earlier versions had on the table itself."""


class TableStore(ReadableTable):
    """One table: its snapshots in Delta files, its changes in a log.

    Get one with ``TableStore.create(spark, path, schema, ...)`` or ``TableStore.open(spark, path)``, which is also
    called ``TableStore.for_path``. Threads may share
    a handle: verbs that change the table run one at a time, and reads run beside them. To write in parallel, give each
    thread a handle of its own; any number of handles in any number of processes may work on one table.

    Attributes:
        alter: Changes columns and options.
        maintenance: Expires snapshots and partitions, rolls back, removes orphaned files.
        tags: The tags.
        consumers: The named consumers.
        log: Repairs the log.
        inspect: The table's metadata, as frames.
    """

    def __init__(self, spark: SparkSession, table: TableContext) -> None:
        """Use ``create`` or ``open``."""
        handle = SparkHandle(spark, table)
        super().__init__(handle)
        self.alter = Alter(handle)

    if not TYPE_CHECKING:  # a type checker shall report the old names

        def __getattr__(self, name: str) -> Any:
            """Return a verb that earlier versions had here."""
            if name not in _MOVED:
                msg = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(msg)
            warnings.warn(f"table.{name} is deprecated; use table.{_MOVED[name]}", DeprecationWarning, stacklevel=2)
            return attrgetter(_MOVED[name])(self)

    @classmethod
    def create(  # noqa: PLR0913 - this is where all that makes a table has its name
        cls,
        spark: SparkSession,
        path: str | os.PathLike[str],
        schema: StructType | str,
        *,
        primary_key: str | Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
        log_system: str | None = None,
        options: Mapping[str, Any] | None = None,
        client_options: Mapping[str, object] | None = None,
        allow_references: Iterable[str] | None = None,
        if_not_exists: bool = False,
    ) -> TableStore:
        """Create an empty table and, with a log system, its topic.

        Args:
            spark: The session; see ``tablestore.session``.
            path: The table's folder: a local path or the URL of an object store.
            schema: The columns, as a Spark schema or DDL text such as ``"id bigint, name string"``.
            primary_key: The key column or columns. With a key, writes upsert; without one, they append.
            partition_by: The partition column or columns of the base table.
            log_system: ``"kafka"`` publishes every snapshot to a Kafka topic; with ``"files"`` (default), streams read
                the changes in the table's files.
            options: See ``docs/reference/options.md``; with a log, ``kafka.bootstrap.servers`` is required.
            client_options: Kafka client options that are not stored, as ``options`` of ``open``.
            allow_references: As in ``open``.
            if_not_exists: Open the table if there is one with these columns, key, partitions, log and fixed options.

        Raises:
            InvalidInputError: A column, key or option is wrong, or an existing topic does not fit; nothing was created.
            AlreadyExistsError: There is a table, or something else, at the path; with ``if_not_exists``, one that
                differs, and the message says in what.
            UnavailableError: The broker or the file system does not answer.
        """
        running(spark, "create", "nothing was created; give a session that runs")
        make = create_if_absent if if_not_exists else create_drop.create
        definition = TableDefinition(
            os.fspath(path),
            as_schema(schema),
            primary_key=names_of(primary_key),
            partition_by=names_of(partition_by),
            log_system=log_system,
            options=options or {},
        )
        return cls(spark, make(definition, client_options, Allowed.of(allow_references)))

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        path: str | os.PathLike[str],
        *,
        options: Mapping[str, object] | None = None,
        allow_references: Iterable[str] | None = None,
    ) -> TableStore:
        """Open an existing table.

        Args:
            spark: The session.
            path: The table's folder.
            options: Kafka client options (``kafka.*``) that are not stored with the table, such as a password.
            allow_references: The ``env:`` and ``file:`` references that the table's stored options may contain, such as
                ``["env:ORDERS_*", "file:/etc/kafka/*"]``; by default those of the environment variable
                ``TABLESTORE_ALLOWED_REFERENCES``. See ``docs/reference/options.md``.

        Raises:
            NotFoundError: There is no table at the path.
            InvalidInputError: A stored client option may only be given by the program, or its reference is not allowed.
        """
        options = wrap(options or {})
        return cls(spark, TableContext.open(os.fspath(path), options, Allowed.of(allow_references)))

    for_path = open  # noqa: A003 - the method above, by Delta's name for it

    @staticmethod
    def exists(spark: SparkSession, path: str | os.PathLike[str]) -> bool:
        """Return whether there is a table at a path. The remains of an interrupted ``create`` or ``drop`` do not count.

        Args:
            spark: The session.
            path: The table's folder.

        Raises:
            CorruptedError: The table's definition cannot be read.
            UnavailableError: The file system does not answer.
        """
        return create_drop.exists(os.fspath(path))

    @exclusive
    def write(
        self, frame: Tabular, *, batch: tuple[str, int] | None = None, merge_schema: bool = False
    ) -> Snapshot | None:
        """Write rows as one snapshot: append them or, in a table with a key, upsert them.

        Args:
            frame: The table's columns, in any order, as a Spark, pandas or polars frame, a PyArrow table, batch or
                reader, a DuckDB relation, a list or iterator of dicts, or another object with
                ``__arrow_c_stream__``; see ``docs/guide/rows.md``. In a table with a key, a column ``_change_type``
                (``insert``, ``update_postimage``, ``delete``; ``update_preimage`` is ignored) says what each row does;
                of several rows of one key the last one counts.
            batch: Name and increasing number of the write, for callers that may repeat it after a crash. A number not
                greater than the last one committed under the name is skipped with a warning. A query that starts over
                with a new checkpoint counts from 0 again and needs a new name.
            merge_schema: First add the columns and fields that the table lacks and widen types that are too narrow, in
                a snapshot of its own. Columns that the frame lacks are NULL.

        Returns:
            The snapshot, committed and published; None if the frame has no rows.

        Raises:
            InvalidInputError: The rows do not fit the table; nothing was written.
            ConflictError: Other writers committed first too often; nothing was written.
            PublishPendingError: Committed, but the log's broker fails; the next write or ``recover()`` publishes it.
        """
        commit_id = CommitId.of(batch)
        rows = self._frame(frame, exact=not merge_schema)
        rows = self.alter.merge_schema(rows) if merge_schema else rows
        return self._handle.write(partial(stage_frame, rows), commit_id)

    def _frame(self, rows: Tabular, *, exact: bool = True) -> DataFrame:
        """Return rows as a Spark frame; see ``frame_of``."""
        # A Spark frame needs no definition of the table, and reading it takes a request.
        if isinstance(rows, DataFrame):
            return rows
        return frame_of(self._handle.spark, rows, self._handle.refresh().spec, exact=exact)

    @exclusive
    def delete(self, where: Tabular | Condition, *, batch: tuple[str, int] | None = None) -> Snapshot | None:
        """Delete rows by condition or by key.

        Args:
            where: A condition, as a Spark column or SQL text; or rows, as for ``write``, with the key columns and
                those of ``sequence.field``. Their other columns are ignored, and the table is not read.
            batch: As for ``write``.

        Returns:
            The snapshot; None if there is nothing to delete.

        Raises:
            InvalidInputError: The condition cannot be evaluated; a frame was given and the table has no key, or the
                frame lacks a key column; or the log's format has no deletes. Nothing was written.
            ConflictError: Other writers committed first too often; nothing was written.
        """
        if is_tabular(where):
            keys = self._frame(where, exact=False)
            return self.write(deletes_of(keys, self._handle.refresh().spec, self._handle.table.rule), batch=batch)
        return self._handle.finish(self._handle.verbs.delete(where, batch))

    @exclusive
    def update(
        self,
        where: Condition,
        set: Mapping[str, Value],  # noqa: A002 - SQL's own word
        *,
        batch: tuple[str, int] | None = None,
    ) -> Snapshot | None:
        """Update columns of the rows that match a condition.

        Args:
            where: The condition, as a Spark column or SQL text; ``"true"`` selects all rows.
            set: New values by column: a Spark column, SQL text over the current row, or a constant other than text. A
                key column may be set too.
            batch: As for ``write``.

        Returns:
            The snapshot; None if no row matches.

        Raises:
            InvalidInputError: The condition or a value cannot be evaluated, a value does not have its column's type, or
                two rows would have the same primary key. Nothing was written.
            ConflictError: Other writers committed first too often; nothing was written.
        """
        return self._handle.finish(self._handle.verbs.update(where, set, batch))

    @exclusive
    def overwrite(
        self,
        frame: Tabular,
        where: Condition | None = None,
        *,
        dynamic: bool = False,
        batch: tuple[str, int] | None = None,
    ) -> Snapshot | None:
        """Replace all rows, the rows that match a condition, or whole partitions.

        Args:
            frame: The new rows, as for ``write``, with the table's columns. In a table with a key, a new row also
                replaces the row with its key outside the replaced part; of several rows of one key the last one counts.
            where: The rows to replace; every new row must match it too.
            dynamic: Replace the partitions that occur in ``frame``.
            batch: As for ``write``.

        Returns:
            The snapshot; None if there is nothing to remove or add.

        Raises:
            InvalidInputError: The rows do not fit the table or ``where``, or the table has no partitions. Nothing was
                written.
            ConflictError: Other writers committed first too often; nothing was written.
        """
        return self._handle.finish(self._handle.verbs.overwrite(self._frame(frame), where, batch, dynamic=dynamic))

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
        return self._handle.finish(self._handle.verbs.truncate(batch))

    @exclusive
    def merge(
        self, source: Tabular, on: On, when: Sequence[Clause], *, batch: tuple[str, int] | None = None
    ) -> Snapshot | None:
        """Merge the rows of a source into the table, as SQL's ``MERGE`` does.

        Args:
            source: The source rows, as for ``write``, with any columns. In expressions its columns are ``source.x`` and
                the table's ``target.x``.
            on: The names of columns that both have, or a condition.
            when: Clauses made by ``when_matched(...)``, ``when_not_matched(...)`` and
                ``when_not_matched_by_source(...)``. The first clause whose condition holds applies to a row.
            batch: As for ``write``.

        Returns:
            The snapshot; None if nothing changes.

        Raises:
            InvalidInputError: An expression cannot be evaluated, a clause is never reached, several source rows match
                one row of the table, or two rows would have the same primary key. Nothing was written.
            ConflictError: Other writers committed first too often; nothing was written.
        """
        return self._handle.finish(self._handle.verbs.merge(self._frame(source, exact=False), on, when, batch))

    def write_stream(
        self,
        frame: DataFrame,
        *,
        checkpoint: str | os.PathLike[str],
        output_mode: str = "append",
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        transform: Callable[[DataFrame], DataFrame] | None = None,
    ) -> StreamingQuery:
        """Start a streaming query that writes each micro-batch as one snapshot, exactly once across restarts.

        Args:
            frame: A streaming frame; columns as for ``write``.
            checkpoint: The folder in which Spark keeps the query's progress. It identifies the query.
            output_mode: ``append``, or ``update`` for a table with a key.
            trigger: Arguments of Spark's ``trigger``, such as ``{"availableNow": True}``.
            query_name: The query's name in Spark's progress.
            transform: Applied to each micro-batch before it is written. Over Spark Connect it is pickled and runs on
                the server.

        Raises:
            InvalidInputError: The columns or the output mode do not fit the table.
        """
        table = self._handle.refresh()
        # The query runs in a thread or process of its own, so it writes through a handle of its own.
        place, _ = Storage.at(checkpoint).root, self._handle.spark
        return start_stream(
            frame,
            BatchWriter(table, place, transform),
            has_key=table.spec.has_key,
            checkpoint=place,
            output_mode=output_mode,
            trigger=trigger,
            query_name=query_name,
        )

    @exclusive
    def drop(self, *, keep_topic: bool = False) -> None:
        """Drop the table, and its topic if ``create`` created it.

        The topic is deleted only if Kafka reports the topic id and cluster id that ``create`` stored. If the broker
        does not answer, nothing is changed. Another ``drop``, or the next ``create`` at the path, completes an
        interrupted drop.

        Args:
            keep_topic: Do not delete the topic; the broker need not answer then.

        Raises:
            NotFoundError: There is no longer a table at the path.
            TableReplacedError: The table was dropped and created again; the new table is not touched.
            UnavailableError: The broker or the file system does not answer; drop again.
        """
        opened = self._handle.table
        if self._handle.publisher is not None:
            self._handle.publisher.discard()
        try:
            table = opened.refreshed()
        except (NotFoundError, CorruptedError):
            # An earlier drop was interrupted.
            create_drop.drop_at(opened.path, opened.runtime, opened.allowed, keep_topic=keep_topic)
        else:
            create_drop.drop(table, keep_topic=keep_topic)

    @staticmethod
    def drop_at(
        path: str | os.PathLike[str],
        *,
        options: Mapping[str, str] | None = None,
        allow_references: Iterable[str] | None = None,
        keep_topic: bool = False,
    ) -> None:
        """Drop the table at a path, or the remains of an interrupted ``drop`` or ``create``; see ``drop``.

        Args:
            path: The table's folder.
            options: Kafka client options (``kafka.*``) that are not stored with the table, such as a password.
            allow_references: As in ``open``.
            keep_topic: Do not delete the topic.

        Raises:
            NotFoundError: There is neither a table nor the remains of one.
            UnavailableError: The broker or the file system does not answer; drop again.
        """
        create_drop.drop_at(os.fspath(path), options, Allowed.of(allow_references), keep_topic=keep_topic)
