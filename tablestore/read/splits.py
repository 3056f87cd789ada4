"""Splits: what one task of a batch or streaming read reads. They are picklable and run on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from snapshot.merge.merge_reader import BaseFile, ChangeFile, MergeReader
from snapshot.merge.plain_reader import plain_rows
from snapshot.merge.predicate import Predicate
from snapshot.records import Snapshot, Split
from snapshot.row_kind import CHANGE_TYPE, CHANGE_TYPE_NAMES, KIND, RowKind
from snapshot.schema.physical_names import without_dropped
from snapshot.schema.system_columns import conform, kind_column, stamped
from snapshot.storage import Storage

T = TypeVar("T")


@dataclass(frozen=True)
class MergedSplit:
    """Rows of a snapshot of a key table: base files, merged with all changes of their buckets.

    Attributes:
        schema: the columns to return.
        stored: the same columns as they are scanned from files (``TableSpec.scanned``).
        emit_changes: False if another split of the same buckets emits the changed rows.
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

    def only(self, columns: Sequence[str], predicate: Predicate) -> MergedSplit:
        """Return the split with these columns, of the rows that satisfy a predicate too."""
        conditions = (*(self.predicate.conditions if self.predicate is not None else ()), *predicate.conditions)
        return replace(self, columns=tuple(columns), predicate=Predicate(conditions) if conditions else None)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the merged rows, only the wanted columns, in schema order."""
        plain = self.plain()
        if plain is not None:
            yield from plain
            return
        with MergeReader(
            self.schema, self.primary_key, stored=self.stored, filesystem=self.storage.filesystem
        ) as engine:
            yield from engine.merged(
                self.base,
                self.changes,
                columns=self.columns,
                predicate=self.predicate,
                emit_changes=self.emit_changes,
            )

    def plain(self) -> Iterator[pa.RecordBatch] | None:
        """Return the rows as pyarrow reads them; None if they have to be merged in DuckDB."""
        names = set(self.schema.names if self.columns is None else self.columns)
        if self.predicate is not None or not names or not names <= set(self.schema.names):
            return None
        own = zip(self.schema, self.stored, strict=True)
        fields = [(named, held.with_type(without_dropped(held.type, named.type))) for named, held in own]
        key = next((held for named, held in fields if (named.name,) == self.primary_key), None)
        wanted = [each for each in fields if each[0].name in names]
        return plain_rows(self.storage, self.base, self.changes, wanted, key, emit_changes=self.emit_changes)


@dataclass(frozen=True)
class ChangedKeysSplit:
    """The keys in change files, including those of deleted rows."""

    storage: Storage
    schema: pa.Schema
    primary_key: tuple[str, ...]
    changes: tuple[ChangeFile, ...]

    def only(self, columns: Sequence[str], predicate: Predicate) -> ChangedKeysSplit:
        """Return the split itself: keys are compared as a whole."""
        del columns, predicate
        return self

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield each key once: the key's columns, in schema order."""
        with MergeReader(self.schema, self.primary_key, filesystem=self.storage.filesystem) as engine:
            yield from engine.changed_keys(self.changes)


@dataclass(frozen=True)
class InitialSplit:
    """Rows of a snapshot, as the initial inserts of a streaming read."""

    rows: Split
    snapshot: Snapshot

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows with ``_kind``, ``_commit_version`` and ``_commit_timestamp``."""
        for batch in self.rows.read():
            kind = kind_column(RowKind.INSERT, batch.num_rows)
            yield stamped(batch.append_column(KIND, kind), self.snapshot.id, self.snapshot.timestamp_ms)


def as_feed(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield changes as rows of a change feed: ``_kind`` becomes ``_change_type`` if the schema has that column."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if CHANGE_TYPE in schema.names:
            kinds = batch.column(KIND)
            names = pa.array(CHANGE_TYPE_NAMES, pa.string())
            yield conform(batch.append_column(CHANGE_TYPE, names.take(kinds)), schema)
        else:
            yield conform(batch, schema)


def spread(items: Sequence[T], sizes: Sequence[int], parts: int) -> list[list[T]]:
    """Return the items divided into at most ``parts`` non-empty groups of about equal size."""
    heaps: list[tuple[int, list[T]]] = [(0, []) for _ in range(max(parts, 1))]
    for size, item in sorted(zip(sizes, items, strict=True), key=lambda pair: -pair[0]):
        smallest = min(range(len(heaps)), key=lambda i: (heaps[i][0], len(heaps[i][1])))
        heaps[smallest][1].append(item)
        heaps[smallest] = (heaps[smallest][0] + size, heaps[smallest][1])
    return [heap for _, heap in heaps if heap]
