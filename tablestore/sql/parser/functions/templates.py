"""Functions of Flink that Spark does not have, or that return something else there, in Spark SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Final

from sqlglot import exp

from tablestore.sql.parser.functions.calls import called
from tablestore.sql.parser.functions.json_functions import AS_JSON

_QUOTED: Final = "CONCAT('\\\\Q', {1}, '\\\\E')"
"""A separator as a regular expression."""
_SEPARATOR: Final = (
    "IF(TYPEOF({1}) = 'string', CAST({1} AS STRING), "
    "CASE WHEN TRY_CAST({1} AS BIGINT) BETWEEN 1 AND 255 THEN CHR(TRY_CAST({1} AS BIGINT)) END)"
)
"""A separator as text, which may also be given as the number of a character, up to 255."""
_BY_PATTERN: Final = "IF(TRY_TO_TIMESTAMP({0}, {1}) IS NULL, NULL, TO_TIMESTAMP_NTZ({0}, {1}))"
_POSITION: Final = "IF({0} < 0, SIZE({{0}}) + {0} + 1, {0})"
_SLICE: Final = (
    "IF({1} IS NULL OR {2} IS NULL, NULL, SLICE({0}, GREATEST(" + _POSITION.format("{1}") + ", 1), "
    "GREATEST(" + _POSITION.format("{2}") + " - GREATEST(" + _POSITION.format("{1}") + ", 1) + 1, 0)))"
)
"""The elements of an array between two positions, which count from its end if they are negative."""

_STR_TO_MAP: Final = "IF({0} = '', CAST(MAP() AS MAP<STRING, STRING>), STR_TO_MAP({0}, {1}, {2}))"


def _log(name: str, of: str) -> str:
    """Return a logarithm, which Spark has of positive numbers only."""
    return (
        f"CASE WHEN {of} > 0 THEN {name}({of}) WHEN {of} = 0 THEN CAST('-Infinity' AS DOUBLE) "
        f"WHEN {of} < 0 THEN CAST('NaN' AS DOUBLE) END"
    )


_LOG: Final = (
    f"IF(({_log('LN', '{0}')}) = 0, ({_log('LN', '{1}')}) * CAST('Infinity' AS DOUBLE), "
    f"({_log('LN', '{1}')}) / ({_log('LN', '{0}')}))"
)
#: By name and number of arguments, which are in place of the numbers; with other numbers they are Spark's.
_IN_SPARK: Final[Mapping[tuple[str, int], str]] = {
    ("ARRAY_CONTAINS", 2): "EXISTS({0}, _element -> _element <=> {1})",
    ("ARRAY_REMOVE", 2): "FILTER({0}, _element -> NOT (_element <=> {1}))",
    ("ARRAY_REVERSE", 1): "REVERSE({0})",
    ("ARRAY_SLICE", 2): _SLICE.replace("{2}", "SIZE({0})"),
    ("ARRAY_SLICE", 3): _SLICE,
    ("ARRAY_SORT", 1): "SORT_ARRAY({0})",
    ("ARRAY_SORT", 2): "SORT_ARRAY({0}, {1})",
    ("ARRAY_SORT", 3): (
        "IF({2}, CONCAT(FILTER({0}, _e -> _e IS NULL), SORT_ARRAY(ARRAY_COMPACT({0}), {1})), "
        "CONCAT(SORT_ARRAY(ARRAY_COMPACT({0}), {1}), FILTER({0}, _e -> _e IS NULL)))"
    ),
    ("CONVERT_TZ", 3): (
        "DATE_FORMAT(CONVERT_TIMEZONE({1}, {2}, TRY_CAST({0} AS TIMESTAMP_NTZ)), 'yyyy-MM-dd HH:mm:ss')"
    ),
    ("ELEMENT", 1): (
        "IF(SIZE({0}) > 1, RAISE_ERROR('ELEMENT: the array has more than one element'), TRY_ELEMENT_AT({0}, 1))"
    ),
    ("FROM_BASE64", 1): "CAST(UNBASE64({0}) AS STRING)",
    # A word is a sequence of letters and digits of ASCII.
    ("INITCAP", 1): (
        f"ARRAY_JOIN(TRANSFORM(SPLIT(TRANSLATE({{0}}, '{ascii_uppercase}', '{ascii_lowercase}'), '(?<=[^0-9A-Za-z])'), "
        f"_word -> CONCAT(TRANSLATE(LEFT(_word, 1), '{ascii_lowercase}', '{ascii_uppercase}'), SUBSTRING(_word, 2))), "
        "'')"
    ),
    ("IS_ALPHA", 1): "COALESCE({0} RLIKE '\\\\A\\\\p{{L}}+\\\\z', FALSE)",
    ("IS_DECIMAL", 1): "(TRY_CAST({0} AS DOUBLE) IS NOT NULL)",
    ("IS_DIGIT", 1): "COALESCE({0} RLIKE '\\\\A\\\\p{{IsDigit}}+\\\\z', FALSE)",
    ("JSON_QUOTE", 1): AS_JSON,
    ("JSON_STRING", 1): AS_JSON,
    ("JSON_UNQUOTE", 1): (
        "IF(SCHEMA_OF_VARIANT(TRY_PARSE_JSON({0})) <=> 'STRING', VARIANT_GET(PARSE_JSON({0}), '$', 'string'), {0})"
    ),
    ("LN", 1): _log("LN", "{0}"),
    ("LOG", 1): _log("LN", "{0}"),
    ("LOG", 2): _LOG,
    ("LOG10", 1): _log("LOG10", "{0}"),
    ("LOG2", 1): _log("LOG2", "{0}"),
    ("LPAD", 3): "IF({1} < 0 OR {2} = '', NULL, LPAD({0}, {1}, {2}))",
    ("LTRIM", 2): "TRIM(LEADING {1} FROM {0})",
    ("MAP_UNION", 2): (
        "MAP_FROM_ENTRIES(CONCAT(FILTER(MAP_ENTRIES({0}), _entry -> NOT MAP_CONTAINS_KEY({1}, _entry.key)), "
        "MAP_ENTRIES({1})))"
    ),
    ("PARSE_URL", 2): "TRY_PARSE_URL({0}, {1})",
    ("PARSE_URL", 3): "TRY_PARSE_URL({0}, {1}, {2})",
    ("RAND_INTEGER", 1): "CAST(FLOOR(RAND() * {0}) AS INT)",
    ("RAND_INTEGER", 2): "CAST(FLOOR(RAND({0}) * {1}) AS INT)",
    ("REGEXP", 2): "IF({0} IS NULL OR {1} IS NULL, NULL, {1} <> '' AND {0} RLIKE {1})",
    ("REGEXP_EXTRACT", 2): "CASE WHEN {0} RLIKE {1} THEN REGEXP_EXTRACT({0}, {1}, 0) END",
    ("REGEXP_EXTRACT", 3): "CASE WHEN {0} RLIKE {1} THEN REGEXP_EXTRACT({0}, {1}, {2}) END",
    # The replacement is text: it has no references to groups.
    ("REGEXP_REPLACE", 3): ("REGEXP_REPLACE({0}, {1}, REPLACE(REPLACE({2}, '\\\\', '\\\\\\\\'), '$', '\\\\$'))"),
    ("RPAD", 3): "IF({1} < 0 OR {2} = '', NULL, RPAD({0}, {1}, {2}))",
    ("RTRIM", 2): "TRIM(TRAILING {1} FROM {0})",
    ("SHA224", 1): "SHA2({0}, 224)",
    ("SHA256", 1): "SHA2({0}, 256)",
    ("SHA384", 1): "SHA2({0}, 384)",
    ("SHA512", 1): "SHA2({0}, 512)",
    ("SPLIT", 2): (
        f"CASE WHEN {{0}} = '' THEN CAST(ARRAY() AS ARRAY<STRING>) WHEN {{1}} = '' THEN SPLIT({{0}}, '') "
        f"ELSE SPLIT({{0}}, {_QUOTED}) END"
    ),
    ("SPLIT_INDEX", 3): (
        "CASE WHEN {0} <> '' AND {2} >= 0 THEN TRY_ELEMENT_AT(SPLIT({0}, "
        f"{_QUOTED.replace('{1}', _SEPARATOR)}), {{2}} + 1) END"
    ),
    ("STR_TO_MAP", 1): _STR_TO_MAP.replace("{1}", "','").replace("{2}", "'='"),
    ("STR_TO_MAP", 3): _STR_TO_MAP,
    ("TO_DATE", 1): "TRY_CAST({0} AS DATE)",
    ("TO_DATE", 2): "TRY_TO_DATE({0}, {1})",
    ("TO_TIMESTAMP", 1): "TRY_CAST({0} AS TIMESTAMP_NTZ)",
    ("TO_TIMESTAMP", 2): _BY_PATTERN,
    # Of a text, the time is by the clock of UTC, or of the third argument.
    ("TO_TIMESTAMP_LTZ", 1): (
        "IF(TYPEOF({0}) = 'string', TRY_CAST(CONCAT(CAST({0} AS STRING), ' UTC') AS TIMESTAMP), "
        "TIMESTAMP_MILLIS(TRY_CAST({0} AS BIGINT)))"
    ),
    ("TO_TIMESTAMP_LTZ", 2): "TRY_TO_TIMESTAMP(CONCAT({0}, ' UTC'), CONCAT({1}, ' VV'))",
    ("TO_TIMESTAMP_LTZ", 3): "TRY_TO_TIMESTAMP(CONCAT({0}, ' ', {2}), CONCAT({1}, ' VV'))",
    ("TRUNCATE", 1): "IF({0} < 0, CEIL({0}, 0), FLOOR({0}, 0))",
    ("TRUNCATE", 2): "IF({0} < 0, CEIL({0}, {1}), FLOOR({0}, {1}))",
    # The time may have a fraction, as CAST(ts AS STRING) has.
    ("UNIX_TIMESTAMP", 1): "UNIX_SECONDS(CAST({0} AS TIMESTAMP))",
    ("URL_DECODE", 1): "TRY_URL_DECODE({0})",
    ("WEEK", 1): "WEEKOFYEAR({0})",
}
_AS_WRITTEN: Final = ("DATE_FORMAT", "FROM_UNIXTIME", "INSTR")
"""Functions of Spark whose patterns or arguments sqlglot would change."""
_NULL_IF_ONE_IS: Final = ("GREATEST", "LEAST")
_OF_MANY: Final = (*_NULL_IF_ONE_IS, "ELT")
"""Functions of any number of arguments."""
NAMES: Final = frozenset({*(name for name, _ in _IN_SPARK), *_OF_MANY, *_AS_WRITTEN})
"""Names of the functions, which sqlglot would otherwise take for those of Spark."""


def is_translated(node: exp.Expr) -> bool:
    """Return whether an expression is a call of one of the functions."""
    name = called(node)
    is_one = name in _OF_MANY or (name, len(node.expressions)) in _IN_SPARK
    # Spark's ARRAY_SORT takes a lambda function.
    return is_one and not any(isinstance(each, exp.Lambda) for each in node.expressions)


def function_in_spark(name: str, arguments: Sequence[str]) -> str:
    """Return a call of one of the functions in Spark SQL."""
    given = [f"({each})" for each in arguments]
    if name.upper() in _NULL_IF_ONE_IS:
        nulls = " OR ".join(f"{each} IS NULL" for each in given)
        return f"IF({nulls}, NULL, {name.upper()}({', '.join(given)}))"
    if name.upper() == "ELT":
        return f"GET(ARRAY({', '.join(given[1:])}), {given[0]} - 1)"
    return _IN_SPARK[name.upper(), len(given)].format(*given)


def substring_in_spark(text: str, start: str, length: str) -> str:
    """Return ``SUBSTRING`` in Spark SQL: NULL for a negative length, and "" for a start before the text.

    Args:
        text: the text in Spark SQL.
        start: the first position, from the end if it is negative.
        length: the length, "" for the rest.
    """
    start = f"IF(({start}) < -LENGTH({text}), LENGTH({text}) + 1, {start})"
    return f"SUBSTRING({text}, {start}" + (f", IF(({length}) < 0, NULL, {length}))" if length else ")")


def overlay_in_spark(text: str, new: str, start: str, length: str) -> str:
    """Return ``OVERLAY`` in Spark SQL: the text itself for a start outside of it; ``length`` is "" if not given."""
    over = f" FOR {length}" if length else ""
    return f"IF(({start}) BETWEEN 1 AND LENGTH({text}), OVERLAY({text} PLACING {new} FROM {start}{over}), {text})"


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
