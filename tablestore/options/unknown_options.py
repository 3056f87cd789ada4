"""Names of options that a table of this store does not have, with what to use instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from log_system.kafka.client.client_options import nearest_client_option
from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean
from tablestore.options.specification import KAFKA, OPTIONS

_OWN: Final = frozenset(spec.name for spec in OPTIONS)
_LEAVE_OUT: Final = "leave it out: "
"""So begins the answer to an option that changes no rows, which definitions in SQL may have."""
WHEN_READ: Final = "set it where the table is read: as an option of read() or read_stream(), or in a hint in SQL"
_MERGED_IN_WRITES: Final = "leave it out: the rows of a write are merged before they are stored"
_LOOKUPS: Final = "leave it out: a lookup join reads the table's current rows in each micro-batch"
_PARTITIONS_OF_LOOKUPS: Final = "only SQL uses it: set it there, in WITH, ALTER TABLE ... SET or a hint"
_COMPACTION: Final = "leave it out: compaction.commits, compaction.ratio and compaction.auto say when to compact"
_BLOBS: Final = "leave it out: large values have no files of their own; their bytes are stored in the row"
_DESCRIPTORS: Final = (
    "there are no references to bytes elsewhere: store the bytes in a BYTES column, which blob-field may name, or a "
    "path to them in a STRING column"
)
_PARQUET: Final = "leave it out: files are Parquet, so that any Delta reader opens the table"
_SKIPPED: Final = "leave it out: reads always skip replaced and deleted rows"
_COMPRESSION: Final = "leave it out: files are compressed"

_TAGS: Final = "create tags explicitly: with tags.create(), or CALL sys.create_tag in SQL"
_MARKS: Final = "not supported: other programs see commits in the log, or in a stream of the table"
_OF_SPARK: Final = "leave it out: Spark divides the work among its tasks"
TASKS: Final = (
    "scan.parallelism", "scan.infer-parallelism", "scan.infer-parallelism.max", "scan.dedicated-split-generation",
    "scan.split-enumerator.batch-size", "read.shuffle-bucket-with-partition", "sink.parallelism",
)  # fmt: skip
"""Options of Paimon for the tasks of Flink."""
_BETWEEN: Final = "use incremental-between with two snapshots or tags"
_BROKEN: Final = "not supported: a file that is missing or broken is an error"
_BY_TIME: Final = "use scan.timestamp-millis, or incremental-between-timestamp for the rows written between two times"
_EXPIRED_AT_ONCE: Final = "leave it out: all that has expired is removed at once"
_BUCKETS: Final = "leave it out: bucket is the number of buckets, and a key is found without an index"
_NO_INDEX: Final = "leave it out: files have statistics and no further indexes"

ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(TASKS, _OF_SPARK),
    "connector": "a table of this store has no connector; set log.system=kafka for its log",
    "topic": "this is the name in a Kafka connector's table; use kafka.topic",
    "bootstrap.servers": "use kafka.bootstrap.servers",
    "format": "use log.format",
    "value.format": "this is the name in a Kafka connector's table; use log.format",
    "key.format": "this is the name in a Kafka connector's table; the key of a record is always JSON here",
    "log.key.format": "not supported: the key of a record is always JSON",
    "scan.startup.mode": "this is the name in a Kafka connector's table; use scan_mode of read_stream()",
    "log.scan": "use scan_mode of read_stream()",
    "log.changelog-mode": "not supported: the log contains every change that the table stores",
    "log.system.auto-register": "leave it out: CREATE makes the topic, and DROP deletes it",
    "log.system.partitions": "use bucket: the topic has one partition for each bucket",
    "log.system.replication": "use log.replication-factor",
    "log.topic": "use kafka.topic",
    "log.kafka.topic": "use kafka.topic",
    "log.kafka.bootstrap.servers": "use kafka.bootstrap.servers",
    "log_system": "use log.system",
    "buckets": "use bucket",
    "path": "not supported: the table is the folder of its name in the warehouse",
    "type": "not supported: a definition without it is a table of this store; let Spark read tables of plain files",
    "partial-update.ignore-delete": "use ignore-delete",
    "first-row.ignore-delete": "use ignore-delete",
    "deduplicate.ignore-delete": "use ignore-delete",
    "primary-key": "declare PRIMARY KEY (...) NOT ENFORCED, or primary_key= in Python",
    "primary-key.nullable": "not supported: the columns of a primary key are never NULL",
    "partition": "declare PARTITIONED BY (...), or partition_by= in Python",
    "bucket-append-ordered": "leave it out: the rows of a bucket are always in order",
    "compaction.min.file-num": _COMPACTION,
    "changelog.num-retained.min": "use snapshot.retain-min: a snapshot keeps its changes",
    "changelog.num-retained.max": "use snapshot.retain-max: a snapshot keeps its changes",
    "changelog.time-retained": "use snapshot.retention: a snapshot keeps its changes",
    "snapshot.time-retained": "use snapshot.retention",
    "snapshot.num-retained.min": "use snapshot.retain-min",
    "snapshot.num-retained.max": "use snapshot.retain-max",
    "blob-as-descriptor": _DESCRIPTORS,
    "changelog-producer.row-deduplicate": "leave it out: writing a row that is the same as before records no change",
    "auto-create": "use CREATE TABLE IF NOT EXISTS",
    "bucket-function.type": "leave it out: the bucket of a row is a hash of its key",
    "changelog-producer.row-deduplicate-ignore-fields": "not supported: a row that differs in any column is a change",
    "compaction.offpeak-ratio": _COMPACTION,
    "compaction.size-ratio": _COMPACTION,
    "compaction.small-file-ratio": _COMPACTION,
    "filesystem.job-level-settings.enabled": "leave it out: the environment has the settings of object stores",
    "overwrite-upgrade": "leave it out: files have no levels",
    "partition.default-name": "not supported: a NULL has the name of Delta's partitions",
    "partition.expiration-batch-size": _EXPIRED_AT_ONCE,
    "partition.expiration-max-num": _EXPIRED_AT_ONCE,
    "partition.expiration-strategy": "not supported: a partition expires by the time that its values say",
    "partition.legacy-name": "leave it out: partitions have Delta's names",
    "partition.sink-strategy": _OF_SPARK,
    "partition.time-interval": _MARKS,
    "partition.timestamp-format.strict": "not supported: a partition whose values are no time does not expire",
    "query-auth.enabled": "not supported: who may read the table's files may read the table",
    "sequence.snapshot-ordering": "not supported: without sequence.field, the row of the later snapshot wins",
    "sink.key-only-deletes.enabled": "leave it out: a delete needs its key alone, unless it takes values back",
    "sink.process-time-zone": _TAGS,
    "sink.savepoint.auto-tag": _TAGS,
    "sink.watermark-time-zone": _TAGS,
    "snapshot.clean-empty-directories": _EXPIRED_AT_ONCE,
    "snapshot.expire.execution-mode": _EXPIRED_AT_ONCE,
    "snapshot.expire.limit": _EXPIRED_AT_ONCE,
    "snapshot.watermark-idle-timeout": "leave it out: snapshots have no watermarks",
    "streaming.read.snapshot.delay": "use a trigger of the stream, or 'tablestore.trigger' in SQL",
    "target-file-row-num": "use write.target-file-size",
    "write.sequence-number-init-mode": "leave it out: rows have no sequence numbers",
    "add-column-before-partition": "use ALTER TABLE ... ADD column type AFTER another",
    "alter-column-null-to-not-null.disabled": "leave it out: a nullable column cannot become NOT NULL",
    "disable-explicit-type-casting": "leave it out: a column only gets a wider type",
    "sink.writer-coordinator.enabled": "leave it out: a write looks up what it needs",
    "sort-spill-threshold": _MERGED_IN_WRITES,
    "changelog-producer.compaction-interval": "leave it out: changes are published with each write",
    "commit.force-compact": _COMPACTION,
    "consumer-id": WHEN_READ,
    "consumer.changelog-only": "not supported: scan.mode=latest begins with the changes",
    "consumer.ignore-progress": "not supported: CALL sys.reset_consumer sets back where a consumer is",
    "consumer.mode": "leave it out: the progress of a consumer is stored with each micro-batch",
    "continuous.discovery-interval": "leave it out: a trigger of the stream, or 'tablestore.trigger' in SQL, says so",
    "file.compression": _COMPRESSION,
    "local-merge-buffer-size": _MERGED_IN_WRITES,
    "lookup.dynamic-partition": _PARTITIONS_OF_LOOKUPS,
    "num-sorted-run.compaction-trigger": _COMPACTION,
    "num-sorted-run.stop-trigger": _COMPACTION,
    "row-tracking.enabled": "leave it out: rows have no ids",
    "scan.partitions": _PARTITIONS_OF_LOOKUPS,
    "incremental-between-tag-to-snapshot": _BETWEEN,
    "incremental-to-auto-tag": _BETWEEN,
    "scan.bounded.watermark": "not supported: snapshots have no watermarks; scan.bounded reads the rows that there are",
    "scan.bucket": "not supported: say in WHERE which keys are read",
    "scan.creation-time-millis": _BY_TIME,
    "scan.file-creation-time-millis": _BY_TIME,
    "scan.ignore-corrupt-files": _BROKEN,
    "scan.ignore-lost-files": _BROKEN,
    "scan.max-snapshot.count": "use maxRowsPerTrigger, the most rows of a micro-batch",
    "scan.plan-auto-tag-for-read.time-retained": "use consumer-id, which keeps the snapshots that a query has not read",
    "scan.remove-normalize": "not supported: queries read complete changes",
    "scan.version": "use scan.snapshot-id or scan.tag-name",
    "scan.watermark": "not supported: snapshots have no watermarks; scan.timestamp selects one by its time",
    "streaming-read-overwrite": "leave it out: streams read what an overwrite replaces and adds",
    "streaming-read-mode": "leave it out: streams read the log, or the table's files if it has none",
    "target-file-size": "use write.target-file-size",
    "write-buffer-size": _MERGED_IN_WRITES,
    "write-buffer-spillable": _MERGED_IN_WRITES,
    "write-mode": "not supported: a PRIMARY KEY makes a key table",
    "write-only": "use compaction.auto=false and snapshot.expire-auto=false",
}
"""Names of Paimon's options, and of those of other kinds of table: of no family below, or like the name of one here."""
_FAMILIES: Final[Mapping[tuple[str, ...], str]] = {
    ("table-read.",): "not supported: rows have no sequence numbers; sequence.field orders the rows of a key",
    (
        "sink.clustering.",
        "sink.committer",
        "sink.coordinator",
        "sink.cross-partition",
        "sink.managed",
        "sink.operator-uid",
        "sink.use-managed",
        "sink.writer",
    ): _OF_SPARK,
    ("variant.",): "there are no columns of type VARIANT: use STRING",
    ("format-table.",): "there are no tables of plain files: let Spark read them",
    ("visibility-callback.",): "leave it out: a snapshot is visible once it is committed",
    ("sink.",): "this is an option of a connector's table; writes to this store are always exactly-once",
    ("lookup.",): _LOOKUPS,
    (
        "file-index.",
        "index-file",
        "global-index.",
        "vector-",
        "vector.",
        "full-text-index.",
        "scalar-index.",
        "pk-",
        "bitmap-index.",
        "btree-index.",
        "multivalue-index.",
        "sorted-index.",
        "lumina.",
    ): _NO_INDEX,
    ("metadata.iceberg.",): "not supported: the base table is a Delta table, which any Delta reader opens",
    ("manifest", "metadata.stats"): "leave it out: there are no manifests, and files have statistics",
    ("deletion-vector",): _SKIPPED,
    ("blob-descriptor", "blob-view"): _DESCRIPTORS,
    ("blob",): _BLOBS,
    ("tag.",): _TAGS,
    ("record-level.",): "delete old rows, or their partitions by partition.expiration-time",
    ("branch", "chain-table.", "scan.fallback", "scan.primary-branch"): "there are no branches: copy the table",
    (
        "partition.mark-done",
        "partition.idle-time",
        "partition.end-input",
        "end-input.",
        "metastore.",
        "commit.callback",
    ): _MARKS,
    ("clustering.", "sort-compaction.", "zorder."): "leave it out: rows are not ordered by columns outside the key",
    (
        "compaction.",
        "full-compaction.",
        "unaware-bucket.",
        "changelog.precommit",
        "lookup-compact",
        "num-levels",
        "precommit-compact",
    ): _COMPACTION,
    ("materialized-table.",): "not supported: a continuous INSERT INTO keeps a table up to date",
    ("data-evolution.", "row-tracking."): "leave it out: columns are added and renamed without rewriting files",
    ("force-lookup", "lookup-wait", "delete.force"): "leave it out: a write looks up what it needs",
    ("commit.",): "leave it out: a write that conflicts with another one is retried",
    ("dynamic-bucket.", "cross-partition-upsert."): _BUCKETS,
    ("postpone.",): "use bucket, a fixed number: the bucket of a key is its partition in the log",
    ("source.", "scan.split-enumerator.", "scan.manifest.", "scan.max-splits-", "scan.plan-sort-"): _OF_SPARK,
    ("scan.watermark.",): "not supported: in each micro-batch, the slowest partition decides what is late",
    ("scan.", "incremental-", "consumer.", "stream-scan-mode", "batch-scan-mode"): WHEN_READ,
    ("data-file.external-paths", "data-file.path-directory"): "not supported: a table's files are in its folder",
    (
        "file.",
        "file-",
        "data-file.",
        "changelog-file.",
        "parquet.",
        "orc.",
        "avro.",
        "csv.",
        "json.",
        "text.",
        "page-size",
        "cache-page-size",
    ): _PARQUET,
    (
        "write-buffer-",
        "write-max-",
        "write.batch-",
        "async-file-write",
        "local-kv-db.",
        "read.batch-",
        "sort-",
        "spill-",
        "local-sort.",
        "local-merge-",
    ): "leave it out: memory and batch sizes are not set per table",
}
"""What to use instead of options whose names begin so."""


