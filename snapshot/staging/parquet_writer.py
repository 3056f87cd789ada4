"""Writes the Parquet files of a table: rolling files with Delta statistics, split by bucket and partition values."""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snapshot.delta.entries import DataFile, partition_text, to_json
from snapshot.disk import advice
from snapshot.errors import UnavailableError
from snapshot.merge.bucket_hash import bucket_of
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.arrow_types import types_within
from snapshot.schema.nested_nulls import has_required
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SEQ, conform, grouped, relabelled
from snapshot.staging.column_encodings import encodings_of
from snapshot.storage import Storage, storage_errors

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 << 20
"""Limits of a row group, of which a writer holds one in memory, and DuckDB the large values."""
TOMBSTONES = "tombstones"
"""Subfolder of the changes folder. Its files belong to a commit but not to the changes of a snapshot: they contain the
key and the sequence of deletes, so that a late row with a smaller sequence does not restore a deleted row."""
_FOLDER_MAX = 255
"""The longest name, in bytes, that file systems take."""
_FOLDER_SHOWN = 100
_FOLDER_DIGITS = 32
_ESCAPE_CUT = re.compile("%.?$")
_BUCKET_FOLDER = "bucket-"
"""Begin of the name of a folder with the files of one bucket of an append table, as Paimon calls it."""
_STRING_STAT_CHARS = 32
_FILTERED_ROWS = 16_384
"""A smaller file is read as quickly without a Bloom filter."""
_FALSE_POSITIVES = 0.05
"""Measured with 2.5 M rows of four columns: files grow by 5 %, and finding a row takes 5 ms instead of 27 ms."""
_RADIX_MAX = 1 << 16
_EPOCH = datetime(1970, 1, 1)
DAYS = ((date.min - _EPOCH.date()).days, (date.max - _EPOCH.date()).days)
"""First and last date of the years 1 to 9999, in days since the epoch; every Delta reader can parse these dates."""


