"""The declarations of all table options: name, type, default and description.

``table_options.py`` parses options by these declarations. ``docs/reference/options.md`` is generated from them by
``python -m tablestore.options.specification > docs/reference/options.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from log_system.formats import FORMATS, Format
from log_system.kafka.client.access_policy import DEFAULT, VARIABLE
from log_system.kafka.client.client_options import ACCESS, TAKES_REFERENCE, Access
from log_system.kafka.option_checks import Consistency, Headers
from snapshot.schema.spec import BLOB_FIELD, BUCKET_KEY
from tablestore.options.declaration import Group, OptionSpec, option, optional
from tablestore.options.merge_options import FIELD_OPTIONS, MergeOptions
from tablestore.options.value_types import (
    BOOLEAN,
    COLUMNS,
    RATIO,
    REPLICATION,
    RETENTION,
    SERVERS,
    SIZE,
    TEXT,
    TOPIC,
    choice,
    duration,
    integer,
)

KAFKA: Final = "kafka."
"""Prefix of the options of the Kafka client."""


CHANGELOG_PRODUCER: Final = "changelog-producer"


class ChangelogProducer(StrEnum):
    """Whether writes look up the rows that they replace."""

    NONE = "none"
    LOOKUP = "lookup"


LOOKED_UP_TOO: Final = ("full-compaction", "input")
"""Further ways of Paimon to the changes of ``lookup``, which this program always makes with each write."""


class ForeignRecords(StrEnum):
    """How readers treat records from other producers in the topic."""

    FAIL = "fail"
    SKIP = "skip"


LOG_SYSTEM: Final = OptionSpec(
    "log.system",
    choice(("files", "kafka")),
    "files",
    "Where streams read the table's changes. `files`: in the table's own files, as soon as they are committed; no "
    "broker is needed. `kafka`: in a Kafka topic, which other programs can read too. The argument `log_system=` sets "
    "the same.",
    fixed=True,
)
KAFKA_SERVERS: Final = OptionSpec(
    "kafka.bootstrap.servers", SERVERS, None, "Addresses of the Kafka brokers. Required with `log.system=kafka`."
)


@dataclass(frozen=True, kw_only=True)
class KafkaOptions(Group):
    """The location of the log.

    Attributes:
        client: librdkafka options, named without the prefix ``kafka.``; credentials are references.
    """

    topic: str = option(
        "kafka.topic",
        TOPIC,
        None,
        "The table's own topic, created with the table; by default it has the name of the table's folder.",
        fixed=True,
    )
    client: Mapping[str, str] = field(hash=False)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers."""
        return self.client["bootstrap.servers"]

    def to_properties(self) -> dict[str, str]:
        """Return the options to store."""
        return super().to_properties() | {f"{KAFKA}{name}": value for name, value in self.client.items()}


@dataclass(frozen=True, kw_only=True)
class LogOptions(Group):
    """Options of the log: consistency, format and retention.

    ``retention_ms`` is None for the broker's default and -1 for unlimited retention.
    """

    kafka: KafkaOptions
    consistency: Consistency = option(
        "log.consistency",
        choice(Consistency),
        "transactional",
        "`transactional`: a change is visible in the log exactly once, after its snapshot is committed. `eventual`: "
        "it is visible immediately, with duplicates after failures, and readers normalize, which keeps the values of "
        "each key in state and is costly. Without a primary key, readers are given each committed row at least once, "
        "and rows of writes that failed.",
        fixed=True,
    )
    format: str = option(
        "log.format",
        choice(FORMATS),
        "json",
        "`json`: one record per change, with a null value for a delete. `arrow`: one record per batch of changes, "
        "only for this program's readers, many times faster. `debezium-json`: before, after and op, as Flink writes "
        "it; an update is a record that removes the old row and one that adds the new row.",
        fixed=True,
    )
    retention_ms: int | None = optional(
        "log.retention",
        RETENTION,
        "How long the topic keeps records; -1 for unlimited. Default: the broker's default, or that of an existing "
        "topic.",
    )
    compacted: bool = option(
        "log.compacted",
        BOOLEAN,
        "false",
        "Create a compacted topic: the broker may drop all but the last change of a key, and of deleted keys that "
        "too, after the topic's `delete.retention.ms`. Needs a primary key and `json`. Streams of the table read its "
        "files, which hold every change, unless the log is `eventual`.",
        fixed=True,
    )
    headers: Headers = option(
        "log.headers",
        choice(Headers),
        "last",
        "Which records have the snapshot id in a header: `last`, only the last one of each partition and transaction, "
        "or `all` (half as fast).",
    )
    foreign_records: ForeignRecords = option(
        "log.foreign-records",
        choice(ForeignRecords),
        "fail",
        "What the table's own streams do if another producer has written records into the topic. `fail`: they stop "
        "with an error that names the first such record. `skip`: they read committed snapshots from the table's files "
        "instead of the log. In an `eventual` log they skip records that cannot be decoded; records that look like "
        "the table's are reverted by the next write or `recover()`. Plain consumers see such records in any case.",
    )
    truncate_record: bool = option(
        "log.truncate-record",
        BOOLEAN,
        "false",
        "`truncate()` and `overwrite()` of all rows publish one truncate record to each partition instead of a delete "
        "for each row. The table's own readers still return the deletes. Not with an `eventual` log, `log.compacted` "
        "or `changelog-producer=lookup`.",
    )
    transaction_timeout_ms: int = option(
        "log.transaction-timeout",
        duration(1_000),
        "60 s",
        "Time after which the broker aborts an open transaction; at most the broker's `transaction.max.timeout.ms`. A "
        "killed writer can block readers of the topic for this time (plus up to 10 s until the broker checks); "
        "`recover()` or the next writer aborts it immediately. Publishing a snapshot must not take longer.",
    )
    request_timeout_ms: int = option(
        "log.request-timeout",
        duration(100),
        "20 s",
        "Time without a response to a request, or without progress of a flush, after which `create`, a write or "
        "`recover()` gives up. Until then they retry, so a broker that restarts within this time causes no error.",
    )
    replication_factor: int = option(
        "log.replication-factor",
        REPLICATION,
        "-1",
        "Replication factor of a topic created with the table; -1 is the broker's default.",
    )

    @property
    def traits(self) -> Format:
        """The capabilities of the format."""
        return FORMATS[self.format]

    def to_properties(self) -> dict[str, str]:
        """Return the options to store."""
        return {LOG_SYSTEM.name: "kafka"} | super().to_properties()


