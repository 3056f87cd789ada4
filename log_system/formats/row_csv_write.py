"""SQL that writes rows as CSV, quoted where Flink's CSV (Jackson's) quotes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from log_system.formats.row_csv_read import CsvOptions
from log_system.formats.row_json_write import decimal_sql, floating_sql, plain_text_sql
from snapshot.quoting import text_literal

_LONG = 24
"""Texts of more characters are quoted whatever they hold: Jackson does not look through them."""

_OF_TIMESTAMPS = "0123456789-: .Z"


def line_sql(schema: pa.Schema, columns: list[str], options: CsvOptions) -> str:
    """SQL of a line, without an end of line."""
    parts = []
    for number, (field, column) in enumerate(zip(schema, columns, strict=True)):
        if number:
            parts.append(text_literal(options.delimiter))
        parts.append(f"coalesce({_field_sql(field.type, column, options)}, {text_literal(options.null or '')})")
    return f"concat({', '.join(parts)})"


def _field_sql(kind: pa.DataType, sql: str, options: CsvOptions) -> str:
    """SQL of a field; NULL where the column is."""
    text = _text_sql(kind, sql, options)
    # Jackson looks at everything it got as text, decimals among it, and at no other number.
    if options.quote is None or pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind):
        return text
    if pt.is_timestamp(kind) and options.quote_or_delimiter >= " " and not set(options.specials) & set(_OF_TIMESTAMPS):
        # Each has a blank, so each is quoted.
        return f"{text_literal(options.quote)} || {text} || {text_literal(options.quote)}"
    if pt.is_string(kind):
        return _quoted_sql(sql, options, options.quote)
    return f"list_transform([{text}], lambda t: {_quoted_sql('t', options, options.quote)})[1]"


def _text_sql(kind: pa.DataType, sql: str, options: CsvOptions, *, depth: int = 0) -> str:
    if pt.is_struct(kind):
        parts = []
        for number, field in enumerate(kind):
            inner = _text_sql(field.type, f"struct_extract({sql}, {text_literal(field.name)})", options, depth=depth)
            parts += [text_literal(options.element_delimiter)] * bool(number)
            parts.append(f"coalesce({inner}, {text_literal(options.null or '')})")
        return f"CASE WHEN {sql} IS NOT NULL THEN concat({', '.join(parts)}) END"
    if pt.is_list(kind):
        inner = _text_sql(kind.value_type, f"x{depth}", options, depth=depth + 1)
        element = f"coalesce({inner}, {text_literal(options.null or '')})"
        listed = f"list_transform({sql}, lambda x{depth}: {element})"
        return f"array_to_string({listed}, {text_literal(options.element_delimiter)})"
    if pt.is_decimal(kind):
        return decimal_sql(kind, sql, plain=not options.scientific)
    if pt.is_floating(kind):
        return floating_sql(sql, quote="")
    if pt.is_binary(kind) or pt.is_temporal(kind):
        return plain_text_sql(kind, sql, separator=" ")
    return f"({sql})::VARCHAR"


def _quoted_sql(text: str, options: CsvOptions, quote: str) -> str:
    """SQL that quotes a text with any character up to the delimiter or the quote, which is how Jackson decides."""
    needs = rf"[\x{{0}}-\x{{{ord(options.quote_or_delimiter):x}}}]"
    inner = text
    if options.escape is not None:
        needs = rf"[\x{{0}}-\x{{{ord(options.quote_or_delimiter):x}}}\x{{{ord(options.escape):x}}}]"
        inner = f"replace({inner}, {text_literal(options.escape)}, {text_literal(options.escape * 2)})"
    inner = f"replace({inner}, {text_literal(quote)}, {text_literal(quote * 2)})"
    quoted = f"{text_literal(quote)} || {inner} || {text_literal(quote)}"
    is_quoted = f"length({text}) > {_LONG} OR regexp_matches({text}, {text_literal(needs)})"
    return f"CASE WHEN {is_quoted} THEN {quoted} ELSE {text} END"
