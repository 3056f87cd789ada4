"""Plans the splits of a read from lists of files, without opening any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from snapshot.delta.log import DataFile
from snapshot.merge.duckdb_engine import MEMORY_LIMIT, spilling
from snapshot.merge.predicate import Predicate
from snapshot.quoting import quoted
from snapshot.records import Snapshot, Split
from snapshot.schema.spec import TableSpec
from snapshot.store.lookup import base_file, by_bucket
from snapshot.store.table_files import SnapshotFiles, TableFiles
from tablestore.read.splits import ChangedKeysSplit, InitialSplit, MergedSplit, spread

_SPLIT_BYTES_MIN = 32 << 20
"""Several tasks read a bucket only if each gets at least this much of its base."""
_SPLIT_BYTES_MAX = 128 << 20
"""One task reads several buckets only up to this much, as Spark reads files (``spark.sql.files.maxPartitionBytes``)."""
_NUMBER = "number of a partition"


def snapshot_splits(
    table: TableFiles,
    snapshot: int | SnapshotFiles,
    *,
    tasks: int,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    spec: TableSpec | None = None,
    bucket: int | None = None,
    whole_buckets: bool = False,
) -> list[MergedSplit]:
    """Return splits of a snapshot's rows: of several buckets each, or of a part of one if there are few buckets.

    Args:
        table: the table.
        snapshot: the snapshot, or its files.
        tasks: desired number of splits.
        columns: the columns to read; None for all.
        predicate: the rows to read; None for all. Files of partitions without such rows are skipped.
        spec: the table definition with the columns to return; None for the table's current one.
        bucket: read only this bucket of a table with a key; None for all.
        whole_buckets: all rows of a bucket are in one split.

    Raises:
        NotFoundError: the snapshot's files are no longer known.
    """
    layout = table.layout(snapshot) if isinstance(snapshot, int) else snapshot
    splitter = _Splitter(table, spec or table.spec, None if columns is None else tuple(columns), predicate)
    kept = in_kept_partitions(table.spec, layout.base, predicate)
    if not splitter.spec.has_key:
        return splitter.splits(kept, [], tasks)
    base = by_bucket(kept)
    changes = by_bucket(layout.changes)
    buckets = sorted(base.keys() | changes.keys()) if bucket is None else [bucket]
    if len(buckets) < tasks and not whole_buckets:
        share = max(1, tasks // max(1, len(buckets)))
        return [
            split for each in buckets for split in splitter.splits(base.get(each, []), changes.get(each, []), share)
        ]
    sizes = [sum(file.size for file in [*base.get(each, []), *changes.get(each, [])]) for each in buckets]
    heaps = spread(buckets, sizes, min(len(buckets), max(tasks, -(-sum(sizes) // _SPLIT_BYTES_MAX))))
    return [
        splitter.split(
            [file for each in heap for file in base.get(each, [])],
            [file for each in heap for file in changes.get(each, [])],
        )
        for heap in heaps
    ]


def initial_bucket_splits(table: TableFiles, snapshot: Snapshot) -> dict[int, Split]:
    """Return a split of the rows of each bucket that has any, as the initial inserts of a stream."""
    layout, splitter = table.layout(snapshot.id), _Splitter(table, table.spec)
    base, changes = by_bucket(layout.base), by_bucket(layout.changes)
    return {
        bucket: InitialSplit(splitter.split(base.get(bucket, []), changes.get(bucket, [])), snapshot)
        for bucket in sorted(base.keys() | changes.keys())
    }


def changed_key_splits(
    table: TableFiles, layout: SnapshotFiles, spec: TableSpec, *, tasks: int
) -> list[ChangedKeysSplit]:
    """Return at most ``tasks`` splits of the keys in a snapshot's changes, each for one or several buckets."""
    heaps = [tuple(map(table.change_file, heap)) for heap in _heaps_of_buckets(layout.changes, tasks)]
    return [ChangedKeysSplit(table.storage, spec.arrow, spec.primary_key, each) for each in heaps]