class ParquetFiles:
    """Writes batches into files of about ``target_bytes`` in one folder of a Delta table.

    The names of one writer's files sort in the order of their rows: ``<prefix>-<number>-<unique>.parquet``.
    """

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        *,
        prefix: str,
        folder: str = "",
        partition: Mapping[str, str | None] | None = None,
        target_bytes: int,
        sought: Sequence[str] = (),
        differences: bool = False,
    ) -> None:
        """Prepare to write; the first file is opened when its first rows are written.

        Rows will be sought by equality with the columns in ``sought``: these get a Bloom filter where it helps. With
        ``differences``, whole numbers may be stored as differences, which some readers of Parquet do not know.
        """
        self._storage = storage
        self._schema = schema
        self._prefix = f"{folder}/{prefix}" if folder else prefix
        self._partition = dict(partition or {})
        self._target_bytes = target_bytes
        self._differences = differences
        self._sought = [name for name in sought if _can_be_sought(schema.field(name).type)]
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[pq.FileMetaData] = []
        self._path = ""
        self._floats = [f.name for f in schema if pa.types.is_floating(f.type)]
        self._requires = any(has_required(f.type) for f in schema)
        self._odd: set[str] = set()
        self.files: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; they are written when a row group is full or at ``close``."""
        if batch.num_rows == 0:
            return
        # Whoever has chosen or sorted rows has left NULL in the fields of rows that are NULL.
        self._waiting.append(conform(batch, self._schema) if self._requires else batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> list[DataFile]:
        """Finish the open file and return all files in row order."""
        self._flush()
        self._finish_file()
        return self.files

    def remove(self) -> None:
        """Remove all files, including the open one."""
        if self._writer is not None:
            for opened in (self._writer, self._sink):
                # The rest of its buffers may not fit on the disk either; pyarrow then fails.
                with suppress(OSError, RuntimeError):
                    opened.close()
            self._writer = None
        opened_last = [self._path] if self._path else []
        self._storage.delete(*opened_last, *(file.path for file in self.files))

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        group_rows = min(ROW_GROUP_ROWS, max(1, table.num_rows * ROW_GROUP_BYTES // max(1, self._waiting_bytes)))
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        odd = {name for name in self._floats if is_odd(table.column(name))}
        if not odd <= self._odd:
            # Statistics and dictionaries of a column are chosen when a file is opened, so these rows start a new file.
            self._finish_file()
        for start in range(0, table.num_rows, group_rows):
            group = table.slice(start, group_rows)
            if self._writer is None:
                self._open_file(group, odd)
            assert self._writer is not None
            self._writer.write_table(group, row_group_size=group_rows)
            if self._sink.tell() >= self._target_bytes:
                self._finish_file()

    def _open_file(self, first_rows: pa.Table, odd: set[str]) -> None:
        self._path = f"{self._prefix}-{len(self.files):05d}-{uuid.uuid4().hex}.parquet"
        target = self._storage.path(self._path)
        filesystem = self._storage.filesystem
        if self._storage.is_local:
            filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._sink = filesystem.open(target, "wb")
        self._metadata = []
        self._odd = odd
        unskippable = unskippable_columns(self._schema, odd)
        paths = _leaf_paths(self._schema)
        encodings = encodings_of(first_rows, paths, unskippable, differences=self._differences)
        rows = first_rows.num_rows
        # Readers look a value up in a dictionary too.
        sought = [name for name in self._sought if name not in encodings.dictionaries] if rows >= _FILTERED_ROWS else []
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=encodings.compression(paths),
            # Publishing reads the file again, and a damaged page must not be read as other values.
            write_page_checksum=True,
            use_dictionary=encodings.dictionaries,
            column_encoding=dict.fromkeys(encodings.delta, "DELTA_BINARY_PACKED") or None,
            write_statistics=[path for path in paths if path not in unskippable],
            bloom_filter_options={name: {"ndv": rows, "fpp": _FALSE_POSITIVES} for name in sought} or None,
            metadata_collector=self._metadata,
        )

    def _finish_file(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        self._writer = None
        metadata = self._metadata[0]
        stats = to_json(delta_stats(metadata, self._schema))
        self.files.append(DataFile(self._path, size, metadata.num_rows, self._partition, stats))


@contextmanager
def removed_on_error(writers: Mapping[Any, ParquetFiles], storage: Storage) -> Iterator[None]:
    """Remove the files of all writers if anything fails.

    Raises:
        UnavailableError: a file system operation failed, for example because the disk is full.
    """
    try:
        with storage_errors(storage.root, "written"):
            yield
    except BaseException as error:
        for writer in writers.values():
            # Removing may fail too; then an orphan file is left.
            with suppress(OSError, UnavailableError):
                writer.remove()
        if isinstance(error, OSError):
            msg = f"{storage.root}: the rows cannot be stored ({error}); nothing was written. {advice(error)}"
            raise UnavailableError(msg) from error
        raise


def _can_be_sought(data_type: pa.DataType) -> bool:
    """Return whether every reader hashes the values of a type by the same bytes, also -0.0, which equals 0.0."""
    return bool(pa.types.is_int32(data_type) or pa.types.is_int64(data_type) or pa.types.is_string(data_type))


def is_odd(column: pa.ChunkedArray) -> bool:
    """Return whether a floating-point column contains NaN or -0.0, with which readers skip row groups wrongly."""
    values = column.drop_null().to_numpy()
    return bool(np.isnan(values).any() or np.signbit(values[values == 0]).any())


def unskippable_columns(schema: pa.Schema, odd: set[str]) -> set[str]:
    """Return the Parquet paths of the columns that must have neither statistics nor a dictionary.

    Readers skip row groups by both. Arrow omits NaN from a column's bounds, while for Spark and DuckDB NaN is greater
    than any other number. And Spark looks up a number in a dictionary by its bits, so ``x = 0`` misses a row group
    whose only zero is -0.0. Nested columns are ignored, because readers never skip by their floating-point fields.

    Args:
        schema: the columns.
        odd: names of the columns that contain NaN or -0.0.
    """
    if not any(pa.types.is_nested(kind) for kind in schema.types):
        return odd
    leaves, columns = _leaves_in(schema), set(schema.names)
    nested = {leaf.path for leaf in leaves if leaf.path not in columns}
    return odd | {leaf.path for leaf in leaves if leaf.path in nested and leaf.physical_type in ("FLOAT", "DOUBLE")}


def _leaf_paths(schema: pa.Schema) -> list[str]:
    if not any(pa.types.is_nested(kind) for kind in schema.types):
        return list(schema.names)
    return [leaf.path for leaf in _leaves_in(schema)]


def _leaves_in(schema: pa.Schema) -> list[pq.ColumnSchema]:
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata.schema
    return [leaves.column(number) for number in range(len(leaves))]


def delta_stats(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return a Parquet file's statistics as Delta's per-file statistics.

    Only columns whose bounds are exact and safe to compare are included: numbers, dates and timestamps of the years 1
    to 9999, and strings of up to 32 characters. Columns with other bounds are left out, as the Delta protocol allows,
    and so are columns with NaN (``unskippable_columns``).
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    index = following = 0
    for field in schema:
        # By position, not by path: a name with a dot may equal the path of a struct field.
        index, following = following, following + _leaves(field.type)
        if pa.types.is_nested(field.type):
            continue
        groups = [metadata.row_group(g).column(index).statistics for g in range(metadata.num_row_groups)]
        if all(s is not None and s.has_null_count for s in groups):
            nulls[field.name] = sum(s.null_count for s in groups)
        filled = [s for s in groups if s is not None and s.num_values > 0]
        if not filled or not all(s.has_min_max for s in filled) or len(filled) != len(_not_all_null(groups)):
            continue
        bounds = _bounds(filled, field.type)
        if bounds is not None:
            low[field.name], high[field.name] = bounds
    return {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _leaves(data_type: pa.DataType) -> int:
    """Return the number of Parquet columns of a type."""
    return sum(not pa.types.is_nested(each) for each in types_within(data_type))


def _not_all_null(groups: Iterable[Any]) -> list[Any]:
    return [s for s in groups if s is None or not s.has_null_count or s.num_values > 0]


def _bounds(groups: list[pq.Statistics], data_type: pa.DataType) -> tuple[Any, Any] | None:
    """Return the min and max value as Delta writes them; None if one is not safe to compare."""
    if pa.types.is_date32(data_type) or pa.types.is_timestamp(data_type):
        # Python has no dates outside the years 1 to 9999, so use the raw numbers.
        text = _date if pa.types.is_date32(data_type) else _timestamp
        bounds: list[Any] = [
            text(min(s.min_raw for s in groups), data_type),
            text(max(s.max_raw for s in groups), data_type),
        ]
    elif pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_string(data_type):
        bounds = [_plain(min(s.min for s in groups)), _plain(max(s.max for s in groups))]
    else:
        return None
    return None if None in bounds else (bounds[0], bounds[1])


def _date(days: int, _: pa.DataType) -> str | None:
    if not DAYS[0] <= days <= DAYS[1]:
        return None
    return (_EPOCH.date() + timedelta(days=days)).isoformat()


def _timestamp(moment: int, data_type: pa.TimestampType) -> str | None:
    # Delta statistics have milliseconds; a finer bound would be wrong by rounding, so it is left out.
    if data_type.unit != "us" or moment % 1000 or not DAYS[0] <= moment // 86_400_000_000 <= DAYS[1]:
        return None
    text = (_EPOCH + timedelta(microseconds=moment)).isoformat(timespec="milliseconds")
    return text + ("Z" if data_type.tz else "")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _STRING_STAT_CHARS else None
    if isinstance(value, float):
        # 0.0 may stand for -0.0, and JSON has no infinity.
        return value if math.isfinite(value) and value else None
    return value


def bucket_in(path: str) -> int | None:
    """Return the bucket of a file of an append table by the folder that it is in; None if it is in no bucket's."""
    folder = path.rpartition("/")[0].rpartition("/")[2]
    number = folder.removeprefix(_BUCKET_FOLDER)
    return int(number) if folder.startswith(_BUCKET_FOLDER) and number.isdecimal() else None


