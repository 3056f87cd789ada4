"""Plans the splits of a read from lists of files, without opening any of them."""

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
"""Several tasks read a bucket only if each gets at least this much of its base."""


def snapshot_splits(
    table: TableFiles,
    snapshot_id: int,
    *,
    tasks: int,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    spec: TableSpec | None = None,
) -> list[MergedSplit]:
    """Return splits of a snapshot's rows: one per bucket, or several if there are fewer buckets than tasks.

    Args:
        table: the table.
        snapshot_id: the snapshot.
        tasks: desired number of splits.
        columns: the columns to read; None for all.
        predicate: the rows to read; None for all.
        spec: the table definition with the columns to return; None for the table's current one.

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
    """Return splits of the keys in a snapshot's changes, each for one or several buckets.

    Args:
        table: the table.
        layout: the files of the snapshot.
        spec: the table definition with the columns to return.
        tasks: maximum number of splits.
    """
    heaps = [tuple(map(table.change_file, heap)) for heap in _heaps_of_buckets(layout.changes, tasks)]
    return [ChangedKeysSplit(table.storage, spec.arrow, spec.primary_key, each) for each in heaps]


def changed_row_splits(
    table: TableFiles, layout: SnapshotFiles, spec: TableSpec, columns: Sequence[str], *, tasks: int
) -> list[Split]:
    """Return splits of a snapshot's rows with the keys of ``changed_key_splits``; ``columns`` are those to read."""
    return [_split(table, spec, (), heap, columns=columns) for heap in _heaps_of_buckets(layout.changes, tasks)]


def lookup_in(table: TableFiles, snapshot_id: int) -> Lookup:
    """Return a lookup of a snapshot's rows by key.

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
    """Return splits of a snapshot's rows as the initial inserts of a stream."""
    return [InitialSplit(part, snapshot) for part in snapshot_splits(table, snapshot.id, tasks=tasks)]


def change_splits(
    table: TableFiles, after: int, through: int, buckets: int, wanted: Columns | None = None
) -> list[Split]:
    """Return splits of the changes of snapshots ``after + 1`` to ``through`` in the table's files, one per bucket.

    Args:
        table: the table.
        after: the snapshot before the first one to read.
        through: the last snapshot to read.
        buckets: the table's number of buckets.
        wanted: the columns to return; None for the table's current ones.

    Raises:
        DataLostError: the Delta log no longer has a snapshot.
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
    """Return a file of the root as the merge engine takes it, with its partition values as Python values."""
    values = {
        name: _value(file.partition.get(name), table.spec.arrow.field(name).type) for name in table.spec.partition_by
    }
    return BaseFile(table.storage.path(file.path), values)


def _value(text: str | None, data_type: pa.DataType) -> object:
    return None if text is None else pa.scalar(text, pa.string()).cast(data_type).as_py()


def _heaps_of_buckets(files: Sequence[DataFile], tasks: int) -> list[list[DataFile]]:
    """Return the files divided among at most ``tasks`` groups; a bucket's files stay together."""
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
