"""The ``json`` format: one record per change, with the key and the row as JSON objects.

``docs/reference/formats.md`` describes how each type is written. DuckDB encodes and decodes whole batches; no row
passes through Python.

DuckDB's ``from_json`` alone is not safe: it turns values that it cannot read into NULL, ``1.5`` into ``2`` and ``"12"``
into ``12``. So ``decode`` verifies its result: it encodes the decoded rows again and accepts them if the bytes are
equal. Only records written differently (with an older schema, by another program) go through slower checks, finally
``check_record``. A reader that knows from the log index that the records are the table's own
(``log_system/kafka/reader/snapshot_reader.py``) skips the verification.

``check_record`` compares one record's text with the JSON of the row decoded from it. Python parses both. A difference
in meaning is an error: a rounded number, a string read as a number, a lost value. A difference in notation is not:
white space, escapes, field order, ``1.0`` for ``1.00``, missing (NULL) or unknown fields.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from log_system.formats.base import (
    DecodedChanges,
    EncodedRecords,
    Format,
    FormatSettings,
    Payloads,
    as_binary,
    joined,
)
from log_system.formats.changes_schema import (
    any_true,
    check_changes,
    check_columns,
    forbids_nulls,
    has_forbidden_null,
    relabel,
)
from log_system.formats.duckdb_json import (
    can_be_unusual,
    check_values,
    duckdb_type,
    is_unusual,
    json_literal,
    json_type,
    numbered_types,
    object_sql,
    read_sql,
    timestamp_text,
    write_sql,
)
from log_system.formats.thread_duckdb import SLICE_BYTES, Duck
from log_system.formats.truncate import TruncatingFormat, is_truncate
from snapshot.arrow_slices import slices
from snapshot.errors import BadRecordError, InvalidInputError
from snapshot.quoting import text_literal
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import with_kind

_TRUNCATE = b'{"_change_type":"truncate"}'
"""No table column can be named ``_change_type``."""


class RecordMismatchError(ValueError):
    """A record's JSON differs in meaning from the row that was decoded from it."""


def check_record(text: str | None, own: str, schema: pa.Schema, part: str) -> None:
    """Check that a record's text has the same meaning as the JSON of the row that was decoded from it.

    Args:
        text: the record's key or value; None if it is null.
        own: the JSON that this program writes for the row.
        schema: the table's columns; columns that ``own`` lacks are not compared.
        part: ``key`` or ``value``, for messages.

    Raises:
        RecordMismatchError: the two differ in meaning, or the text is not a JSON object.
    """
    if text is None:
        msg = f"the {part} is null"
        raise RecordMismatchError(msg)
    try:
        theirs = json.loads(
            text, parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_object_without_repeats
        )
    except (ValueError, RecursionError, InvalidOperation) as error:
        msg = f"the {part} is not valid JSON: {error}"
        raise RecordMismatchError(msg) from error
    if not isinstance(theirs, dict):
        msg = f"the {part} is not a JSON object"
        raise RecordMismatchError(msg)
    ours = json.loads(own, parse_float=Decimal)
    for name in ours:
        if not _same(theirs.get(name), ours[name], schema.field(name).type):
            shown = json.dumps(theirs.get(name), default=str)
            shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
            msg = f"the {part}'s column {name!r} of type {schema.field(name).type} cannot hold, or is not, {shown}"
            raise RecordMismatchError(msg)


def _no_constant(name: str) -> NoReturn:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        msg = "a field is given twice"
        raise ValueError(msg)
    return result


def _same(theirs: Any, ours: Any, data_type: pa.DataType) -> bool:
    """Return whether two parsed values of one type are equal; fields missing in ``theirs`` count as null."""
    if theirs is None or ours is None:
        return theirs is None and ours is None
    if pt.is_struct(data_type):
        return isinstance(theirs, dict) and all(_same(theirs.get(f.name), ours[f.name], f.type) for f in data_type)
    if pt.is_map(data_type):
        if pt.is_string(data_type.key_type):
            return (
                isinstance(theirs, dict)
                and list(theirs) == list(ours)
                and all(_same(theirs[k], ours[k], data_type.item_type) for k in ours)
            )
        pair = pa.struct([pa.field("key", data_type.key_type), pa.field("value", data_type.item_type)])
        return _same(theirs, ours, pa.list_(pair))
    if pt.is_list(data_type):
        return (
            isinstance(theirs, list)
            and len(theirs) == len(ours)
            and all(_same(a, b, data_type.value_type) for a, b in zip(theirs, ours, strict=True))
        )
    if isinstance(theirs, str) or isinstance(ours, str) or isinstance(theirs, bool) or isinstance(ours, bool):
        return type(theirs) is type(ours) and bool(theirs == ours)
    if not isinstance(theirs, (int, Decimal)):
        return False
    if pt.is_floating(data_type):
        width = np.float32 if pt.is_float32(data_type) else np.float64
        with np.errstate(over="ignore"):
            return repr(width(str(theirs))) == repr(width(str(ours)))
    return bool(theirs == ours)


