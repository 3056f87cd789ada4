"""Splits batches by bucket and by partition values, and writes each part to its partition folder."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from snapshot.delta.log import DataFile
from snapshot.merge.bucket_hash import bucket_of
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SEQ, relabelled
from snapshot.staging.parquet_writer import ParquetFiles
from snapshot.storage import Storage


class PartitionedFiles:
    """Writes rows to the base table, one folder for each combination of partition values."""

    def __init__(
        self, storage: Storage, spec: TableSpec, *, prefix: str, target_bytes: int, bucket: int | None = None
    ) -> None:
        """Prepare to write; ``bucket`` is the ``_bucket`` partition value of a key table."""
        self._storage = storage
        self._spec = spec
        self._prefix = prefix
        self._target_bytes = target_bytes
        self._fixed = {} if bucket is None else {BUCKET: str(bucket)}
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
                folder="/".join(_folder(name, value) for name, value in partition.items()),
                partition=partition,
                target_bytes=self._target_bytes,
                sought=self._sought,
            )
        return self.writers[values]


def split_by_bucket(batch: pa.RecordBatch, spec: TableSpec, buckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of a batch by bucket, preserving the order of rows within each."""
    if batch.num_rows == 0:
        return
    if buckets == 1:
        yield 0, batch
        return
    bucket = bucket_of(batch, spec.primary_key, buckets)
    distinct = np.unique(bucket)
    if len(distinct) == 1:
        yield int(distinct[0]), batch
        return
    for number in distinct:
        yield int(number), batch.take(pa.array(np.flatnonzero(bucket == number)))


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
    groups = table.group_by(list(columns), use_threads=False).aggregate([(SEQ, "list")])
    for group in groups.to_pylist():
        values = tuple(partition_text(group[name]) for name in columns)
        yield values, batch.take(pa.array(group[f"{SEQ}_list"]))


def partition_text(value: object) -> str | None:
    """Return a partition value as the Delta protocol serializes it."""
    if value is None or value == "":
        return None
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _folder(name: str, value: str | None) -> str:
    return f"{quote(name, safe='')}={'__HIVE_DEFAULT_PARTITION__' if value is None else quote(value, safe='')}"
