"""Parses the options of a ``kafka`` or ``upsert-kafka`` table; option names and meanings are Flink's.

The options cover topics, formats of key and value, start and end of a read, and the sink's behavior.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.secrets import ClientValue, wrap
from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.registry import CHANGELOG_FORMATS, ROW_FORMATS, WITH_REGISTRY
from tablestore.connectors.java_regex import compile_pattern
from tablestore.connectors.kafka.client_properties import PREFIX, Properties, parse_properties
from tablestore.connectors.kafka.message_codec import FormatChoice
from tablestore.connectors.kafka.positions import Bound, BoundedMode, Start, StartupMode
from tablestore.connectors.option_names import (
    GUARANTEE,
    IDLE,
    METADATA,
    PRECISION,
    PRIMARY_KEY,
    PROPERTIES,
    ROWS_MAX,
    SEMANTIC,
    STATE,
    Connector,
    Side,
    options_after,
    refuse_unknown,
)
from tablestore.options.declaration import Group, OptionSpec, option, optional
from tablestore.options.value_types import DIGITS, VERBATIM, choice, duration_or_ms, integer

_NOT_FOR: Final = {Side.SOURCE: "sink.parallelism", Side.SINK: "scan.parallelism"}
_OFFSETS: Final = re.compile(r"partition:([0-9]{1,9}),offset:([0-9]{1,18})")


@dataclass(frozen=True, kw_only=True)
class _Modes(Group):
    """Where a read starts and ends."""

    startup: StartupMode = option("scan.startup.mode", choice(StartupMode), StartupMode.GROUP)
    bounded: BoundedMode = option("scan.bounded.mode", choice(BoundedMode), BoundedMode.UNBOUNDED)


def parse_start(connector: Connector, given: Mapping[str, str], topics: tuple[str, ...], pattern: str | None) -> Start:
    """Parse where a read starts (``scan.startup.*``).

    Raises:
        InvalidInputError: a mode is unknown, or an option that it requires is missing.
    """
    if connector is Connector.UPSERT:
        # Only a reader that starts at the beginning sees the row of every key.
        return Start(StartupMode.EARLIEST)
    mode = _Modes.read(given).startup
    return Start(mode, *_mode_options(given, "startup", mode, topics, pattern))


def parse_bound(given: Mapping[str, str], topics: tuple[str, ...], pattern: str | None) -> Bound:
    """Parse where a read ends (``scan.bounded.*``).

    Raises:
        InvalidInputError: a mode is unknown, or an option that it requires is missing.
    """
    mode = _Modes.read(given).bounded
    return Bound(mode, *_mode_options(given, "bounded", mode, topics, pattern))


def _mode_options(
    given: Mapping[str, str], which: str, chosen: str, topics: tuple[str, ...], pattern: str | None
) -> tuple[int | None, Mapping[int, int]]:
    """Return the timestamp and the offsets that the modes ``timestamp`` and ``specific-offsets`` require.

    Each of the two options is allowed only in its own mode.
    """
    time_name, offsets_name = f"scan.{which}.timestamp-millis", f"scan.{which}.specific-offsets"
    for name, mode in ((time_name, "timestamp"), (offsets_name, "specific-offsets")):
        if mode == chosen and name not in given:
            msg = f"'{name}' is required in '{mode}' {which} mode but missing."
            raise InvalidInputError(msg)
        if mode != chosen and name in given:
            msg = f"Option '{name}' needs 'scan.{which}.mode' = '{mode}'. Set that mode, or remove the option."
            raise InvalidInputError(msg)
    if offsets_name not in given:
        return (OptionSpec(time_name, integer(0)).parse(given[time_name]) if time_name in given else None), {}
    if pattern is not None or len(topics) > 1:
        msg = f"Currently Kafka source only supports specific offset for single topic ('{offsets_name}')."
        raise InvalidInputError(msg)
    return None, _specific_offsets(offsets_name, given[offsets_name])


def _specific_offsets(name: str, text: str) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for pair in text.split(";"):
        match = _OFFSETS.fullmatch(pair)
        if match is None or int(match[1]) in found:
            msg = (
                f"Invalid properties '{name}' should follow the format "
                f"'partition:0,offset:42;partition:1,offset:300', each partition once, but is {text!r}."
            )
            raise InvalidInputError(msg)
        found[int(match[1])] = int(match[2])
    return found


def parse_formats(
    connector: Connector, options: Mapping[str, ClientValue]
) -> tuple[FormatChoice | None, FormatChoice, tuple[str, ...]]:
    """Return the formats of key and value, and the prefixes of the options that belong to these formats.

    ``format`` sets the value format. It also sets the key format if ``key.fields`` is set and ``key.format`` is not.

    Raises:
        InvalidInputError: a format is missing, or two options contradict each other.
    """
    given = {name: str(value) for name, value in options.items()}
    both = given.get("format") if connector is Connector.KAFKA else None
    value, key = given.get("value.format", both), given.get("key.format")
    if both is not None and value != both:
        msg = f"options 'format'={both!r} and 'value.format'={value!r} contradict each other. Give one of them."
        raise InvalidInputError(msg)
    if value is None:
        also = " or 'format'" if connector is Connector.KAFKA else ""
        known = (*ROW_FORMATS, *CHANGELOG_FORMATS) if connector is Connector.KAFKA else ROW_FORMATS
        msg = f"Could not find required format option 'value.format'{also}: one of {', '.join(known)}."
        raise InvalidInputError(msg)
    shared = options_after(options, f"{both}.") if both is not None else {}
    prefixes = [f"value.{value}."]
    prefixes += [f"{both}."] if both is not None else []
    key = key or (both if "key.fields" in given else None)
    if connector is Connector.UPSERT and key is None:
        msg = "Could not find required format option 'key.format': an upsert table needs it and 'value.format'."
        raise InvalidInputError(msg)
    side = "value" if both is None else ""
    value_choice = FormatChoice(value, {**shared, **options_after(options, f"value.{value}.")}, side)
    _check_changelog(connector, key, value, given)
    if key is None:
        return None, value_choice, tuple(prefixes)
    inherited = shared if key == both else {}
    key_choice = FormatChoice(key, {**inherited, **options_after(options, f"key.{key}.")}, "key" if key != both else "")
    return key_choice, value_choice, (*prefixes, f"key.{key}.")


def _check_changelog(connector: Connector, key: str | None, value: str, given: Mapping[str, str]) -> None:
    """Raise if a changelog format is used where a payload has to be one row."""
    if connector is Connector.UPSERT:
        for side, name in (("key", key), ("value", value)):
            if name in CHANGELOG_FORMATS:
                msg = (
                    f"'upsert-kafka' connector doesn't support '{name}' as {side} format, because it's not in "
                    f"insert-only mode. Use the 'kafka' connector, whose '{name}' tables may have a PRIMARY KEY."
                )
                raise InvalidInputError(msg)
    elif key in CHANGELOG_FORMATS:
        hint = "" if "key.format" in given else " Give 'key.format', such as 'json', and 'value.format'."
        msg = f"A key format should only deal with INSERT-only records. But '{key}' has a changelog mode.{hint}"
        raise InvalidInputError(msg)


class FieldsInclude(StrEnum):
    """Which columns the message value contains."""

    ALL = "all"
    EXCEPT_KEY = "except_key"


class Guarantee(StrEnum):
    """The sink's delivery guarantee when a write is retried."""

    NONE = "none"
    """No promise; what is written is written as with `AT_LEAST_ONCE`."""
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class TransactionNaming(StrEnum):
    """How Flink names transactions; here a query always uses one transactional id again, whichever is set."""

    INCREMENTING = "incrementing"
    POOLING = "pooling"


