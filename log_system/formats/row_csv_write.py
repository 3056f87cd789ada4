"""SQL that writes rows as CSV, quoted where Flink's CSV (Jackson's) quotes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from log_system.formats.json_types import literal
from log_system.formats.row_csv_read import CsvOptions
from log_system.formats.row_json_write import decimal_sql, floating_sql, plain_text_sql

_LONG = 24
"""Texts of more characters are quoted whatever they hold: Jackson does not look through them."""


def line_sql(schema: pa.Schema, columns: list[str], options: CsvOptions) -> str:
    """SQL of a line, without an end of line."""
    parts = []
    for number, (field, column) in enumerate(zip(schema, columns, strict=True)):
        if number:
            parts.append(literal(options.delimiter))
        parts.append(f"coalesce({_field_sql(field.type, column, options)}, {literal(options.null or '')})")
    return f"concat({', '.join(parts)})"


def _field_sql(kind: pa.DataType, sql: str, options: CsvOptions) -> str:
    """SQL of a field; NULL where the column is."""
    text = _text_sql(kind, sql, options)
    # Jackson looks at everything it got as text, decimals among it, and at no other number.
    as_it_is = pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind)
    return text if as_it_is else _quoted_sql(text, options)


def _text_sql(kind: pa.DataType, sql: str, options: CsvOptions, *, depth: int = 0) -> str:
    if pt.is_struct(kind):
        parts = []
        for number, field in enumerate(kind):
            inner = _text_sql(field.type, f"struct_extract({sql}, {literal(field.name)})", options, depth=depth)
            parts += [literal(options.element_delimiter)] * bool(number)
            parts.append(f"coalesce({inner}, {literal(options.null or '')})")
        return f"CASE WHEN {sql} IS NOT NULL THEN concat({', '.join(parts)}) END"
    if pt.is_list(kind):
        inner = _text_sql(kind.value_type, f"x{depth}", options, depth=depth + 1)
        element = f"coalesce({inner}, {literal(options.null or '')})"
        listed = f"list_transform({sql}, lambda x{depth}: {element})"
        return f"array_to_string({listed}, {literal(options.element_delimiter)})"
    if pt.is_decimal(kind):
        return decimal_sql(kind, sql, plain=not options.scientific)
    if pt.is_floating(kind):
        return floating_sql(sql, quote="")
    if pt.is_binary(kind) or pt.is_temporal(kind):
        return plain_text_sql(kind, sql, separator=" ")
    return f"({sql})::VARCHAR"


def _quoted_sql(text: str, options: CsvOptions) -> str:
    """SQL that quotes a text with any character up to the delimiter or the quote, which is how Jackson decides."""
    if options.quote is None:
        return text
    last = max(ord(options.delimiter), ord(options.quote))
    needs = rf"[\x{{0}}-\x{{{last:x}}}]"
    inner = "t"
    if options.escape is not None:
        needs = rf"[\x{{0}}-\x{{{last:x}}}\x{{{ord(options.escape):x}}}]"
        inner = f"replace({inner}, {literal(options.escape)}, {literal(options.escape * 2)})"
    inner = f"replace({inner}, {literal(options.quote)}, {literal(options.quote * 2)})"
    quoted = f"{literal(options.quote)} || {inner} || {literal(options.quote)}"
    case = f"CASE WHEN length(t) > {_LONG} OR regexp_matches(t, {literal(needs)}) THEN {quoted} ELSE t END"
    return f"list_transform([{text}], lambda t: {case})[1]"