def without_effect(name: str) -> str:
    """Return why an option changes no rows, such as one for the files of Paimon; empty if it might."""
    return "" if name in _OWN else instead(name, _OWN).partition(_LEAVE_OUT)[2]


def refuse_unknown_option(name: str, known: Collection[str], table: str = "") -> None:
    """Raise the error that says what to use instead of an option; ``table`` is the path of the table, if it exists.

    Raises:
        InvalidInputError: always.
    """
    start = f"table {table!r}: unknown option '{name}'" if table else f"unknown option '{name}'"
    hint = instead(name, known)
    if not hint:
        near = did_you_mean(name, known) or nearest_client_option(name)
        msg = f"{start}. {near}{' ' if near else ''}docs/reference/options.md lists all."
        raise InvalidInputError(msg)
    msg = f"{start}: {hint}."
    raise InvalidInputError(msg)


def instead(name: str, known: Collection[str]) -> str:
    """Return what to do about an option; empty for one that is none, or one of these misspelled."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    if name.startswith("properties."):
        return f"this is the name in a Kafka connector's table; use {KAFKA}{name.removeprefix('properties.')}"
    is_misspelled = f"'{name.partition('.')[0]}." in did_you_mean(name, known)
    return "" if is_misspelled else next((why for words, why in _FAMILIES.items() if name.startswith(words)), "")