def is_tombstones(path: str) -> bool:
    """Return whether a file of the commit table contains tombstones instead of changes."""
    return path.startswith(f"{TOMBSTONES}/")


class BucketedChanges:
    """Writes changes and tombstones to files of their bucket."""

    def __init__(
        self, storage: Storage, schema: pa.Schema, keys: Sequence[str], *, task: int, target_bytes: int
    ) -> None:
        """Prepare to write into the changes folder ``storage``; ``schema`` has physical names, ``keys`` is the key."""
        self._storage = storage
        self._schema = schema
        self._keys = keys
        self._task = task
        self._target_bytes = target_bytes
        self._deletes: dict[int, int] = {}
        self.writers: dict[tuple[str, int], ParquetFiles] = {}

    def write(self, bucket: int, changes: pa.RecordBatch) -> None:
        """Add changes of a bucket."""
        self._writer("", bucket, self._schema).write(relabelled(changes, self._schema))
        kinds = changes.column(KIND)
        deletes = pc.sum(pc.equal(kinds, int(RowKind.DELETE))).as_py() or 0
        self._deletes[bucket] = self._deletes.get(bucket, 0) + deletes

    def bury(self, bucket: int, tombstones: pa.RecordBatch) -> None:
        """Add tombstones of a bucket."""
        self._writer(TOMBSTONES, bucket, tombstones.schema).write(tombstones)

    def close(self) -> list[tuple[int, DataFile, int | None]]:
        """Finish all files.

        Returns:
            For each file its bucket, the file, and the bucket's number of deletes with the bucket's first change file,
            else None.
        """
        files: list[tuple[int, DataFile, int | None]] = []
        for (folder, bucket), writer in self.writers.items():
            for number, file in enumerate(writer.close()):
                files.append((bucket, file, self._deletes[bucket] if number == 0 and not folder else None))
        return files

    def _writer(self, folder: str, bucket: int, schema: pa.Schema) -> ParquetFiles:
        if (folder, bucket) not in self.writers:
            self.writers[folder, bucket] = ParquetFiles(
                self._storage,
                schema,
                prefix=f"{bucket:05d}-{self._task:05d}",
                folder=folder,
                partition={BUCKET: str(bucket)},
                target_bytes=self._target_bytes,
                sought=() if folder else self._keys,
                differences=True,
            )
        return self.writers[folder, bucket]