@dataclass(frozen=True, kw_only=True)
class CompactionOptions(Group):
    """When changes are compacted into the base table; ``ratio`` is changed rows divided by base rows."""

    auto: bool = option("compaction.auto", BOOLEAN, "true", "Compact automatically, by the rules below.")
    commits: int = option(
        "compaction.commits", integer(1), "100", "Number of commits after which to compact; 1 is every commit."
    )
    ratio: float = option(
        "compaction.ratio",
        RATIO,
        "0.25",
        "Compact when the ratio of changed rows to rows of the base table exceeds this.",
    )
    min_commits: int = option(
        "compaction.min-commits",
        integer(1),
        "10",
        "Minimum number of commits before the ratio is checked, and before change files are "
        "combined (half of it if they are large).",
    )


@dataclass(frozen=True, kw_only=True)
class SnapshotOptions(Group):
    """Which snapshots are kept."""

    retention_ms: int = option(
        "snapshot.retention",
        duration(0),
        "7 d",
        "How long a snapshot can be read after the next one was committed; then it expires automatically.",
    )
    retain_min: int = option("snapshot.retain-min", integer(1), "10", "Number of newest snapshots that never expire.")
    retain_max: int | None = optional(
        "snapshot.retain-max",
        integer(1),
        "Maximum number of snapshots to keep. Older ones expire even before `snapshot.retention`, except those that "
        "were the newest within the last ten minutes.",
    )
    auto: bool = option(
        "snapshot.expire-auto", BOOLEAN, "true", "Expire snapshots automatically after a write, by the rules above."
    )


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(Group):
    """When partitions expire."""

    expiration_ms: int | None = optional(
        "partition.expiration-time",
        duration(1),
        "Partitions older than this are deleted, by `maintenance.expire_partitions()` and automatically. Default: "
        "never.",
    )
    overwrite_dynamic: bool = option(
        "dynamic-partition-overwrite",
        BOOLEAN,
        "true",
        "`INSERT OVERWRITE` replaces the partitions that occur in the rows, unless `PARTITION (...)` gives a value for "
        "every partition column. With `false` it replaces all partitions that `PARTITION (...)` selects, or the table.",
    )
    auto: bool = option("partition.expire-auto", BOOLEAN, "true", "Delete such partitions automatically after a write.")
    check_interval_ms: int = option(
        "partition.expiration-check-interval",
        duration(0),
        "1 h",
        "Minimum time between two checks of a table handle; the first check is after its first write.",
    )
    pattern: str | None = optional(
        "partition.timestamp-pattern",
        TEXT,
        "How to form a partition's time from its values: text in which `$name` is replaced by the value of a column, "
        "such as `$day $hour:00:00`. Default: the first partition column's value. Times are in UTC.",
    )
    formatter: str | None = optional(
        "partition.timestamp-formatter",
        TEXT,
        "Format of that text, with `yyyy`, `MM`, `dd`, `HH`, `mm`, `ss`, such as `yyyyMMdd`. Default: ISO-8601.",
    )