@dataclass(frozen=True, kw_only=True)
class ConnectorOptions(Group):
    """The parsed options of a table; the connectors' documentation page describes each option.

    Attributes:
        connector: the connector.
        topics: topic names; empty if a pattern is set.
        pattern: a Java regular expression for topic names.
        properties: the Kafka client configuration.
        group_id: the consumer group, configured or generated.
        key_format: the format of the message key; None for messages without a key.
        value_format: the format of the message value.
        key_fields: names of the columns in the message key; the primary key on an upsert table.
        primary_key: names of the primary key columns; only upsert tables and those of a changelog format have any.
        metadata: the metadata key that each metadata column reads, by lower-case column name.
        precisions: the number of fractional-second digits of a timestamp or time column, by lower-case column name.
        start: where a read starts.
        bound: where a read ends.
    """

    connector: Connector
    topics: tuple[str, ...]
    pattern: str | None
    properties: Properties
    group_id: str
    key_format: FormatChoice | None
    value_format: FormatChoice
    key_fields: tuple[str, ...]
    primary_key: tuple[str, ...]
    metadata: Mapping[str, str]
    precisions: Mapping[str, int]
    start: Start
    bound: Bound
    key_prefix: str = option("key.fields-prefix", VERBATIM, "", "Prefix of key columns that message fields lack.")
    fields_include: FieldsInclude = option("value.fields-include", choice(FieldsInclude), FieldsInclude.ALL)
    discovery_ms: int = option("scan.topic-partition-discovery.interval", duration_or_ms(), "5 min", "0: never.")
    idle_ms: int | None = optional(IDLE, duration_or_ms(), "Instead of the session's table.exec.source.idle-timeout.")
    partitioner: str = option(
        "sink.partitioner", VERBATIM, "default", "`default`, `fixed`, `round-robin` or `package.module.Class`."
    )
    parallelism: int | None = optional("sink.parallelism", integer(1), "Writing tasks; None leaves it to Spark.")
    guarantee: Guarantee = option(GUARANTEE, choice(Guarantee), Guarantee.AT_LEAST_ONCE)
    transactional_prefix: str | None = optional("sink.transactional-id-prefix", VERBATIM)
    transaction_naming: TransactionNaming = option(
        "sink.transaction-naming-strategy", choice(TransactionNaming), TransactionNaming.INCREMENTING
    )
    scan_parallelism: int | None = optional("scan.parallelism", integer(1), "The most tasks that read.")
    buffer_rows: int = option("sink.buffer-flush.max-rows", integer(0), "0", "Rows of the upsert buffer; 0: none.")
    buffer_ms: int = option("sink.buffer-flush.interval", duration_or_ms(), "0", "When that buffer is flushed.")
    rows_max: int | None = optional(ROWS_MAX, integer(1), "Maximum records of a micro-batch.")
    checkpoint: str | None = optional("checkpointLocation", VERBATIM, "Of a streaming write.")
    state: str | None = optional(STATE, VERBATIM, "The folder for the states of changelogs (`read_changes`).")

    @property
    def is_upsert(self) -> bool:
        """Whether the table is an upsert table, where the last message of a key is its current row."""
        return self.connector is Connector.UPSERT

    @property
    def is_changelog(self) -> bool:
        """Whether messages are changes, with the row before each update and delete."""
        return self.value_format.is_changelog

    @property
    def has_changes(self) -> bool:
        """Whether the table is read as a stream of changes."""
        return self.is_upsert or self.is_changelog

    @property
    def topic(self) -> str:
        """The topic of a sink; of several the first."""
        return self.topics[0]

    @property
    def has_topics(self) -> bool:
        """Whether there may be several topics, so that each row that is written names its own."""
        return self.pattern is not None or len(self.topics) > 1

    @property
    def what(self) -> str:
        """The topics or the topic pattern, as shown in messages to the user."""
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return f"topic {self.topics[0]!r}" if len(self.topics) == 1 else f"topics {', '.join(map(repr, self.topics))}"

    def client(self) -> KafkaClient:
        """Return a client for the table's cluster."""
        return KafkaClient(self.properties.config, PREFIX)