def changed_row_splits(
    table: TableFiles, layout: SnapshotFiles, spec: TableSpec, columns: Sequence[str], *, tasks: int
) -> list[MergedSplit]:
    """Return splits of a snapshot's rows with the keys of ``changed_key_splits``; ``columns`` are those to read."""
    splitter = _Splitter(table, spec, tuple(columns))
    return [splitter.split([], heap) for heap in _heaps_of_buckets(layout.changes, tasks)]


def initial_splits(table: TableFiles, snapshot: Snapshot, *, tasks: int) -> list[Split]:
    """Return splits of a snapshot's rows as the initial inserts of a stream."""
    return [InitialSplit(part, snapshot) for part in snapshot_splits(table, snapshot.id, tasks=tasks)]


@dataclass(frozen=True)
class _Splitter:
    """Makes splits that differ in their files only."""

    table: TableFiles
    spec: TableSpec
    columns: tuple[str, ...] | None = None
    predicate: Predicate | None = None

    def splits(self, base: Sequence[DataFile], changes: Sequence[DataFile], tasks: int) -> list[MergedSplit]:
        """Return splits of a bucket, each of a part of its base, as far as the base is large enough for several."""
        count = max(1, min(tasks, sum(f.size for f in base) // _SPLIT_BYTES_MIN))
        heaps = spread(base, [f.size for f in base], count) or [[]]
        return [
            self.split(heap, changes, emit_changes=number == 0) for number, heap in enumerate(heaps) if heap or changes
        ]

    def split(self, base: Sequence[DataFile], changes: Sequence[DataFile], *, emit_changes: bool = True) -> MergedSplit:
        return MergedSplit(
            storage=self.table.storage,
            schema=self.spec.arrow,
            stored=self.spec.scanned,
            primary_key=self.spec.primary_key,
            base=tuple(base_file(self.table, file) for file in base),
            changes=tuple(map(self.table.change_file, changes)),
            columns=self.columns,
            predicate=self.predicate,
            emit_changes=emit_changes,
        )


def _heaps_of_buckets(files: Sequence[DataFile], tasks: int) -> list[list[DataFile]]:
    """Return the files divided among at most ``tasks`` groups; a bucket's files stay together."""
    buckets = by_bucket(files)
    heaps: list[list[DataFile]] = [[] for _ in range(min(tasks, len(buckets)))]
    for number, held in enumerate(buckets.values()):
        heaps[number % len(heaps)] += held
    return heaps


def in_kept_partitions(spec: TableSpec, files: Sequence[DataFile], predicate: Predicate | None) -> Sequence[DataFile]:
    """Return the files of partitions that may have rows which satisfy a predicate; no file is opened."""
    asked = None if predicate is None else predicate.on(spec.partition_by)
    if asked is None or not asked.columns or len(files) < 2:
        return files
    places = [tuple(file.partition.get(name) for name in spec.partition_by) for file in files]
    partitions = list(dict.fromkeys(places))
    columns = [
        pa.array(texts, pa.string()).cast(spec.arrow.field(name).type)
        for name, texts in zip(spec.partition_by, zip(*partitions, strict=True), strict=True)
    ]
    rows = pa.table([*columns, pa.array(range(len(partitions)))], names=[*spec.partition_by, _NUMBER])
    try:
        with spilling(memory_limit=MEMORY_LIMIT) as session:
            session.register("partitions", rows)
            sql = f"SELECT {quoted(_NUMBER)} FROM partitions WHERE {asked.sql}"
            kept = {partitions[number] for (number,) in session.execute(sql, list(asked.parameters)).fetchall()}
            session.unregister("partitions")
    except duckdb.Error:
        # The read itself reports what is wrong with the condition.
        return files
    return [file for file, place in zip(files, places, strict=True) if place in kept]
