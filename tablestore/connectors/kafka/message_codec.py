"""Decodes Kafka messages to a table's rows and encodes rows to message keys and values, in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.messages import Records
from log_system.kafka.client.secrets import ClientValue
from snapshot.errors import BadRecordError, CorruptedError, InvalidInputError
from snapshot.row_kind import CHANGE_TYPE, CHANGE_TYPE_NAMES, KIND, RowKind
from tablestore.connectors.formats.base import ChangelogFormat, DecodedRows, RowFormat
from tablestore.connectors.formats.registry import CHANGELOG_FORMATS, open_changelog_format, open_row_format
from tablestore.connectors.formats.types import cut_times
from tablestore.connectors.kafka.message_mapping import (
    HEADER_KEYS,
    TOPIC,
    MessageMapping,
    headers_of,
    metadata_array,
    shown_as,
    timestamps_of,
)

_UPSERT, _DELETE = RowKind.UPDATE_AFTER.change_type, RowKind.DELETE.change_type
_RETRACTED = (RowKind.UPDATE_BEFORE.change_type, _DELETE)


@dataclass(frozen=True)
class FormatChoice:
    """The configured format of a key or a value.

    Attributes:
        name: the format's name.
        options: the format's options, without prefixes in their names.
        side: ``key`` or ``value`` if the full option names start with it, else empty; used in error messages.
    """

    name: str
    options: Mapping[str, ClientValue]
    side: str

    @property
    def is_changelog(self) -> bool:
        """Whether a payload is one or more changes."""
        return self.name in CHANGELOG_FORMATS

    @property
    def texts(self) -> Mapping[str, str]:
        """The options as the formats take them; only options that are credentials may be other than text."""
        return cast("Mapping[str, str]", self.options)

    def open(self, schema: pa.Schema) -> RowFormat:
        """Open the format for a schema.

        Raises:
            InvalidInputError: the format or an option is unknown, or the format does not support a column.
        """
        return open_row_format(self.name, schema, self.texts, side=self.side)


@dataclass(frozen=True)
class Coding:
    """How a table's rows map to messages: column mapping and formats. Cheap to pickle.

    Attributes:
        layout: where in a message each column is stored.
        key_format: the format of the key; None for messages without a key.
        value_format: the format of the value.
    """

    layout: MessageMapping
    key_format: FormatChoice | None
    value_format: FormatChoice

    def open_key(self) -> RowFormat | None:
        """Open the key format; return None for messages without a key."""
        return None if self.key_format is None else self.key_format.open(self.layout.key_schema)

    def open_value(self) -> RowFormat:
        """Open the value format."""
        return self.open_changelog() or self.value_format.open(self.layout.value_schema)

    def open_changelog(self) -> ChangelogFormat | None:
        """Open the value format if it is a changelog format, with the table's metadata columns of the value."""
        choice, layout = self.value_format, self.layout
        if not choice.is_changelog:
            return None
        keys = tuple(layout.value_metadata.values())
        return open_changelog_format(choice.name, layout.value_schema, choice.texts, side=choice.side, metadata=keys)


