"""What an eventual log has wrong, and the changes that make it right."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
from pyspark.sql.types import StructType

from log_system.kafka.log import KafkaLog
from log_system.kafka.tail import read_tail, tail_schema
from snapshot.adapt import Adapter
from snapshot.changes import change_columns
from snapshot.duck import connect, errors_mapped, load, read
from snapshot.merge import MergeEngine
from snapshot.records import ChangeSet
from snapshot.rowkind import KIND, RowKind
from snapshot.schema import BUCKET
from snapshot.spec import TableSpec
from snapshot.table import TableFiles
from tablestore.plan import base_file

SAID = "_said"
"""int8: row kind of the log's last word on the key; NULL where it says nothing."""
AT = "_at"
"""int64: where that record is, as ``_seq`` of ``read_tail``; NULL likewise."""
FRESH = "_fresh"
"""bool: whether one of the unsettled snapshots changed the key."""
_MEMORY = "256MB"


@dataclass(frozen=True)
class Repairs:
    """Compares the log with the newest snapshot, key by key, within DuckDB's bounded memory.

    A repair scans the bucket's files once, however few keys it looks up.
    """

    files: TableFiles
    log: KafkaLog

    def unsettled(self, snapshot: int) -> Sequence[ChangeSet]:
        """Give the changes of a snapshot and of every later one that is committed, in order."""
        newest = self.files.latest()
        return [self.files.changes(each, self.log.partitions) for each in range(snapshot, newest + 1)]

    def wrong(
        self, partition: int, start: int, end: int, unsettled: Sequence[ChangeSet], *, whole: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Give the committed value, or a delete, of each key on which the log's last word is another.

        Args:
            partition: the log partition, which is the bucket.
            start: offset from which the log is read.
            end: offset at which that ends.
            unsettled: snapshots whose keys must have their last word between the two.
            whole: every key of the bucket must.

        Yields:
            The table's columns, then ``_kind``.
        """
        for batch in self.differences(partition, start, end, unsettled, whole=whole):
            yield batch.select([name for name in batch.schema.names if name not in (SAID, AT, FRESH)])

    def differences(
        self,
        partition: int,
        start: int,
        end: int,
        unsettled: Sequence[ChangeSet],
        *,
        whole: bool = False,
        snapshot: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Give what ``wrong`` gives, and what the log says instead; compare with ``snapshot``, or with the newest.

        1. Read the log between the offsets and keep each key's last word.
        2. Add the keys of the unsettled snapshots: what was sent before the range may have been undone since.
        3. Look all these keys up in the newest snapshot.
        4. Give what differs.

        Yields:
            The table's columns, ``_kind``, ``_said``, ``_at`` and ``_fresh``.
        """
        # Records of an eventual log are of any age: what they lack of the table's columns is NULL.
        files = self.files.refreshed()
        spec, log = files.spec, self.log.under(files.change_schema)
        spill = tempfile.mkdtemp(prefix="repair-")
        session = connect(memory_limit=_MEMORY, temp_directory=spill, filesystem=None)
        try:
            with errors_mapped("repair"):
                session.execute("SET TimeZone = 'UTC'")
                # Step 1.
                with MergeEngine(spec.arrow, spec.primary_key) as engine:
                    last = engine.last_per_key(read_tail(log, partition, start, end))
                    _load(session, "seen", tail_schema(log), last)
                # Step 2.
                _load(session, "changed", files.change_schema, _changes(unsettled, partition, change_columns(spec)))
                keys = ", ".join(_keys(spec))
                session.execute(f"CREATE TEMP TABLE keys AS SELECT {keys} FROM seen UNION SELECT {keys} FROM changed")
                if not whole and session.sql("SELECT count(*) FROM keys").fetchall() == [(0,)]:
                    return
                # Step 3.
                _look_up(files, session, partition, snapshot, whole=whole)
                # Step 4.
                told = [pa.field(SAID, pa.int8()), pa.field(AT, pa.int64()), pa.field(FRESH, pa.bool_())]
                schema = pa.schema([*files.change_schema, *told])
                yield from read(session, _differences(spec), [], schema)
        finally:
            session.close()
            shutil.rmtree(spill, ignore_errors=True)


def _look_up(
    files: TableFiles, session: duckdb.DuckDBPyConnection, bucket: int, snapshot: int | None, *, whole: bool
) -> None:
    """Make the table ``alive`` of the committed rows whose keys are asked for, or of all."""
    spec = files.spec
    layout = files.layout(files.latest() if snapshot is None else snapshot)
    base = [base_file(files, f) for f in layout.base if f.partition[BUCKET] == str(bucket)]
    changes = [files.change_file(f) for f in layout.changes if f.partition[BUCKET] == str(bucket)]
    _load(session, "alive", spec.arrow, iter(()))
    asked = "" if whole else f"SEMI JOIN keys ON {_same_key(spec, 'incoming', 'keys')}"
    filesystem = None if files.storage.is_local else files.storage.filesystem
    with MergeEngine(spec.arrow, spec.primary_key, stored=spec.stored, filesystem=filesystem) as engine:
        for batch in engine.merged(base, changes):
            session.register("incoming", pa.Table.from_batches([_numbered(batch)]))
            session.execute(f"INSERT INTO alive SELECT incoming.* FROM incoming {asked}")
            session.unregister("incoming")


def _load(session: duckdb.DuckDBPyConnection, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    load(session, table, _numbered_schema(schema), map(_numbered, batches))


def _changes(unsettled: Sequence[ChangeSet], bucket: int, wanted: StructType) -> Iterator[pa.RecordBatch]:
    for changes in unsettled:
        adapt = Adapter(changes.columns, wanted)
        yield from map(adapt, changes.batches(bucket, 0))


def _differences(spec: TableSpec) -> str:
    """Write the query of what the log lacks: rows that it has not, or otherwise, and keys that it should not have."""
    columns = [f"c{i}" for i in range(len(spec.arrow))]
    # As text too, since -0.0 equals 0.0 and is another value in the log.
    equal = [
        f"alive.{c} IS NOT DISTINCT FROM seen.{c} AND alive.{c}::VARCHAR IS NOT DISTINCT FROM seen.{c}::VARCHAR"
        for c in columns
    ]
    keys, kind, seq = _keys(spec), f"seen.c{len(spec.arrow)}", f"seen.c{len(spec.arrow) + 1}"
    deleted = ", ".join(f"keys.{c}" if c in keys else f"NULL AS {c}" for c in columns)
    fresh = f"EXISTS (SELECT 1 FROM changed WHERE {{}}) AS {FRESH}"
    return f"""
        SELECT {", ".join(f"alive.{c}" for c in columns)}, {RowKind.UPDATE_AFTER:d}::TINYINT AS {KIND},
            {kind} AS {SAID}, {seq} AS {AT}, {fresh.format(_same_key(spec, "changed", "alive"))}
        FROM alive LEFT JOIN seen ON {_same_key(spec, "alive", "seen")}
        WHERE {kind} IS NULL OR {kind} = {RowKind.DELETE:d} OR NOT ({" AND ".join(equal)})
        UNION ALL
        SELECT {deleted}, {RowKind.DELETE:d}::TINYINT AS {KIND},
            {kind} AS {SAID}, {seq} AS {AT}, {fresh.format(_same_key(spec, "changed", "keys"))}
        FROM keys ANTI JOIN alive ON {_same_key(spec, "keys", "alive")}
        LEFT JOIN seen ON {_same_key(spec, "keys", "seen")}
        WHERE {kind} IS DISTINCT FROM {RowKind.DELETE:d}
    """


def _keys(spec: TableSpec) -> list[str]:
    return [f"c{spec.arrow.get_field_index(name)}" for name in spec.primary_key]


def _same_key(spec: TableSpec, left: str, right: str) -> str:
    return " AND ".join(f"{left}.{key} = {right}.{key}" for key in _keys(spec))


def _numbered_schema(schema: pa.Schema) -> pa.Schema:
    """Rename columns to their numbers, so that no user's name can hide one of ours."""
    return pa.schema([field.with_name(f"c{i}").with_nullable(True) for i, field in enumerate(schema)])


def _numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=_numbered_schema(batch.schema))
