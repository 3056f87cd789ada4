"""Reads the changes of one snapshot from the table's files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from snapshot.delta.log import Commit, DataFile
from snapshot.errors import CorruptedError, DataLostError
from snapshot.merge.bucket_hash import bucket_of
from snapshot.merge.duckdb_engine import rows_at_a_time
from snapshot.records import Snapshot
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.adapter import fit
from snapshot.schema.physical_names import Columns
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, kind_column, with_kind
from snapshot.staging.parquet_writer import bucket_in, is_tombstones
from snapshot.storage import Storage, storage_errors
from snapshot.store.commit import as_snapshot

MAINTENANCE = ("create", "compact", "expire", "alter")
"""Operations of snapshots without changes."""
LISTED = "changes"
"""Key of a commit that replaces files of an append table: the files with its changes, in order (``listed``)."""
_WHOLE_BYTES_MAX = 4_000_000
"""Files up to this size are read from an object store in one request."""
_REMEDY = (
    "until it is restored, the snapshot's changes cannot be read and, if the log lacks them, no later change can be "
    "published. Restore it from a backup, then call recover()."
)
_EXPIRED = (
    "If the snapshot has expired since this read started, begin with a newer one; if the table was dropped, open it "
    "again; otherwise (VACUUM?),"
)


@dataclass(frozen=True)
class BucketedRows:
    """Files of an append table with a bucket key that hold rows of several buckets.

    A DML statement, a compaction or another Delta writer has written them. Picklable.

    Attributes:
        paths: the files.
        key: the bucket key.
        buckets: the table's number of buckets.
    """

    paths: frozenset[str]
    key: tuple[str, ...]
    buckets: int

    def of(self, bucket: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a bucket."""
        return batch.filter(pa.array(bucket_of(batch, self.key, self.buckets) == bucket))