_MEMORY_LIMIT = "256MB"
_SHAPES_MAX = 64
"""Most distinct field sets per slice that are checked in bulk; the remaining records are checked one by one."""

_BAD = (RecordMismatchError, duckdb.Error, pa.ArrowInvalid)
"""The errors that decoding raises if a record, not yet identified, cannot be decoded."""


class JsonFormat:
    """The ``json`` format. It can be pickled for executors; its DuckDB connection is not pickled."""

    name = "json"

    def __init__(self, schema: pa.Schema, primary_key: Sequence[str]) -> None:
        """Create the format for a table.

        Args:
            schema: the table's columns, in the types of PySpark's ``to_arrow_schema(..., timezone="UTC")``.
            primary_key: the primary key columns in written order; empty for a table without a primary key.

        Raises:
            InvalidInputError: a column has a type that a table cannot hold, or a key column does not exist.
        """
        check_columns(schema, primary_key)
        self._schema = schema
        self._changes = with_kind(schema)
        self._seen = numbered_types(schema).append(pa.field("kind", pa.int8()))
        self._key_positions = [schema.get_field_index(name) for name in primary_key]
        self._unusual = [i for i, field in enumerate(schema) if can_be_unusual(field.type)]
        self._timestamps = [i for i, kind in enumerate(schema.types) if pt.is_timestamp(kind)]
        self._strict = [
            i
            for i, field in enumerate(schema)
            if not field.nullable or i in self._key_positions or forbids_nulls(field.type)
        ]
        self._duck = Duck(_MEMORY_LIMIT)
        self._read_queries: dict[bool, str] = {}

    def encode(self, changes: pa.RecordBatch) -> EncodedRecords:
        """Encode each change as one record.

        Raises:
            InvalidInputError: an UPDATE_BEFORE (this format cannot represent it), a delete in a table without a
                primary key, NULL in a key, or a value that cannot be read back. Nothing was encoded.
        """
        kinds = check_changes(changes, self._changes)
        self._check_kinds(kinds)
        for position in self._key_positions:
            if changes.column(position).null_count:
                msg = f"primary key column {self._schema.names[position]!r} must not be NULL"
                raise InvalidInputError(msg)
        check_values(changes)
        keys: list[pa.Array] = []
        values: list[pa.Array] = []
        for part in slices(changes, SLICE_BYTES):
            try:
                key, value = self._write(part)
            except duckdb.Error as error:
                msg = f"changes cannot be written as JSON: {error}"
                raise InvalidInputError(msg) from error
            keys.append(pa.nulls(len(part), pa.large_binary()) if key is None else key.cast(pa.large_binary()))
            values.append(value.cast(pa.large_binary()))
        return EncodedRecords(joined(keys), joined(values), np.ones(len(changes), np.int64))

    def decode(self, keys: Payloads, values: Payloads, *, own: bool = False) -> DecodedChanges:
        """Decode each record into one change: UPDATE_AFTER or DELETE with a primary key, INSERT without.

        Fields that a record lacks become NULL; fields that the table lacks are ignored. Without a primary key, record
        keys are ignored.

        Raises:
            BadRecordError: a record is not JSON, has a value that its column cannot hold exactly, has NULL in a
                NOT NULL column, has a key that differs from its row's, or has a null value without a key.
        """
        try:
            batch = self._decode(keys, values, own=own)
        except _BAD as error:
            if isinstance(error, duckdb.OutOfMemoryException):
                raise
            number, cause = self._first_bad(keys, values, error)
            raise BadRecordError(number, str(cause)) from error
        return DecodedChanges(batch, np.arange(len(batch), dtype=np.int64))

    def _check_kinds(self, kinds: np.ndarray) -> None:
        if np.any(kinds == RowKind.UPDATE_BEFORE):
            msg = "log.format='json' cannot carry UPDATE_BEFORE changes; drop them, or use log.format='arrow'"
            raise InvalidInputError(msg)
        if not self._key_positions and np.any(kinds == RowKind.DELETE):
            msg = "log.format='json' needs a primary key to carry a delete; declare one, or use log.format='arrow'"
            raise InvalidInputError(msg)

    def _column(self, position: int, *, unusual: bool) -> str:
        """Return the SQL that ``to_json`` takes for a column; columns are named ``c0``, ``c1``, ... in DuckDB."""
        return write_sql(self._schema.field(position).type, f"c{position}", unusual=unusual)

    def _columns(self, positions: Iterable[int], *, unusual: bool, written: Container[int]) -> str:
        """Return SQL for the JSON object of some columns; columns in ``written`` are already text."""
        names = self._schema.names
        return object_sql({names[i]: f"c{i}" if i in written else self._column(i, unusual=unusual) for i in positions})

    def _write(self, changes: pa.RecordBatch) -> tuple[pa.Array | None, pa.Array]:
        """Return the keys (None without a primary key) and the values of changes as text columns."""
        unusual = any(is_unusual(changes.column(i)) for i in self._unusual)
        seen = relabel(changes, self._seen)
        written: set[int] = set()
        for i in self._timestamps:
            column = timestamp_text(changes.column(i))
            if column is not None:
                seen = seen.set_column(i, f"c{i}", column)
                written.add(i)
        value = self._columns(range(len(self._schema)), unusual=unusual, written=written)
        sql = f"SELECT CASE WHEN kind <> {RowKind.DELETE:d} THEN {value} END"
        if self._key_positions:
            sql += f", {self._columns(self._key_positions, unusual=unusual, written=written)}"
        text = self._duck.run(f"{sql} FROM changes", changes=seen)
        return (text.column(1) if self._key_positions else None), text.column(0)

    def _decode(self, keys: Payloads, values: Payloads, *, own: bool = False) -> pa.RecordBatch:
        key = as_binary(keys).cast(pa.string()) if self._key_positions else pa.nulls(len(keys), pa.string())
        value = as_binary(values).cast(pa.string())
        parts = [
            self._read(part.column(0), part.column(1), own=own)
            for part in slices(pa.record_batch([key, value], names=["k", "v"]), SLICE_BYTES)
        ]
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _read(self, key: pa.Array, value: pa.Array, *, own: bool) -> pa.RecordBatch:
        """Decode one slice of records, and verify the result unless the records are known to be the table's own."""
        deletes = value.is_null()
        if value.null_count and (not self._key_positions or any_true(pc.and_(deletes, key.is_null()))):
            msg = "a null value (a delete) needs a primary key and a key"
            raise RecordMismatchError(msg)
        records = pa.record_batch([key, value], names=["k", "v"])
        rows = self._duck.run(self._read_query(with_deletes=value.null_count > 0), records=records)
        live = RowKind.UPDATE_AFTER if self._key_positions else RowKind.INSERT
        kinds = np.where(deletes.to_numpy(zero_copy_only=False), np.int8(RowKind.DELETE), np.int8(live))
        batch = relabel(rows.append_column(KIND, pa.array(kinds, pa.int8())), self._changes)
        if not own:
            self._check(batch, key, value, deletes)
        return batch

    def _read_query(self, *, with_deletes: bool) -> str:
        """Return the SQL that makes columns from values, and from keys for deletes if there are any."""
        if with_deletes not in self._read_queries:
            fields = {
                name: json_type(duckdb_type(kind))
                for name, kind in zip(self._schema.names, self._schema.types, strict=True)
            }
            sql = f"SELECT from_json(v, {json_literal(fields)}) AS r"
            of_deletes = self._key_positions if with_deletes else []
            if of_deletes:
                key_fields = {name: fields[name] for name in map(self._schema.names.__getitem__, of_deletes)}
                sql += f", from_json(CASE WHEN v IS NULL THEN k END, {json_literal(key_fields)}) AS kr"
            columns = [self._read_column(i, from_key=i in of_deletes) for i in range(len(self._schema))]
            self._read_queries[with_deletes] = f"SELECT {', '.join(columns)} FROM ({sql} FROM records)"
        return self._read_queries[with_deletes]

    def _read_column(self, position: int, *, from_key: bool) -> str:
        field = self._schema.field(position)
        sql = read_sql(field.type, f"struct_extract(r, {text_literal(field.name)})")
        if from_key:
            of_key = read_sql(field.type, f"struct_extract(kr, {text_literal(field.name)})")
            sql = f"CASE WHEN r IS NULL THEN {of_key} ELSE {sql} END"
        return f"{sql} AS c{position}"

    def _check(self, batch: pa.RecordBatch, key: pa.Array, value: pa.Array, deletes: pa.Array) -> None:
        """Check that a batch matches its records: first by bytes, then by field sets, then record by record.

        Raises:
            RecordMismatchError: a record differs in meaning from its row, or a NOT NULL column holds a NULL.
        """
        own_key, own_value = self._write(batch)
        same = pc.fill_null(pc.equal(value, own_value), deletes).to_numpy(zero_copy_only=False)
        same_key = np.ones(len(batch), bool)
        if own_key is not None:
            same_key = pc.fill_null(pc.equal(key, own_key), fill_value=False).to_numpy(zero_copy_only=False)
        if not same.all():
            odd = pa.array(np.flatnonzero(~same))
            same = same.copy()
            same[odd] = self._same_by_fields(batch.take(odd), value.take(odd))
        rest = pa.array(np.flatnonzero(~(same & same_key)))
        if len(rest):
            for theirs, ours in zip(value.take(rest).to_pylist(), own_value.take(rest).to_pylist(), strict=True):
                if ours is not None and theirs != ours:
                    check_record(theirs, ours, self._schema, "value")
        if len(rest) and own_key is not None:
            for theirs, ours in zip(key.take(rest).to_pylist(), own_key.take(rest).to_pylist(), strict=True):
                check_record(theirs, ours, self._schema, "key")
        live = pc.invert(deletes) if value.null_count else None
        for i in self._strict:
            field, column = self._schema.field(i), batch.column(i)
            is_key = i in self._key_positions
            rows = column.filter(live) if live is not None and not is_key else column
            if has_forbidden_null(rows, field.with_nullable(field.nullable and not is_key)):
                msg = f"column {field.name!r} is NULL, or holds a NULL, where it must not"
                raise RecordMismatchError(msg)

    def _same_by_fields(self, changes: pa.RecordBatch, value: pa.Array) -> np.ndarray:
        """Return, for each value, whether it equals byte for byte what this program writes for exactly its fields.

        After schema evolution all older records have other fields than the table, too many to check one by one.
        """
        same = np.zeros(len(value), bool)
        records = pa.record_batch([value], names=["v"])
        fields = self._duck.run("SELECT to_json(json_keys(v))::VARCHAR FROM records", records=records).column(0)
        shapes = fields.dictionary_encode()
        for number, shape in enumerate(shapes.dictionary.to_pylist()[:_SHAPES_MAX]):
            names = json.loads(shape)
            if names and "" not in names and len({name.casefold() for name in names}) == len(names):
                rows = pa.array(np.flatnonzero(shapes.indices.to_numpy(zero_copy_only=False) == number))
                same[rows] = self._same_with(names, changes.take(rows), value.take(rows))
        return same

    def _same_with(self, names: list[str], changes: pa.RecordBatch, value: pa.Array) -> np.ndarray:
        unusual = any(is_unusual(changes.column(i)) for i in self._unusual)
        known = {name: i for i, name in enumerate(self._schema.names)}
        text = object_sql(
            {
                name: self._column(known[name], unusual=unusual)
                if name in known
                else f"struct_extract(from_json(v, {json_literal({name: 'JSON'})}), {text_literal(name)})"
                for name in names
            }
        )
        records = relabel(changes, self._seen).append_column("v", value)
        answer = self._duck.run(f"SELECT {text} = v FROM records", records=records).column(0)
        same: np.ndarray = answer.to_numpy(zero_copy_only=False)
        return same

    def _first_bad(self, keys: Payloads, values: Payloads, cause: Exception) -> tuple[int, Exception]:
        """Return the position and the error of the first record that cannot be decoded, found by bisection."""
        low, high = 0, len(values)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._decode(keys[low:middle], values[low:middle])
            except _BAD as error:
                high, cause = middle, error
            else:
                low = middle
        try:
            self._decode(keys[low:high], values[low:high])
        except _BAD as error:
            return low, error
        raise cause


