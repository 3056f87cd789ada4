"""Plans which parts a read is made of. Decides from lists of files and offsets; opens none of them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snapshot.delta.log import DataFile
from snapshot.merge.merge_reader import BaseFile
from snapshot.merge.predicate import Predicate
from snapshot.records import Snapshot
from snapshot.schema.physical_names import Columns
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET
from snapshot.staging.changelog_lookup import Lookup
from snapshot.store.table_files import SnapshotFiles, TableFiles
from tablestore.read.splits import ChangedKeysSplit, FilesSplit, InitialSplit, MergedSplit, Split, spread

_SPLIT_BYTES_MIN = 32 << 20
"""A bucket is read by several tasks only where each gets at least this much of its base."""


def snapshot_splits(
    table: TableFiles,
    snapshot_id: int,
    *,
    tasks: int,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    spec: TableSpec | None = None,
) -> list[MergedSplit]:
    """Plan the rows of a snapshot: one part a bucket, or several where there are fewer buckets than tasks.

    Args:
        table: the table.
        snapshot_id: the snapshot.
        tasks: how many parts are worth having.
        columns: the wanted columns; None for all.
        predicate: which rows are wanted.
        spec: the table, with the columns to give; None for those it has.

    Raises:
        NotFoundError: the snapshot's files are no longer known.
    """
    spec = spec or table.spec
    if not spec.has_key:
        return _splits(table, spec, table.layout(snapshot_id).base, [], tasks, columns, predicate)
    layout = table.layout(snapshot_id)
    base = _by_bucket(layout.base)
    changes = _by_bucket(layout.changes)
    buckets = sorted(base.keys() | changes.keys())
    parts: list[MergedSplit] = []
    for bucket in buckets:
        share = max(1, tasks // len(buckets))
        parts += _splits(table, spec, base.get(bucket, []), changes.get(bucket, []), share, columns, predicate)
    return parts


def changed_key_splits(table: TableFiles, layout: SnapshotFiles, spec: TableSpec, *, tasks: int) -> list[Split]:
    """Plan the keys that the changes of a snapshot name, a task for some buckets each.

    Args:
        table: the table.
        layout: what the snapshot is made of.
        spec: the table, with the columns to give.
        tasks: how many parts are worth having.
    """
    heaps = [tuple(map(table.change_file, heap)) for heap in _heaps_of_buckets(layout.changes, tasks)]
    return [ChangedKeysSplit(table.storage, spec.arrow, spec.primary_key, each) for each in heaps]


def changed_row_splits(
    table: TableFiles, layout: SnapshotFiles, spec: TableSpec, columns: Sequence[str], *, tasks: int
) -> list[Split]:
    """Plan the rows that the keys of ``changed_key_splits`` have in a snapshot; ``columns`` are those wanted."""
    return [_split(table, spec, (), heap, columns=columns) for heap in _heaps_of_buckets(layout.changes, tasks)]


def lookup_in(table: TableFiles, snapshot_id: int) -> Lookup:
    """Plan how rows of a snapshot are found by their key.

    Raises:
        NotFoundError: the snapshot's files are no longer known.
    """
    layout = table.layout(snapshot_id)
    base = {b: tuple(base_file(table, f) for f in held) for b, held in _by_bucket(layout.base).items()}
    changes = {b: tuple(map(table.change_file, held)) for b, held in _by_bucket(layout.changes).items()}
    path_of = table.log.storage.path
    tombstones = {b: tuple(path_of(f.path) for f in held) for b, held in _by_bucket(layout.tombstones).items()}
    return Lookup(snapshot_id, table.storage, table.spec, base, changes, tombstones)


def initial_splits(table: TableFiles, snapshot: Snapshot, *, tasks: int) -> list[Split]:
    """Plan the rows of a snapshot as the inserts that a stream begins with."""
    return [InitialSplit(part, snapshot) for part in snapshot_splits(table, snapshot.id, tasks=tasks)]


def change_splits(
    table: TableFiles, after: int, through: int, buckets: int, wanted: Columns | None = None
) -> list[Split]:
    """Plan the changes of snapshots ``after + 1`` to ``through`` from the table's files, one part a bucket.

    Args:
        table: the table.
        after: the last snapshot before.
        through: the last snapshot.
        buckets: the table's number of buckets.
        wanted: the columns to give; None for those that the table has.

    Raises:
        DataLostError: a snapshot has left the Delta log.
    """
    wanted = wanted or table.spec.change_columns
    changes = tuple(table.changes(snapshot, buckets) for snapshot in range(after + 1, through + 1))
    filled = [bucket for bucket in range(buckets) if any(bucket in c.files for c in changes)]
    return [FilesSplit(tuple(c for c in changes if bucket in c.files), bucket, wanted) for bucket in filled]


def _splits(
    table: TableFiles,
    spec: TableSpec,
    base: Sequence[DataFile],
    changes: Sequence[DataFile],
    tasks: int,
    columns: Sequence[str] | None,
    predicate: Predicate | None,
) -> list[MergedSplit]:
    size = sum(f.size for f in base)
    count = max(1, min(tasks, size // _SPLIT_BYTES_MIN))
    heaps = spread([base_file(table, f) for f in base], [f.size for f in base], count) or [[]]
    return [
        _split(table, spec, heap, changes, columns=columns, predicate=predicate, emit_changes=number == 0)
        for number, heap in enumerate(heaps)
        if heap or changes
    ]


def _split(
    table: TableFiles,
    spec: TableSpec,
    base: Sequence[BaseFile],
    changes: Sequence[DataFile],
    *,
    columns: Sequence[str] | None,
    predicate: Predicate | None = None,
    emit_changes: bool = True,
) -> MergedSplit:
    return MergedSplit(
        storage=table.storage,
        schema=spec.arrow,
        stored=spec.physical,
        primary_key=spec.primary_key,
        base=tuple(base),
        changes=tuple(map(table.change_file, changes)),
        columns=None if columns is None else tuple(columns),
        predicate=predicate,
        emit_changes=emit_changes,
    )


def base_file(table: TableFiles, file: DataFile) -> BaseFile:
    """Name a file of the root as the merge engine wants it: with its partition values as Python values."""
    values = {
        name: _value(file.partition.get(name), table.spec.arrow.field(name).type) for name in table.spec.partition_by
    }
    return BaseFile(table.storage.path(file.path), values)


def _value(text: str | None, data_type: pa.DataType) -> object:
    return None if text is None else pa.scalar(text, pa.string()).cast(data_type).as_py()


def _heaps_of_buckets(files: Sequence[DataFile], tasks: int) -> list[list[DataFile]]:
    """Deal the files of buckets out to tasks."""
    buckets = _by_bucket(files)
    heaps: list[list[DataFile]] = [[] for _ in range(min(tasks, len(buckets)))]
    for number, held in enumerate(buckets.values()):
        heaps[number % len(heaps)] += held
    return heaps


def _by_bucket(files: Sequence[DataFile]) -> dict[int, list[DataFile]]:
    found: dict[int, list[DataFile]] = {}
    for file in files:
        found.setdefault(int(file.partition[BUCKET] or 0), []).append(file)
    return found