def parse_options(connector: Connector, options: Mapping[str, object], side: Side | None) -> ConnectorOptions:
    """Parse a table's options; option names are case-insensitive.

    Args:
        connector: ``kafka`` or ``upsert-kafka``.
        options: the options as the user wrote them.
        side: whether the table is a source or a sink; None checks only what must hold for both.

    Raises:
        InvalidInputError: an option is unknown, missing, invalid, or conflicts with another option. The message shows
            no credentials.
    """
    options = wrap({name.lower(): value for name, value in options.items()})
    given = {name: str(value) for name, value in options.items()}
    if connector is Connector.KAFKA and SEMANTIC in given:
        given[GUARANTEE] = given.pop(SEMANTIC)
    _check_connector(connector, given)
    key_format, value_format, prefixes = parse_formats(connector, options)
    refuse_unknown(connector, given, (PROPERTIES, METADATA, PRECISION, *prefixes))
    topics, pattern = _topics(given)
    key_format = None if key_format is None else _with_subject(key_format, "key", topics)
    value_format = _with_subject(value_format, "value", topics)
    if not given.get("properties.bootstrap.servers"):
        msg = (
            "One or more required options are missing. Missing required options are: properties.bootstrap.servers "
            "(addresses such as 'broker1:9092,broker2:9092')."
        )
        raise InvalidInputError(msg)
    properties = parse_properties(options_after(options, PROPERTIES))
    primary = _primary_key(connector, given, value_format)
    parsed = ConnectorOptions.read(
        # A table that is only read does not need a valid number of writing tasks, nor the other way round.
        {name: text for name, text in given.items() if side is None or name != _NOT_FOR[side]},
        connector=connector,
        topics=topics,
        pattern=pattern,
        properties=properties,
        group_id=properties.group_id or _generated_group(given, topics, pattern),
        key_format=key_format,
        value_format=value_format,
        key_fields=primary if connector is Connector.UPSERT else _names(given.get("key.fields", ""), ";"),
        primary_key=primary,
        metadata=options_after(given, METADATA),
        precisions={
            name: OptionSpec(f"{PRECISION}{name}", DIGITS).parse(text)
            for name, text in options_after(given, PRECISION).items()
        },
        start=parse_start(connector, given, topics, pattern),
        bound=parse_bound(given, topics, pattern),
    )
    _check_key(parsed)
    if side is Side.SINK:
        _check_sink(parsed)
    return parsed


