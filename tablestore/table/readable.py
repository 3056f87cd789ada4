"""The read methods of ``TableStore``: its definition, rows, changes and snapshots."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Self

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from log_system.report import Progress, Report
from snapshot.records import Snapshot
from tablestore.inspect.frames import Inspector
from tablestore.inspect.html import table_html
from tablestore.options.read_options import NEWEST, ScanMode
from tablestore.read import batch
from tablestore.read.time_travel import Point
from tablestore.streaming import stream_read
from tablestore.table.handle import shared
from tablestore.table.open_table import OpenTable
from tablestore.table.spark_handle import SparkHandle


class ReadableTable(OpenTable):
    """The part of ``TableStore`` that changes no rows."""

    _handle: SparkHandle

    def __init__(self, handle: SparkHandle) -> None:
        super().__init__(handle)
        self.inspect = Inspector(lambda: handle.spark, handle.refresh)

    @property
    def schema(self) -> StructType:
        """The columns, as of this handle's last verb or ``refresh``; primary key columns are NOT NULL."""
        return copy.deepcopy(self._handle.table.spec.schema)

    def refresh(self) -> Self:
        """Read the table's definition again, which another handle may have changed, and return this handle.

        Verbs do so themselves; the properties ``schema`` and ``options`` do not.
        """
        self._handle.refresh()
        return self

    @shared
    def snapshots(self, limit: int | None = None) -> list[Snapshot]:
        """Return the snapshots that have not expired, newest first."""
        return list(islice(self._handle.refresh().files.snapshots(), limit))

    def history(self, limit: int | None = None) -> DataFrame:
        """Return the snapshots that have not expired as a frame, newest first, as Delta's ``history``.

        Args:
            limit: The number of snapshots; by default all.

        Returns:
            The columns ``snapshot_id``, ``kind``, ``rows`` (number of changes), ``committed_at``, ``published``
            (NULL without a log), ``tags`` and ``commit_id``.
        """
        frame = self.inspect.snapshots()
        return frame if limit is None else frame.limit(limit)

    def count(
        self,
        *,
        snapshot: int | None = None,
        timestamp: datetime | str | int | None = None,
        tag: str | None = None,
    ) -> int:
        """Return the number of rows of a snapshot, by default the newest; the arguments are those of ``read``."""
        columns = self._handle.refresh().spec.primary_key or None
        return self.read(snapshot=snapshot, timestamp=timestamp, tag=tag, columns=columns).count()

    @shared
    def read(
        self,
        *,
        snapshot: int | None = None,
        timestamp: datetime | str | int | None = None,
        tag: str | None = None,
        columns: str | Sequence[str] | None = None,
        schema: str = NEWEST,
    ) -> DataFrame:
        """Read the rows of a snapshot, by default the newest.

        Args:
            snapshot: The snapshot's id.
            timestamp: Read the newest snapshot at or before this time (datetime, ISO-8601 text, or epoch milliseconds).
            tag: The snapshot's tag.
            columns: The column or columns to read. Naming them here saves merging the others.
            schema: ``newest`` reads an old snapshot with the table's current columns, NULL where it had none; ``own``
                with the columns of that snapshot.

        Raises:
            NotFoundError: There is no such snapshot or tag, or the snapshot has expired.
        """
        return batch.read(
            self._handle.spark,
            self._handle.refresh(),
            snapshot=snapshot,
            timestamp=timestamp,
            tag=tag,
            columns=columns,
            schema=schema,
        )

    @shared
    def changes(self, from_: Point, to: Point | None = None) -> DataFrame:
        """Read the changes between two snapshots from the table's files.

        Args:
            from_: Read the changes after this snapshot (its id, a tag or a time).
            to: The last snapshot to read; by default the newest.

        Returns:
            The table's columns, ``_change_type``, ``_commit_version`` and ``_commit_timestamp``, as ``read_stream``.

        Raises:
            NotFoundError: There is no such snapshot or tag.
            DataLostError: Changes in between have expired.
            InvalidInputError: ``to`` comes before ``from_``.
        """
        return batch.read_changes(self._handle.spark, self._handle.refresh(), from_, to)

    def read_stream(  # noqa: PLR0913 - this is where every option of a stream has its name
        self,
        *,
        scan_mode: str = ScanMode.FULL,
        snapshot: int | None = None,
        timestamp: datetime | str | int | None = None,
        tag: str | None = None,
        until: Point | None = None,
        consumer: str | None = None,
        max_rows: int | None = None,
        max_snapshots: int | None = None,
        normalize: bool | None = None,
        state: str | os.PathLike[str] | None = None,
        state_ttl: str | None = None,
    ) -> DataFrame:
        """Stream the table's changes, from the log if the table has one.

        With ``log.consistency=eventual``, rows arrive before they are committed, and ``_commit_version`` is NULL except
        for the initial rows of ``full``. The stream is normalized: repeats are removed, updates have the row before
        them, deletes have their row. For this the query keeps the newest row of each live key in files. Scan modes
        other than ``full`` start with an empty state. A table without a primary key cannot be normalized: its stream
        has each committed row at least once, and may have rows of writes that failed.

        Args:
            scan_mode: ``full`` (the newest snapshot's rows as inserts, then every change after it), ``latest``,
                ``earliest``, ``from-snapshot`` (that snapshot's changes first), ``from-snapshot-full`` (that snapshot's
                rows as inserts, then every change after it; not with ``log.consistency=eventual``), ``from-timestamp``
                or ``from-tag`` (the changes after the tag's snapshot).
            snapshot: For ``from-snapshot`` and ``from-snapshot-full``.
            timestamp: For ``from-timestamp``.
            tag: For ``from-tag``.
            until: The last snapshot to stream: an id, which may be in the future, a tag or a time. A query with
                ``availableNow`` ends there.
            consumer: Record the stream's progress in the table under this name; changes that it has not read do not
                expire. A new query continues where the consumer stopped, whatever its ``scan_mode``.
            max_rows: Rows of a micro-batch; a larger snapshot is read whole.
            max_snapshots: Snapshots of a micro-batch; not with ``log.consistency=eventual``.
            normalize: False streams the eventual log as it is, with repeats, updates without preimages and deletes
                without rows, for a sink that upserts by key.
            state: The folder for the state of a normalized stream, in which each query makes its own; by default
                ``_streams`` in the table's folder. It must be reachable from all executors, and stay the same when the
                query restarts.
            state_ttl: Forget a key whose last record is this much older than the newest one of its partition, as in
                ``'30 d'``; by default never. A forgotten key starts with an insert when it changes again, and its
                delete is not emitted.

        Returns:
            A streaming frame: the table's columns, ``_change_type``, ``_commit_version``, ``_commit_timestamp``.
        """
        wanted = stream_read.Stream(
            scan_mode=scan_mode,
            snapshot=snapshot,
            timestamp=timestamp,
            tag=tag,
            until=until,
            consumer=consumer,
            max_rows=max_rows,
            max_snapshots=max_snapshots,
            normalize=normalize,
            state=None if state is None else os.fspath(state),
            state_ttl=state_ttl,
        )
        return stream_read.read_stream(self._handle.spark, self._handle.refresh(), wanted)

    def verify(self, progress: Progress | None = None, *, from_snapshot: int | None = None) -> Report:
        """Compare log and table for every snapshot still in the log, record by record. Changes nothing.

        Args:
            progress: Called with the offsets read so far and in all.
            from_snapshot: The first snapshot to compare; None for all. Of a log with
                ``log.consistency=eventual``, the last records of keys that were sent or changed since are compared.

        Returns:
            Partition, offset, key and snapshot of each difference; ``ok`` if there is none.

        Raises:
            NotFoundError: The snapshot before ``from_snapshot`` is not in the log.
            UnavailableError: The broker or the file system does not answer.
        """
        return self._handle.refresh().verify(progress, from_snapshot)

    def __repr__(self) -> str:
        spec, log = self._handle.table.spec, self._handle.table.options.log
        key = f", primary_key={list(spec.primary_key)}" if spec.primary_key else ""
        partitions = f", partition_by={list(spec.partition_by)}" if spec.partition_by else ""
        topic = f", log_system='kafka', topic={log.kafka.topic!r}" if log else ""
        return f"TableStore({self.path!r}{key}{partitions}{topic})"

    def _repr_html_(self) -> str:
        """Return the definition and the newest snapshot, for notebooks."""
        return table_html(self._handle.table)
