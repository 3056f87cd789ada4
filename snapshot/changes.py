"""The changes of one snapshot, read from the table's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructField, StructType

from snapshot.columns import visible
from snapshot.commit import as_snapshot
from snapshot.delta import Commit, DataFile
from snapshot.errors import CorruptedError, DataLostError
from snapshot.records import Snapshot
from snapshot.rowkind import KIND, RowKind
from snapshot.schema import BUCKET, arrow_schema, conform, relabelled
from snapshot.spec import TableSpec
from snapshot.storage import Storage

MAINTENANCE = ("create", "compact", "expire", "alter")
"""Kinds of snapshots without changes."""
_BATCH_ROWS = 65_536
_REMEDY = "until it is back, nothing after it can be published. Bring it back from a copy, then call recover()."


@dataclass(frozen=True)
class SnapshotChanges:
    """The changes of one snapshot by bucket, in the order of their files' names and rows. Picklable.

    Attributes:
        snapshot: the snapshot.
        storage: folder of the commit table.
        schema: the columns that the table had in this snapshot, then ``_kind``.
        stored: the same as files hold them.
        columns: the columns with their stored names.
        files: for each bucket, its files in order.
    """

    snapshot: Snapshot
    storage: Storage
    schema: pa.Schema
    stored: pa.Schema
    columns: StructType
    files: dict[int, tuple[DataFile, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Commit, storage: Storage, spec: TableSpec, buckets: int) -> SnapshotChanges:
        """Sort a commit's files into buckets; files of an append table go round the buckets.

        Args:
            found: the commit.
            storage: folder of the commit table.
            spec: the table as it was in this snapshot.
            buckets: the table's number of buckets.
        """
        snapshot = as_snapshot(found)
        files: dict[int, list[DataFile]] = {}
        in_order = sorted(found.added, key=lambda f: f.path.rpartition("/")[2])
        for number, file in enumerate(in_order if snapshot.kind not in MAINTENANCE else ()):
            bucket = int(file.partition[BUCKET] or 0) if spec.has_key else (snapshot.id + number) % buckets
            files.setdefault(bucket, []).append(file)
        return cls(
            snapshot,
            storage,
            change_schema(spec),
            spec.stored.append(pa.field(KIND, pa.int8())),
            change_columns(spec),
            {bucket: tuple(held) for bucket, held in files.items()},
        )

    def rows(self, bucket: int) -> int:
        """Give the number of changes in a bucket; files of a foreign writer without statistics are opened to count.

        Raises:
            DataLostError: a file without statistics is missing.
            CorruptedError: such a file cannot be read.
        """
        return sum(f.rows if f.rows >= 0 else self._count(f) for f in self.files.get(bucket, ()))

    def batches(self, bucket: int, skip: int = 0) -> Iterator[pa.RecordBatch]:
        """Read a bucket's changes, leaving out the first ``skip``.

        Raises:
            DataLostError: a file is missing.
            CorruptedError: a file cannot be read.
        """
        for file in self.files.get(bucket, ()):
            rows = file.rows if file.rows >= 0 else self._count(file)
            if skip >= rows:
                skip -= rows
                continue
            for batch in self._read(file):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                yield self._complete(batch.slice(skip), file)
                skip = 0

    def _read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        with self._opened(file) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            if 0 <= file.rows != parquet.metadata.num_rows:
                msg = f"it should have {file.rows} rows, it has {parquet.metadata.num_rows}"
                raise pa.ArrowInvalid(msg)
            names = [n for n in self.stored.names if n in parquet.schema_arrow.names]
            yield from parquet.iter_batches(batch_size=_BATCH_ROWS, columns=names, use_threads=False)

    def _count(self, file: DataFile) -> int:
        with self._opened(file) as source:
            return int(pq.ParquetFile(source).metadata.num_rows)

    @contextmanager
    def _opened(self, file: DataFile) -> Iterator[IO[bytes]]:
        path = self.storage.path(file.path)
        try:
            with self.storage.filesystem.open(path, "rb") as source:
                yield source
        except FileNotFoundError as error:
            msg = f"{path}: a file of snapshot {self.snapshot.id} is missing; {_REMEDY}"
            raise DataLostError(msg) from error
        except (pa.ArrowInvalid, OSError) as error:
            msg = f"{path}: a file of snapshot {self.snapshot.id} cannot be read ({error}); {_REMEDY}"
            raise CorruptedError(msg) from error

    def _complete(self, batch: pa.RecordBatch, file: DataFile) -> pa.RecordBatch:
        """Add the columns that are not in the file: partition values, and ``_kind`` in an append table."""
        for field_ in self.stored:
            if field_.name in batch.schema.names:
                continue
            if field_.name == KIND:
                column = pa.repeat(pa.scalar(int(RowKind.INSERT), pa.int8()), batch.num_rows)
            else:
                value = file.partition.get(field_.name)
                column = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows).cast(field_.type)
            batch = batch.append_column(field_, column)
        return relabelled(conform(batch, self.stored), self.schema)


def change_schema(spec: TableSpec) -> pa.Schema:
    """Give the table's columns, then ``_kind``: what is published and what streams read."""
    return arrow_schema(visible(change_columns(spec))).append(pa.field(KIND, pa.int8()))


def change_columns(spec: TableSpec) -> StructType:
    """Give the same columns with their stored names.

    A delete may have its key only, so in a key table every other column may be NULL.
    """
    return StructType(
        [
            StructField(f.name, f.dataType, f.nullable or (spec.has_key and f.name not in spec.primary_key), f.metadata)
            for f in spec.columns.fields
        ]
    )