@dataclass(frozen=True)
class SnapshotChanges:
    """The changes of one snapshot by bucket, ordered by file name and row. Picklable.

    Attributes:
        snapshot: the snapshot.
        storage: folder of the commit table.
        columns: the columns that the table had in this snapshot.
        files: for each bucket, its files in order.
        deleted: paths of files that the snapshot removed, so that all of their rows are deletes.
        mixed: the files that are in several buckets, row by row.
    """

    snapshot: Snapshot
    storage: Storage
    columns: Columns
    files: dict[int, tuple[DataFile, ...]] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    mixed: BucketedRows = field(default_factory=lambda: BucketedRows(frozenset(), (), 1))

    @classmethod
    def of(cls, found: Commit, storage: Storage, spec: TableSpec, buckets: int) -> SnapshotChanges:
        """Return a commit's changes, with its files by bucket.

        Files of an append table that are in no bucket are assigned round-robin or, with a bucket key, read for each
        bucket.

        A commit that replaces files of an append table records which files hold its changes, because some added files
        contain rows that existed before.
        """
        snapshot = as_snapshot(found)
        files: dict[int, list[DataFile]] = {}
        if LISTED in found.info:
            in_order = listed_changes(found)
        else:
            changed = (f for f in found.added if not is_tombstones(f.path))
            in_order = sorted(changed, key=lambda f: f.path.rpartition("/")[2])
        mixed = set()
        for number, file in enumerate(in_order if snapshot.operation not in MAINTENANCE else ()):
            bucket = int(file.partition[BUCKET] or 0) if spec.has_key else bucket_in(file.path)
            if bucket is not None:
                files.setdefault(bucket, []).append(file)
            elif spec.bucket_key:
                mixed.add(file.path)
                for each in range(buckets):
                    files.setdefault(each, []).append(file)
            else:
                files.setdefault((snapshot.id + number) % buckets, []).append(file)
        deleted = frozenset(each["path"] for each in found.info.get(LISTED, ()) if each.get("deleted"))
        by_bucket = {bucket: tuple(bucket_files) for bucket, bucket_files in files.items()}
        rows = BucketedRows(frozenset(mixed), spec.bucket_key, buckets)
        return cls(snapshot, storage, spec.change_columns, by_bucket, deleted, rows)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table had in this snapshot, then ``_kind``."""
        return with_kind(self.columns.named)

    @property
    def buckets(self) -> Iterable[int]:
        """The buckets that have files."""
        return self.files

    def rows(self, bucket: int) -> int:
        """Return the number of changes in a bucket; opens files that another Delta writer wrote without statistics.

        Raises:
            DataLostError: a file without statistics is missing.
            CorruptedError: such a file cannot be read.
        """
        return sum(self._rows(file, bucket) for file in self.files.get(bucket, ()))

    def missing(self) -> list[str]:
        """Return the paths of files that do not exist."""
        paths = [file.path for files in self.files.values() for file in files]
        return [self.storage.path(path) for path in paths if not self.storage.exists(path)]

    def batches(self, bucket: int, skip: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield a bucket's changes without the first ``skip``.

        Raises:
            DataLostError: a file is missing.
            CorruptedError: a file cannot be read.
        """
        for file in self.files.get(bucket, ()):
            if skip and skip >= (rows := self._rows(file, bucket)):
                skip -= rows
                continue
            for batch in self._read(file):
                part = self._part(batch, file, bucket)
                if skip < part.num_rows:
                    yield part.slice(skip)
                skip = max(skip - part.num_rows, 0)

    def _rows(self, file: DataFile, bucket: int) -> int:
        if file.path in self.mixed.paths:
            return sum(self._part(batch, file, bucket).num_rows for batch in self._read(file))
        return file.rows if file.rows >= 0 else self._count(file)

    def _part(self, batch: pa.RecordBatch, file: DataFile, bucket: int) -> pa.RecordBatch:
        """Return the changes of a bucket in a batch of a file."""
        changes = self._complete(batch, file)
        return self.mixed.of(bucket, changes) if file.path in self.mixed.paths else changes

    def _read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        with self._opened(file) as source:
            # Spark's own Delta writes timestamps as INT96, which Arrow reads as nanoseconds: far times do not fit.
            parquet = pq.ParquetFile(source, page_checksum_verification=True, coerce_int96_timestamp_unit="us")
            if 0 <= file.rows != parquet.metadata.num_rows:
                msg = f"expected {file.rows} rows, got {parquet.metadata.num_rows}"
                raise pa.ArrowInvalid(msg)
            there = set(parquet.schema_arrow.names)
            names = [name for name in (*self.columns.physical.names, KIND) if name in there]
            yield from parquet.iter_batches(rows_at_a_time(parquet.metadata), columns=names, use_threads=False)

    def _count(self, file: DataFile) -> int:
        with self._opened(file) as source:
            return int(pq.ParquetFile(source).metadata.num_rows)

    @contextmanager
    def _opened(self, file: DataFile) -> Iterator[IO[bytes]]:
        path = self.storage.path(file.path)
        try:
            # Opening a file in an object store would ask for its size first.
            text = self.storage.read(file.path) if self._is_read_whole(file) else None
            if text is not None:
                yield io.BytesIO(text)
                return
            with storage_errors(path, "read"), self.storage.filesystem.open(path, "rb") as source:
                yield source
        except FileNotFoundError as error:
            msg = f"{path}: a file of snapshot {self.snapshot.id} is missing. {_EXPIRED} {_REMEDY}"
            raise DataLostError(msg) from error
        except (pa.ArrowInvalid, OSError) as error:
            msg = f"{path}: a file of snapshot {self.snapshot.id} cannot be read ({error}); {_REMEDY}"
            raise CorruptedError(msg) from error

    def _is_read_whole(self, file: DataFile) -> bool:
        return not self.storage.is_local and 0 < file.size <= _WHOLE_BYTES_MAX

    def _complete(self, batch: pa.RecordBatch, file: DataFile) -> pa.RecordBatch:
        """Add the columns that are not in the file: partition columns, and ``_kind`` in an append table."""
        for name, value in file.partition.items():
            if name in self.columns.physical.names and name not in batch.schema.names:
                kind = self.columns.physical.field(name).type
                batch = batch.append_column(name, pa.repeat(pa.scalar(value, pa.string()), batch.num_rows).cast(kind))
        if KIND in batch.schema.names:
            kinds = batch.column(KIND)
        else:
            kind = RowKind.DELETE if file.path in self.deleted else RowKind.INSERT
            kinds = kind_column(kind, batch.num_rows)
        named = fit(batch, self.columns)
        return pa.RecordBatch.from_arrays([*named.columns, kinds], schema=self.schema)


def is_foreign(found: Commit) -> bool:
    """Return whether another Delta writer made a commit that changes rows."""
    return "kind" not in found.info and bool(found.added or found.removed)


def listed(
    *, deleted: Sequence[DataFile] = (), changed: Sequence[DataFile] = (), inserted: Sequence[DataFile] = ()
) -> dict[str, Any]:
    """Return the facts ``changes`` and ``rows`` for the commit: its files with changes, in publishing order.

    Args:
        deleted: files that the commit removes; all of their rows are deletes.
        changed: files of changes, with a column ``_kind``.
        inserted: files that the commit adds; all of their rows are inserts.
    """

    def entry(file: DataFile, **more: bool) -> dict[str, Any]:
        return {"path": file.path, "size": file.size, "rows": file.rows, "partition": dict(file.partition), **more}

    entries = [*(entry(f, deleted=True) for f in deleted), *map(entry, changed), *map(entry, inserted)]
    return {LISTED: entries, "rows": sum(max(each["rows"], 0) for each in entries)}


def listed_changes(found: Commit) -> list[DataFile]:
    """Return the files that a commit to an append table lists as its changes; other commits may have added them."""
    entries = found.info.get(LISTED, ())
    return [DataFile(each["path"], each["size"], each["rows"], each["partition"]) for each in entries]
