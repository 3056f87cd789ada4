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
from tablestore.options.declaration import Group, OptionSpec, option, optional
from tablestore.options.merge_options import FIELD_OPTIONS, MergeOptions
from tablestore.options.value_types import (
    BOOLEAN,
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


class Consistency(StrEnum):
    """When a change becomes visible in the log."""

    TRANSACTIONAL = "transactional"
    EVENTUAL = "eventual"


class ChangelogProducer(StrEnum):
    """Whether writes look up the rows that they replace."""

    NONE = "none"
    LOOKUP = "lookup"


class ForeignRecords(StrEnum):
    """What readers do about records from other producers in the topic."""

    FAIL = "fail"
    SKIP = "skip"


class Headers(StrEnum):
    """Which records carry the snapshot id in a header."""

    LAST = "last"
    ALL = "all"


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
        "The topic of this table, made with it. Required with `log.system=kafka`.",
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
        "`transactional`: a change is seen in the log only after its snapshot is committed, once. `eventual`: it is "
        "seen at once, with repeats after failures, and readers normalize, which keeps the values of each key in "
        "state and is costly. Needs a primary key.",
        fixed=True,
    )
    format: str = option(
        "log.format",
        choice(FORMATS),
        "json",
        "`json`: one record a change, a null value for a delete. `arrow`: one record a batch of changes, for this "
        "program's own readers, many times faster. `debezium-json`: before, after and op, as Flink writes it; an "
        "update is a record that takes the old row away and one that brings the new one.",
        fixed=True,
    )
    retention_ms: int | None = optional(
        "log.retention",
        RETENTION,
        "How long the topic keeps records; -1 for ever. Left out: the broker's default, or what an existing topic has.",
    )
    compacted: bool = option(
        "log.compacted",
        BOOLEAN,
        "false",
        "Make a compacted topic: the broker may drop all but the last change of a key. Needs a primary key and "
        "`json`. Set `log.headers` to `all` with it, or readers cannot tell another producer's records from the "
        "table's.",
        fixed=True,
    )
    headers: Headers = option(
        "log.headers",
        choice(Headers),
        "last",
        "Which records carry the snapshot id in a header: `last`, that of each partition and transaction, or `all` "
        "(half as fast).",
    )
    foreign_records: ForeignRecords = option(
        "log.foreign-records",
        choice(ForeignRecords),
        "fail",
        "What the table's own streams do about records that another producer has written into the topic. `fail`: they "
        "stop with an error that names the first one. `skip`: they read committed snapshots from the table's files "
        "instead of the log. Of an `eventual` log they leave out the records that cannot be decoded; those that look "
        "like the table's are undone by the next write or `recover()`. Plain consumers get such records in any case.",
    )
    truncate_record: bool = option(
        "log.truncate-record",
        BOOLEAN,
        "false",
        "`truncate()` and `overwrite()` of all rows publish one record in each partition, which says that all of its "
        "rows are gone, in place of a delete for each row. The table's own readers give the deletes all the same. Not "
        "with an `eventual` log, `log.compacted` or `changelog-producer=lookup`.",
    )
    transaction_timeout_ms: int = option(
        "log.transaction-timeout",
        duration(1_000),
        "60 s",
        "After how long the broker ends an open transaction by itself; at most the broker's "
        "`transaction.max.timeout.ms`. So long at most (and up to 10 s more, in which the broker looks) a killed "
        "writer holds readers of the topic back; `recover()` or the next writer ends it at once. Publishing a "
        "snapshot must not take longer.",
    )
    request_timeout_ms: int = option(
        "log.request-timeout",
        duration(100),
        "20 s",
        "How long a broker may leave a request unanswered, or a flush without progress, before `create`, a write or "
        "`recover()` gives up. Within it they try again, so a broker that restarts in this time goes unnoticed.",
    )
    replication_factor: int = option(
        "log.replication-factor",
        REPLICATION,
        "-1",
        "Copies of each partition of a topic made with the table; -1 is the broker's default.",
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

    auto: bool = option("compaction.auto", BOOLEAN, "true", "Compact by itself, by the rules below.")
    commits: int = option("compaction.commits", integer(1), "100", "Compact after so many commits; 1 is every commit.")
    ratio: float = option(
        "compaction.ratio", RATIO, "0.25", "Compact when the changed rows are more than this part of the base rows."
    )
    min_commits: int = option(
        "compaction.min-commits", integer(1), "10", "The ratio is not looked at before so many commits."
    )


@dataclass(frozen=True, kw_only=True)
class SnapshotOptions(Group):
    """Which snapshots are kept."""

    retention_ms: int = option(
        "snapshot.retention",
        duration(0),
        "7 d",
        "How long a snapshot can be read after the next one was committed; then it expires, by itself.",
    )
    retain_min: int = option(
        "snapshot.retain-min", integer(1), "10", "So many of the newest snapshots are never expired."
    )
    retain_max: int | None = optional(
        "snapshot.retain-max",
        integer(1),
        "More snapshots than this expire even if they are younger than `snapshot.retention`, but none that was the "
        "newest within the last ten minutes.",
    )
    auto: bool = option(
        "snapshot.expire-auto", BOOLEAN, "true", "Expire snapshots by itself after a write, by the rules above."
    )


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(Group):
    """When partitions expire."""

    expiration_ms: int | None = optional(
        "partition.expiration-time",
        duration(1),
        "Partitions older than this are deleted, by `maintenance.expire_partitions()` and automatically. Default: "
        "none.",
    )
    auto: bool = option("partition.expire-auto", BOOLEAN, "true", "Delete such partitions by itself after a write.")
    check_interval_ms: int = option(
        "partition.expiration-check-interval",
        duration(0),
        "1 h",
        "How often a handle looks for them: after its first write, and then after so long.",
    )
    pattern: str | None = optional(
        "partition.timestamp-pattern",
        TEXT,
        "How a partition's values say its time: text in which `$name` stands for the value of a column, such as `$day "
        "$hour:00:00`. Left out: the first partition column's value. Times are in UTC.",
    )
    formatter: str | None = optional(
        "partition.timestamp-formatter",
        TEXT,
        "How that text writes a time, in `yyyy`, `MM`, `dd`, `HH`, `mm`, `ss`, such as `yyyyMMdd`. Left out: ISO-8601.",
    )


@dataclass(frozen=True, kw_only=True)
class WriteOptions(Group):
    """How data files are written."""

    target_file_size_bytes: int = option(
        "write.target-file-size", SIZE, "128 mb", "About how large a data file grows before the next is begun."
    )


@dataclass(frozen=True, kw_only=True)
class PublishOptions(Group):
    """Whether the driver or tasks publish a snapshot, and in how many transactions."""

    driver_rows_max: int = option(
        "publish.driver-rows-max",
        integer(0),
        "100000",
        "Snapshots of up to so many changes are published by the driver in one transaction, larger ones by tasks.",
    )
    transaction_rows_max: int = option(
        "publish.transaction-rows-max", integer(1), "500000", "How many changes one transaction holds at most."
    )


@dataclass(frozen=True, kw_only=True)
class TableOptions(Group):
    """All options of one table; ``log`` is None if the log is in the table's files (``log.system=files``)."""

    buckets: int = option(
        "bucket",
        integer(1),
        "1",
        "How many buckets the table has. A row's bucket is a hash of its primary key, and a partition of the topic.",
        fixed=True,
    )
    changelog_producer: ChangelogProducer = option(
        "changelog-producer",
        choice(ChangelogProducer),
        "none",
        "`lookup`: each write looks up the rows it replaces, so change files and log hold inserts, updates with the "
        "row before, and deletes with the row; a write that changes nothing makes no snapshot. Writers at the same "
        "time wait for each other. `none`: upserts and deletes as they were written.",
    )
    consumer_expiration_ms: int | None = optional(
        "consumer.expiration-time",
        duration(1),
        "A named consumer that has not been heard of for so long is forgotten, and keeps nothing from expiring any "
        "more. Left out: never.",
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


_BUCKET, _CHANGELOG_PRODUCER, _CONSUMER_EXPIRATION = TableOptions.specs()
OPTIONS: Final[tuple[OptionSpec[Any], ...]] = (
    _BUCKET,
    LOG_SYSTEM,
    *LogOptions.specs(),
    KAFKA_SERVERS,
    *KafkaOptions.specs(),
    _CHANGELOG_PRODUCER,
    *MergeOptions.specs(),
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

Every other `kafka.*` option is passed on to the client with the prefix cut; the names are those of
[librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md), such as
`kafka.security.protocol` or `kafka.client.id`. Those on which the store's guarantees hang (`transactional.id`,
`group.id`, `isolation.level`, `auto.offset.reset`, `acks`, ...) are set by the store and refused, and so are names that
only Kafka's Java client knows; the error names the one to use.

Whoever can write to a table's folder chooses its stored options, so not everything is taken from there. The same holds
for `properties.*` in definitions of the SQL catalog, temporary ones too:

| what the option does | examples | stored |
|---|---|---|
| says how the client talks to brokers | `client.id`, `security.protocol`, `ssl.ca.pem` | yes |
| is a credential | {credentials} | as a reference that the opening program allows |
| names a file | {files} | if the opening program allows `file:` and that path |
| runs code, writes files, or sends what is the opener's | {program} | never |
| is unknown to this version | | never |

The program that opens the table may give all of them, with values that are not checked: `options=` of
`TableStore.open` and `open_local`, `client_options=` of `TableStore.create`, `options=` of `Catalog` (for all tables:
`properties.*` and `kafka.*`) and of `Catalog.table`, `.option(...)` of Spark's readers and writers, and `-o` of the
command line. They win over stored ones, and an empty value leaves a stored one out. A table that was stored with such
an option before it was refused opens again when the program gives the option, or an empty value for it;
`table.alter.reset_options("kafka.NAME")` removes it.

## Credentials

A credential is never stored. In place of a password, a private key or a token give a reference:

- `env:NAME`: the environment variable `NAME` of the driver and the executors;
- `file:PATH`: the content of a file that the driver and the executors can read.

Or leave it out and give it each time the table is opened:
`TableStore.open(spark, path, options={{"kafka.sasl.password": "..."}})`.

A stored reference is resolved in credentials, user names and certificates only (also {references}), and only if the
**opening** program allows it. By default it allows `{allowed}`. Another list takes the place of this one: by the
environment variable `{variable}` of the process that opens the table, or, for one handle, by `allow_references=[...]`
of `TableStore.open`, `TableStore.create`, `open_local` and `Catalog`. For `format("tablestore")` it is the option
`allowReferences`, one text with commas.

```sh
export {variable}="env:ORDERS_*,file:/etc/kafka/*,env:AUDIT_PASSWORD@broker1:9092;broker2:9092"
```

- `*` is any characters but `/`. A path with `..` is never allowed.
- `@host:port;host:port` binds an entry to brokers: it counts only where every address of `bootstrap.servers` is one of
  them. `class:package.module.Class` allows a definition's `sink.partitioner`.
- An empty list allows nothing. References that the program gives itself are always resolved.

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
