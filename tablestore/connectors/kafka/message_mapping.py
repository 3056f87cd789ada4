"""Mapping of a table's columns to the parts of a Kafka message: key, value or metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from confluent_kafka import Message

from snapshot.errors import BadRecordError, InvalidInputError
from tablestore.connectors.formats.base import MetadataKind, text_or

_TIMESTAMP_TYPES: Final = ("NoTimestampType", "CreateTime", "LogAppendTime")
HEADERS: Final = pa.map_(pa.string(), pa.binary())
HEADER_LIST: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_MILLIS: Final = pa.timestamp("ms", "UTC")
_MILLIS_MAX: Final = (2**63 - 1) // 1000
"""Spark's timestamps are 64 bit microseconds."""

HEADER_KEYS: Final = ("headers", "header-list")
"""Metadata keys of a message's headers, of which a message is written by one."""
WRITABLE: Final = (*HEADER_KEYS, "timestamp")
TOPIC: Final = "topic"
"""Metadata that can be written if there are several topics."""
OF_VALUE: Final = "value."
"""Prefix of the metadata keys of the value's format."""


@dataclass(frozen=True)
class _Kind(MetadataKind):
    """A metadata key of Kafka's messages; ``take`` extracts the metadata from them."""

    take: Callable[[Sequence[Any]], list[Any]]


def _from(method: Callable[[Any], Any]) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda messages: list(map(method, messages))


def _lists_headers(kind: pa.DataType) -> bool:
    """Return whether a type lists headers: arrays of rows of a STRING and BYTES, whatever the fields' names are."""
    if not pt.is_list(kind) or not pt.is_struct(kind.value_type):
        return False
    return [field.type for field in kind.value_type] == [pa.string(), pa.binary()]


_M: Final[Any] = cast(Any, Message)
KINDS: Final[Mapping[str, _Kind]] = {
    "topic": _Kind(pa.string(), "STRING NOT NULL", text_or(), _from(_M.topic)),
    "partition": _Kind(pa.int32(), "INT NOT NULL", text_or(pt.is_int32, pt.is_int64), _from(_M.partition)),
    "headers": _Kind(
        HEADERS,
        "MAP<STRING, BYTES>, or ARRAY<ROW<key STRING, value BYTES>>, which keeps repeated ones",
        lambda kind: kind == HEADERS or _lists_headers(kind),
        # If a header occurs several times, the last one wins.
        lambda messages: [list(dict(m.headers() or ()).items()) for m in messages],
    ),
    "header-list": _Kind(
        HEADER_LIST,
        "ARRAY<ROW<key STRING, value BYTES>> NOT NULL",
        _lists_headers,
        lambda messages: [[{"key": key, "value": value} for key, value in m.headers() or ()] for m in messages],
    ),
    "leader-epoch": _Kind(pa.int32(), "INT", text_or(pt.is_int32, pt.is_int64), _from(_M.leader_epoch)),
    "offset": _Kind(pa.int64(), "BIGINT NOT NULL", text_or(pt.is_int64), _from(_M.offset)),
    "timestamp": _Kind(
        _MILLIS,
        "TIMESTAMP_LTZ(3) NOT NULL",
        text_or(pt.is_timestamp, pt.is_date),
        lambda messages: [m.timestamp()[1] for m in messages],
    ),
    "timestamp-type": _Kind(
        pa.string(),
        "STRING NOT NULL",
        text_or(),
        lambda messages: [_TIMESTAMP_TYPES[m.timestamp()[0]] for m in messages],
    ),
}
"""The metadata keys that the connector's documentation page lists."""


@dataclass(frozen=True)
class MessageMapping:
    """Where in a message each column is stored.

    Attributes:
        schema: the table's columns, in order.
        key: names of the key columns, in key order.
        prefix: prefix of the key columns' names in the table; message fields do not have it.
        value: names of the value columns, in order.
        metadata: the metadata key of each column that shows metadata of the message, by column name.
        value_metadata: the format's metadata key of each column that shows metadata of the value, by column name.
        is_upsert: whether the key is a primary key: never NULL, and a message with a null value deletes its row.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    prefix: str
    value: tuple[str, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    value_metadata: Mapping[str, str] = field(default_factory=dict)
    is_upsert: bool = False

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The schema of the key format."""
        fields = [self.schema.field(name) for name in self.key]
        named = [each.with_name(each.name.removeprefix(self.prefix)) for each in fields]
        return pa.schema([each.with_nullable(each.nullable and not self.is_upsert) for each in named])

    @cached_property
    def value_schema(self) -> pa.Schema:
        """The schema of the value format."""
        fields = [self.schema.field(name) for name in self.value]
        return pa.schema(
            [each.with_nullable(each.nullable and not (self.is_upsert and each.name in self.key)) for each in fields]
        )


