"""SQL that writes a column as JSON text, byte by byte as Flink's JSON format does.

``json_types`` has the store's own JSON, where every value must come back exactly. This is another convention: decimals
lose their trailing zeros and may have an exponent, timestamps have as many digits as they need and a space.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.types as pt

from snapshot.quoting import text_literal

_DECIMAL_MAX = 38
_PLAIN_SCALE = 6
"""Up to this scale no decimal is so small that Java writes it with an exponent."""


def object_sql(
    schema: pa.Schema | pa.StructType, columns: list[str], *, separator: str, plain: bool, without_nulls: bool,
    depth: int = 0,
) -> str:  # fmt: skip
    """SQL of the text of a JSON object.

    Args:
        schema: the fields.
        columns: SQL of each field, in the shape of ``json_types.duckdb_type``.
        separator: what stands between date and time.
        plain: decimals have no exponent.
        without_nulls: fields that are NULL are left out.
        depth: how many lambdas surround the expression.
    """
    parts = []
    for number, (field, column) in enumerate(zip(schema, columns, strict=True)):
        text = text_sql(field.type, column, separator=separator, plain=plain, without_nulls=without_nulls, depth=depth)
        name = json.dumps(field.name, ensure_ascii=False) + ":"
        if without_nulls:
            parts.append(f"coalesce({text_literal(',' + name)} || {text}, '')")
        else:
            parts += [text_literal(("," if number else "{") + name), f"coalesce({text}, 'null')"]
    if not parts:
        return "'{}'"
    if without_nulls:
        # Each part begins with a comma, of which the first is one too many.
        return f"concat('{{', substr(concat({', '.join(parts)}), 2), '}}')"
    return f"concat({', '.join(parts)}, '}}')"


def text_sql(
    data_type: pa.DataType, sql: str, *, separator: str, plain: bool, without_nulls: bool, depth: int = 0
) -> str:
    """SQL of the JSON text of a column; NULL where the column is."""

    def inner(data_type: pa.DataType, sql: str, depth: int) -> str:
        return text_sql(data_type, sql, separator=separator, plain=plain, without_nulls=without_nulls, depth=depth)

    item = f"x{depth}"
    if pt.is_struct(data_type):
        columns = [f"struct_extract({sql}, {text_literal(field.name)})" for field in data_type]
        text = object_sql(
            data_type, columns, separator=separator, plain=plain, without_nulls=without_nulls, depth=depth
        )
        return f"CASE WHEN {sql} IS NOT NULL THEN {text} END"
    if pt.is_list(data_type):
        element = f"coalesce({inner(data_type.value_type, item, depth + 1)}, 'null')"
        return f"'[' || array_to_string(list_transform({sql}, lambda {item}: {element}), ',') || ']'"
    if pt.is_map(data_type):
        value = f"coalesce({inner(data_type.item_type, f'{item}.value', depth + 1)}, 'null')"
        pair = f"to_json({item}.key)::VARCHAR || ':' || {value}"
        return f"'{{' || array_to_string(list_transform(map_entries({sql}), lambda {item}: {pair}), ',') || '}}'"
    if pt.is_string(data_type):
        return f"to_json({sql})::VARCHAR"
    if pt.is_decimal(data_type):
        return decimal_sql(data_type, sql, plain=plain)
    if pt.is_floating(data_type):
        return floating_sql(sql, quote='"')
    if pt.is_binary(data_type) or pt.is_temporal(data_type):
        return f"'\"' || {plain_text_sql(data_type, sql, separator=separator)} || '\"'"
    return f"({sql})::VARCHAR"


def plain_text_sql(data_type: pa.DataType, sql: str, *, separator: str) -> str:
    """SQL of the text of binary, dates and timestamps, without quotes."""
    if pt.is_binary(data_type):
        return f"to_base64({sql})"
    if pt.is_date(data_type):
        return f"({sql})::VARCHAR"
    # DuckDB writes as many digits of the second as there are, as Flink does.
    text = f"({sql})::VARCHAR" if separator == " " else f"replace(({sql})::VARCHAR, ' ', {text_literal(separator)})"
    return f"({text} || 'Z')" if data_type.tz else text


def floating_sql(sql: str, *, quote: str) -> str:
    """SQL of the shortest text of a float; what is no number is a word, in quotes."""
    return (
        f"CASE WHEN isfinite({sql}) THEN ({sql})::VARCHAR WHEN isnan({sql}) THEN '{quote}NaN{quote}' "
        f"WHEN {sql} > 0 THEN '{quote}Infinity{quote}' WHEN {sql} < 0 THEN '{quote}-Infinity{quote}' END"
    )


def decimal_sql(data_type: pa.DataType, sql: str, *, plain: bool) -> str:
    """SQL of a decimal as Java's ``BigDecimal`` writes it once its trailing zeros are cut.

    ``plain`` never has an exponent. Without it, multiples of ten have one (``1E+2``), and so have numbers below 1e-6.
    """
    if data_type.precision < _DECIMAL_MAX:
        # A digit more, as DuckDB writes no zero before the point of a type that has no digits there.
        text = f"({sql})::DECIMAL({data_type.precision + 1},{data_type.scale})::VARCHAR"
    elif data_type.scale == data_type.precision:
        text = f"replace(replace('0' || ({sql})::VARCHAR, '0-', '-0'), '00.', '0.')"
    else:
        text = f"({sql})::VARCHAR"
    # Trimming is slow, and few decimals need it.
    ends, odd = "ends_with(v, '0')", "rtrim(rtrim(v, '0'), '.')" if data_type.scale else "v"
    rest = "v"
    if not plain:
        odd = f"list_transform([{odd}], lambda t: {_exponent_sql('t', data_type)})[1]"
        rest = _exponent_sql("v", data_type) if data_type.scale > _PLAIN_SCALE else "v"
    return f"list_transform([{text}], lambda v: CASE WHEN {ends} THEN {odd} ELSE {rest} END)[1]"


def _exponent_sql(text: str, data_type: pa.DataType) -> str:
    """SQL that gives the text of a stripped decimal an exponent, where Java does."""
    sign = f"(CASE WHEN {text}[1] = '-' THEN '-' ELSE '' END)"

    def scientific(digits: str, exponent: str) -> str:
        rest = f"(CASE WHEN length({digits}) > 1 THEN '.' || {digits}[2:] ELSE '' END)"
        return f"{sign} || {digits}[1] || {rest} || {exponent}"

    tens = scientific(f"rtrim(ltrim({text}, '-'), '0')", f"'E+' || (length(ltrim({text}, '-')) - 1)")
    cases = f"WHEN {text}[-1] = '0' AND length({text}) > 1 THEN {tens} "
    if data_type.scale > _PLAIN_SCALE:
        digits = f"ltrim({text}, '-0.')"
        small = scientific(digits, f"'E-' || (length(ltrim({text}, '-')) - 2 - length({digits}) + 1)")
        cases += f"WHEN starts_with(ltrim({text}, '-'), '0.000000') THEN {small} "
    return f"CASE {cases}ELSE {text} END"
