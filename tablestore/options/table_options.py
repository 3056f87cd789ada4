"""Parses a table's options from text into frozen dataclasses, so that other modules do not need option names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from log_system.formats import FORMATS, Format
from log_system.kafka.client.client_options import check_client_options, nearest_client_option
from log_system.kafka.client.secrets import refuse_inline_secrets
from snapshot.errors import InvalidInputError
from snapshot.suggestions import did_you_mean
from tablestore.options import specification as specs
from tablestore.options.declaration import Group as _Group
from tablestore.options.merge_options import DELIMITER, MergeOptions, is_field_option
from tablestore.options.specification import (
    OPTIONS,
    ChangelogProducer,
    Consistency,
    ForeignRecords,
    Headers,
)

__all__ = [
    "OPTIONS",
    "CompactionOptions",
    "Consistency",
    "ForeignRecords",
    "Headers",
    "KafkaOptions",
    "LogOptions",
    "MergeOptions",
    "PublishOptions",
    "SnapshotOptions",
    "TableOptions",
    "WriteOptions",
    "parse_options",
]

_KAFKA: Final = "kafka."
_REMOVED: Final = frozenset({"log.changelog-mode", "log.key.format"})
_BY_NAME: Final = {spec.name: spec for spec in OPTIONS}

#: Option names of other systems and other kinds of table, with a hint for the error message.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "connector": "a table of this store has no connector; set log.system=kafka for its log",
    "topic": "this is the name in a Kafka connector's table; use kafka.topic",
    "bootstrap.servers": "use kafka.bootstrap.servers",
    "format": "use log.format",
    "value.format": "this is the name in a Kafka connector's table; use log.format",
    "key.format": "this is the name in a Kafka connector's table; the key of a record is always JSON here",
    "log.key.format": "leave it out: the key of a record is always JSON",
    "scan.startup.mode": "this is the name in a Kafka connector's table; use scan_mode of read_stream()",
    "log.scan": "use scan_mode of read_stream()",
    "log.changelog-mode": "leave it out: the log holds every change that the table stores",
    "log.topic": "use kafka.topic",
    "log.kafka.topic": "use kafka.topic",
    "log.kafka.bootstrap.servers": "use kafka.bootstrap.servers",
    "log_system": "use log.system",
    "buckets": "use bucket",
    "partial-update.ignore-delete": "use ignore-delete",
    "first-row.ignore-delete": "use ignore-delete",
    "deduplicate.ignore-delete": "use ignore-delete",
    "partial-update.remove-record-on-sequence-group": "there is no such option here; a delete empties the columns of "
    "its sequence groups, or ignore-delete=true drops it",
    "sequence.field.sort-order": "the greatest sequence is the newest row here",
    "snapshot.time-retained": "use snapshot.retention",
    "snapshot.num-retained.min": "use snapshot.retain-min",
    "snapshot.num-retained.max": "use snapshot.retain-max",
}


@dataclass(frozen=True, kw_only=True)
class KafkaOptions(_Group):
    """The location of the log.

    Attributes:
        topic: the table's topic.
        client: librdkafka options, named without the prefix ``kafka.``; credentials are references.
    """

    topic: str = specs.KAFKA_TOPIC.field
    client: Mapping[str, str] = field(hash=False)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers."""
        return self.client["bootstrap.servers"]

    def to_properties(self) -> dict[str, str]:
        """Return the options to store."""
        return super().to_properties() | {f"{_KAFKA}{name}": value for name, value in self.client.items()}


@dataclass(frozen=True, kw_only=True)
class LogOptions(_Group):
    """Options of the log: consistency, format and retention.

    ``retention_ms`` is None for the broker's default and -1 for unlimited retention.
    """

    kafka: KafkaOptions
    consistency: Consistency = specs.LOG_CONSISTENCY.field
    format: str = specs.LOG_FORMAT.field
    retention_ms: int | None = field(default=None, metadata={"spec": specs.LOG_RETENTION})
    compacted: bool = specs.LOG_COMPACTED.field
    headers: Headers = specs.LOG_HEADERS.field
    foreign_records: ForeignRecords = specs.LOG_FOREIGN_RECORDS.field
    truncate_record: bool = specs.LOG_TRUNCATE_RECORD.field
    transaction_timeout_ms: int = specs.LOG_TRANSACTION_TIMEOUT.field
    request_timeout_ms: int = specs.LOG_REQUEST_TIMEOUT.field
    replication_factor: int = specs.LOG_REPLICATION_FACTOR.field

    @property
    def traits(self) -> Format:
        """The capabilities of the format."""
        return FORMATS[self.format]

    def to_properties(self) -> dict[str, str]:
        """Return the options to store."""
        return {specs.LOG_SYSTEM.name: "kafka"} | super().to_properties()