def make_mapping(
    schema: pa.Schema,
    *,
    key: Sequence[str],
    prefix: str,
    except_key: bool,
    metadata: Mapping[str, str],
    value_metadata: Mapping[str, MetadataKind],
    is_upsert: bool,
) -> MessageMapping:
    """Return the mapping of a table's columns to message parts.

    Args:
        schema: all columns.
        key: names of the key columns.
        prefix: see ``MessageMapping``.
        except_key: whether to leave the key columns out of the value.
        metadata: metadata keys by lower-case column name; entries for columns that the schema lacks are ignored.
        value_metadata: the metadata keys of the value's format.
        is_upsert: see ``MessageMapping``.

    Raises:
        InvalidInputError: a key column or a metadata key does not exist, or a metadata column has an incompatible type.
    """
    kinds: dict[str, MetadataKind] = {**KINDS, **{f"{OF_VALUE}{name}": kind for name, kind in value_metadata.items()}}
    shown: dict[str, str] = {}
    for each in schema:
        name = metadata.get(each.name.lower())
        if name is not None:
            _check_metadata(each, name, kinds)
            shown[each.name] = name
    physical = [name for name in schema.names if name not in shown]
    for name in key:
        if name not in physical:
            which = "PRIMARY KEY" if is_upsert else "key.fields"
            msg = (
                f"Could not find the field '{name}' in the table schema for usage in the key format ({which}). A key "
                f"field must be a regular, physical column. The following columns can be selected: {physical}."
            )
            raise InvalidInputError(msg)
    value = [name for name in physical if not (except_key and name in key)]
    of_value = {name: shown.pop(name)[len(OF_VALUE) :] for name in [*shown] if shown[name].startswith(OF_VALUE)}
    return MessageMapping(schema, tuple(key), prefix, tuple(value), shown, of_value, is_upsert)


def _check_metadata(column: pa.Field, key: str, kinds: Mapping[str, MetadataKind]) -> None:
    kind = kinds.get(key)
    if kind is None:
        msg = (
            f"Invalid metadata key '{key}' in column '{column.name}'. The connector supports the following metadata "
            f"keys for reading: {', '.join(kinds)}; for writing: {', '.join(WRITABLE)}."
        )
        raise InvalidInputError(msg)
    if not kind.fits(column.type):
        msg = (
            f"Column '{column.name}' has type {column.type}, which metadata '{key}' ({kind.words}) cannot be cast to. "
            "Declare the column with the metadata's own type."
        )
        raise InvalidInputError(msg)


def writable(*, has_topics: bool) -> tuple[str, ...]:
    """Return the metadata keys that can be written; the topic only if there are several."""
    return (*WRITABLE, TOPIC) if has_topics else WRITABLE


def check_writable(layout: MessageMapping, *, has_topics: bool) -> None:
    """Raise if a metadata column is read-only, or if rows do not name their topic.

    Args:
        layout: the mapping of the columns that are written.
        has_topics: whether the table has several topics.

    Raises:
        InvalidInputError: a column has a metadata key that cannot be written, two columns write the same metadata, or
            the topic is missing.
    """
    known = writable(has_topics=has_topics)
    if has_topics and TOPIC not in layout.metadata.values():
        msg = (
            "A table of several topics ('topic' = 'a;b', or 'topic-pattern') is written by rows that name their topic: "
            "expected a column with metadata 'topic' (in SQL, STRING METADATA FROM 'topic', not VIRTUAL), got none."
        )
        raise InvalidInputError(msg)
    of_value = {column: f"{OF_VALUE}{key}" for column, key in layout.value_metadata.items()}
    for column, key in {**layout.metadata, **of_value}.items():
        if key not in known:
            msg = (
                f"Invalid metadata key '{key}' in column '{column}'. The connector supports the following metadata "
                f"keys for writing: {', '.join(known)}. Leave the column out of the rows written (in SQL, "
                "declare it METADATA VIRTUAL)."
            )
            raise InvalidInputError(msg)
    for keys in (HEADER_KEYS, *((key,) for key in known if key not in HEADER_KEYS)):
        columns = [column for column, key in layout.metadata.items() if key in keys]
        if len(columns) > 1:
            msg = (
                f"columns {', '.join(map(repr, columns))}: expected one column that writes metadata "
                f"{' or '.join(map(repr, keys))}, got {len(columns)}. Leave the others out of the rows written (in "
                "SQL, declare them METADATA VIRTUAL)."
            )
            raise InvalidInputError(msg)


