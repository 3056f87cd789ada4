"""Converts one column of ``from_json_strict``'s result, the JSON texts of values, to an Arrow column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from log_system.formats.changes_schema import any_true
from log_system.formats.duckdb_json import json_literal
from log_system.formats.thread_duckdb import Duck
from snapshot.quoting import quoted, text_literal
from tablestore.connectors.formats.bulk_decode import as_mask
from tablestore.connectors.formats.column_texts import bounds_and_bytes
from tablestore.connectors.formats.text_casts import Cast, cast_texts

_DIGITS_OF_DOUBLE = 15
"""Decimals of up to this many digits survive the conversion to double that DuckDB applies to fractions."""

_LOOKS_LIKE_NO_STRING = r"(?s)^([-0-9].*[.eE]|[{\[])"
"""Matches texts that may stem from a number, an object or an array, whose text DuckDB rewrites, and not a string."""

_FIRST_OF_NO_STRING = np.frombuffer(b"-0123456789{[", np.uint8)

_SPELLED_ALIKE = r"^(-?[1-9][0-9]*|0|true|false)$"
"""Matches JSON values other than strings that have only one possible text."""


class DoubtError(Exception):
    """Raised when some value of a column may have been decoded incorrectly; it is not known which one."""


class ColumnReader:
    """Decodes one column with the method that suits its type.

    Attributes:
        structure: the type to request from ``from_json_strict`` for the column.
    """

    def __init__(self, field: pa.Field, duck: Duck, *, separator: str) -> None:
        """Prepare the reader for a column."""
        self._name, self._kind = field.name, field.type
        self._duck = duck
        self._separator = separator
        self._wide = pt.is_decimal(self._kind) and self._kind.precision > _DIGITS_OF_DOUBLE
        # Request strings, dates and timestamps as text. For other types, request JSON, which shows whether a value was
        # a string.
        as_text = pt.is_string(self._kind) or pt.is_temporal(self._kind)
        self.structure = "VARCHAR" if as_text else _structure(self._kind)
        if self._wide:
            self.structure = f"DECIMAL({self._kind.precision},{self._kind.scale})"

    def read(self, found: pa.Array, records: pa.RecordBatch) -> Cast:
        """Return the decoded column, and a mask of the rows that were decoded (None if all were).

        Args:
            found: the column that ``from_json_strict`` returned.
            records: the payloads, in column ``v``.

        Raises:
            DoubtError: some value of a nested column could not be decoded.
        """
        kind = self._kind
        if kind.num_fields:
            return self._nested(found, kind), None
        if pt.is_string(kind):
            return found, self._were_strings(found, records)
        if self._wide:
            return found, self._were_numbers(records)
        if pt.is_temporal(kind):
            return cast_texts(found, kind, separator=self._separator)
        return self._leaf(found, kind)

    def _tokens(self, records: pa.RecordBatch) -> pa.Array:
        """Return the column again as JSON text, which distinguishes strings from numbers."""
        structure = json_literal({self._name: "JSON"})
        sql = f"SELECT struct_extract(from_json(v, {structure}), {text_literal(self._name)})::VARCHAR FROM records"
        return self._duck.run(sql, records=records).column(0)

    def _were_strings(self, found: pa.Array, records: pa.RecordBatch) -> np.ndarray | None:
        if not _may_be_no_string(found):
            return None
        odd = pc.fill_null(pc.match_substring_regex(found, _LOOKS_LIKE_NO_STRING), fill_value=False)
        if not any_true(odd):
            return None
        rows = pa.array(np.flatnonzero(odd.to_numpy(zero_copy_only=False)))
        strings = pc.starts_with(self._tokens(records.take(rows)), '"')
        read = np.ones(len(found), bool)
        read[rows] = strings.to_numpy(zero_copy_only=False)
        return read

    def _were_numbers(self, records: pa.RecordBatch) -> np.ndarray | None:
        """Return a mask of the values that were JSON numbers or NULL.

        DuckDB reads the digits of a number into a decimal exactly. It also converts ``true`` and strings, but with its
        own rules.
        """
        numbers = pc.fill_null(pc.match_substring_regex(self._tokens(records), "^[-0-9]"), fill_value=True)
        return np.array(numbers.to_numpy(zero_copy_only=False))

    def _leaf(self, tokens: pa.Array, data_type: pa.DataType) -> Cast:
        """Decode the JSON texts of scalar values."""
        quoted_ones = pc.fill_null(pc.starts_with(tokens, '"'), fill_value=False)
        if pt.is_string(data_type):
            return self._strings(tokens, quoted_ones)
        if pt.is_binary(data_type):
            return self._binaries(tokens, quoted_ones)
        # The number -0 is an integer and loses its sign; the string "-0" keeps it. Leave out both forms.
        unread = pc.equal(tokens, "-0") if pt.is_floating(data_type) else None
        if any_true(quoted_ones):
            escaped = pc.and_(quoted_ones, pc.match_substring(tokens, "\\"))
            unread = escaped if unread is None else pc.or_(unread, escaped)
            tokens = pc.if_else(quoted_ones, pc.utf8_trim(tokens, '"'), tokens)
        read = None
        if unread is not None and any_true(unread):
            read = ~as_mask(unread)
            tokens = pc.if_else(pa.array(read), tokens, pa.scalar(None, tokens.type))
        column, known = cast_texts(tokens, data_type, separator=self._separator)
        if known is None or read is None:
            return column, known if read is None else read
        return column, known & read

    def _strings(self, tokens: pa.Array, quoted_ones: pa.Array) -> Cast:
        alike = pc.or_(quoted_ones, pc.match_substring_regex(tokens, _SPELLED_ALIKE))
        known = pc.fill_null(alike, fill_value=True)
        if any_true(pc.match_substring(tokens, "\\")):
            records = pa.record_batch([tokens], names=["v"])
            texts = self._duck.run("SELECT json_extract_string(v, '$') FROM records", records=records).column(0)
        else:
            texts = pc.if_else(quoted_ones, pc.utf8_slice_codeunits(tokens, 1, -1), tokens)
        return texts, np.array(known.to_numpy(zero_copy_only=False))

    def _binaries(self, tokens: pa.Array, quoted_ones: pa.Array) -> Cast:
        """Decode base64; only values that re-encode to the same text are certain to decode as in Java."""
        records = pa.record_batch([pc.if_else(quoted_ones, tokens, pa.scalar(None, tokens.type))], names=["v"])
        read = "SELECT t, TRY(from_base64(t)) AS b FROM (SELECT v[2:-2] AS t FROM records)"
        found = self._duck.run(f"SELECT b, to_base64(b) = t FROM ({read})", records=records)
        known = pc.or_(pc.fill_null(found.column(1), fill_value=False), pc.is_null(tokens))
        return found.column(0), np.array(known.to_numpy(zero_copy_only=False))

    def _nested(self, found: pa.Array, data_type: pa.DataType) -> pa.Array:
        """Return a nested column with its JSON texts replaced by typed values.

        Raises:
            DoubtError: some value could not be decoded.
        """
        hidden = found.is_null() if found.null_count else None
        if pt.is_struct(data_type):
            children = [self._nested(found.field(i), field.type) for i, field in enumerate(data_type)]
            return pa.StructArray.from_arrays(children, fields=list(data_type), mask=hidden)
        if pt.is_map(data_type):
            items = self._nested(found.items, data_type.item_type)
            return pa.MapArray.from_arrays(found.offsets, found.keys, items, type=data_type, mask=hidden)
        if pt.is_list(data_type):
            values = self._nested(found.values, data_type.value_type)
            return pa.ListArray.from_arrays(found.offsets, values, type=data_type, mask=hidden)
        many_digits = pt.is_decimal(data_type) and data_type.precision > _DIGITS_OF_DOUBLE
        if many_digits and any_true(pc.match_substring_regex(found, r"^[-0-9].*[.eE]")):
            msg = "a fraction of many digits"
            raise DoubtError(msg)
        column, known = self._leaf(found, data_type)
        if known is not None and not known.all():
            msg = "a value in another form"
            raise DoubtError(msg)
        return column


def _may_be_no_string(texts: pa.Array) -> bool:
    """Return whether any text starts with a character that ``_LOOKS_LIKE_NO_STRING`` matches.

    This is a fast check of all texts at once; false positives are possible.
    """
    bounds, data = bounds_and_bytes(texts)
    starts = bounds[:-1]
    # The start offset of an empty text points at the first byte of the next text, or past the end of the data.
    return bool(np.isin(data[starts[starts < len(data)]], _FIRST_OF_NO_STRING).any())


def _structure(data_type: pa.DataType) -> str:
    """Return the SQL type of a value in which each scalar is JSON text."""
    if pt.is_struct(data_type):
        return f"STRUCT({', '.join(f'{quoted(field.name)} {_structure(field.type)}' for field in data_type)})"
    if pt.is_map(data_type):
        return f"MAP(VARCHAR, {_structure(data_type.item_type)})"
    if pt.is_list(data_type):
        return f"{_structure(data_type.value_type)}[]"
    return "JSON"
