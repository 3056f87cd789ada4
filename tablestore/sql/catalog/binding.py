"""Checks definitions, and maps them to the connectors and the store: columns, options, key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final

from pyspark.sql.types import (
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from sqlglot import exp

from log_system.kafka.client.access_policy import VARIABLE, Allowed
from log_system.kafka.client.secrets import ClientValue, client_name, holds_secret
from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean
from snapshot.schema.defaults import value_of
from snapshot.schema.spark_types import arrow_type, types_in
from tablestore.connectors.formats.registry import CHANGELOG_FORMATS
from tablestore.connectors.kafka.client_properties import check_stored_properties
from tablestore.connectors.kafka.message_mapping import writable
from tablestore.connectors.kafka.partitioners import OWN_PARTITIONERS
from tablestore.connectors.option_names import (
    FORMATS,
    METADATA,
    PRECISION,
    PRIMARY_KEY,
    PROPERTIES,
    SUPPORTED,
    Connector,
    Side,
    options_after,
)
from tablestore.connectors.table import KafkaTable
from tablestore.options.unknown_options import TASKS, without_effect
from tablestore.sql.debugging.options import Generated, Printed
from tablestore.sql.parser.dialect import is_map
from tablestore.sql.parser.functions.time_functions import PROCTIME
from tablestore.sql.parser.parse import parse_query
from tablestore.sql.parser.statements import (
    Assignments,
    ComputedColumn,
    CreateTable,
    Expression,
    MetadataColumn,
    Options,
    PhysicalColumn,
)
from tablestore.sql.parser.types import TIME

CONNECTOR: Final = "connector"
LOG_SYSTEM: Final = "log.system"
SERVERS: Final = "properties.bootstrap.servers"
PARTITIONER: Final = "sink.partitioner"
LOG_SERVERS: Final = "kafka.bootstrap.servers"
PARTITIONS: Final = "scan.partitions"
"""Option of a store table, and of hints, for what is read of it as it is now, in a lookup join too: some partitions."""
LOOKUPS: Final = "lookup."
"""Paimon's options of lookup joins begin so."""
DYNAMIC_PARTITION: Final = "lookup.dynamic-partition"
"""Paimon's older name of `PARTITIONS`."""
REFRESH: Final = f"{DYNAMIC_PARTITION}.refresh-interval"
"""For how long a lookup join keeps the newest partitions that it found."""
REFRESH_ASYNC: Final = f"{DYNAMIC_PARTITION}.refresh.async"
"""Whether the lookup that finds newer partitions still reads those before."""
ADDS_REPLACED: Final = "streaming-read-append-overwrite"
"""Whether a continuous query of a table without a key takes rows that replace others for further ones."""
SHOWN: Final = (Connector.PRINT, Connector.BLACKHOLE)
"""Connectors whose tables can only be written to, with changes too."""
Columns = tuple[PhysicalColumn | MetadataColumn, ...]
_OF_CONNECTORS: Final = frozenset(
    name
    for name in chain(*SUPPORTED.values())
    if name.startswith(("topic", "format", "value.format", "key.format", "scan.", "sink.")) and name not in TASKS
)
"""Options of the connectors only; on a store table they mean that ``'connector'`` was forgotten."""
_INSTEAD: Final[Mapping[str, str]] = {
    "filesystem": "Leave the option out: a store table keeps its rows in files.",
    "paimon": "Leave the option out: a store table has Paimon's options.",
    "dynamic-kafka": "A 'kafka' table reads topics of one cluster; UNION ALL reads several tables.",
}
"""What to use instead of other connectors of Flink."""


def name_of(made: CreateTable) -> str:
    """Return the name of a table, without the hint of a query."""
    return made.name.partition(" /*+ ")[0]


def connector_of(made: CreateTable) -> Connector | None:
    """Return the connector of a table, or None for a store table.

    Raises:
        InvalidInputError: there is no such connector.
    """
    given = dict(made.options).get(CONNECTOR)
    if given is None:
        return None
    try:
        return Connector(str(given))
    except ValueError:
        known = ", ".join(f"'{each.value}'" for each in Connector)
        hint = _INSTEAD.get(str(given)) or did_you_mean(str(given), Connector)
        msg = (
            f"table '{made.name}': option 'connector': expected {known}, or none for a store table; got {given!r}."
            f"{hint and ' '}{hint}"
        )
        raise InvalidInputError(msg) from None


def generated(made: CreateTable) -> Generated:
    """Return the rows that a ``datagen`` table generates.

    Raises:
        InvalidInputError: an option is unknown, missing, invalid, or does not fit its column.
    """
    return Generated.of(name_of(made), made.physical, dict(made.options))


