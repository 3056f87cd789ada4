"""Splits: what one task of a batch or streaming read reads. They are picklable and run on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from log_system.gate import PartitionSlice
from log_system.kafka.log import KafkaLog
from log_system.kafka.reader.snapshot_reader import read_slice
from snapshot.merge.merge_reader import BaseFile, ChangeFile, MergeReader
from snapshot.merge.predicate import Predicate
from snapshot.records import Snapshot
from snapshot.row_kind import CHANGE_TYPE, CHANGE_TYPE_NAMES, KIND, RowKind
from snapshot.schema.adapter import Adapter
from snapshot.schema.physical_names import Columns
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION, conform
from snapshot.storage import Storage
from snapshot.store.changes import SnapshotChanges

RESTART = "the table's columns were changed in a way that a running query cannot follow; start it again: "
"""Start of the error message of a stream whose columns are fixed when it starts."""


class Split(Protocol):
    """What one task reads."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the split."""
        ...


@dataclass(frozen=True)
class MergedSplit:
    """Rows of a snapshot of a key table: some base files, merged with all changes of their bucket.

    Attributes:
        schema: the columns to return.
        stored: the same columns with physical names, as in files.
        emit_changes: False if another split of the same bucket emits the changed rows.
    """

    storage: Storage
    schema: pa.Schema
    stored: pa.Schema
    primary_key: tuple[str, ...]
    base: tuple[BaseFile, ...]
    changes: tuple[ChangeFile, ...]
    columns: tuple[str, ...] | None
    predicate: Predicate | None
    emit_changes: bool

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the merged rows, only the wanted columns, in schema order."""
        filesystem = None if self.storage.is_local else self.storage.filesystem
        with MergeReader(self.schema, self.primary_key, stored=self.stored, filesystem=filesystem) as engine:
            yield from engine.merged(
                self.base,
                self.changes,
                columns=self.columns,
                predicate=self.predicate,
                emit_changes=self.emit_changes,
            )


@dataclass(frozen=True)
class ChangedKeysSplit:
    """The keys in change files, including those of deleted rows."""

    storage: Storage
    schema: pa.Schema
    primary_key: tuple[str, ...]
    changes: tuple[ChangeFile, ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield each key once: the key's columns, in schema order."""
        filesystem = None if self.storage.is_local else self.storage.filesystem
        with MergeReader(self.schema, self.primary_key, filesystem=filesystem) as engine:
            yield from engine.changed_keys(self.changes)


@dataclass(frozen=True)
class FilesSplit:
    """Changes of several snapshots in one bucket, from the table's files.

    Attributes:
        changes: the snapshots, in order.
        bucket: the bucket.
        wanted: the columns to return.
    """

    changes: tuple[SnapshotChanges, ...]
    bucket: int
    wanted: Columns

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes, in order, with ``_kind``, ``_commit_version`` and ``_commit_timestamp``."""
        for changes in self.changes:
            adapt = Adapter(changes.columns, self.wanted, RESTART)
            for batch in changes.batches(self.bucket):
                yield stamped(adapt(batch), changes.snapshot)


@dataclass(frozen=True)
class LogPiece:
    """Changes in one log partition of snapshots that share a schema; ``log`` decodes that schema."""

    log: KafkaLog
    piece: PartitionSlice
    adapt: Adapter


@dataclass(frozen=True)
class LogSplit:
    """Changes of several snapshots in one log partition, in pieces with one schema each.

    A snapshot for whose deletes the log has only one truncate record is a piece that reads the table's files.
    """

    pieces: tuple[LogPiece | FilesSplit, ...]
    compacted: bool

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes, in order, with ``_kind``, ``_commit_version`` and ``_commit_timestamp``."""
        for each in self.pieces:
            if isinstance(each, FilesSplit):
                yield from each.read()
            else:
                yield from map(each.adapt, read_slice(each.log, each.piece, compacted=self.compacted))


@dataclass(frozen=True)
class InitialSplit:
    """Rows of a snapshot, as the initial inserts of a streaming read."""

    rows: Split
    snapshot: Snapshot

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows with ``_kind``, ``_commit_version`` and ``_commit_timestamp``."""
        for batch in self.rows.read():
            kind = pa.repeat(pa.scalar(int(RowKind.INSERT), pa.int8()), batch.num_rows)
            yield stamped(batch.append_column(KIND, kind), self.snapshot)


def stamped(batch: pa.RecordBatch, snapshot: Snapshot) -> pa.RecordBatch:
    """Return the rows with ``_commit_version`` and ``_commit_timestamp`` of a snapshot."""
    version = pa.repeat(pa.scalar(snapshot.id, pa.int64()), batch.num_rows)
    time = pa.repeat(pa.scalar(snapshot.timestamp_ms * 1000, pa.int64()), batch.num_rows)
    batch = batch.append_column(COMMIT_VERSION, version)
    return batch.append_column(COMMIT_TIMESTAMP, time.cast(pa.timestamp("us", "UTC")))


def as_feed(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield changes as rows of a change feed: ``_kind`` becomes ``_change_type`` if the schema has that column."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if CHANGE_TYPE in schema.names:
            kinds = batch.column(batch.schema.get_field_index(KIND))
            names = pa.array(CHANGE_TYPE_NAMES, pa.string())
            yield conform(batch.append_column(CHANGE_TYPE, names.take(kinds)), schema)
        else:
            yield conform(batch, schema)


def spread(files: Sequence[BaseFile], sizes: Sequence[int], parts: int) -> list[list[BaseFile]]:
    """Return the files divided into at most ``parts`` non-empty groups of about equal size in bytes."""
    heaps: list[tuple[int, list[BaseFile]]] = [(0, []) for _ in range(max(parts, 1))]
    for size, file in sorted(zip(sizes, files, strict=True), key=lambda pair: -pair[0]):
        smallest = min(range(len(heaps)), key=lambda i: heaps[i][0])
        heaps[smallest] = (heaps[smallest][0] + size, [*heaps[smallest][1], file])
    return [heap for _, heap in heaps if heap]
