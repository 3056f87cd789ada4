"""The changelog formats ``debezium-json``, ``canal-json``, ``maxwell-json`` and ``ogg-json``, as in Flink.

A message is an insert, an update or a delete. An update is read as two rows, before and after. It is written as a
delete and an insert, since a sink gets the two rows one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.formats.thread_duckdb import Duck
from snapshot.errors import InvalidInputError
from snapshot.row_kind import KIND
from tablestore.connectors.formats.base import DecodedRows, Payloads
from tablestore.connectors.formats.bulk_decode import decode_in_bulk, decoded, read_one_by_one
from tablestore.connectors.formats.changelog.bulk_reader import ChangelogBulkReader
from tablestore.connectors.formats.changelog.layouts import (
    LAYOUTS,
    CanalJsonOptions,
    DebeziumJsonOptions,
    Operation,
)
from tablestore.connectors.formats.changelog.row_reader import ChangelogRowReader, MessageSpec
from tablestore.connectors.formats.json.format import CommonJsonOptions, JsonRowFormat
from tablestore.connectors.formats.text_format import MEMORY_LIMIT, PortableFormat
from tablestore.connectors.java_regex import compile_pattern


class ChangelogJsonFormat(PortableFormat):
    """A changelog format that encodes each change as a JSON object."""

    def __init__(
        self, schema: pa.Schema, options: Mapping[str, str], *, name: str, side: str = "", metadata: Sequence[str] = ()
    ) -> None:
        """Prepare for a schema.

        Args:
            schema: the columns of a row.
            options: Flink's options of the format, without prefix.
            name: the format's name.
            side: ``value`` or empty; used in error messages.
            metadata: the metadata keys to decode, in order.

        Raises:
            InvalidInputError: JSON does not support a column type, or an option is invalid.
        """
        super().__init__(schema, options, side)
        self.name = name
        self._metadata = tuple(metadata)
        self._layout = LAYOUTS[name]
        self._options = self._layout.options.of(options, side=side)
        self._rows = JsonRowFormat(schema, _json_options(self._options), side=side)
        self._spec = MessageSpec(
            self._layout,
            schema,
            tuple(self._layout.metadata[key] for key in metadata),
            self._options.separator,
            self._options.ignore_parse_errors,
            self._has_schema,
            _included(self._options),
        )
        self._one = ChangelogRowReader(self._spec).read
        self._bulk = ChangelogBulkReader(self._spec, Duck(MEMORY_LIMIT)).read if len(schema) else None

    @property
    def _has_schema(self) -> bool:
        return isinstance(self._options, DebeziumJsonOptions) and self._options.schema_include

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the constructor arguments."""
        schema, options, side = self._made_from
        make = partial(ChangelogJsonFormat, name=self.name, side=side, metadata=self._metadata)
        return make, (schema, options)

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Decode messages to changes; null, empty and ``null`` payloads produce no row."""
        spec = self._spec
        if self._bulk is None:
            rows, record = read_one_by_one(payloads, range(len(payloads)), self._one)
            found = decoded(rows, record, spec.decoded)
        else:
            found = decode_in_bulk(payloads, spec.decoded, self._bulk, self._one)
        columns = list(found.batch.columns)
        fields = dict(zip(spec.fields.names, columns[len(self._schema) : -1], strict=True))
        shown = [each.column(fields[each.field.name]) for each in spec.metadata]
        names = [*self._schema.names, *self._metadata, KIND]
        made = [*columns[: len(self._schema)], *shown, columns[-1]]
        return DecodedRows(pa.RecordBatch.from_arrays(made, names), found.record)

    def check_writable(self) -> None:
        """Raise if the messages have a schema, which is not written."""
        if self._has_schema:
            msg = (
                f"{self._layout.tool} JSON serialization doesn't support '{self._options.option_prefix}schema-include' "
                "option been set to true: the schema is not written. Leave the option out of the table that is written."
            )
            raise InvalidInputError(msg)

    def encode_column(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows as inserts."""
        return self.encode_changes(rows, np.zeros(len(rows), bool))

    def encode_changes(self, rows: pa.RecordBatch, retracted: np.ndarray) -> pa.Array:
        """Encode rows as inserts, and those of the mask as deletes, as large_binary."""
        payloads, mask = self._rows.encode_column(rows), pa.array(retracted)
        start, end = (
            pc.if_else(mask, _binary(removed), _binary(added))
            for added, removed in zip(self._around(Operation.INSERT), self._around(Operation.DELETE), strict=True)
        )
        return pc.binary_join_element_wise(start, payloads, end, _binary(""))

    def _around(self, action: Operation) -> tuple[str, str]:
        """Return the text of a message before and after its row."""
        layout, mark = self._layout, "\0"
        row: Any = [mark] if layout.is_list else mark
        op = {layout.op: layout.written_op(action)}
        if layout.is_partial:
            message = {layout.after: row, **op}
        else:
            is_added = action is Operation.INSERT
            message = {layout.before: None if is_added else row, layout.after: row if is_added else None, **op}
        if self._options.without_nulls:
            message = {name: value for name, value in message.items() if value is not None}
        start, _, end = json.dumps(message, separators=(",", ":")).partition(json.dumps(mark))
        return start, end


def _binary(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.large_binary())


def _json_options(options: CommonJsonOptions) -> dict[str, str]:
    """Return the options with which rows are written as JSON."""
    return {
        "timestamp-format.standard": options.standard,
        "encode.decimal-as-plain-number": str(options.plain_decimals).lower(),
        "encode.ignore-null-fields": str(options.without_nulls).lower(),
    }


def _included(options: CommonJsonOptions) -> dict[str, Callable[[str], object]]:
    """Return which messages are read, by field."""
    if not isinstance(options, CanalJsonOptions):
        return {}
    patterns = {"database": options.database, "table": options.table}
    return {
        name: compile_pattern(pattern, f"{options.option_prefix}{name}.include").fullmatch
        for name, pattern in patterns.items()
        if pattern is not None
    }
