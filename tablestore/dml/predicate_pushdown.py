"""Predicate pushdown: extracts conditions on single columns from a condition in Spark SQL, for our own reader.

Only conditions whose meaning is certain are extracted, and Spark evaluates the whole condition again on the remaining
rows. So a condition that is not extracted costs time, but never changes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlglot
from pyspark.sql.types import ByteType, DataType, IntegerType, LongType, ShortType, StringType, StructType
from sqlglot import exp
from sqlglot.errors import SqlglotError

from snapshot.merge.predicate import Condition, Predicate

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_LONG_MAX = (1 << 63) - 1
_COMPARED: Mapping[type[exp.Expr], str] = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}


def pushed_predicate(text: str, schema: StructType) -> Predicate:
    """Return conditions on single columns that hold for every row for which the given condition holds.

    Returns:
        Conditions on integer and string columns: comparisons of a column, or of its remainder modulo a constant, with
        constants and with lists of constants. Empty if no part of the condition can be extracted.
    """
    try:
        tree = sqlglot.parse_one(text, into=exp.Condition, dialect="spark")
    except SqlglotError:
        return Predicate()
    parts = tree.flatten() if isinstance(tree, exp.And) else [tree]
    conditions = (_condition(part.unnest(), schema) for part in parts)
    return Predicate(tuple(each for each in conditions if each is not None))


def _condition(part: exp.Expr, schema: StructType) -> Condition | None:
    """Translate one condition; return None if that is not possible."""
    subject = part.this.unnest() if isinstance(part.this, exp.Expr) else None
    divisor = None
    if isinstance(subject, exp.Mod):
        divisor, subject = _whole(subject.expression), subject.this.unnest()
        if divisor is None or divisor <= 0:
            return None
    if not isinstance(subject, exp.Column) or len(subject.parts) != 1:
        return None
    named = [field for field in schema.fields if field.name.lower() == subject.name.lower()]
    if len(named) != 1 or (divisor is not None and not isinstance(named[0].dataType, _WHOLE)):
        return None
    asked = _asked(part, _constant_of(named[0].dataType))
    if asked is None:
        return None
    after, parameters = asked
    if divisor is None:
        return Condition(named[0].name, "", after, tuple(parameters))
    # In Spark and in DuckDB, the remainder has the sign of the dividend.
    return Condition(named[0].name, "CAST(", f" AS BIGINT) % {divisor}{after}", tuple(parameters))


def _asked(part: exp.Expr, constant: Callable[[Any], Any]) -> tuple[str, list[Any]] | None:
    """Return the SQL that follows the subject in a condition, and its constants; None if it cannot be translated."""
    if type(part) in _COMPARED:
        values, after = [constant(part.expression)], f" {_COMPARED[type(part)]} ?"
    elif isinstance(part, exp.Between):
        values, after = [constant(part.args["low"]), constant(part.args["high"])], " BETWEEN ? AND ?"
    elif isinstance(part, exp.In) and part.expressions and not part.args.get("query"):
        values = [constant(each) for each in part.expressions]
        after = f" IN ({', '.join('?' for _ in values)})"
    else:
        return None
    return None if any(value is None for value in values) else (after, values)


def _constant_of(data_type: DataType) -> Callable[[Any], Any]:
    """Return the parser of constants that can be compared with a column of this type without a cast."""
    if isinstance(data_type, _WHOLE):
        return _whole
    # With a collation, other strings may be equal.
    return _text if data_type == StringType() else lambda _: None


def _whole(given: Any) -> int | None:
    if isinstance(given, exp.Neg):
        value = _whole(given.this)
        return None if value is None else -value
    if not isinstance(given, exp.Literal) or given.is_string or not given.name.isdigit():
        return None
    value = int(given.name)
    return value if value <= _LONG_MAX else None


def _text(given: Any) -> str | None:
    # Only plain text, because the two parsers may read escapes differently.
    is_plain = isinstance(given, exp.Literal) and given.is_string and given.name.isalnum() and given.name.isascii()
    return given.name if is_plain else None