class PartitionedFiles:
    """Writes rows to the base table, one folder for each combination of partition values."""

    def __init__(
        self, storage: Storage, spec: TableSpec, *, prefix: str, target_bytes: int, bucket: int | None = None
    ) -> None:
        """Prepare to write; ``bucket`` is the ``_bucket`` partition value of a key table, else a folder."""
        self._storage = storage
        self._spec = spec
        self._prefix = prefix
        self._target_bytes = target_bytes
        self._fixed = {BUCKET: str(bucket)} if spec.has_key and bucket is not None else {}
        self._folder = "" if spec.has_key or bucket is None else f"{_BUCKET_FOLDER}{bucket}"
        self._schema = pa.schema([f for f in spec.physical if f.name not in spec.partition_by])
        self._sought = [name for name in spec.primary_key if name in self._schema.names]
        self.writers: dict[tuple[str | None, ...], ParquetFiles] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows (the table's columns in schema order)."""
        for values, part in split_by_values(batch, self._spec.partition_by):
            self._writer(values).write(relabelled(part, self._spec.physical).select(self._schema.names))

    def close(self) -> list[DataFile]:
        """Finish all files and return them."""
        return [file for writer in self.writers.values() for file in writer.close()]

    def _writer(self, values: tuple[str | None, ...]) -> ParquetFiles:
        if values not in self.writers:
            partition = {**dict(zip(self._spec.partition_by, values, strict=True)), **self._fixed}
            self.writers[values] = ParquetFiles(
                self._storage,
                self._schema,
                prefix=self._prefix,
                folder="/".join(filter(None, (*(_folder(*each) for each in partition.items()), self._folder))),
                partition=partition,
                target_bytes=self._target_bytes,
                sought=self._sought,
            )
        return self.writers[values]


def split_by_bucket(batch: pa.RecordBatch, spec: TableSpec, buckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of a batch by bucket, preserving the order of rows within each.

    The parts are slices of one sorted copy of the batch.
    """
    if batch.num_rows == 0:
        return
    if buckets == 1:
        yield 0, batch
        return
    bucket = bucket_of(batch, spec.hashed, buckets)
    counts = np.bincount(bucket)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        yield int(present[0]), batch
        return
    # NumPy sorts 16-bit integers by radix, in linear time.
    numbers = bucket.astype(np.uint16) if buckets <= _RADIX_MAX else bucket
    by_bucket = batch.take(pa.array(np.argsort(numbers, kind="stable")))
    start = 0
    for number in present.tolist():
        rows = int(counts[number])
        yield number, by_bucket.slice(start, rows)
        start += rows


def split_by_values(
    batch: pa.RecordBatch, columns: tuple[str, ...]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the parts of a batch by partition values, which are formatted as in the Delta log."""
    if batch.num_rows == 0:
        return
    if not columns:
        yield (), batch
        return
    table = pa.Table.from_batches([batch.select(columns)]).append_column(SEQ, pa.array(np.arange(batch.num_rows)))
    groups = grouped(table, columns).aggregate([(SEQ, "list")])
    for group in groups.to_pylist():
        values = tuple(partition_text(group[name]) for name in columns)
        yield values, batch.take(pa.array(group[f"{SEQ}_list"]))


def _folder(name: str, value: str | None) -> str:
    """Return the name of the folder of a partition.

    It is for people: readers take the value from the Delta log. So a name that file systems do not take is cut.
    """
    name, text = quote(name, safe=""), "__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="")
    whole = f"{name}={text}"
    if len(whole) <= _FOLDER_MAX:
        return whole
    cut, shown = (_ESCAPE_CUT.sub("", each[:_FOLDER_SHOWN]) for each in (name, text))
    return f"{cut}={shown}-{hashlib.sha256(whole.encode()).hexdigest()[:_FOLDER_DIGITS]}"