def printed(made: CreateTable) -> Printed:
    """Return how a ``print`` or ``blackhole`` table writes rows.

    Raises:
        InvalidInputError: an option is unknown or invalid.
    """
    connector = connector_of(made)
    assert connector in SHOWN, "only these tables print or drop rows"
    return Printed.of(connector, dict(made.options))


def is_reading(key: str) -> bool:
    """Return whether an option of a store table says how SQL reads it, and is kept in its definition only."""
    return key in {PARTITIONS, ADDS_REPLACED} or key.startswith(LOOKUPS)


def is_idle(key: str) -> bool:
    """Return whether an option of a store table changes nothing in a query or a write, as those of Paimon's files."""
    return bool(without_effect(key)) and not is_reading(key)


def is_kept_apart(key: str) -> bool:
    """Return whether an option of a store table is kept in its definition only: `is_reading`, or without effect."""
    return is_reading(key) or bool(without_effect(key))


def without_effects(made: CreateTable, options: Options) -> str:
    """Return the options of a table that change nothing, each with the reason; empty if there are none."""
    found = [f"'{key}': {without_effect(key)}" for key, _ in options if connector_of(made) is None and is_idle(key)]
    return f"; without effect: {'; '.join(found)}" if found else ""


def is_changelog(made: CreateTable) -> bool:
    """Return whether a table is one of the ``kafka`` connector whose messages are changes."""
    options = {name.lower(): str(value) for name, value in made.options}
    value_format = options.get("value.format", options.get("format"))
    return connector_of(made) is Connector.KAFKA and value_format in CHANGELOG_FORMATS


def stored_columns(made: CreateTable) -> Columns:
    """Return the columns read from the connector or the store, in order."""
    return tuple(column for column in made.columns if not isinstance(column, ComputedColumn))


def insertable_columns(made: CreateTable) -> Columns:
    """Return the columns that ``INSERT INTO`` can fill: the stored ones, without virtual metadata."""
    return tuple(
        column for column in stored_columns(made) if not (isinstance(column, MetadataColumn) and column.is_virtual)
    )


def schema_of(columns: Columns) -> StructType:
    """Return the Spark schema of columns."""
    return StructType([StructField(column.name, column.type.spark, column.type.nullable) for column in columns])


def connector_options(made: CreateTable, columns: Columns | None = None) -> dict[str, ClientValue]:
    """Return a table's options, with those derived from its primary key and the given columns, or all stored ones."""
    options: dict[str, ClientValue] = dict(made.options) | {"table.name": name_of(made)}
    if made.primary_key:
        options[PRIMARY_KEY] = ",".join(made.primary_key)
    for column in stored_columns(made) if columns is None else columns:
        if isinstance(column, MetadataColumn):
            options[f"{METADATA}{column.name.lower()}"] = column.key
        for path, digits in column.type.within(column.name):
            options[f"{PRECISION}{path.removeprefix('.')}"] = str(digits)
    return options


def client_options(
    defined: Mapping[str, ClientValue],
    given: Mapping[str, ClientValue],
    allowed: Allowed,
    mapped: Callable[[str], str],
) -> dict[str, ClientValue]:
    """Return a definition's options overridden by the program's, after checking those that a definition may not set.

    Args:
        defined: options of the connector table's definition.
        given: options passed by the program; an empty value removes the definition's option.
        allowed: what the definition may refer to.
        mapped: maps broker addresses to those under which this session reaches the brokers.

    Raises:
        InvalidInputError: the definition has an option that only a program may set.
    """
    given = {name.lower(): value for name, value in given.items()}
    kept = {name.lower(): value for name, value in defined.items() if name.lower() not in given}
    options = {**kept, **{name: value for name, value in given.items() if value != ""}}
    servers = options.get(SERVERS)
    if isinstance(servers, str):
        options[SERVERS] = mapped(servers)
    check_stored_properties(options_after(kept, PROPERTIES), allowed, str(options.get(SERVERS, "")))
    partitioner = str(kept.get(PARTITIONER, OWN_PARTITIONERS[0]))
    if not partitioner:
        msg = f"Option '{PARTITIONER}' should be a non-empty string: {', '.join(OWN_PARTITIONERS)} or a Python class."
        raise InvalidInputError(msg)
    if partitioner not in OWN_PARTITIONERS and not allowed.covers(f"class:{partitioner}"):
        msg = (
            f"option '{PARTITIONER}'='{partitioner}' is in a definition and names Python code, which this program does "
            f"not allow (allowed: {allowed.text or 'nothing'}). Allow it by {VARIABLE}='class:{partitioner}' in this "
            f"program's environment or Catalog(..., allow_references=['class:{partitioner}'])."
        )
        raise InvalidInputError(msg)
    return options