def _with_subject(format_choice: FormatChoice, side: str, topics: tuple[str, ...]) -> FormatChoice:
    """Return a format with the subject of its schemas, which by default is that of the topic."""
    if format_choice.name not in WITH_REGISTRY or len(topics) != 1:
        return format_choice
    return replace(format_choice, options={"subject": f"{topics[0]}-{side}", **format_choice.options})


def _check_connector(connector: Connector, given: Mapping[str, str]) -> None:
    actual = given.get("connector", connector.value)
    if actual != connector.value:
        msg = f"option 'connector': expected {connector.value!r} here, got {actual!r}."
        raise InvalidInputError(msg)


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    text, pattern = given.get("topic"), given.get("topic-pattern")
    topics = tuple(dict.fromkeys(filter(None, (name.strip() for name in (text or "").split(";")))))
    if topics and pattern is not None:
        msg = "Option 'topic' and 'topic-pattern' shouldn't be set together."
        raise InvalidInputError(msg)
    if not topics and pattern is None:
        msg = "Either 'topic' or 'topic-pattern' must be set."
        raise InvalidInputError(msg)
    if pattern is not None:
        compile_pattern(pattern, "topic-pattern")
    return topics, pattern


def _generated_group(given: Mapping[str, str], topics: tuple[str, ...], pattern: str | None) -> str:
    """Return a consumer group name derived from the table, like Flink's newer connectors."""
    return f"KafkaSource-{given.get('table.name') or pattern or ';'.join(topics)}"