@dataclass(frozen=True, kw_only=True)
class WriteOptions(Group):
    """How data files are written."""

    target_file_size_bytes: int = option(
        "write.target-file-size",
        SIZE,
        "128 mb",
        "Approximate size at which a data file is finished and the next one is started.",
    )


@dataclass(frozen=True, kw_only=True)
class PublishOptions(Group):
    """Whether the driver or tasks publish a snapshot, and in how many transactions."""

    driver_rows_max: int = option(
        "publish.driver-rows-max",
        integer(0),
        "100000",
        "Snapshots with up to this many changes are published by the driver in one transaction, larger ones by tasks.",
    )
    transaction_rows_max: int = option(
        "publish.transaction-rows-max", integer(1), "500000", "Maximum number of changes in one Kafka transaction."
    )


@dataclass(frozen=True, kw_only=True)
class TableOptions(Group):
    """All options of one table; ``log`` is None if the log is in the table's files (``log.system=files``)."""

    buckets: int = option(
        "bucket",
        integer(1),
        "1",
        "Number of buckets. A row's bucket is a hash of its primary key, or of `bucket-key`, and is also its partition "
        "in the topic. Without `bucket-key`, `-1` stands for the default, as of tables of Paimon with dynamic buckets.",
        fixed=True,
    )
    bucket_key: tuple[str, ...] | None = optional(
        BUCKET_KEY,
        COLUMNS,
        "The columns whose hash is the bucket of a row, so that a partition of the topic holds all rows with equal "
        "values in them: some of the primary key, by default all of it; or any in a table without one, in which rows "
        "have no bucket by default, and each file of a write goes to one partition.",
    )
    changelog_producer: ChangelogProducer = option(
        CHANGELOG_PRODUCER,
        choice(ChangelogProducer),
        "none",
        "`lookup`: each write looks up the rows it replaces, so change files and log contain inserts, updates with the "
        "previous row, and deletes with the deleted row; a write that changes nothing commits no snapshot. Concurrent "
        "writers wait for each other. `none`: upserts and deletes as they were written. Paimon's `full-compaction` and "
        "`input` are taken for `lookup`, `input` only with a merge engine that keeps a row as it was written.",
    )
    blob_fields: tuple[str, ...] | None = optional(
        BLOB_FIELD,
        COLUMNS,
        "Columns of large binary values, as definitions of Paimon name them: `BINARY`, or an array or a map of it. It "
        "changes nothing: the bytes are stored in the row, as those of any column.",
    )
    consumer_expiration_ms: int | None = optional(
        "consumer.expiration-time",
        duration(1),
        "Time without activity after which a named consumer is deleted and no longer prevents snapshots from expiring. "
        "Default: never.",
    )
    log: LogOptions | None = None
    merge: MergeOptions = field(default_factory=MergeOptions)
    compaction: CompactionOptions = CompactionOptions()
    snapshot: SnapshotOptions = SnapshotOptions()
    partition: PartitionOptions = PartitionOptions()
    write: WriteOptions = WriteOptions()
    publish: PublishOptions = PublishOptions()

    @property
    def looks_up(self) -> bool:
        """Whether each write looks up the rows it replaces."""
        return self.changelog_producer is ChangelogProducer.LOOKUP


_BUCKET, _BUCKET_KEY, _CHANGELOG_PRODUCER, _BLOB_FIELD, _CONSUMER_EXPIRATION = TableOptions.specs()
OPTIONS: Final[tuple[OptionSpec[Any], ...]] = (
    _BUCKET,
    _BUCKET_KEY,
    LOG_SYSTEM,
    *LogOptions.specs(),
    KAFKA_SERVERS,
    *KafkaOptions.specs(),
    _CHANGELOG_PRODUCER,
    *MergeOptions.specs(),
    _BLOB_FIELD,
    *CompactionOptions.specs(),
    *SnapshotOptions.specs(),
    _CONSUMER_EXPIRATION,
    *PartitionOptions.specs(),
    *WriteOptions.specs(),
    *PublishOptions.specs(),
)
"""All options with fixed names, in the order of the page."""