def partition_values(made: CreateTable, given: Iterable[tuple[str, Expression]]) -> Assignments:
    """Return the values of ``PARTITION (...)``, in which a text stands for a value of any type, as in Flink.

    Raises:
        InvalidInputError: a text is not a value of its column.
    """
    types = {column.name: column.type for column in made.physical}
    values = []
    for name, value in given:
        if value.tree.is_string and name in types and not isinstance(types[name].spark, StringType):
            value_of(value.tree.name, arrow_type(types[name].spark), f"table '{made.name}': PARTITION: column '{name}'")
            (tree,) = parse_query(f"SELECT CAST({value.text} AS {types[name].text})").tree.expressions
            value = Expression(value.text, tree)  # noqa: PLW2901 - the same value with its type
        values.append((name, value))
    return tuple(values)


def check_table(made: CreateTable, allowed: Allowed) -> None:
    """Check a definition as far as possible without a broker and without knowing whether it is a source or a sink.

    Raises:
        InvalidInputError: columns, key, watermark or options are invalid or conflict.
    """
    _check_columns(made)
    _check_computed(made)
    _check_watermark(made)
    if not made.temporary:
        _refuse_secrets(made)
    connector = connector_of(made)
    if connector is None:
        _check_store(made)
        return
    if made.partitioned_by:
        whose = "; Kafka's partitions are the topic's" if connector in FORMATS else ""
        msg = f"table '{made.name}': PARTITIONED BY is for store tables{whose}."
        raise InvalidInputError(msg)
    _check_metadata(made)
    try:
        if connector is Connector.DATAGEN:
            generated(made)
            return
        if connector in SHOWN:
            printed(made)
            return
        options = connector_options(made)
        KafkaTable.of(connector, options, schema_of(stored_columns(made)))
        client_options(options, {}, allowed, lambda servers: servers)
    except InvalidInputError as error:
        msg = f"table '{made.name}': {error}"
        raise InvalidInputError(msg) from error


def _check_columns(made: CreateTable) -> None:
    names = [column.name for column in made.columns]
    if not insertable_columns(made):
        msg = f"table '{made.name}': a table needs a column that is stored; it has only computed or virtual ones."
        raise InvalidInputError(msg)
    lower: dict[str, str] = {}
    for name in names:
        if name.lower() in lower:
            other = lower[name.lower()]
            same = f"columns '{other}' and '{name}' are the same to Spark"
            same = f"there would be two columns '{name}'" if name == other else same
            msg = f"table '{made.name}': {same}; rename one."
            raise InvalidInputError(msg)
        lower[name.lower()] = name
    physical = [column.name for column in made.physical]
    for what, wanted in (("PRIMARY KEY", made.primary_key), ("PARTITIONED BY", made.partitioned_by)):
        for name in wanted:
            if name not in physical:
                why = "is not a physical column" if name in names else "is not a column"
                msg = f"table '{made.name}': {what}: '{name}' {why}; there are {', '.join(physical)}."
                raise InvalidInputError(msg)
        if len(set(wanted)) != len(wanted):
            msg = f"table '{made.name}': {what} names a column twice: {', '.join(wanted)}."
            raise InvalidInputError(msg)


def is_proctime_column(column: ComputedColumn) -> bool:
    """Return whether a computed column is ``PROCTIME()``."""
    return column.expression.upper().replace(" ", "") == f"{PROCTIME}()"


def expression_of(column: ComputedColumn) -> exp.Expr:
    """Return the expression of a computed column."""
    expression: exp.Expr = parse_query(f"SELECT {column.expression}").tree.expressions[0]
    return expression


def columns_of(column: ComputedColumn) -> list[str]:
    """Return the names of the columns that a computed column is computed from."""
    found = expression_of(column).find_all(exp.Column)
    return [each.parts[0].name for each in found if not (is_map(each.parent) and each.arg_key == "this")]


def _check_computed(made: CreateTable) -> None:
    stored = [column.name for column in stored_columns(made)]
    known = {name.lower() for name in stored}
    for column in made.computed:
        for name in columns_of(column):
            if name.lower() not in known:
                msg = (
                    f"table '{made.name}': column '{column.name}' is computed from '{name}', which is not a stored "
                    f"column; there are {', '.join(stored)}."
                )
                raise InvalidInputError(msg)


