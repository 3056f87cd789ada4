"""Parses a table's options by their declarations in ``specification.py``, and checks them against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from log_system.kafka.client.client_options import check_client_options
from log_system.kafka.client.secrets import refuse_inline_secrets
from log_system.kafka.option_checks import check_choices
from snapshot.errors import InvalidInputError
from snapshot.schema.defaults import DEFAULT_VALUE
from snapshot.schema.spec import BUCKET_KEY, KEEPS_LAST, MERGE_ENGINE
from tablestore.options.declaration import OptionSpec
from tablestore.options.merge_options import DELIMITER, Engine, MergeOptions, is_field_option
from tablestore.options.specification import (
    CHANGELOG_PRODUCER,
    KAFKA,
    KAFKA_SERVERS,
    LOG_SYSTEM,
    LOOKED_UP_TOO,
    OPTIONS,
    ChangelogProducer,
    CompactionOptions,
    KafkaOptions,
    LogOptions,
    PartitionOptions,
    PublishOptions,
    SnapshotOptions,
    TableOptions,
    WriteOptions,
)
from tablestore.options.unknown_options import ELSEWHERE, refuse_unknown_option
from tablestore.options.value_types import COLUMNS

_REMOVED: Final = frozenset({"log.changelog-mode", "log.key.format"})
_BY_NAME: Final = {spec.name: spec for spec in OPTIONS}

_DEFAULT_BUCKETS: Final = "-1"
"""Paimon's ``bucket`` of a table whose number of buckets the user does not say."""
_NOT_HERE: Final[Mapping[tuple[str, str], str]] = {
    ("bucket", _DEFAULT_BUCKETS): f"the columns of '{BUCKET_KEY}' need a number of buckets. Give it, or leave both out",
    ("bucket", "-2"): (
        "the bucket of a key is its partition in the log, where its changes are in order, so it cannot move. Set the "
        "number of buckets, about one for each GB that the table will have"
    ),
}
"""Values of Paimon's that are not supported, with the reason and what to use instead."""


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
    if given.get("bucket") == _DEFAULT_BUCKETS and BUCKET_KEY not in given:
        del given["bucket"]
    _take_bucket_key(given, primary_key)
    producer = given.get(CHANGELOG_PRODUCER)
    _take_producer(given)
    for name, value in given.items():
        _check_name(name)
        _check_value(name, value)
    system = _log_system(given.pop(LOG_SYSTEM.name, None), log_system)
    table = TableOptions.read(
        given,
        log=_LOG_OPTIONS[system](given),
        merge=MergeOptions.of(given),
        compaction=CompactionOptions.read(given),
        snapshot=SnapshotOptions.read(given),
        partition=PartitionOptions.read(given),
        write=WriteOptions.read(given),
        publish=PublishOptions.read(given),
    )
    table.merge.check_key(primary_key)
    if table.looks_up and not primary_key:
        msg = f"{CHANGELOG_PRODUCER}={producer!r} needs a primary key, by which rows are replaced; this table has none."
        raise InvalidInputError(msg)
    if table.log is not None:
        check_choices(table.log, primary_key, looks_up=table.looks_up)
    kept = table.snapshot
    if kept.retain_max is not None and kept.retain_max < kept.retain_min:
        msg = (
            f"option 'snapshot.retain-max'={kept.retain_max}: expected at least snapshot.retain-min, which is "
            f"{kept.retain_min}. Raise snapshot.retain-max, or lower snapshot.retain-min."
        )
        raise InvalidInputError(msg)
    return table