_PAGE: Final = """\
# Options

<!-- Made by `python -m tablestore.options.specification > docs/reference/options.md`; edit that module instead. -->

Given as `options={{...}}` to `TableStore.create`, or in `OPTIONS (...)` of a `CREATE TABLE`. Values are text; numbers
and booleans of Python work too. An unknown name or a wrong value is an error that says what was expected.

{table}

## Options of the Kafka client

Every other `kafka.*` option is passed to the client without the prefix; the names are those of
[librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md), such as
`kafka.security.protocol` or `kafka.client.id`. Those on which the store's guarantees depend (`transactional.id`,
`group.id`, `isolation.level`, `auto.offset.reset`, `acks`, ...) are set by the store and refused, and so are names that
only Kafka's Java client knows; the error names the one to use.

Anyone who can write to a table's folder can change its stored options, so not all of them are trusted. The same applies
to `properties.*` in definitions of the SQL catalog, including temporary ones:

| what the option does | examples | stored |
|---|---|---|
| configures the connection to the brokers | `client.id`, `security.protocol`, `ssl.ca.pem` | yes |
| is a credential | {credentials} | as a reference that the opening program allows |
| names a file | {files} | if the opening program allows `file:` and that path |
| runs code, writes files, or sends data of the opening program | {program} | never |
| is unknown to this version | | never |

The program that opens the table may set all of them, with values that are not checked: `options=` of
`TableStore.open` and `open_local`, `client_options=` of `TableStore.create`, `options=` of `Catalog` (for all tables:
`properties.*` and `kafka.*`) and of `Catalog.table`, `.option(...)` of Spark's readers and writers, and `-o` of the
command line. They override stored ones, and an empty value removes a stored one. A table that was stored with such
an option before it was refused can be opened if the program sets the option, or an empty value for it;
`table.alter.reset_options("kafka.NAME")` removes it.

## Credentials

A credential is never stored. Instead of a password, a private key or a token, set a reference:

- `env:NAME`: the environment variable `NAME` of the driver and the executors;
- `file:PATH`: the content of a file that the driver and the executors can read.

Or omit it and pass it each time the table is opened:
`TableStore.open(spark, path, options={{"kafka.sasl.password": "..."}})`.

A stored reference is resolved in credentials, user names and certificates only (also {references}), and only if the
**opening** program allows it. By default it allows `{allowed}`. To replace this list, set the
environment variable `{variable}` of the process that opens the table, or, for one handle, by `allow_references=[...]`
of `TableStore.open`, `TableStore.create`, `open_local` and `Catalog`. For `format("tablestore")` use the option
`allowReferences`, a comma-separated text.

```sh
export {variable}="env:ORDERS_*,file:/etc/kafka/*,env:AUDIT_PASSWORD@broker1:9092;broker2:9092"
```

- `*` matches any characters except `/`. A path with `..` is never allowed.
- `@host:port;host:port` binds an entry to brokers: it counts only where every address of `bootstrap.servers` is one of
  them. `class:package.module.Class` allows a definition's `sink.partitioner`.
- An empty list allows nothing. References that the program passes itself are always resolved.

**What remains.** The stored options also name the brokers and the mechanism. A password that is allowed without `@`, or
given by the program, goes to the brokers that the table names: PLAIN shows it to them, and whether it is PLAIN or
SCRAM, which does not, the table says too. The stored options can also switch encryption or its checks off
(`security.protocol`, `enable.ssl.certificate.verification`), which helps anyone who sits between you and the
broker. For tables of people whom
you do not trust with the credential, bind it by `@`, or give `kafka.bootstrap.servers`, `kafka.security.protocol` and
`kafka.sasl.mechanism` at opening as well. The values of variables and files live in the memory of the driver and the
executors. A credential on a command line is seen by others on that machine.

Credentials that were given are masked in what is printed: `repr` and `vars` of handles, messages, log lines, tracebacks
that show variables, Spark's plans, its event log and UI. They are in no table, checkpoint or definition. Pickled tasks
hold them on their way to the executors: encrypt that way (`spark.network.crypto.enabled` or TLS) where others listen.
"""


def render_options() -> str:
    """Return the text of ``docs/reference/options.md``."""
    rows = ["| option | type | default | what it does |", "|---|---|---|---|"]
    for spec in OPTIONS:
        default = "" if spec.default is None else f"`{spec.default}`"
        rows.append(f"| `{spec.name}` | {spec.type.name} | {default} | {spec.doc} |")
    rows += [f"| `{spec.name}` | {spec.type.name} | | {spec.doc} |" for spec in FIELD_OPTIONS.values()]
    named = {
        kind: ", ".join(f"`{name}`" for name, access in sorted(ACCESS.items()) if access is kind) for kind in Access
    }
    return _PAGE.format(
        table="\n".join(rows),
        credentials=named[Access.CREDENTIAL],
        files=named[Access.FILE],
        program=named[Access.PROGRAM],
        references=", ".join(f"`{n}`" for n in sorted(TAKES_REFERENCE) if ACCESS[n] is not Access.CREDENTIAL),
        allowed="`, `".join(DEFAULT),
        variable=VARIABLE,
    )


if __name__ == "__main__":
    sys.stdout.write(render_options())
