"""Staging: rows become files that no snapshot holds yet.

Runs inside Spark tasks, on Arrow batches. A crash here leaves files that nothing points at; the next vacuum of the
root, or expiry of the changes, removes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snapshot.delta import DataFile
from snapshot.errors import UnavailableError
from snapshot.latest import last_of_few
from snapshot.merge import MergeEngine
from snapshot.parquet import ParquetFiles, removed_on_error
from snapshot.partitioned import PartitionedFiles, split_by_bucket
from snapshot.records import LogTapFactory, SentRange
from snapshot.resolve import Lookup
from snapshot.rowkind import CHANGE_TYPE, CHANGE_TYPE_NAMES, KIND, RowKind
from snapshot.schema import BUCKET, SEQ, conform, relabelled
from snapshot.spec import TableSpec
from snapshot.storage import Storage

CHANGES = "_changes"
_FEW_ROWS = 20_000
STAGED = (
    "path string, size long, rows long, deletes long, partition string, stats string, sent string, rejected string, "
    "failed string"
)
"""Columns of the frame staging returns: one row a file, or one row with the reason why the input was rejected, or why
the file system took no files."""
_STAGED_ARROW = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("deletes", pa.int64()),
        ("partition", pa.string()),
        ("stats", pa.string()),
        ("sent", pa.string()),
        ("rejected", pa.string()),
        ("failed", pa.string()),
    ]
)


@dataclass(frozen=True)
class StagedFile:
    """A file written for a commit to come.

    Attributes:
        file: the file; its partition values lack ``_snapshot``, which the commit adds.
        deletes: how many of its rows are deletes.
        sent: where the task has put the changes of the file's bucket into an eventual log; told with its first file.
    """

    file: DataFile
    deletes: int
    sent: SentRange | None = None


class _RejectedError(Exception):
    """Rows cannot be stored; carried to the driver as data so that Spark does not retry the task."""


@dataclass(frozen=True)
class Stager:
    """Stages the rows of one task. Picklable; called with the task's batches.

    Attributes:
        storage: the table's root folder.
        spec: the table.
        target_bytes: size at which a file is finished.
        whole_buckets: every row of a bucket reaches the same task, so earlier changes of a key can be dropped.
        buckets: the table's number of buckets.
        tap: takes the changes into the log at the same time, where the log is an eventual one.
        lookup: the rows that the changes are resolved against, with ``changelog-producer=lookup``; needs whole buckets.
    """

    storage: Storage
    spec: TableSpec
    target_bytes: int
    whole_buckets: bool
    buckets: int
    tap: LogTapFactory | None = None
    lookup: Lookup | None = None

    def stage(self, batches: Iterable[pa.RecordBatch], task: int) -> list[StagedFile]:
        """Write the rows of a task into files.

        Args:
            batches: the table's columns; for a key table also ``_kind`` and ``_seq``.
            task: the task's number; files of a bucket sort by it, then by row.

        Raises:
            InvalidInputError: never here; a NULL in a NOT NULL column raises ``_RejectedError``.
        """
        checked = map(self._checked, batches)
        if self.spec.has_key:
            return self._stage_changes(checked, task)
        return self._stage_rows(checked, task)

    def read(self, staged: Iterable[StagedFile]) -> Iterator[pa.RecordBatch]:
        """Read staged changes back."""
        folder, schema = self.storage.child(CHANGES), change_file_schema(self.spec)
        for path in sorted(s.file.path for s in staged):
            with folder.filesystem.open(folder.path(path), "rb") as source:
                for batch in pq.ParquetFile(source).iter_batches(use_threads=False):
                    yield relabelled(conform(batch, stored_change_schema(self.spec)), schema)

    def remove(self, staged: Iterable[StagedFile]) -> None:
        """Remove staged files that no commit will use."""
        self.remove_paths([s.file.path for s in staged])

    def remove_paths(self, paths: Iterable[str]) -> None:
        """Remove staged files by their paths."""
        folder = self.storage.child(CHANGES) if self.spec.has_key else self.storage
        folder.delete(*paths)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Refuse NULL in columns that are NOT NULL (deletes need only their key), and unknown row kinds."""
        if self.spec.has_key:
            kinds = batch.column(batch.schema.get_field_index(KIND))
            unknown = pc.sum(pc.less(kinds, 0)).as_py() or 0
            if unknown:
                msg = (
                    f"column {CHANGE_TYPE!r} must be one of {', '.join(CHANGE_TYPE_NAMES)}; "
                    f"{unknown} of {batch.num_rows} rows of a batch are not."
                )
                raise _RejectedError(msg)
        batch = self._without_empty_partitions(batch)
        for field in self.spec.arrow:
            if field.nullable:
                continue
            nulls = batch.column(batch.schema.get_field_index(field.name)).is_null()
            if self.spec.has_key and field.name not in self.spec.primary_key:
                kinds = batch.column(batch.schema.get_field_index(KIND))
                nulls = pc.and_(nulls, pc.not_equal(kinds, int(RowKind.DELETE)))
            count = pc.sum(nulls).as_py() or 0
            if count:
                what = "primary key column" if field.name in self.spec.primary_key else "NOT NULL column"
                msg = f"{what} {field.name!r} must not hold NULL; {count} of {batch.num_rows} rows of a batch do."
                raise _RejectedError(msg)
        return batch

    def _without_empty_partitions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make the empty string NULL in partition columns, as Spark does: the Delta protocol has one value for both."""
        for name in self.spec.partition_by:
            position = batch.schema.get_field_index(name)
            field = batch.schema.field(position)
            if pa.types.is_string(field.type):
                values = batch.column(position)
                kept = pc.if_else(pc.equal(values, ""), pa.scalar(None, field.type), values)
                batch = batch.set_column(position, field.with_nullable(True), kept)
        return batch

    def _stage_changes(self, batches: Iterable[pa.RecordBatch], task: int) -> list[StagedFile]:
        schema = change_file_schema(self.spec)
        rows = (conform(batch, schema) for batch in batches)
        if not self.whole_buckets:
            return self._write_buckets(rows, schema, task)
        few: list[pa.RecordBatch] = []
        for batch in rows:
            few.append(batch)
            if sum(b.num_rows for b in few) > _FEW_ROWS:
                with MergeEngine(self.spec.arrow, self.spec.primary_key) as engine:
                    return self._write_buckets(
                        self._resolved(engine.last_per_key(chain(few, rows)), schema), schema, task
                    )
        kept = last_of_few(self.spec.primary_key, pa.Table.from_batches(few, schema=schema))
        return self._write_buckets(self._resolved(kept.to_batches(), schema), schema, task)

    def _resolved(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterable[pa.RecordBatch]:
        if self.lookup is None:
            return batches
        parts = (part for batch in batches for part in split_by_bucket(batch, self.spec, self.buckets))
        return self.lookup.resolve(parts, schema)

    def _write_buckets(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, task: int) -> list[StagedFile]:
        writers: dict[int, ParquetFiles] = {}
        deletes: dict[int, int] = {}
        tap = None if self.tap is None else self.tap.open()
        logged, in_files = schema.names[:-1], stored_change_schema(self.spec)
        with removed_on_error(writers, self.storage):
            for batch in batches:
                for bucket, part in split_by_bucket(batch, self.spec, self.buckets):
                    if bucket not in writers:
                        writers[bucket] = ParquetFiles(
                            self.storage.child(CHANGES),
                            in_files,
                            prefix=f"{bucket:05d}-{task:05d}",
                            partition={BUCKET: str(bucket)},
                            target_bytes=self.target_bytes,
                        )
                    writers[bucket].write(relabelled(part, in_files))
                    if tap is not None:
                        tap.send(bucket, part.select(logged))
                    found = pc.sum(
                        pc.equal(part.column(part.schema.get_field_index(KIND)), int(RowKind.DELETE))
                    ).as_py()
                    deletes[bucket] = deletes.get(bucket, 0) + (found or 0)
            sent = {} if tap is None else tap.close()
            staged: list[StagedFile] = []
            for bucket, writer in writers.items():
                # The count of deletes belongs to the bucket; it is told with its first file.
                staged += [
                    StagedFile(file, deletes[bucket], sent.get(bucket)) if number == 0 else StagedFile(file, 0)
                    for number, file in enumerate(writer.close())
                ]
        return staged

    def _stage_rows(self, batches: Iterable[pa.RecordBatch], task: int) -> list[StagedFile]:
        writer = PartitionedFiles(self.storage, self.spec, prefix=f"part-{task:05d}", target_bytes=self.target_bytes)
        with removed_on_error(writer.writers, self.storage):
            for batch in batches:
                writer.write(conform(batch, self.spec.arrow))
            return [StagedFile(file, 0) for file in writer.close()]


def change_file_schema(spec: TableSpec) -> pa.Schema:
    """Give the columns of a change file: the table's (all may be NULL in a delete), ``_kind`` and ``_seq``."""
    columns = [f if f.name in spec.primary_key else f.with_nullable(True) for f in spec.arrow]
    return pa.schema([*columns, pa.field(KIND, pa.int8()), pa.field(SEQ, pa.int64())])


def stored_change_schema(spec: TableSpec) -> pa.Schema:
    """Give the same columns as files hold them."""
    names = change_file_schema(spec)
    columns = [f.with_nullable(loose.nullable) for f, loose in zip(spec.stored, names, strict=False)]
    return pa.schema([*columns, *list(names)[len(columns) :]])


def staged_to_arrow(stager: Stager, batches: Iterable[pa.RecordBatch], task: int) -> pa.RecordBatch:
    """Stage a task's batches and describe the files as one batch of ``STAGED`` rows."""
    try:
        staged = stager.stage(batches, task)
    except _RejectedError as error:
        return pa.RecordBatch.from_pylist([{"rejected": str(error)}], schema=_STAGED_ARROW)
    except UnavailableError as error:
        return pa.RecordBatch.from_pylist([{"failed": str(error)}], schema=_STAGED_ARROW)
    rows = [
        {
            "path": s.file.path,
            "size": s.file.size,
            "rows": s.file.rows,
            "deletes": s.deletes,
            "partition": json.dumps(dict(s.file.partition)),
            "stats": s.file.stats,
            "sent": None if s.sent is None else json.dumps(asdict(s.sent)),
        }
        for s in staged
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_STAGED_ARROW)