def _open(schema: pa.Schema, primary_key: Sequence[str], settings: FormatSettings) -> TruncatingFormat:
    return TruncatingFormat(JsonFormat(schema, primary_key), _TRUNCATE)


def _as_read(changes: pa.RecordBatch, primary_key: Sequence[str], changelog: bool) -> pa.RecordBatch:
    """Return changes as upserts and deletes; of a deleted row, only the key is left."""
    if not primary_key or is_truncate(changes):
        return changes
    kinds = changes.column(KIND)
    deletes = pc.equal(kinds, int(RowKind.DELETE))
    has_deletes = pc.any(deletes).as_py()
    columns = []
    for field, column in zip(changes.schema, changes.columns, strict=True):
        if field.name == KIND:
            columns.append(pc.if_else(deletes, kinds, pa.scalar(int(RowKind.UPDATE_AFTER), pa.int8())))
        elif field.name in primary_key or not has_deletes:
            columns.append(column)
        else:
            live = np.flatnonzero(~deletes.to_numpy(zero_copy_only=False))
            places = np.full(len(column), -1)
            places[live] = live
            columns.append(column.take(pa.array(places, mask=places < 0)))
    return pa.RecordBatch.from_arrays(columns, schema=changes.schema)


FORMAT = Format(
    name="json", open=_open, as_read=_as_read, check=check_values, keeps_replaced_rows=False, deletes_need_key=True
)