@dataclass(frozen=True, kw_only=True)
class CompactionOptions(_Group):
    """When changes are compacted into the base table; ``ratio`` is changed rows divided by base rows."""

    auto: bool = specs.COMPACTION_AUTO.field
    commits: int = specs.COMPACTION_COMMITS.field
    ratio: float = specs.COMPACTION_RATIO.field
    min_commits: int = specs.COMPACTION_MIN_COMMITS.field


@dataclass(frozen=True, kw_only=True)
class SnapshotOptions(_Group):
    """Which snapshots are kept; ``retain_max`` is None if there is no such limit."""

    retention_ms: int = specs.SNAPSHOT_RETENTION.field
    retain_min: int = specs.SNAPSHOT_RETAIN_MIN.field
    retain_max: int | None = field(default=None, metadata={"spec": specs.SNAPSHOT_RETAIN_MAX})
    auto: bool = specs.SNAPSHOT_EXPIRE_AUTO.field


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(_Group):
    """When partitions expire; ``expiration_ms`` is None if they never do."""

    expiration_ms: int | None = field(default=None, metadata={"spec": specs.PARTITION_EXPIRATION_TIME})
    pattern: str | None = field(default=None, metadata={"spec": specs.PARTITION_TIMESTAMP_PATTERN})
    formatter: str | None = field(default=None, metadata={"spec": specs.PARTITION_TIMESTAMP_FORMATTER})
    auto: bool = specs.PARTITION_EXPIRE_AUTO.field
    check_interval_ms: int = specs.PARTITION_EXPIRATION_CHECK_INTERVAL.field


@dataclass(frozen=True, kw_only=True)
class WriteOptions(_Group):
    """How data files are written."""

    target_file_size_bytes: int = specs.WRITE_TARGET_FILE_SIZE.field


@dataclass(frozen=True, kw_only=True)
class PublishOptions(_Group):
    """Whether the driver or tasks publish a snapshot, and in how many transactions."""

    driver_rows_max: int = specs.PUBLISH_DRIVER_ROWS_MAX.field
    transaction_rows_max: int = specs.PUBLISH_TRANSACTION_ROWS_MAX.field


@dataclass(frozen=True, kw_only=True)
class TableOptions(_Group):
    """All options of one table; ``log`` is None if the log is in the table's files (``log.system=files``)."""

    buckets: int = specs.BUCKET.field
    changelog_producer: ChangelogProducer = specs.CHANGELOG_PRODUCER.field
    consumer_expiration_ms: int | None = field(default=None, metadata={"spec": specs.CONSUMER_EXPIRATION_TIME})
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


def parse_stored(properties: Mapping[str, str], primary_key: Sequence[str]) -> TableOptions:
    """Parse the options stored with a table, which may include some that older versions stored.

    Raises:
        InvalidInputError: As in ``parse_options``.
    """
    return parse_options(without_removed(properties), primary_key=primary_key)


def without_removed(properties: Mapping[str, str]) -> dict[str, str]:
    """Return stored options without those that this version no longer has."""
    return {name: value for name, value in properties.items() if name not in _REMOVED}


def parse_options(
    options: Mapping[str, str | int | float | bool],
    *,
    log_system: str | None = None,
    primary_key: Sequence[str],
) -> TableOptions:
    """Parse and check a table's options.

    Args:
        options: the options by name, as in ``docs/reference/options.md``.
        log_system: the same as option ``log.system``.
        primary_key: the table's key columns; empty for a table without a key.

    Raises:
        InvalidInputError: a name is unknown, a value is invalid or missing, two options contradict each other, or a
            credential is given inline. The message does not contain credentials.
    """
    given = {name: _text(name, value) for name, value in options.items()}
    for name in given:
        _check_name(name)
    system = _log_system(given.pop(specs.LOG_SYSTEM.name, None), log_system)
    if system != "kafka":
        _refuse_without_log(given)
    table = TableOptions.read(
        given,
        log=_read_log(given, primary_key) if system == "kafka" else None,
        merge=MergeOptions.of(given),
        compaction=CompactionOptions.read(given),
        snapshot=SnapshotOptions.read(given),
        partition=PartitionOptions.read(given),
        write=WriteOptions.read(given),
        publish=PublishOptions.read(given),
    )
    table.merge.check_key(primary_key)
    _check_changelog(table, primary_key)
    kept = table.snapshot
    if kept.retain_max is not None and kept.retain_max < kept.retain_min:
        msg = (
            f"option 'snapshot.retain-max'={kept.retain_max}: expected at least snapshot.retain-min, which is "
            f"{kept.retain_min}. Raise the one, or lower the other."
        )
        raise InvalidInputError(msg)
    return table


