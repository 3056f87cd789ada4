"""Names of options that a table of this store does not have, with what to use instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from log_system.kafka.client.client_options import nearest_client_option
from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean
from tablestore.options.specification import KAFKA

_WHEN_READ: Final = "set it where the table is read: as an option of read() or read_stream(), or in a hint in SQL"
_MERGED_IN_WRITES: Final = "leave it out: the rows of a write are merged before they are stored"
_LOOKUPS: Final = "leave it out: a lookup join reads the table's current rows in each micro-batch"
_PARTITIONS_OF_LOOKUPS: Final = "only SQL uses it: set it there, in WITH, ALTER TABLE ... SET or a hint"
_COMPACTION: Final = "use compaction.commits, compaction.ratio and compaction.auto, or compact()"
_BLOBS: Final = "leave it out: large values have no files of their own; their bytes are stored in the row"
_DESCRIPTORS: Final = (
    "there are no references to bytes elsewhere: store the bytes in a BYTES column, which blob-field may name, or a "
    "path to them in a STRING column"
)
_PARQUET: Final = "leave it out: files are Parquet, so that any Delta reader opens the table"
_SKIPPED: Final = "leave it out: reads always skip replaced and deleted rows"
_COMPRESSION: Final = "leave it out: files are compressed"

_BUCKETS: Final = "use bucket, a fixed number: the bucket of a key is its partition in the log"
_NO_INDEX: Final = "leave it out: files have statistics and no further indexes"

ELSEWHERE: Final[Mapping[str, str]] = {
    "connector": "a table of this store has no connector; set log.system=kafka for its log",
    "topic": "this is the name in a Kafka connector's table; use kafka.topic",
    "bootstrap.servers": "use kafka.bootstrap.servers",
    "format": "use log.format",
    "value.format": "this is the name in a Kafka connector's table; use log.format",
    "key.format": "this is the name in a Kafka connector's table; the key of a record is always JSON here",
    "log.key.format": "leave it out: the key of a record is always JSON",
    "scan.startup.mode": "this is the name in a Kafka connector's table; use scan_mode of read_stream()",
    "log.scan": "use scan_mode of read_stream()",
    "log.changelog-mode": "leave it out: the log contains every change that the table stores",
    "log.system.auto-register": "leave it out: CREATE makes the topic, and DROP deletes it",
    "log.system.partitions": "use bucket: the topic has one partition for each bucket",
    "log.system.replication": "use log.replication-factor",
    "log.topic": "use kafka.topic",
    "log.kafka.topic": "use kafka.topic",
    "log.kafka.bootstrap.servers": "use kafka.bootstrap.servers",
    "log_system": "use log.system",
    "buckets": "use bucket",
    "partial-update.ignore-delete": "use ignore-delete",
    "first-row.ignore-delete": "use ignore-delete",
    "deduplicate.ignore-delete": "use ignore-delete",
    "primary-key": "declare PRIMARY KEY (...) NOT ENFORCED, or primary_key= in Python",
    "primary-key.nullable": "leave it out: the columns of a primary key are never NULL",
    "partition": "declare PARTITIONED BY (...), or partition_by= in Python",
    "dynamic-bucket.initial-buckets": _BUCKETS,
    "dynamic-bucket.target-row-num": _BUCKETS,
    "bucket-append-ordered": "leave it out: the rows of a bucket are always in order",
    "data-evolution.enabled": "leave it out: columns are added and renamed without rewriting files",
    "compaction.min.file-num": _COMPACTION,
    "compaction.max.file-num": _COMPACTION,
    "changelog.num-retained.min": "use snapshot.retain-min: a snapshot keeps its changes",
    "changelog.num-retained.max": "use snapshot.retain-max: a snapshot keeps its changes",
    "changelog.time-retained": "use snapshot.retention: a snapshot keeps its changes",
    "snapshot.time-retained": "use snapshot.retention",
    "snapshot.num-retained.min": "use snapshot.retain-min",
    "snapshot.num-retained.max": "use snapshot.retain-max",
    "blob-as-descriptor": _DESCRIPTORS,
    "blob-descriptor-field": _DESCRIPTORS,
    "blob-view-field": _DESCRIPTORS,
    "changelog-producer.row-deduplicate": "leave it out: writing a row that is the same as before records no change",
    "add-column-before-partition": "use ALTER TABLE ... ADD column type AFTER another",
    "alter-column-null-to-not-null.disabled": "leave it out: a nullable column cannot become NOT NULL",
    "disable-explicit-type-casting": "leave it out: a column only gets a wider type",
    "sink.writer-coordinator.enabled": "leave it out: a write looks up what it needs",
    "sort-spill-threshold": _MERGED_IN_WRITES,
    "changelog-producer.compaction-interval": "leave it out: changes are published with each write",
    "commit.force-compact": _COMPACTION,
    "consumer-id": _WHEN_READ,
    "continuous.discovery-interval": "use a trigger of the stream, or 'tablestore.trigger' in SQL",
    "deletion-vectors.enabled": _SKIPPED,
    "file.compression": _COMPRESSION,
    "file.format": _PARQUET,
    "full-compaction.delta-commits": _COMPACTION,
    "incremental-between": _WHEN_READ,
    "local-merge-buffer-size": _MERGED_IN_WRITES,
    "lookup.async": _LOOKUPS,
    "lookup.cache": _LOOKUPS,
    "lookup.dynamic-partition": _PARTITIONS_OF_LOOKUPS,
    "num-sorted-run.compaction-trigger": _COMPACTION,
    "num-sorted-run.stop-trigger": _COMPACTION,
    "row-tracking.enabled": "leave it out: rows have no ids",
    "scan.mode": _WHEN_READ,
    "scan.partitions": _PARTITIONS_OF_LOOKUPS,
    "scan.snapshot-id": _WHEN_READ,
    "scan.tag-name": _WHEN_READ,
    "scan.timestamp": _WHEN_READ,
    "scan.timestamp-millis": _WHEN_READ,
    "streaming-read-overwrite": "leave it out: streams read what an overwrite replaces and adds",
    "streaming-read-mode": "leave it out: streams read the log, or the table's files if it has none",
    "target-file-size": "use write.target-file-size",
    "write-buffer-size": _MERGED_IN_WRITES,
    "write-buffer-spillable": _MERGED_IN_WRITES,
    "write-mode": "leave it out: a PRIMARY KEY makes a key table",
    "write-only": "use compaction.auto=false and snapshot.expire-auto=false",
}
"""Names of Paimon's options, and of those of other kinds of table."""
_FAMILIES: Final[Mapping[tuple[str, ...], str]] = {
    ("table-read.",): "leave it out: rows have no sequence numbers; sequence.field orders the rows of a key",
    ("sink.writer", "sink.committer", "sink.managed", "sink.use-managed"): (
        "leave it out: Spark's tasks write, as many as the rows have partitions"
    ),
    ("sink.clustering.",): "leave it out: rows are not ordered by columns outside the key",
    ("sink.",): "this is an option of a connector's table; writes to this store are always exactly-once",
    ("lookup.",): _LOOKUPS,
    ("file-index.", "global-index.", "vector-", "full-text-index.", "scalar-index.", "pk-"): _NO_INDEX,
    ("manifest", "metadata.stats"): "leave it out: there are no manifests, and files have statistics",
    ("deletion-vector",): _SKIPPED,
    ("blob-descriptor", "blob-view"): _DESCRIPTORS,
    ("blob",): _BLOBS,
    ("tag.",): "create tags explicitly: with tags.create(), or CALL sys.create_tag in SQL",
    ("record-level.",): "delete old rows, or their partitions by partition.expiration-time",
    ("branch", "chain-table.", "scan.fallback", "scan.primary-branch"): "there are no branches: copy the table",
    ("partition.mark-done", "partition.idle-time", "partition.end-input", "metastore.", "commit.callback"): (
        "leave it out: other programs see commits in the log, or in a stream of the table"
    ),
    ("clustering.", "sort-compaction.", "zorder."): "leave it out: rows are not ordered by columns outside the key",
    ("compaction.", "full-compaction.", "lookup-compact", "num-levels", "precommit-compact"): _COMPACTION,
    ("materialized-table.",): "not supported: a continuous INSERT INTO keeps a table up to date",
    ("data-evolution.", "row-tracking."): "leave it out: columns are added and renamed without rewriting files",
    ("force-lookup", "lookup-wait", "delete.force"): "leave it out: a write looks up what it needs",
    ("commit.",): "leave it out: a write that conflicts with another one is retried",
    ("postpone.", "dynamic-bucket.", "cross-partition-upsert."): _BUCKETS,
    ("scan.", "source.", "incremental-", "consumer.", "stream-scan-mode", "batch-scan-mode"): _WHEN_READ,
    ("file.", "file-", "data-file.", "changelog-file.", "parquet.", "orc.", "avro.", "page-size", "cache-page-size"): (
        _PARQUET
    ),
    ("write-buffer-", "write.batch-", "read.batch-", "sort-", "spill-", "local-sort.", "local-merge-"): (
        "leave it out: memory and batch sizes are not set per table"
    ),
}
"""What to use instead of options whose names begin so."""


def refuse_unknown_option(name: str, known: Collection[str], table: str = "") -> None:
    """Raise the error that says what to use instead of an option.

    Args:
        name: the option.
        known: names of all options.
        table: path of the table, if it exists.

    Raises:
        InvalidInputError: always.
    """
    start = f"table {table!r}: unknown option '{name}'" if table else f"unknown option '{name}'"
    if name in ELSEWHERE:
        hint = ELSEWHERE[name]
    elif name.startswith("properties."):
        inner = name.removeprefix("properties.")
        hint = f"this is the name in a Kafka connector's table; use {KAFKA}{inner}"
    else:
        near = did_you_mean(name, known)
        family = next((why for words, why in _FAMILIES.items() if name.startswith(words)), "")
        of_family = f"'{name.partition('.')[0]}." in near
        if not family or of_family:
            near = near or nearest_client_option(name)
            msg = f"{start}. {near}{' ' if near else ''}docs/reference/options.md lists all."
            raise InvalidInputError(msg)
        hint = family
    msg = f"{start}: {hint}."
    raise InvalidInputError(msg)
