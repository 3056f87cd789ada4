"""SQL expressions that write a column as JSON text, byte-identical to Flink's JSON format.

The store's own JSON (``log_system.formats.duckdb_json``) differs: there, every value must be restored exactly. Here,
decimals lose their trailing zeros and may have an exponent, and timestamps have as many fractional digits as they need
and a space between date and time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from snapshot.quoting import text_literal

_DECIMAL_MAX = 38
_PLAIN_SCALE = 6
"""Up to this scale, Java does not write small decimals with an exponent."""


@dataclass(frozen=True)
class JsonSql:
    """Writes SQL for the JSON text of columns.

    Attributes:
        separator: the separator of date and time.
        plain: whether to write decimals without an exponent.
        without_nulls: whether to omit NULL fields.
    """

    separator: str
    plain: bool
    without_nulls: bool

    def text(self, data_type: pa.DataType, sql: str, depth: int = 0) -> str:
        """Return SQL for the JSON text of a column; NULL stays NULL. ``depth`` lambdas enclose the expression."""
        item = f"x{depth}"
        if pt.is_struct(data_type):
            return f"CASE WHEN {sql} IS NOT NULL THEN {self._object(data_type, sql, depth)} END"
        if pt.is_list(data_type):
            element = f"coalesce({self.text(data_type.value_type, item, depth + 1)}, 'null')"
            return f"'[' || array_to_string(list_transform({sql}, lambda {item}: {element}), ',') || ']'"
        if pt.is_map(data_type):
            value = f"coalesce({self.text(data_type.item_type, f'{item}.value', depth + 1)}, 'null')"
            pair = f"to_json({item}.key)::VARCHAR || ':' || {value}"
            return f"'{{' || array_to_string(list_transform(map_entries({sql}), lambda {item}: {pair}), ',') || '}}'"
        if pt.is_string(data_type):
            return f"to_json({sql})::VARCHAR"
        if pt.is_decimal(data_type):
            return decimal_sql(data_type, sql, plain=self.plain)
        if pt.is_floating(data_type):
            return floating_sql(sql, quote='"')
        if pt.is_binary(data_type) or pt.is_temporal(data_type):
            return f"'\"' || {plain_text_sql(data_type, sql, separator=self.separator)} || '\"'"
        return f"({sql})::VARCHAR"

    def _object(self, data_type: pa.StructType, sql: str, depth: int) -> str:
        parts = []
        for number, field in enumerate(data_type):
            text = self.text(field.type, f"struct_extract({sql}, {text_literal(field.name)})", depth)
            name = json.dumps(field.name, ensure_ascii=False) + ":"
            if self.without_nulls:
                parts.append(f"coalesce({text_literal(',' + name)} || {text}, '')")
            else:
                parts += [text_literal(("," if number else "{") + name), f"coalesce({text}, 'null')"]
        if not parts:
            return "'{}'"
        if self.without_nulls:
            # Each part starts with a comma; remove the first one.
            return f"concat('{{', substr(concat({', '.join(parts)}), 2), '}}')"
        return f"concat({', '.join(parts)}, '}}')"


def plain_text_sql(data_type: pa.DataType, sql: str, *, separator: str) -> str:
    """Return SQL for the text of a binary, date, time or timestamp column, without quotes."""
    if pt.is_binary(data_type):
        return f"to_base64({sql})"
    if pt.is_date(data_type) or pt.is_time(data_type):
        return f"({sql})::VARCHAR"
    # DuckDB writes fractional seconds without trailing zeros, as Flink does.
    text = f"({sql})::VARCHAR" if separator == " " else f"replace(({sql})::VARCHAR, ' ', {text_literal(separator)})"
    return f"({text} || 'Z')" if data_type.tz else text


def floating_sql(sql: str, *, quote: str) -> str:
    """Return SQL for the shortest text of a float; NaN and infinities are words, enclosed in ``quote``."""
    return (
        f"CASE WHEN isfinite({sql}) THEN ({sql})::VARCHAR WHEN isnan({sql}) THEN '{quote}NaN{quote}' "
        f"WHEN {sql} > 0 THEN '{quote}Infinity{quote}' WHEN {sql} < 0 THEN '{quote}-Infinity{quote}' END"
    )


def decimal_sql(data_type: pa.DataType, sql: str, *, plain: bool) -> str:
    """Return SQL for the text of a decimal, as Java's ``BigDecimal`` writes it without trailing zeros.

    With ``plain``, the text has no exponent. Otherwise multiples of ten (``1E+2``) and numbers below 1e-6 have one.
    """
    if data_type.precision < _DECIMAL_MAX:
        # Add a digit of precision: DuckDB writes no zero before the decimal point if the type has no integer digits.
        text = f"({sql})::DECIMAL({data_type.precision + 1},{data_type.scale})::VARCHAR"
    elif data_type.scale == data_type.precision:
        text = f"replace(replace('0' || ({sql})::VARCHAR, '0-', '-0'), '00.', '0.')"
    else:
        text = f"({sql})::VARCHAR"
    # Trimming is slow, so apply it only to the few decimals that need it.
    ends, odd = "ends_with(v, '0')", "rtrim(rtrim(v, '0'), '.')" if data_type.scale else "v"
    rest = "v"
    if not plain:
        odd = f"list_transform([{odd}], lambda t: {_exponent_sql('t', data_type)})[1]"
        rest = _exponent_sql("v", data_type) if data_type.scale > _PLAIN_SCALE else "v"
    return f"list_transform([{text}], lambda v: CASE WHEN {ends} THEN {odd} ELSE {rest} END)[1]"


def _exponent_sql(text: str, data_type: pa.DataType) -> str:
    """Return SQL that adds an exponent to the text of a stripped decimal where Java writes one."""
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