def _check_watermark(made: CreateTable) -> None:
    if made.watermark is None:
        return
    name = made.watermark.column
    column = next((column for column in made.columns if column.name == name), None)
    if column is None:
        msg = f"table '{made.name}': WATERMARK FOR '{name}': there is no such column."
        raise InvalidInputError(msg)
    if isinstance(column, ComputedColumn):
        # Spark says its type when the table is read.
        if "PROCTIME" in column.expression.upper():
            msg = (
                f"table '{made.name}': WATERMARK FOR '{name}': PROCTIME() is not an event time and needs no watermark."
            )
            raise InvalidInputError(msg)
        return
    if not isinstance(column.type.spark, TimestampType | TimestampNTZType):
        actual = column.type.text
        msg = f"table '{made.name}': WATERMARK FOR '{name}': expected TIMESTAMP or TIMESTAMP_LTZ, got {actual}."
        raise InvalidInputError(msg)


def _check_metadata(made: CreateTable) -> None:
    connector = connector_of(made)
    for column in made.columns:
        if isinstance(column, MetadataColumn) and connector not in FORMATS:
            msg = f"table '{made.name}': column '{column.name}': METADATA: a '{connector}' table has none."
            raise InvalidInputError(msg)
        if isinstance(column, MetadataColumn) and column.name in made.primary_key:
            msg = f"table '{made.name}': PRIMARY KEY: '{column.name}' is metadata; a key is in the message."
            raise InvalidInputError(msg)


def _check_store(made: CreateTable) -> None:
    for column in made.columns:
        if isinstance(column, MetadataColumn):
            msg = f"table '{made.name}': column '{column.name}': METADATA needs a connector. Set option 'connector'."
            raise InvalidInputError(msg)
        if isinstance(column, PhysicalColumn) and TIME in types_in(column.type.spark):
            msg = (
                f"table '{made.name}': column '{column.name}': a store table has no type {column.type.text}, because "
                "Delta Lake has none. Declare the column STRING, and a computed column CAST(... AS TIME(3))."
            )
            raise InvalidInputError(msg)
    for key, _ in made.options:
        if key in _OF_CONNECTORS or key.startswith(PROPERTIES):
            msg = (
                f"table '{made.name}': option '{key}' belongs to the connectors. Set 'connector' = 'kafka' or "
                "'upsert-kafka'; without it, this is a store table, whose log is set by 'log.system' and 'kafka.*'."
            )
            raise InvalidInputError(msg)
    if made.temporary:
        msg = f"table '{made.name}': a store table cannot be TEMPORARY: its rows are stored. Remove TEMPORARY."
        raise InvalidInputError(msg)


def _refuse_secrets(made: CreateTable) -> None:
    for key, value in made.options:
        if holds_secret(key, value):
            variable = "".join(letter if letter.isalnum() else "_" for letter in f"KAFKA_{client_name(key)}".upper())
            msg = (
                f"table '{made.name}': option '{key}' holds a credential and definitions are stored: expected a "
                f"reference, got the credential itself (not shown). Give 'env:{variable}' or 'file:/path/to/file', or "
                f"leave it out and give it each time: catalog.table('{made.name}', options={{'{key}': ...}}), or "
                "CREATE TEMPORARY TABLE, which is not stored."
            )
            raise InvalidInputError(msg)


def check_sink(made: CreateTable) -> None:
    """Check that a connector table can be written to; a store table always passes.

    Raises:
        InvalidInputError: it cannot be written to.
    """
    connector = connector_of(made)
    if connector is None or connector in SHOWN:
        return
    if connector is Connector.DATAGEN:
        msg = f"table '{name_of(made)}': a 'datagen' table generates its rows, and cannot be written to."
        raise InvalidInputError(msg)
    columns = insertable_columns(made)
    known = writable(has_topics=_has_topics(made))
    for column in columns:
        if isinstance(column, MetadataColumn) and column.key not in known:
            msg = (
                f"table '{made.name}': Invalid metadata key '{column.key}' in column '{column.name}': only "
                f"{', '.join(known[:-1])} and {known[-1]} can be written. Declare the column VIRTUAL."
            )
            raise InvalidInputError(msg)
    KafkaTable.of(connector, connector_options(made, columns), schema_of(columns), Side.SINK)


def _has_topics(made: CreateTable) -> bool:
    options = dict(made.options)
    return "topic-pattern" in options or ";" in str(options.get("topic", "")).strip(" ;")