class MessageDecoder:
    """Decodes messages to rows. Not thread-safe."""

    def __init__(self, coding: Coding, columns: Sequence[str], zone: str) -> None:
        """Decode the columns in ``columns``; ``zone`` is the session's time zone."""
        self._layout = coding.layout
        self._key_format = coding.open_key()
        self._value_format = coding.open_value()
        self._is_changelog = coding.value_format.is_changelog
        self._columns = list(columns)
        self._zone = zone

    @property
    def needs_keys(self) -> bool:
        """Whether ``decode`` reads the message keys."""
        return self._key_format is not None

    @property
    def needs_messages(self) -> bool:
        """Whether ``decode`` needs the client's message objects, to fill metadata columns."""
        return any(name in self._layout.metadata for name in self._columns)

    def decode(self, records: Records, part: FetchRange) -> tuple[pa.RecordBatch, np.ndarray]:
        """Decode records of one partition to rows, in order.

        A record produces no row if the formats' options say to skip it, or if the formats have no row for its null key
        or its null value; in an upsert table, a null value is a delete.

        Args:
            records: the records, with keys if ``needs_keys`` and with message objects if ``needs_messages``.
            part: the range the records are from; used in error messages.

        Returns:
            The requested columns, plus ``_change_type`` for a table of changes; and the offset of each row's record
            (int64).

        Raises:
            CorruptedError: a record is not valid in its format; the message names topic, partition, offset and field.
        """
        layout = self._layout
        rows = self._decoded(self._value_format, records.values, records, part, "value")
        # A changelog format may find several rows in a record, in other formats a record is a row or none.
        value_row = np.arange(len(rows.record)) if self._is_changelog else _row_of(rows.record, len(records))
        record = rows.record if self._is_changelog else np.arange(len(records))
        key_row, key_batch = None, None
        keep = value_row >= 0
        deleted = np.zeros(len(record), bool)
        if self._key_format is not None:
            key_rows = self._decoded(self._key_format, records.keys, records, part, "key")
            key_row, key_batch = _row_of(key_rows.record, len(records))[record], key_rows.batch
            if layout.is_upsert:
                deleted = records.values.is_null().to_numpy(zero_copy_only=False)
                keep |= deleted
            # As in Flink, a record whose key is no row of the key format gives no row.
            keep &= key_row >= 0
        picked = np.flatnonzero(keep)
        chosen = [records.messages[i] for i in record[picked].tolist()] if self.needs_messages else []
        in_value = (*layout.value, *layout.value_metadata)
        found: list[pa.Array] = []
        for name in self._columns:
            data_type = layout.schema.field(name).type
            if name in layout.metadata:
                with _bad_record(records, record[picked], part, f"column '{name}'"):
                    found.append(metadata_array(layout.metadata[name], chosen, data_type, self._zone))
                continue
            from_value = _taken(rows.batch, in_value, name, value_row[picked])
            if from_value is not None and name in layout.value_metadata:
                with _bad_record(records, record[picked], part, f"column '{name}'"):
                    found.append(shown_as(from_value, data_type, self._zone))
                continue
            from_key = None
            if key_row is not None and key_batch is not None:
                from_key = _taken(key_batch, layout.key, name, key_row[picked])
            column = _either(_cast(from_value, data_type), _cast(from_key, data_type), deleted[picked])
            found.append(cut_times(column, layout.schema.field(name)))
        fields = [layout.schema.field(name).with_nullable(True) for name in self._columns]
        if layout.is_upsert:
            found.append(pc.if_else(pa.array(deleted[picked]), _DELETE, _UPSERT))
        elif self._is_changelog:
            found.append(pa.array(CHANGE_TYPE_NAMES).take(rows.batch.column(KIND).take(pa.array(picked))))
        if layout.is_upsert or self._is_changelog:
            fields.append(pa.field(CHANGE_TYPE, pa.string()))
        offsets = records.offsets[record[picked]]
        if not found:
            return _without_columns(len(picked)), offsets
        return pa.RecordBatch.from_arrays(found, schema=pa.schema(fields)), offsets

    def _decoded(
        self, codec: RowFormat, payloads: pa.Array, records: Records, part: FetchRange, side: str
    ) -> DecodedRows:
        with _bad_record(records, None, part, f"{side} ({codec.name})"):
            return codec.decode(payloads)


@contextmanager
def _bad_record(records: Records, at: np.ndarray | None, part: FetchRange, side: str) -> Iterator[None]:
    """Name the record that cannot be decoded; ``at`` holds the positions of the records, None stands for all."""
    try:
        yield
    except BadRecordError as error:
        position = error.position if at is None else at[error.position]
        where = f"topic {part.topic!r}, partition {part.partition}, offset {records.offsets[position]}"
        what = f", field {error.field!r}" if error.field else ""
        msg = f"{where}, {side}{what}: {error.reason}"
        raise CorruptedError(msg) from error