def _check_changelog(table: TableOptions, primary_key: Sequence[str]) -> None:
    """Check that the table knows the changes that the log should contain, and that the log can represent them.

    Raises:
        InvalidInputError: the changelog options contradict each other or the log's other options.
    """
    log, looks_up = table.log, table.looks_up
    msg = ""
    if looks_up and not primary_key:
        msg = "changelog-producer='lookup' needs a primary key, by which rows are replaced; this table has none."
    elif log is None:
        return
    elif looks_up and log.consistency is Consistency.EVENTUAL:
        msg = (
            "changelog-producer='lookup' needs log.consistency='transactional': what is sent before the commit cannot "
            "know the rows it will replace. A reader of an 'eventual' log normalizes instead."
        )
    elif looks_up and not log.traits.keeps_replaced_rows:
        formats = " or ".join(f"'{each.name}'" for each in FORMATS.values() if each.keeps_replaced_rows)
        msg = (
            f"changelog-producer='lookup' needs log.format={formats}: '{log.format}' has no place for the row before a "
            "change."
        )
    if not msg and log is not None and log.truncate_record:
        msg = _why_no_truncate_record(log, looks_up=looks_up)
    if msg:
        raise InvalidInputError(msg)


def _why_no_truncate_record(log: LogOptions, *, looks_up: bool) -> str:
    """Return why ``log.truncate-record`` cannot be used with the other options; empty if it can."""
    why = ""
    if log.consistency is Consistency.EVENTUAL:
        why = "an 'eventual' log is sent before the commit, and a record for all rows could not be taken back"
    elif log.compacted:
        why = "with log.compacted the broker drops a key by its own null value, and would keep all that are gone"
    elif looks_up:
        why = "changelog-producer='lookup' says of each row what it was"
    return f"log.truncate-record=true: {why}. Leave one of the two out." if why else ""


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # Do not strip a delimiter, which may be a space.
        return value if name.endswith(DELIMITER) else value.strip()
    if isinstance(value, int | float):
        return str(value)
    msg = f"option '{name}': expected text, a number or a boolean, got {type(value).__name__}. Write it as text."
    raise InvalidInputError(msg)


def _check_name(name: str) -> None:
    if name in _BY_NAME or (name.startswith(_KAFKA) and name not in _ELSEWHERE) or is_field_option(name):
        return
    if name in _ELSEWHERE:
        hint = _ELSEWHERE[name]
    elif name.startswith("properties."):
        inner = name.removeprefix("properties.")
        hint = f"this is the name in a Kafka connector's table; use {_KAFKA}{inner}"
    elif name.startswith("sink."):
        hint = "this is an option of a connector's table; writes of this store are exactly-once by themselves"
    else:
        near = did_you_mean(name, _BY_NAME) or nearest_client_option(name)
        msg = f"unknown option '{name}'. {near}{' ' if near else ''}docs/reference/options.md lists all."
        raise InvalidInputError(msg)
    msg = f"unknown option '{name}': {hint}."
    raise InvalidInputError(msg)


def _log_system(option: str | None, argument: str | None) -> str:
    if option is not None and argument is not None and option != argument:
        msg = f"option 'log.system'='{option}' and the argument log_system='{argument}' have to agree. Leave one out."
        raise InvalidInputError(msg)
    system = option if argument is None else argument
    return specs.LOG_SYSTEM.parse(system or "files")


def _refuse_without_log(given: Mapping[str, str]) -> None:
    for name in given:
        if name.startswith(("log.", _KAFKA, "publish.")):
            msg = (
                f"option '{name}' needs a Kafka log; this table's log is in its files. Set log.system=kafka (or "
                f"log_system='kafka'), or leave the option out."
            )
            raise InvalidInputError(msg)


def _read_log(given: Mapping[str, str], primary_key: Sequence[str]) -> LogOptions:
    for spec in (specs.KAFKA_SERVERS, specs.KAFKA_TOPIC):
        if not given.get(spec.name):
            msg = f"option '{spec.name}' is required with log.system=kafka: set {spec.type.expected}; got nothing."
            raise InvalidInputError(msg)
    client = {
        name.removeprefix(_KAFKA): text
        for name, text in given.items()
        if name.startswith(_KAFKA) and name != specs.KAFKA_TOPIC.name
    }
    check_client_options(client)
    refuse_inline_secrets(client)
    log = LogOptions.read(given, kafka=KafkaOptions.read(given, client=client))
    if log.consistency is Consistency.EVENTUAL and not primary_key:
        msg = (
            "log.consistency='eventual' needs a primary key; this table has none. Declare one, or use 'transactional'."
        )
        raise InvalidInputError(msg)
    if log.compacted and not primary_key:
        msg = (
            "log.compacted=true needs a primary key, by which the broker compacts; this table has none. Declare one, "
            "or leave log.compacted out."
        )
        raise InvalidInputError(msg)
    if log.compacted and log.traits.why_not_compacted:
        formats = " or ".join(f"'{each.name}'" for each in FORMATS.values() if not each.why_not_compacted)
        msg = (
            f"log.compacted=true needs log.format={formats}, one record a key; {log.traits.why_not_compacted}. Use "
            f"{formats}, or leave log.compacted out."
        )
        raise InvalidInputError(msg)
    return log