def _take_bucket_key(given: dict[str, str], primary_key: Sequence[str]) -> None:
    """Check ``bucket-key`` of a table with a primary key, and remove it from the options if it is that key.

    Raises:
        InvalidInputError: it has other columns, by which rows of one key could be in several buckets.
    """
    text = given.get(BUCKET_KEY) if primary_key else None
    if text is None:
        return
    names = OptionSpec(BUCKET_KEY, COLUMNS).parse(text)
    if not set(names) <= set(primary_key):
        msg = (
            f"option '{BUCKET_KEY}': expected columns of the primary key {list(primary_key)}, got {list(names)}: all "
            "rows of a key must be in one bucket, which is its partition in the log. Leave others out; 'partition_by' "
            "(PARTITIONED BY) divides rows by other columns."
        )
        raise InvalidInputError(msg)
    if set(names) == set(primary_key):
        del given[BUCKET_KEY]


def _take_producer(given: dict[str, str]) -> None:
    """Replace Paimon's other values of ``changelog-producer`` that make the same changes by ``lookup``.

    Raises:
        InvalidInputError: it is ``input``, and the merge engine makes other rows of those of the input.
    """
    producer = given.get(CHANGELOG_PRODUCER, "").lower()
    if producer not in LOOKED_UP_TOO:
        return
    engine = given.get(MERGE_ENGINE, KEEPS_LAST).lower()
    if producer == "input" and engine in (Engine.PARTIAL_UPDATE, Engine.AGGREGATION):
        msg = (
            f"option '{CHANGELOG_PRODUCER}'='input' does not go with '{MERGE_ENGINE}'='{engine}': the changes would be "
            "the rows before they are merged, which the table never has. Use 'lookup', whose changes are those of the "
            "merged rows."
        )
        raise InvalidInputError(msg)
    given[CHANGELOG_PRODUCER] = ChangelogProducer.LOOKUP


def _check_value(name: str, text: str) -> None:
    why = _NOT_HERE.get((name, text.lower()))
    if why:
        msg = f"option '{name}'='{text}' is not supported: {why}."
        raise InvalidInputError(msg)


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # Do not strip a delimiter or a default, which may be a space.
        return value if name.endswith((DELIMITER, DEFAULT_VALUE)) else value.strip()
    if isinstance(value, int | float):
        return str(value)
    msg = f"option '{name}': expected text, a number or a boolean, got {type(value).__name__}. Write it as text."
    raise InvalidInputError(msg)


def _check_name(name: str) -> None:
    if name not in _BY_NAME and not (name.startswith(KAFKA) and name not in ELSEWHERE) and not is_field_option(name):
        refuse_unknown_option(name, _BY_NAME)


def _log_system(option: str | None, argument: str | None) -> str:
    if option is not None and argument is not None and option != argument:
        msg = (
            f"option 'log.system'='{option}' and the argument log_system='{argument}' must be the same. Leave one out."
        )
        raise InvalidInputError(msg)
    system = option if argument is None else argument
    return LOG_SYSTEM.parse(system or "files")


def _no_log_options(given: Mapping[str, str]) -> None:
    for name in given:
        if name.startswith(("log.", KAFKA, "publish.")):
            msg = (
                f"option '{name}' needs a Kafka log; this table's log is in its files. Set log.system=kafka (or "
                f"log_system='kafka'), or leave the option out."
            )
            raise InvalidInputError(msg)


def _kafka_log_options(given: Mapping[str, str]) -> LogOptions:
    for spec in (KAFKA_SERVERS, *KafkaOptions.specs()):
        if not given.get(spec.name):
            msg = f"option '{spec.name}' is required with log.system=kafka: set {spec.type.expected}; got nothing."
            raise InvalidInputError(msg)
    client = {
        name.removeprefix(KAFKA): text
        for name, text in given.items()
        if name.startswith(KAFKA) and name != "kafka.topic"
    }
    check_client_options(client)
    refuse_inline_secrets(client)
    return LogOptions.read(given, kafka=KafkaOptions.read(given, client=client))


_LOG_OPTIONS: Final[Mapping[str, Callable[[Mapping[str, str]], LogOptions | None]]] = {
    "files": _no_log_options,
    "kafka": _kafka_log_options,
}
"""For each log system, what parses the options of its log."""