@dataclass(frozen=True)
class EncodedMessages:
    """A batch of encoded messages to send.

    Attributes:
        keys: message keys, large_binary; None for messages without keys.
        values: message values, large_binary; NULL for a delete.
        timestamps: milliseconds since the epoch; None if the table has no writable timestamp column.
        headers: message headers; None if the table has no writable headers column.
        partitions: target partitions, int32, where -1 leaves the choice to the client; None if not yet assigned.
        topic: the topic of all these messages; empty for the sink's only one.
    """

    keys: pa.Array | None
    values: pa.Array
    timestamps: Sequence[int | None] | None
    headers: Sequence[list[tuple[str, bytes | None]] | None] | None
    partitions: np.ndarray | None = None
    topic: str = ""

    def __len__(self) -> int:
        return len(self.values)

    def pairs(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield the key and value of each message."""
        keys = [None] * len(self) if self.keys is None else self.keys.to_pylist()
        return zip(keys, self.values.to_pylist(), strict=True)


class MessageEncoder:
    """Encodes rows to messages. Not thread-safe."""

    def __init__(self, coding: Coding, zone: str) -> None:
        """Encode rows that have the layout's columns; ``zone`` is the session's time zone."""
        self._layout = coding.layout
        self._key_format = coding.open_key()
        self._changelog = coding.open_changelog()
        self._value_format = self._changelog or coding.open_value()
        self._zone = zone

    def encode(self, rows: pa.RecordBatch) -> EncodedMessages:
        """Encode rows to messages, in order; rows have the layout's columns and optionally ``_change_type``.

        On an upsert table, inserts and updates become messages with a value, deletes become messages with a null
        value (tombstones), and update preimages are dropped. In a changelog format each change is a message. Other
        tables accept only inserts.

        Raises:
            InvalidInputError: the format cannot encode a value, a primary key column is NULL, the only column of an
                upsert table's ``raw`` values is NULL, ``_change_type`` has an unknown value, or a table that is not an
                upsert table gets a change other than an insert.
        """
        layout = self._layout
        deleted: np.ndarray | None = None
        if CHANGE_TYPE in rows.schema.names:
            rows, deleted = self._changes(rows)
        keys: pa.Array | None = None
        if self._key_format is not None:
            columns = [rows.column(name) for name in layout.key]
            self._check_key(columns)
            keys = self._key_format.encode_column(_labelled(columns, layout.key_schema, rows.num_rows))
        return EncodedMessages(
            keys,
            self._values(rows, deleted),
            self._metadata(rows, ("timestamp",), lambda column: timestamps_of(column, self._zone)),
            self._metadata(rows, HEADER_KEYS, headers_of),
        )

    def by_topic(self, rows: pa.RecordBatch) -> Iterator[EncodedMessages]:
        """Encode rows that name their topics, and yield the messages of each topic, in order.

        Raises:
            InvalidInputError: a row has no topic, or as for `encode`.
        """
        (column,) = (name for name, key in self._layout.metadata.items() if key == TOPIC)
        names = rows.column(column)
        if names.null_count:
            msg = f"column '{column}' (metadata 'topic') must not be NULL: {names.null_count} of {len(names)} rows."
            raise InvalidInputError(msg)
        for name in pc.unique(names).to_pylist():
            yield replace(self.encode(rows.filter(pc.equal(names, name))), topic=name)

    def _values(self, rows: pa.RecordBatch, deleted: np.ndarray | None) -> pa.Array:
        """Return the values of messages; ``deleted`` is the mask that ``_changes`` returns."""
        layout = self._layout
        if deleted is None or self._changelog is not None or not deleted.any():
            values = _labelled([rows.column(name) for name in layout.value], layout.value_schema, rows.num_rows)
            if self._changelog is not None and deleted is not None:
                return self._changelog.encode_changes(values, deleted)
            return self._row_values(values)
        written = rows.filter(pa.array(~deleted))
        columns = [written.column(name) for name in layout.value]
        values = self._row_values(_labelled(columns, layout.value_schema, written.num_rows))
        return values.take(pa.array(np.maximum(np.cumsum(~deleted) - 1, 0), mask=deleted))

    def _row_values(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the values of rows that are there; a null value would delete the row of an upsert table."""
        values = self._value_format.encode_column(rows)
        if self._layout.is_upsert and values.null_count:
            msg = (
                f"column '{rows.schema.names[0]}': an 'upsert-kafka' table with 'raw' values cannot have NULL there, "
                "since a null value deletes the row. Choose another 'value.format', such as 'json'."
            )
            raise InvalidInputError(msg)
        return values

    def _metadata(
        self, rows: pa.RecordBatch, keys: Sequence[str], read: Callable[[pa.Array], list[Any]]
    ) -> list[Any] | None:
        for column, shown in self._layout.metadata.items():
            if shown in keys:
                return read(rows.column(column))
        return None

    def _changes(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray | None]:
        """Return the rows to write and a mask of those that are deleted, or retracted; None if all are inserts.

        Raises:
            InvalidInputError: a change type is unknown, or the table does not support it.
        """
        kinds = rows.column(CHANGE_TYPE)
        known = pc.is_in(kinds, value_set=pa.array(CHANGE_TYPE_NAMES))
        if not pc.all(known).as_py() and rows.num_rows:
            wrong = kinds.filter(pc.invert(known))[0].as_py()
            msg = f"column '{CHANGE_TYPE}': expected one of {', '.join(CHANGE_TYPE_NAMES)}, got {wrong!r}."
            raise InvalidInputError(msg)
        if self._changelog is not None:
            return rows, pc.is_in(kinds, value_set=pa.array(_RETRACTED)).to_numpy(zero_copy_only=False)
        if not self._layout.is_upsert:
            if not pc.all(pc.equal(kinds, RowKind.INSERT.change_type)).as_py() and rows.num_rows:
                msg = (
                    f"A 'kafka' table doesn't support consuming update and delete changes (column '{CHANGE_TYPE}'); it "
                    "only appends rows. Write them to an 'upsert-kafka' table, or as 'debezium-json'."
                )
                raise InvalidInputError(msg)
            return rows, None
        kept = rows.filter(pc.not_equal(kinds, RowKind.UPDATE_BEFORE.change_type))
        return kept, pc.equal(kept.column(CHANGE_TYPE), _DELETE).to_numpy(zero_copy_only=False)

    def _check_key(self, columns: Sequence[pa.Array]) -> None:
        if not self._layout.is_upsert:
            return
        for name, column in zip(self._layout.key, columns, strict=True):
            if column.null_count:
                msg = (
                    f"column '{name}' is part of the PRIMARY KEY and must not be NULL; {column.null_count} of "
                    f"{len(column)} rows have no value there."
                )
                raise InvalidInputError(msg)


def _row_of(record: np.ndarray, count: int) -> np.ndarray:
    """Return the row index of each payload, -1 for a payload without a row."""
    found = np.full(count, -1, np.int64)
    found[record] = np.arange(len(record))
    return found


def _taken(batch: pa.RecordBatch, names: Sequence[str], name: str, rows: np.ndarray) -> pa.Array | None:
    """Return a column's values at the given rows, NULL for row -1; None if the batch does not have the column."""
    if name not in names:
        return None
    column = batch.column(names.index(name))
    if len(rows) != len(column) or (len(rows) and (rows[0] != 0 or (np.diff(rows) != 1).any())):
        column = column.take(pa.array(rows, mask=rows < 0))
    return column


def _cast(column: pa.Array | None, data_type: pa.DataType) -> pa.Array | None:
    return column if column is None or column.type == data_type else column.cast(data_type)


def _either(from_value: pa.Array | None, from_key: pa.Array | None, deleted: np.ndarray) -> pa.Array:
    """Return a column that the key, the value or both contain; the value takes precedence except in deletes.

    A delete has no value, so its column comes from the key.
    """
    if from_value is None or from_key is None:
        return from_value if from_key is None else from_key
    return pc.if_else(pa.array(deleted), from_key, from_value) if deleted.any() else from_value


def _labelled(columns: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a batch of the columns, with the names and types of a format's schema."""
    if not columns:
        return _without_columns(rows)
    cast_columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast_columns, schema=schema)


def _without_columns(rows: int) -> pa.RecordBatch:
    """Return a batch with rows but no columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
