"""Functions of Flink that Spark does not have, or that return something else there, in Spark SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlglot import exp

#: By name and number of arguments, which are in place of the numbers; with other numbers they are Spark's.
_IN_SPARK: Final[Mapping[tuple[str, int], str]] = {
    ("ARRAY_CONTAINS", 2): "EXISTS({0}, _element -> _element <=> {1})",
    ("CONVERT_TZ", 3): "DATE_FORMAT(CONVERT_TIMEZONE({1}, {2}, CAST({0} AS TIMESTAMP_NTZ)), 'yyyy-MM-dd HH:mm:ss')",
    ("FROM_BASE64", 1): "CAST(UNBASE64({0}) AS STRING)",
    ("LTRIM", 2): "TRIM(LEADING {1} FROM {0})",
    ("REGEXP_EXTRACT", 2): "CASE WHEN {0} RLIKE {1} THEN REGEXP_EXTRACT({0}, {1}, 0) END",
    ("REGEXP_EXTRACT", 3): "CASE WHEN {0} RLIKE {1} THEN REGEXP_EXTRACT({0}, {1}, {2}) END",
    ("RTRIM", 2): "TRIM(TRAILING {1} FROM {0})",
    ("SHA224", 1): "SHA2({0}, 224)",
    ("SHA256", 1): "SHA2({0}, 256)",
    ("SHA384", 1): "SHA2({0}, 384)",
    ("SHA512", 1): "SHA2({0}, 512)",
    ("SPLIT_INDEX", 3): (
        "CASE WHEN {0} <> '' AND {2} >= 0 THEN TRY_ELEMENT_AT(SPLIT({0}, CONCAT('\\\\Q', {1}, '\\\\E')), {2} + 1) END"
    ),
    ("STR_TO_MAP", 1): "STR_TO_MAP({0}, ',', '=')",
    ("TRUNCATE", 1): "IF({0} < 0, CEIL({0}, 0), FLOOR({0}, 0))",
    ("TRUNCATE", 2): "IF({0} < 0, CEIL({0}, {1}), FLOOR({0}, {1}))",
    ("WEEK", 1): "WEEKOFYEAR({0})",
}
_NULL_IF_ONE_IS: Final = ("GREATEST", "LEAST")
NAMES: Final = frozenset({*(name for name, _ in _IN_SPARK), *_NULL_IF_ONE_IS})
"""Names of the functions, which sqlglot would otherwise take for those of Spark."""


def is_translated(node: exp.Expr) -> bool:
    """Return whether an expression is a call of one of the functions."""
    return isinstance(node, exp.Anonymous) and (
        (node.name.upper(), len(node.expressions)) in _IN_SPARK or node.name.upper() in _NULL_IF_ONE_IS
    )


def function_in_spark(name: str, arguments: Sequence[str]) -> str:
    """Return a call of one of the functions in Spark SQL.

    Args:
        name: its name.
        arguments: its arguments in Spark SQL.
    """
    given = [f"({each})" for each in arguments]
    if name.upper() in _NULL_IF_ONE_IS:
        nulls = " OR ".join(f"{each} IS NULL" for each in given)
        return f"IF({nulls}, NULL, {name.upper()}({', '.join(given)}))"
    return _IN_SPARK[name.upper(), len(given)].format(*given)


def sized_in_spark(kind: exp.DataType, value: str) -> str:
    """Return a value of STRING or BINARY, in Spark SQL, cut or padded to the length of a type.

    Args:
        kind: CHAR and BINARY, whose length is 1 unless given, or VARCHAR and VARBINARY, which have none unless given.
        value: the value in Spark SQL.
    """
    size = kind.expressions[0].name if kind.expressions else ""
    if kind.this in {exp.DType.VARCHAR, exp.DType.VARBINARY}:
        return f"LEFT({value}, {size})" if size else value
    pad = ", X'00'" if kind.this == exp.DType.BINARY else ""
    return f"RPAD({value}, {size or 1}{pad})"
