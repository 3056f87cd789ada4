"""Finds what is wrong in an eventual log, and the changes that correct it: by key, or what is missing without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import duckdb
import pyarrow as pa

from log_system.base import AT, CHANGED, SAID
from log_system.index import LogIndex
from log_system.kafka.log import KafkaLog
from log_system.kafka.reader.tail_reader import read_tail, tail_schema
from snapshot.merge.duckdb_engine import errors_mapped, read, spilling
from snapshot.merge.key_parts import by_parts
from snapshot.merge.merge_reader import MergeReader
from snapshot.merge.numbered_columns import ROW_HASH, columns_of, keys_of, load_numbered, same_key, same_row
from snapshot.records import ChangeSet
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.adapter import Adapter
from snapshot.schema.physical_names import Columns
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import SNAPSHOT
from snapshot.store.lookup import lookup_in
from snapshot.store.table_files import TableFiles


@dataclass(frozen=True)
class _LogAndTable:
    """An eventual log and its table's files."""

    files: TableFiles
    log: KafkaLog

    def changes_from(self, snapshot: int) -> Sequence[ChangeSet]:
        """Return the changes of a snapshot and of every later committed one, in order."""
        return [self.files.changes(each, self.log.partitions) for each in range(snapshot, self.files.latest() + 1)]