def metadata_array(key: str, messages: Sequence[Any], data_type: pa.DataType, zone: str) -> pa.Array:
    """Return a metadata key of messages as a column, whose type must be compatible with the metadata.

    ``zone`` is the session's time zone, used to show a timestamp in a column type without a time zone.

    Raises:
        BadRecordError: see `shown_as`.
    """
    known = KINDS[key]
    if key in HEADER_KEYS and _lists_headers(data_type):
        names = [field.name for field in data_type.value_type]
        rows = [[dict(zip(names, header, strict=True)) for header in m.headers() or ()] for m in messages]
        return pa.array(rows, data_type)
    return shown_as(pa.array(known.take(messages), known.type), data_type, zone)


def shown_as(array: pa.Array, data_type: pa.DataType, zone: str) -> pa.Array:
    """Return metadata in the type of its column; the other arguments are those of ``metadata_array``.

    Raises:
        BadRecordError: a timestamp is too far from 1970 for Spark's timestamps, such as nanoseconds in its place.
    """
    if pt.is_timestamp(array.type) and array.type.unit == "ms":
        numbers = array.cast(pa.int64()).fill_null(0).to_numpy()
        beyond = np.flatnonzero((numbers > _MILLIS_MAX) | (numbers < -_MILLIS_MAX))
        if len(beyond):
            reason = f"expected a timestamp in milliseconds, before the year 294247, got {numbers[beyond[0]]}"
            raise BadRecordError(int(beyond[0]), reason)
    if array.type == data_type:
        return array
    if pt.is_timestamp(array.type) and not (pt.is_timestamp(data_type) and data_type.tz is not None):
        local = pc.local_timestamp(array.cast(pa.timestamp("ms", _region(zone))))
        if pt.is_string(data_type):
            return pc.strftime(local, "%Y-%m-%d %H:%M:%S")
        return local.cast(data_type)
    return array.cast(data_type)


def timestamps_of(array: pa.Array, zone: str) -> list[int | None]:
    """Return the message timestamps of a timestamp column, in milliseconds since the epoch.

    Raises:
        InvalidInputError: a timestamp is the epoch, which librdkafka takes for the current time, or before it.
    """
    if array.type.tz is None:
        # Like Spark: an ambiguous local time is the earlier instant, a nonexistent one is moved forward.
        array = pc.assume_timezone(array, _region(zone), ambiguous="earliest", nonexistent="latest")
    millis = array.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("ms", "UTC"), safe=False)
    numbers = millis.cast(pa.int64())
    if pc.any(pc.less_equal(numbers, 0)).as_py():
        msg = (
            "metadata column 'timestamp': expected a time after 1970-01-01 00:00:00 UTC, or NULL for the current time; "
            f"got {pc.min(numbers).as_py()} milliseconds since then, which Kafka's client cannot send."
        )
        raise InvalidInputError(msg)
    return cast(list[int | None], numbers.to_pylist())


def headers_of(array: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    """Return the message headers of a headers column, in the form the client accepts.

    An element of a list that is NULL, or has no key, is not a header.
    """
    rows = array.to_pylist()
    if not _lists_headers(array.type):
        return cast(list[list[tuple[str, bytes | None]] | None], rows)
    listed = ([] if row is None else [tuple(header.values()) for header in row if header is not None] for row in rows)
    return [[(key, value) for key, value in headers if key is not None] for headers in listed]


def _region(zone: str) -> str:
    """Return Arrow's name of a Spark session time zone; both accept offsets such as ``+02:00``."""
    if zone[:1] in "+-":
        return zone
    try:
        return ZoneInfo(zone).key
    except (KeyError, ValueError) as error:
        msg = f"spark.sql.session.timeZone={zone!r}: no such region is known here; set one such as 'Europe/Berlin'."
        raise InvalidInputError(msg) from error
