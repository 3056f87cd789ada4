"""Writes CSV fields with Arrow or as SQL expressions, with the quoting rules of Flink's CSV (Jackson's)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from log_system.formats.changes_schema import any_true
from snapshot.quoting import text_literal
from tablestore.connectors.formats.column_texts import Pieces, bytes_of, ending, plain_texts
from tablestore.connectors.formats.csv.row_reader import CsvOptions
from tablestore.connectors.formats.json.writer import decimal_sql, floating_sql, plain_text_sql

_LONG = 24
"""Longer texts are always quoted, because Jackson does not scan them for special characters."""


def field_pieces(column: pa.Array, options: CsvOptions) -> Pieces | None:
    """Return a column's CSV fields, NULL where the column is NULL; None if only ``field_sql`` can write them."""
    kind, last, quote = column.type, options.quote_or_delimiter, options.quote
    texts = plain_texts(column, plain=not options.scientific)
    if texts is None:
        return None
    after = ending(kind)
    if quote is None or not _is_looked_at(kind):
        return Pieces("", texts, after)
    if not last.isascii() or not (options.escape or "").isascii():
        return None
    data = bytes_of(texts)
    specials = [each for each in options.specials if each in after or (data == ord(each)).any()]
    if pt.is_timestamp(kind) and last >= " " and not specials:
        # Every timestamp contains a space, so every one is quoted.
        return Pieces(quote, texts, after + quote)
    if after:
        texts = pc.binary_join_element_wise(texts, after, "")
        data = bytes_of(texts)
    needs = pc.greater(pc.utf8_length(texts), _LONG)
    special = data <= ord(last)
    if special.any() or (options.escape is not None and (data == ord(options.escape)).any()):
        needs = pc.or_(needs, pc.match_substring_regex(texts, _needs(options)))
    if any_true(needs):
        inner = texts
        for each in (options.escape, quote):
            if each is not None and (data == ord(each)).any():
                inner = pc.replace_substring(inner, each, each * 2)
        texts = pc.if_else(needs, pc.binary_join_element_wise(quote, inner, quote, ""), texts)
    return Pieces("", texts, "")


def field_sql(data_type: pa.DataType, sql: str, options: CsvOptions) -> str:
    """Return SQL for a column's CSV field; NULL stays NULL."""
    text = _text_sql(data_type, sql, options)
    if options.quote is None or not _is_looked_at(data_type):
        return text
    if pt.is_string(data_type):
        return _quoted_sql(sql, options, options.quote)
    return f"list_transform([{text}], lambda t: {_quoted_sql('t', options, options.quote)})[1]"


def _is_looked_at(data_type: pa.DataType) -> bool:
    """Return whether Jackson decides on quotes by a field's content.

    It does so for all fields that it gets as text, including decimals, but not for booleans and other numbers.
    """
    return not (pt.is_boolean(data_type) or pt.is_integer(data_type) or pt.is_floating(data_type))


def _text_sql(data_type: pa.DataType, sql: str, options: CsvOptions, *, depth: int = 0) -> str:
    if pt.is_struct(data_type):
        parts = []
        for number, field in enumerate(data_type):
            inner = _text_sql(field.type, f"struct_extract({sql}, {text_literal(field.name)})", options, depth=depth)
            parts += [text_literal(options.element_delimiter)] * bool(number)
            parts.append(f"coalesce({inner}, {text_literal(options.null or '')})")
        return f"CASE WHEN {sql} IS NOT NULL THEN concat({', '.join(parts)}) END"
    if pt.is_list(data_type):
        inner = _text_sql(data_type.value_type, f"x{depth}", options, depth=depth + 1)
        element = f"coalesce({inner}, {text_literal(options.null or '')})"
        listed = f"list_transform({sql}, lambda x{depth}: {element})"
        return f"array_to_string({listed}, {text_literal(options.element_delimiter)})"
    if pt.is_decimal(data_type):
        return decimal_sql(data_type, sql, plain=not options.scientific)
    if pt.is_floating(data_type):
        return floating_sql(sql, quote="")
    if pt.is_binary(data_type) or pt.is_temporal(data_type):
        return plain_text_sql(data_type, sql, separator=" ")
    return f"({sql})::VARCHAR"


def _quoted_sql(text: str, options: CsvOptions, quote: str) -> str:
    """Return SQL that quotes a text if Jackson would: if it is long, or has a character that ``_needs`` matches."""
    needs = _needs(options)
    inner = text
    if options.escape is not None:
        inner = f"replace({inner}, {text_literal(options.escape)}, {text_literal(options.escape * 2)})"
    inner = f"replace({inner}, {text_literal(quote)}, {text_literal(quote * 2)})"
    quoted = f"{text_literal(quote)} || {inner} || {text_literal(quote)}"
    is_needed = f"length({text}) > {_LONG} OR regexp_matches({text}, {text_literal(needs)})"
    return f"CASE WHEN {is_needed} THEN {quoted} ELSE {text} END"


def _needs(options: CsvOptions) -> str:
    """Return a regular expression that matches any character that requires quotes.

    Like Jackson, it matches every character up to the higher one of delimiter and quote, and the escape character.
    """
    escape = "" if options.escape is None else rf"\x{{{ord(options.escape):x}}}"
    return rf"[\x{{0}}-\x{{{ord(options.quote_or_delimiter):x}}}{escape}]"