@dataclass(frozen=True)
class Repairs(_LogAndTable):
    """Compares the log with the newest snapshot, key by key, in DuckDB with bounded memory.

    A comparison scans the bucket's files once, however few keys it looks up.
    """

    def wrong(
        self, partition: int, start: int, end: int, changed: Sequence[ChangeSet], *, whole: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the committed row, or a delete, of each key whose last record in the log says something else."""
        for batch in self.differences(partition, start, end, changed, whole=whole):
            yield batch.select([name for name in batch.schema.names if name not in (SAID, AT, CHANGED)])

    def differences(
        self,
        partition: int,
        start: int,
        end: int,
        changed: Sequence[ChangeSet],
        *,
        whole: bool = False,
        snapshot: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``wrong`` together with what the log says; compare with ``snapshot``, or with the newest.

        1. Read the log between the offsets and keep each key's last record.
        2. Add the keys of the changed snapshots: later attempts may have overridden what was sent before the range.
        3. Look up all these keys in the snapshot.
        4. Yield the differences.
        """
        # Records of an eventual log may be older than some of the table's columns, which are then NULL.
        files = self.files.refreshed()
        spec, log = files.spec, self.log.under(files.change_schema)
        with spilling() as session, errors_mapped("repair"):
            # Step 1.
            with MergeReader(spec.arrow, spec.primary_key) as engine:
                last = engine.last_per_key(read_tail(log, partition, start, end, newest=True))
                sizes = {"seen": load_numbered(session, "seen", tail_schema(log), last)}
            # Step 2.
            rows = _changes(changed, partition, spec.change_columns)
            numbered = files.change_schema.append(pa.field(SNAPSHOT, pa.int64()))
            sizes["changed"] = load_numbered(session, "changed", numbered, rows)
            keys = ", ".join(keys_of(spec))
            session.execute(f"CREATE TEMP TABLE keys AS SELECT {keys} FROM seen UNION SELECT {keys} FROM changed")
            if not whole and session.sql("SELECT count(*) FROM keys").fetchall() == [(0,)]:
                return
            # Step 3.
            sizes["alive"] = _look_up(files, session, partition, snapshot, whole=whole)
            # Step 4.
            query = partial(read, session, _differences(spec), [], _with_marks(files.change_schema))
            yield from by_parts(session, {**sizes, "keys": 0}, keys_of(spec), query)


@dataclass(frozen=True)
class MissingChanges(_LogAndTable):
    """Finds changes of a table without a key that its log lacks, in DuckDB with bounded memory.

    The log may hold more than the table: nothing tells a row that was never committed, or was sent twice, from others.
    """

    index: LogIndex

    def wrong(
        self, partition: int, start: int, end: int, changed: Sequence[ChangeSet], *, whole: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes of the snapshots ``changed`` or, with ``whole``, what the log lacks of any snapshot."""
        files = self.files.refreshed()
        names = files.change_schema.names
        batches = (
            self.differences(partition, start, end, (), whole=True)
            if whole
            else _changes(changed, partition, files.spec.change_columns)
        )
        yield from (batch.select(names) for batch in batches)

    def differences(
        self,
        partition: int,
        start: int,
        end: int,
        changed: Sequence[ChangeSet],
        *,
        whole: bool = False,
        snapshot: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes, as they are read back, that a range of a partition holds less often than snapshots do.

        The snapshots are those of ``changed``. With ``whole``, they are all up to ``snapshot`` or the newest, except
        for those that have expired, and those of which retention may have removed records.
        """
        files = self.files.refreshed()
        log = self.log.under(files.change_schema)
        if whole:
            newest = files.latest() if snapshot is None else snapshot
            numbers = range(max(files.oldest(), 1), newest + 1)
            compared = [number for number in numbers if self._holds_all_of(number, partition, start)]
            changed = [files.changes(number, log.partitions) for number in compared]
        found = (batch.select(log.schema.names) for batch in read_tail(log, partition, start, end))
        had = (
            log.traits.as_read(batch.select(log.schema.names), log.primary_key, log.changelog)
            for batch in _changes(changed, partition, files.spec.change_columns)
        )
        with spilling() as session, errors_mapped("compare the log"):
            sizes = {"had": load_numbered(session, "had", log.schema, had, hashed=True)}
            sizes["seen"] = load_numbered(session, "seen", log.schema, found, hashed=True)
            lacking = "FROM had EXCEPT ALL FROM seen"
            sql = f"SELECT * EXCLUDE ({ROW_HASH}), NULL::TINYINT, NULL::BIGINT, NULL::BIGINT FROM ({lacking})"
            query = partial(read, session, sql, [], _with_marks(files.change_schema))
            yield from by_parts(session, sizes, [ROW_HASH], query)

    def _holds_all_of(self, snapshot: int, partition: int, first: int) -> bool:
        """Return whether a partition that begins at the offset ``first`` still has all records of a snapshot."""
        if first == 0:
            return True
        entry = self.index.get(snapshot)
        return entry is not None and entry.partitions[partition].start >= first


def _with_marks(changes: pa.Schema) -> pa.Schema:
    """Return the columns of differences: those of changes, and what the log and the snapshots say."""
    return pa.schema([*changes, (SAID, pa.int8()), (AT, pa.int64()), (CHANGED, pa.int64())])


def _look_up(
    files: TableFiles, session: duckdb.DuckDBPyConnection, bucket: int, snapshot: int | None, *, whole: bool
) -> int:
    """Create the DuckDB table ``alive`` of the committed rows of a bucket: those in ``keys``, or all of them.

    Returns:
        The size of its long values.
    """
    lookup = lookup_in(files, files.latest() if snapshot is None else snapshot)
    keys = None if whole else session.sql("SELECT * FROM keys").to_arrow_table()
    return load_numbered(session, "alive", files.spec.arrow, lookup.rows(bucket, keys))


def _changes(changed: Iterable[ChangeSet], bucket: int, wanted: Columns) -> Iterator[pa.RecordBatch]:
    """Yield a bucket's changes with the columns ``wanted``, then the snapshot."""
    for changes in changed:
        for batch in map(Adapter(changes.columns, wanted), changes.batches(bucket, 0)):
            snapshot = pa.repeat(pa.scalar(changes.snapshot.id, pa.int64()), batch.num_rows)
            yield batch.append_column(SNAPSHOT, snapshot)


def _differences(spec: TableSpec) -> str:
    """Return the query for rows that are missing or different in the log, and for keys that it should not have."""
    columns, keys = columns_of(spec), keys_of(spec)
    kind, seq = f"seen.c{len(columns)}", f"seen.c{len(columns) + 1}"
    deleted = ", ".join(f"keys.{c}" if c in keys else f"NULL AS {c}" for c in columns)
    last = f"(SELECT max(changed.c{len(columns) + 1}) FROM changed WHERE {{}}) AS {CHANGED}"
    return f"""
        SELECT {", ".join(f"alive.{c}" for c in columns)}, {RowKind.UPDATE_AFTER:d}::TINYINT AS {KIND},
            {kind} AS {SAID}, {seq} AS {AT}, {last.format(same_key(keys, "changed", "alive"))}
        FROM alive LEFT JOIN seen ON {same_key(keys, "alive", "seen")}
        WHERE {kind} IS NULL OR {kind} = {RowKind.DELETE:d} OR NOT ({same_row(spec, "alive", "seen")})
        UNION ALL
        SELECT {deleted}, {RowKind.DELETE:d}::TINYINT AS {KIND},
            {kind} AS {SAID}, {seq} AS {AT}, {last.format(same_key(keys, "changed", "keys"))}
        FROM keys ANTI JOIN alive ON {same_key(keys, "keys", "alive")}
        LEFT JOIN seen ON {same_key(keys, "keys", "seen")}
        WHERE {kind} IS DISTINCT FROM {RowKind.DELETE:d}
    """