def _names(text: str, separators: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in re.split(f"[{separators}]", text))))


def _primary_key(connector: Connector, given: Mapping[str, str], value_format: FormatChoice) -> tuple[str, ...]:
    primary = _names(given.get(PRIMARY_KEY, ""), ",;")
    if connector is Connector.UPSERT and not primary:
        msg = (
            "'upsert-kafka' tables require to define a PRIMARY KEY constraint (option 'primary-key', such as "
            "'a' or 'a,b'). It says which columns are in the Kafka message key, and which records update or "
            "delete one row."
        )
        raise InvalidInputError(msg)
    if connector is Connector.KAFKA and primary and value_format.name in ROW_FORMATS:
        msg = (
            f"A 'kafka' table with '{value_format.name}' format doesn't support defining a PRIMARY KEY constraint "
            "(option 'primary-key'), because it can't guarantee the semantic of primary key. Use 'upsert-kafka', a "
            "changelog format such as 'debezium-json', or 'key.fields' for the message key."
        )
        raise InvalidInputError(msg)
    return primary


def _check_key(options: ConnectorOptions) -> None:
    if options.key_fields and options.key_format is None:
        msg = "The option 'key.fields' can only be declared if a key format is defined using 'key.format' or 'format'."
        raise InvalidInputError(msg)
    if options.key_format is not None and not options.key_fields:
        msg = "A key format 'key.format' requires the declaration of one or more of key fields using 'key.fields'."
        raise InvalidInputError(msg)
    if len(set(options.key_fields)) != len(options.key_fields):
        name = PRIMARY_KEY if options.is_upsert else "key.fields"
        msg = f"Option '{name}' names a column twice: {', '.join(options.key_fields)}."
        raise InvalidInputError(msg)
    if not options.key_prefix:
        return
    if options.fields_include is FieldsInclude.ALL:
        msg = (
            "A key prefix ('key.fields-prefix') is not allowed when option 'value.fields-include' is set to 'ALL'. Set "
            "it to 'EXCEPT_KEY' instead to avoid field overlaps."
        )
        raise InvalidInputError(msg)
    for name in options.key_fields:
        if not name.startswith(options.key_prefix) or name == options.key_prefix:
            which = "the PRIMARY KEY" if options.is_upsert else "'key.fields'"
            msg = (
                f"All fields in {which} must be prefixed with '{options.key_prefix}' when option 'key.fields-prefix' "
                f"is set but field '{name}' is not prefixed."
            )
            raise InvalidInputError(msg)


def _check_sink(options: ConnectorOptions) -> None:
    if options.guarantee is Guarantee.EXACTLY_ONCE and not options.transactional_prefix:
        msg = (
            "sink.transactional-id-prefix must be specified when 'sink.delivery-guarantee' is 'exactly-once': a name "
            "of its own for each query that writes to this cluster."
        )
        raise InvalidInputError(msg)
    if options.partitioner == "round-robin" and options.key_fields:
        msg = (
            "Currently 'round-robin' partitioner ('sink.partitioner') only works when option 'key.fields' is not "
            "specified."
        )
        raise InvalidInputError(msg)
    if options.guarantee is Guarantee.EXACTLY_ONCE and options.pattern is not None:
        msg = (
            "'sink.delivery-guarantee' = 'exactly-once' needs the names of the topics: the first one keeps which "
            f"micro-batches are written. Set 'topic' = 'a;b', got 'topic-pattern' = {options.pattern!r}."
        )
        raise InvalidInputError(msg)
    if (options.buffer_rows > 0) != (options.buffer_ms > 0):
        msg = (
            "'sink.buffer-flush.max-rows' and 'sink.buffer-flush.interval' must be set to be greater than zero "
            "together to enable sink buffer flushing."
        )
        raise InvalidInputError(msg)
