"""The read methods of ``LocalTable``: its definition, rows, changes and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from log_system.report import Progress, Report
from snapshot.errors import InvalidInputError
from snapshot.records import Snapshot
from snapshot.store.snapshot_files import SnapshotFiles
from tablestore.context import TableContext
from tablestore.inspect.metadata_tables import inspected
from tablestore.local.handle import LocalHandle
from tablestore.local.point_lookup import get_row
from tablestore.local.rows import reader
from tablestore.local.tail import feed_schema, followed, in_order
from tablestore.local.threads import ReadAnew, cores
from tablestore.options.read_options import ScanMode, parse_read_options, timestamp_millis
from tablestore.options.value_types import names_of
from tablestore.read.time_travel import Point, Time, between, chosen_snapshot
from tablestore.streaming.change_feed import Feed
from tablestore.table.handle import shared
from tablestore.table.open_table import OpenTable

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    import polars


class LocalTableReader(OpenTable):
    """The part of ``LocalTable`` that changes no rows.

    Buckets are read by one thread per core, each in bounded memory (about 320 MB at most).
    """

    _handle: LocalHandle

    def __init__(self, handle: LocalHandle) -> None:
        super().__init__(handle)
        self._threads = cores()

    @property
    def _table(self) -> TableContext:
        """The table as it was defined when it was last refreshed."""
        return self._handle.table

    @property
    def schema(self) -> pa.Schema:
        """The table's schema; primary key columns are not nullable."""
        return self._table.spec.arrow

    @property
    def feed_schema(self) -> pa.Schema:
        """The schema of the batches of ``tail`` and ``changes``."""
        return feed_schema(self._table)

    def schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of the given columns, in the given order; None for all columns.

        Raises:
            InvalidInputError: a column is unknown or given twice, or the list is empty.
        """
        if columns is None:
            return self.schema
        columns = names_of(columns)
        unknown = [name for name in columns if name not in self.schema.names]
        if unknown or not columns or len(set(columns)) != len(columns):
            msg = f"columns: expected some of {self.schema.names}, each once; got {list(columns)}."
            raise InvalidInputError(msg)
        return pa.schema([self.schema.field(name) for name in columns])

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - what Arrow's readers call it
        *,
        snapshot: Point | None = None,
        timestamp: Time | None = None,
        tag: str | None = None,
    ) -> pa.Table:
        """Read a snapshot into memory.

        Args:
            columns: the columns to read, in this order, or the name of one; None for all.
            filter: a condition in DuckDB's SQL, such as ``"price > 10 AND name LIKE 'a%'"``; None for every row.
            snapshot: the snapshot's id, a tag, or a time, which selects the newest snapshot at that time; None for the
                newest.
            timestamp: the time alone, also as epoch milliseconds, as in ``TableStore.read``.
            tag: the tag alone.

        Returns:
            The rows, in no particular order.

        Raises:
            NotFoundError: there is no such snapshot or tag.
            InvalidInputError: a column is unknown, the filter is invalid, or snapshot, timestamp and tag are not given
                alone.
        """
        read = self._reader(columns, filter, self._snapshot(snapshot, timestamp, tag))
        return pa.Table.from_batches(read(), schema=self.schema_of(columns))

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - as above
        *,
        snapshot: Point | None = None,
        timestamp: Time | None = None,
        tag: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read a snapshot batch by batch in bounded memory, in no particular order; arguments as for ``to_arrow``."""
        return self._reader(columns, filter, self._snapshot(snapshot, timestamp, tag))()

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - as above
        *,
        snapshot: Point | None = None,
        timestamp: Time | None = None,
        tag: str | None = None,
    ) -> pa.RecordBatchReader:
        """Return a snapshot as an Arrow stream, which is read as it is consumed; arguments as for ``to_arrow``."""
        batches = self._reader(columns, filter, self._snapshot(snapshot, timestamp, tag))()
        return pa.RecordBatchReader.from_batches(self.schema_of(columns), batches)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the newest snapshot's rows to another library, batch by batch: ``polars.DataFrame(table)``."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - as above
        *,
        snapshot: Point | None = None,
        timestamp: Time | None = None,
        tag: str | None = None,
    ) -> pandas.DataFrame:
        """Read a snapshot into a pandas frame, which needs pandas; arguments as for ``to_arrow``."""
        rows = self.to_arrow(columns, filter, snapshot=snapshot, timestamp=timestamp, tag=tag)
        try:
            return rows.to_pandas()
        except (OverflowError, ValueError) as error:
            # Dates are Python objects in pandas, timestamps are not.
            msg = (
                f"to_pandas: a date is outside the years 1 to 9999, which are those of Python ({error}). Use "
                "to_arrow() or to_polars()."
            )
            raise InvalidInputError(msg) from error

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - as above
        *,
        snapshot: Point | None = None,
        timestamp: Time | None = None,
        tag: str | None = None,
    ) -> polars.DataFrame:
        """Read a snapshot into a polars frame, which needs polars; arguments as for ``to_arrow``."""
        try:
            import polars  # noqa: PLC0415 - not a dependency
        except ImportError as error:
            msg = "to_polars() needs the package polars: pip install polars."
            raise InvalidInputError(msg) from error

        return polars.DataFrame(self.to_arrow(columns, filter, snapshot=snapshot, timestamp=timestamp, tag=tag))

    @shared
    def get(
        self,
        key: object,
        *,
        columns: Sequence[str] | None = None,
        snapshot: Point | None = None,
        timestamp: Time | None = None,
        tag: str | None = None,
    ) -> dict[str, Any] | None:
        """Look a row up by its primary key, reading one bucket only.

        Args:
            key: the key's value; for a key of several columns, a tuple in their order, or a dict.
            columns: the columns to return; None for all.
            snapshot: as for ``to_arrow``.
            timestamp: as for ``to_arrow``.
            tag: as for ``to_arrow``.

        Returns:
            The row by column; None if there is none.

        Raises:
            NotFoundError: there is no such snapshot or tag.
            InvalidInputError: the table has no key, or the value does not fit it.
        """
        number = self._snapshot(snapshot, timestamp, tag)
        return get_row(self._table, number, key, None if columns is None else self.schema_of(columns).names)

    def to_duckdb(
        self,
        connection: duckdb.DuckDBPyConnection | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - as above
        snapshot: Point | None = None,
        timestamp: Time | None = None,
        tag: str | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """Return a snapshot as a DuckDB relation, which reads it again, batch by batch, each time it is executed.

        DuckDB's own projections and filters are applied only after reading. Pass ``columns`` and ``filter`` here to
        read less. Ctrl-C while DuckDB executes the relation raises DuckDB's error, mostly ``RuntimeError``.

        Args:
            connection: the connection of the relation; None for DuckDB's default connection.
            columns: as for ``to_arrow``.
            filter: as for ``to_arrow``.
            snapshot: as for ``to_arrow``.
            timestamp: as for ``to_arrow``.
            tag: as for ``to_arrow``.
        """
        read = self._reader(columns, filter, self._snapshot(snapshot, timestamp, tag))
        return (connection or duckdb.default_connection()).from_arrow(ReadAnew(self.schema_of(columns), read))

    @shared
    def count(
        self,
        filter: str | None = None,  # noqa: A002 - as above
        *,
        snapshot: Point | None = None,
        timestamp: Time | None = None,
        tag: str | None = None,
    ) -> int:
        """Return the row count of a snapshot; without a filter and changes to merge, Delta's statistics suffice."""
        chosen = self._snapshot(snapshot, timestamp, tag)
        found = chosen if filter else self._table.files.layout(chosen)
        if not isinstance(found, int) and not found.changes and all(file.rows >= 0 for file in found.base):
            return sum(file.rows for file in found.base)
        narrow = list(self.primary_key or self.schema.names)[:1]
        return sum(batch.num_rows for batch in self._reader(narrow, filter, found)())

    @shared
    def snapshots(self, limit: int | None = None) -> list[Snapshot]:
        """Return the table's snapshots, newest first, as far back as the Delta log goes.

        Raises:
            InvalidInputError: the limit is negative.
        """
        if limit is not None and limit < 0:
            msg = f"snapshots: limit: expected a number of snapshots, or None for all, got {limit}."
            raise InvalidInputError(msg)
        return list(islice(self._table.files.snapshots(), limit))

    def history(self) -> pa.Table:
        """Return the snapshots that have not expired, newest first; columns as of ``TableStore.history``."""
        return self.inspect("snapshots")

    @shared
    def inspect(self, name: str) -> pa.Table:
        """Return a metadata table: ``snapshots``, ``files``, ``log`` and so on; see ``metadata_tables``.

        Raises:
            InvalidInputError: there is no metadata table with this name.
        """
        return inspected(self._table, name)

    @shared
    def changes(self, from_: Point, to: Point | None = None) -> Iterator[pa.RecordBatch]:
        """Read the changes between two snapshots from the table's files, as ``TableStore.changes`` does.

        Args:
            from_: the snapshot before the first change (its id, a tag or a time).
            to: the last snapshot to include; None for the newest.

        Yields:
            Batches with the columns of ``tail``, in snapshot order.

        Raises:
            NotFoundError: there is no such snapshot or tag.
            DataLostError: some of the changes have expired.
            InvalidInputError: ``to`` is before ``from_``.
        """
        table = self._now()
        after, through = between(table.files, from_, to)
        return in_order(Feed(table, from_files=True), after, through, self.feed_schema)

    @shared
    def tail(
        self,
        *,
        scan_mode: str | None = None,
        snapshot: int | None = None,
        timestamp: datetime | str | int | None = None,
        tag: str | None = None,
        follow: bool = True,
        poll_seconds: float = 0.2,
    ) -> Iterator[pa.RecordBatch]:
        """Follow the table's changes as whole, committed snapshots in commit order, from the log if there is one.

        Args:
            scan_mode: where to start: ``latest`` (new changes only), ``earliest``, ``full`` (the newest snapshot's rows
                as inserts, then new changes), ``from-snapshot``, ``from-timestamp`` or ``from-tag``. None selects the
                mode that matches ``snapshot``, ``timestamp`` or ``tag``, or ``latest`` if none of them is given.
            snapshot: for ``from-snapshot``: the first snapshot whose changes are read.
            timestamp: for ``from-timestamp``; as in ``TableStore.read``.
            tag: for ``from-tag``: changes after the tagged snapshot are read.
            follow: whether to wait for new changes; if not, the iterator ends at the newest snapshot visible now.
            poll_seconds: how long to wait between checks for a new snapshot.

        Yields:
            Batches with the table's columns, ``_change_type``, ``_commit_version`` (int64) and ``_commit_timestamp``
            (timestamp, UTC). In formats that store only the key of a delete, its other columns are NULL.

        Raises:
            InvalidInputError: the arguments exclude each other.
            NotFoundError: there is no such snapshot or tag.
            DataLostError: the changes are no longer in the log or the table.
            TableReplacedError: the table was dropped and created again.
        """
        time = None if timestamp is None else timestamp_millis(timestamp)
        given = {"scan-mode": scan_mode, "snapshot": snapshot, "timestamp": time, "tag": tag}
        if all(value is None for value in given.values()):
            given["scan-mode"] = "latest"
        options = parse_read_options({"path": self.path} | {k: str(v) for k, v in given.items() if v is not None})
        if options.scan_mode is ScanMode.FROM_SNAPSHOT_FULL:
            msg = (
                f"tail: scan_mode='{options.scan_mode}' is for streams of Spark. Take the rows by read(snapshot=n), "
                "and follow with scan_mode='from-snapshot', snapshot=n+1."
            )
            raise InvalidInputError(msg)
        feed = Feed(self._now(), tasks=self._threads)
        after = feed.begin(options)
        if not follow:
            return in_order(feed, after, self._table.newest_visible(), self.feed_schema)
        return followed(self._table, feed, after, self.feed_schema, poll_seconds)

    def verify(self, progress: Progress | None = None, *, from_snapshot: int | None = None) -> Report:
        """Compare log and table for every snapshot still in the log, or from one on; see ``TableStore.verify``."""
        return self._now().verify(progress, from_snapshot)

    def _snapshot(self, snapshot: Point | None, timestamp: Time | None, tag: str | None) -> int:
        return chosen_snapshot(self._now().files, snapshot, timestamp, tag, fresh=False)

    def _now(self) -> TableContext:
        """Refresh the table's definition and return the table."""
        return self._handle.refresh()

    def _reader(
        self, columns: Sequence[str] | None, condition: str | None, snapshot: int | SnapshotFiles
    ) -> Callable[[], Iterator[pa.RecordBatch]]:
        return reader(self._table.files, snapshot, self.schema_of(columns), condition, self._threads)

    def _repr_html_(self) -> str:
        """Return the definition and the newest snapshot, for notebooks."""
        from tablestore.inspect.html import table_html  # noqa: PLC0415 - PySpark takes a moment to import

        return table_html(self._now())

    def __repr__(self) -> str:
        """Return the path and the primary key."""
        key = f", primary_key={list(self.primary_key)}" if self.primary_key else ""
        return f"LocalTable({self.path!r}{key})"
