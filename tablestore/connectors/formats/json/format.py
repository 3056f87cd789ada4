"""The row format ``json``, compatible with Flink's JSON format; see ``docs/reference/formats.md``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.base import DecodedRows, Payloads
from tablestore.connectors.formats.bulk_decode import decode_in_bulk, decoded, read_one_by_one
from tablestore.connectors.formats.column_texts import Pieces, joined, json_pieces
from tablestore.connectors.formats.json.bulk_reader import JsonBulkReader
from tablestore.connectors.formats.json.row_reader import JsonRowReader
from tablestore.connectors.formats.json.writer import JsonSql
from tablestore.connectors.formats.options import FormatOptions
from tablestore.connectors.formats.text_format import TextFormat
from tablestore.connectors.formats.types import check_schema
from tablestore.options.declaration import option
from tablestore.options.value_types import BOOLEAN, VERBATIM, choice


@dataclass(frozen=True, kw_only=True)
class CommonJsonOptions(FormatOptions):
    """The options of all formats that are JSON."""

    ignore_parse_errors: bool = option(
        "ignore-parse-errors",
        BOOLEAN,
        "false",
        "Whether an invalid field becomes NULL, and a payload that is not an object is skipped.",
    )
    standard: str = option("timestamp-format.standard", choice(("SQL", "ISO-8601")), "SQL")
    plain_decimals: bool = option("encode.decimal-as-plain-number", BOOLEAN, "false", "Without an exponent.")
    without_nulls: bool = option("encode.ignore-null-fields", BOOLEAN, "false", "Whether NULL fields are omitted.")
    # These options are validated but have no effect: Arrow maps have no NULL keys.
    null_keys: str = option("map-null-key.mode", choice(("FAIL", "DROP", "LITERAL")), "FAIL")
    null_key: str = option("map-null-key.literal", VERBATIM, "null")

    @property
    def separator(self) -> str:
        """The separator of date and time."""
        return " " if self.standard == "SQL" else "T"


@dataclass(frozen=True, kw_only=True)
class JsonOptions(CommonJsonOptions):
    """The options of the ``json`` format."""

    format = "json"
    fail_on_missing_field: bool = option("fail-on-missing-field", BOOLEAN, "false", "An error instead of NULL.")
    # This option is validated but has no effect: there is only one decoder.
    parser: bool = option("decode.json-parser.enabled", BOOLEAN, "true")

    def __post_init__(self) -> None:
        """Check that the options do not exclude each other.

        Raises:
            InvalidInputError: they do.
        """
        if self.fail_on_missing_field and self.ignore_parse_errors:
            before = self.option_prefix
            msg = (
                f"{before}fail-on-missing-field and {before}ignore-parse-errors shouldn't both be true. Set one of "
                "them to 'false'"
            )
            raise InvalidInputError(msg)


class JsonRowFormat(TextFormat):
    """Row format that encodes each row as a JSON object."""

    name = "json"
    empty = b"{}"

    def __init__(self, schema: pa.Schema, options: Mapping[str, str], *, side: str = "") -> None:
        """Prepare for a schema.

        ``options`` are without prefix; ``side`` is ``key``, ``value`` or empty, for messages.

        Raises:
            InvalidInputError: JSON does not support a column type, or an option is invalid.
        """
        self._options = JsonOptions.of(options, side=side)
        check_schema(schema, _check_field)
        sql = JsonSql(self._options.separator, self._options.plain_decimals, self._options.without_nulls)
        super().__init__(schema, options, side, sql.text)
        self._one = JsonRowReader(
            schema,
            separator=self._options.separator,
            fail_on_missing_field=self._options.fail_on_missing_field,
            ignore_parse_errors=self._options.ignore_parse_errors,
        ).read
        self._bulk = JsonBulkReader(
            schema,
            self._duck,
            separator=self._options.separator,
            fail_on_missing_field=self._options.fail_on_missing_field,
        ).read

    def _texts(self, rows: pa.RecordBatch) -> pa.Array:
        """Return each row as a JSON object."""
        options = self._options
        fast = partial(json_pieces, separator=options.separator, plain=options.plain_decimals)
        columns = self._pieces(rows, fast)
        parts: list[pa.Array | str] = []
        for number, (field, pieces) in enumerate(zip(self._schema, columns, strict=True)):
            name = json.dumps(field.name, ensure_ascii=False) + ":"
            if options.without_nulls:
                # Each field starts with a comma; the first comma is removed below.
                parts += Pieces(f",{name}{pieces.before}", pieces.texts, pieces.after).filled("")
            else:
                parts += ["," if number else "{", name, *pieces.filled("null")]
        if options.without_nulls:
            parts = ["{", pc.utf8_slice_codeunits(joined(parts, len(rows)), 1)]
        return joined([*parts, "}"], len(rows))

    def decode(self, payloads: Payloads) -> DecodedRows:
        """Decode payloads to rows. Null, empty and ``null`` payloads produce no row."""
        if not self._schema:
            rows, record = read_one_by_one(payloads, range(len(payloads)), self._one)
            return decoded(rows, record, self._schema)
        return decode_in_bulk(payloads, self._schema, self._bulk, self._one)


def _check_field(field: pa.Field, path: str) -> None:
    if pt.is_map(field.type) and not pt.is_string(field.type.key_type):
        msg = f"column {path!r}: format 'json' writes maps with string keys only, this one has {field.type.key_type}"
        raise InvalidInputError(msg)
