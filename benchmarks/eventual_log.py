"""Creates the logs for the normalization benchmarks in bulk and without Spark; writing them is not measured."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from benchmarks.harness import CORES, Bench
from log_system.kafka.client import bulk_produce
from snapshot.merge.bucket_hash import bucket_of
from snapshot.row_kind import KIND, RowKind
from tablestore.context import TableContext
from tablestore.table.store import TableStore

SCHEMA = "id bigint, name string, price double"
_FLUSH_SECONDS = 120


def eventual_table(bench: Bench, schema: str = SCHEMA) -> TableStore:
    """Create an eventual table with one partition, and so one task, per core; the state has as many partitions."""
    bench.spark.conf.set("spark.sql.shuffle.partitions", CORES)
    options = {"log__consistency": "eventual", "bucket": CORES, "compaction__auto": "false"}
    return bench.table("eventual", schema, key=["id"], log="json", **options)


def changes(ids: np.ndarray, deleted: np.ndarray, seed: int) -> pa.RecordBatch:
    """Return one change per id, with the table's columns and ``_kind``; the values depend on the seed."""
    number = np.random.default_rng(seed).integers(0, 1_000_003, len(ids))
    kinds = np.where(np.broadcast_to(deleted, ids.shape), int(RowKind.DELETE), int(RowKind.UPDATE_AFTER))
    names = np.char.add("name-", (number % 100_000).astype(str))
    columns = {"id": pa.array(ids), "name": pa.array(names), "price": pa.array(number / 7), KIND: pa.array(kinds)}
    return pa.RecordBatch.from_pydict(columns)


def send(table: TableStore, batches: Iterable[pa.RecordBatch]) -> float:
    """Send changes to the log, encoded as staging tasks do it; return the mean size of a record's value in bytes."""
    log = TableContext.open(table.path).log.settings
    producer, codec = log.client.producer(None), log.codec()
    count = size = 0
    for batch in batches:
        rows = batch.cast(log.schema)
        buckets = bucket_of(rows, ["id"], CORES)
        for bucket in range(CORES):
            records = codec.encode(rows.filter(pa.array(buckets == bucket)))
            bulk_produce.send(producer, log.topic, bucket, records.key_column, records.value_column)
            there = records.value_column.drop_null()
            count, size = count + len(there), size + there.nbytes - 8 * len(there)
    assert producer.flush(_FLUSH_SECONDS) == 0
    return size / max(count, 1)
