"""Flink SQL as a sqlglot dialect, and its translation to Spark SQL.

Functions are Spark's and are passed through unchanged. The translation covers what differs: strings (``'it''s'``),
identifiers in backquotes only, types, the constructors ``ROW(...)`` and ``MAP[...]``, elements of arrays and maps,
``TO_TIMESTAMP_LTZ`` of a number, ``SIMILAR TO``, and the functions of ``functions/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from sqlglot import exp, tokens
from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import TokenType

from snapshot.errors import InvalidInputError
from tablestore.sql.parser.functions.calls import call, called, name_outputs, wrap
from tablestore.sql.parser.functions.json_functions import (
    JsonAggregate,
    JsonArray,
    JsonFunction,
    is_json,
    json_aggregated,
    json_in_spark,
    json_made,
)
from tablestore.sql.parser.functions.templates import (
    function_in_spark,
    is_translated,
    overlay_in_spark,
    sized_in_spark,
    substring_in_spark,
)
from tablestore.sql.parser.functions.time_functions import MONTHS, NOW, UNITS, cut, months_between, rounded
from tablestore.sql.parser.types import PRECISION_MAX

_RUNS_CODE: Final = "runs code that is not SQL"
#: Spark functions that can run code or read data outside the warehouse's tables, with the reason to refuse them.
_BEYOND: Final = {
    **dict.fromkeys(("REFLECT", "TRY_REFLECT", "JAVA_METHOD"), _RUNS_CODE),
    "IDENTIFIER": "turns a text into an identifier, which can name any file",
}
_FROM_EPOCH: Final = {"0": "TIMESTAMP_SECONDS", "3": "TIMESTAMP_MILLIS"}
"""Spark's functions for ``TO_TIMESTAMP_LTZ(number, precision)``, by the precision."""
_OPERATORS: Final = "|*+?(){}"
"""Syntax with the same meaning in the patterns of ``SIMILAR TO`` and of Java."""
_CLASSES: Final = {
    "[:ALPHA:]": "a-zA-Z",
    "[:UPPER:]": "A-Z",
    "[:LOWER:]": "a-z",
    "[:DIGIT:]": "0-9",
    "[:ALNUM:]": "a-zA-Z0-9",
    "[:SPACE:]": " ",
    "[:WHITESPACE:]": r"\s",
}
_PARTS: Final = {
    "NANOSECOND": "(CAST(EXTRACT(SECOND FROM {0}) % 1 * 1000000 AS BIGINT) * 1000)",
    "MICROSECOND": "CAST(EXTRACT(SECOND FROM {0}) % 1 * 1000000 AS BIGINT)",
    "MILLISECOND": "CAST(EXTRACT(SECOND FROM {0}) % 1 * 1000 AS BIGINT)",
    "SECOND": "CAST(EXTRACT(SECOND FROM {0}) AS BIGINT)",
    "DECADE": "(EXTRACT(YEAR FROM {0}) DIV 10)",
    "CENTURY": "((EXTRACT(YEAR FROM {0}) + 99) DIV 100)",
    "MILLENNIUM": "((EXTRACT(YEAR FROM {0}) + 999) DIV 1000)",
    # Of a TIMESTAMP, by the clock of UTC.
    "EPOCH": (
        "UNIX_SECONDS(IF(TYPEOF({0}) = 'timestamp', CAST({0} AS TIMESTAMP), "
        "CAST(CONCAT(CAST(CAST({0} AS TIMESTAMP_NTZ) AS STRING), ' UTC') AS TIMESTAMP)))"
    ),
    "ISODOW": "EXTRACT(DAYOFWEEK_ISO FROM {0})",
    "ISOYEAR": "EXTRACT(YEAROFWEEK FROM {0})",
}
"""``EXTRACT`` of parts that Spark does not have, or of which it returns something else."""
_WITH_PATTERN: Final = ("DATE_FORMAT", "FROM_UNIXTIME", "TO_DATE", "TO_TIMESTAMP", "TO_TIMESTAMP_LTZ")
_OF_WEEKS: Final = re.compile("[YwWuec]")
"""Letters of Java's patterns that Spark rejects only when the first row comes."""
_UNSIZED: Final = {
    exp.DType.CHAR: exp.DType.TEXT,
    exp.DType.VARCHAR: exp.DType.TEXT,
    exp.DType.BINARY: exp.DType.BINARY,
    exp.DType.VARBINARY: exp.DType.BINARY,
}
"""Types with a length, and Spark's without one."""
_TIMES: Final = {exp.DType.TIMESTAMP: exp.DType.TIMESTAMPNTZ}


class Flink(Spark):
    """The sqlglot dialect of Flink SQL."""

    class Tokenizer(tokens.Tokenizer):
        """Tokenizer with strings in single quotes and identifiers in backquotes."""

        QUOTES: ClassVar = ["'"]
        IDENTIFIERS: ClassVar = ["`"]
        STRING_ESCAPES: ClassVar = ["'"]
        HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]
        UNICODE_STRINGS: ClassVar = [("u&'", "'"), ("U&'", "'")]
        NESTED_COMMENTS = False
        #: Empty: sqlglot reads the rest of a statement after a command keyword as one string.
        COMMANDS: ClassVar = set()
        #: SESSION is a function of windows here.
        KEYWORDS: ClassVar = {
            **{word: kind for word, kind in tokens.Tokenizer.KEYWORDS.items() if word != "SESSION"},
            "BYTES": TokenType.VARBINARY,
            "ROW": TokenType.STRUCT,
        }


def to_spark(tree: exp.Expr) -> str:
    """Return a query or an expression in Spark SQL.

    Raises:
        InvalidInputError: it would run code other than SQL, or read files outside the warehouse. The text may be that
            of a view or computed column, whose author must not do this in the process of another user who reads it.
    """
    tree = _with_nulls_as_in_flink(tree.copy())
    return tree.transform(_said_to_spark, copy=False).sql(dialect="spark", comments=False)


def _with_nulls_as_in_flink(tree: exp.Expr) -> exp.Expr:
    """Return a query whose aggregates say what Flink does with NULLs where Spark does something else by default."""
    holder = exp.Paren(this=tree)
    for each in list(holder.find_all(exp.FirstValue, exp.LastValue, exp.ArrayAgg)):
        kind = exp.RespectNulls if isinstance(each, exp.ArrayAgg) else exp.IgnoreNulls
        if isinstance(each.this, exp.RespectNulls | exp.IgnoreNulls):
            # Before FILTER, sqlglot leaves the words in the brackets.
            kind = type(each.this)
            each.set("this", each.this.this)
        top = each.parent if isinstance(each.parent, exp.Filter) else each
        if not isinstance(top.parent, exp.RespectNulls | exp.IgnoreNulls):
            wrap(top, lambda made: kind(this=made))  # noqa: B023 - called at once
        if isinstance(each, exp.ArrayAgg):
            _make_null_if_empty(each)
    found: exp.Expr = holder.this.pop()
    return found


def _make_null_if_empty(aggregate: exp.Expr) -> None:
    """Make ``ARRAY_AGG`` of no values NULL, in place, unless that has been done."""
    while isinstance(aggregate.parent, exp.Filter | exp.RespectNulls | exp.IgnoreNulls | exp.Window):
        aggregate = aggregate.parent
    if called(aggregate.parent) != "ARRAY":
        is_some = exp.Lambda(this=exp.var("SIZE(_some) > 0"), expressions=[exp.var("_some")])
        one = exp.Literal.number(1)
        wrap(aggregate, lambda made: call("TRY_ELEMENT_AT", call("FILTER", call("ARRAY", made), is_some), one))


def _said_to_spark(node: exp.Expr) -> exp.Expr:
    name = called(node)
    why = _BEYOND.get(name)
    if why is not None or isinstance(node, exp.QueryTransform):
        what = "TRANSFORM ... USING" if why is None else f"{name}()"
        msg = f"{what} {why or _RUNS_CODE}, which SQL and definitions must not do. Use Spark in the program."
        raise InvalidInputError(msg)
    _change(node)
    _check_pattern(node)
    if isinstance(node, exp.SimilarTo | exp.Escape):
        return _similar_in_spark(node)
    counted = _distinct_count(node)
    if counted is not None:
        return _size_of_set(node, counted)
    if isinstance(node, exp.Bracket):
        # An array's first element has the index 1, and one that is not there is NULL; keys of maps stay as they are.
        return (
            _call("MAP", *node.expressions) if is_map(node) else _call("TRY_ELEMENT_AT", node.this, *node.expressions)
        )
    if name == "ROW":
        # Names of columns would make types of their own, which Spark does not unite in an array or a CASE.
        fields = enumerate(node.expressions)
        return _call("NAMED_STRUCT", *(part for n, each in fields for part in (exp.Literal.string(f"EXPR${n}"), each)))
    if name == "TO_TIMESTAMP_LTZ" and len(node.expressions) == 2:
        number, precision = node.expressions
        if precision.is_int:
            of_epoch = _FROM_EPOCH.get(precision.name)
            return node if of_epoch is None else _call(of_epoch, number)
    if _is_written(node):
        return exp.var(_written(node))
    if isinstance(node, exp.Cast):
        return _as_time(node) if node.to.this == exp.DType.TIME else _sized(node)
    return node


def _distinct_count(node: exp.Expr) -> exp.Count | None:
    """Return COUNT(DISTINCT x) of an expression with OVER, where Spark does not have it; None for others."""
    if not isinstance(node, exp.Window):
        return None
    counted = node.this.this if isinstance(node.this, exp.Filter) else node.this
    is_distinct = isinstance(counted, exp.Count) and isinstance(counted.this, exp.Distinct)
    return counted if is_distinct and len(counted.this.expressions) == 1 else None


def _size_of_set(window: exp.Expr, counted: exp.Count) -> exp.Expr:
    """Return the number of DISTINCT values with OVER as the size of their set."""
    counted.replace(call("COLLECT_SET", counted.this.expressions[0].copy()))
    return exp.cast(_call("SIZE", window.copy()), "BIGINT")


def _check_pattern(node: exp.Expr) -> None:
    """Check that the pattern of a time has only letters that Spark knows.

    Raises:
        InvalidInputError: it has a letter of weeks.
    """
    name = called(node)
    if name in _WITH_PATTERN and len(node.expressions) > 1:
        pattern = node.expressions[1]
        found = _OF_WEEKS.search(re.sub("'[^']*'", "", pattern.name)) if pattern.is_string else None
        if found:
            msg = f"{name}: '{found[0]}' in '{pattern.name}' is not supported: Spark has no week years. A year is 'y'."
            raise InvalidInputError(msg)


def _change(node: exp.Expr) -> None:
    """Change what Spark knows by other types or names, in place."""
    if isinstance(node, exp.DataType) and node.this in _TIMES:
        node.set("this", _TIMES[node.this])
        node.set("expressions", None)
    if isinstance(node, exp.Like) and not isinstance(node.parent, exp.Escape):
        _escape_backslashes(node)
    if isinstance(node, exp.DataType) and node.this == exp.DType.TIME and not isinstance(node.parent, exp.Cast):
        node.replace(_time(PRECISION_MAX))
    if isinstance(node, exp.Values):
        _give_rows_names(node)
    if isinstance(node, exp.Array | exp.Case | exp.Coalesce | exp.If) or is_map(node):
        _cast_like_others(_alternatives(node))
    if isinstance(node, exp.Select):
        name_outputs(node, _is_changed)


def _give_rows_names(values: exp.Values) -> None:
    """Cast the rows in a column of VALUES to the type that another value there is cast to, in place.

    The fields of ``ROW(...)`` have no names, and Spark unites only rows with the same names.
    """
    rows = [each for each in values.expressions if isinstance(each, exp.Tuple)]
    if len({len(row.expressions) for row in rows}) > 1:
        # sqlglot puts ROW(1, 2) into a tuple of one; beside (1, 2) it has two columns, too.
        for row in rows:
            only = row.expressions[0]
            if len(row.expressions) == 1 and called(only) == "ROW":
                row.set("expressions", only.expressions)
    for column in zip(*(row.expressions for row in rows), strict=False):
        _cast_like_others(column)


def _alternatives(node: exp.Expr) -> list[exp.Expr]:
    """Return the expressions in an array, the values of a map, or the results of a condition, which have one type."""
    if isinstance(node, exp.Case):
        found = [*(each.args["true"] for each in node.args["ifs"]), node.args.get("default")]
    elif isinstance(node, exp.If):
        found = [node.args.get("true"), node.args.get("false")]
    elif isinstance(node, exp.Coalesce):
        found = [node.this, *node.expressions]
    else:
        found = node.expressions[1::2] if isinstance(node, exp.Bracket) else node.expressions
    return [each for each in found if each is not None]


def _cast_like_others(values: Sequence[exp.Expr]) -> None:
    """Cast expressions of one type to the type with rows that another one is cast to, in place."""
    kinds = [each.to for each in values if isinstance(each, exp.Cast) and each.to.find(exp.ColumnDef)]
    for each in values if kinds else []:
        if not isinstance(each, exp.Cast):
            each.replace(exp.Cast(this=each.copy(), to=kinds[0].copy()))


def _as_time(cast: exp.Cast) -> exp.Cast:
    """Return a CAST to TIME, cut to the declared digits; without any, a literal keeps its own, and others have none.

    The result has Spark's highest precision, since Spark does not compare times of different ones. A timestamp's time
    is taken from its text: Spark has no such cast.
    """
    declared, value = cast.to.expressions, cast.this
    is_literal = isinstance(value, exp.Literal)
    digits = int(declared[0].name) if declared else PRECISION_MAX if is_literal else 0
    if not is_literal:
        text = exp.Cast(this=value, to=exp.DataType(this=exp.DType.TEXT))
        value = _call("SUBSTRING_INDEX", text, exp.Literal.string(" "), exp.Literal.number(-1))
    made = type(cast)(this=value, to=_time(PRECISION_MAX), safe=cast.args.get("safe"))
    if digits < PRECISION_MAX:
        # Spark cuts a time, but not one that it makes of a text.
        made = exp.Cast(this=exp.Cast(this=made, to=_time(digits)), to=_time(PRECISION_MAX))
    return made


def _time(digits: int) -> exp.DataType:
    return exp.DataType(this=exp.DType.USERDEFINED, kind=f"TIME({digits})")


def _name_of(call: exp.Expr) -> str:
    return "LOCALTIMESTAMP" if isinstance(call, exp.Localtimestamp) else call.name.upper()


def _digits(kind: exp.DataType) -> int | None:
    """Return the digits of a second that a CAST to a timestamp cuts to; None if it keeps all, or is to another type."""
    is_timestamp = kind.this in {exp.DType.TIMESTAMP, exp.DType.TIMESTAMPLTZ} and kind.expressions
    digits = int(kind.expressions[0].name) if is_timestamp else PRECISION_MAX
    return digits if digits < PRECISION_MAX else None


def _sized(cast: exp.Cast) -> exp.Expr:
    """Return a CAST whose type has a length as text in Spark SQL; others unchanged, with Spark's types."""
    kind = _UNSIZED.get(cast.to.this)
    if kind is not None:
        word = "TRY_CAST" if cast.args.get("safe") else "CAST"
        name = exp.DataType(this=kind).sql(dialect="spark")
        return exp.var(sized_in_spark(cast.to, f"{word}({_text(cast.this)} AS {name})"))
    for each in cast.to.find_all(exp.DataType):
        if each.this in _UNSIZED:
            each.set("this", _UNSIZED[each.this])
            each.set("expressions", None)
    return cast


def _escape_backslashes(like: exp.Like) -> None:
    """Change a pattern in place: without ESCAPE, a backslash is not an escape character, but in Spark it is one."""
    pattern = like.expression
    if not pattern.is_string:
        pairs = [exp.Literal.string(text) for text in ("\\", "\\\\")]
        like.set("expression", call("REPLACE", pattern.copy(), *pairs))
    elif "\\" in pattern.name:
        like.set("expression", exp.Literal.string(pattern.name.replace("\\", "\\\\")))


def _is_now(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous | exp.Localtimestamp) and not node.expressions and _name_of(node) in NOW


def _is_written(node: exp.Expr) -> bool:
    if isinstance(node, exp.Floor | exp.Ceil):
        return bool(node.args.get("to"))
    if isinstance(node, exp.Cast):
        return _digits(node.to) is not None
    if isinstance(node, exp.Extract):
        return node.name.upper() in _PARTS
    if isinstance(node, exp.Substring):
        return not all(isinstance(node.args.get(name), exp.Literal | None) for name in ("start", "length"))
    if isinstance(node, exp.TimestampDiff):
        return str(node.args["unit"]).upper() in MONTHS
    if isinstance(node, exp.Is):
        return isinstance(node.expression, exp.JSON)
    if isinstance(node, exp.Filter):
        return isinstance(node.this, JsonAggregate)
    own = JsonFunction | JsonArray | JsonAggregate | exp.JSONObject | exp.Overlay | exp.Grouping | exp.GroupingId
    return isinstance(node, own) or _is_now(node) or is_translated(node)


def _written(node: exp.Expr) -> str:
    """Return a function that Spark does not have in Spark SQL."""
    if _is_now(node):
        return NOW[_name_of(node)]
    return next(write(node) for kind, write in _WRITERS.items() if isinstance(node, kind))


def _arguments(node: exp.Expr, *names: str) -> list[str]:
    return [_text(node.args.get(name)) for name in names]


def _grouping(node: exp.Expr) -> str:
    """Write GROUPING of any columns of GROUP BY as the bits of those that a row is not grouped by."""
    bits = range(len(node.expressions) - 1, -1, -1)
    parts = (f"GROUPING({_text(each)}) * {1 << bit}L" for bit, each in zip(bits, node.expressions, strict=True))
    return f"({' + '.join(parts)})"


def _cut_time(cast: exp.Cast) -> str:
    whole = cast.copy()
    whole.to.set("expressions", None)
    return cut(_text(whole), _digits(cast.to) or 0)


def _rounded_time(node: exp.Floor | exp.Ceil) -> str:
    unit = node.args["to"].name
    if unit.upper() not in UNITS:
        msg = f"{node.key.upper()}(... TO {unit}): expected one of {', '.join(UNITS)}, got {unit}."
        raise InvalidInputError(msg)
    return rounded(_text(node.this), unit.upper(), up=isinstance(node, exp.Ceil))


def _text(node: exp.Expr | None) -> str:
    return "" if node is None else to_spark(node)


_WRITERS: Final[Mapping[type[exp.Expr], Callable[[Any], str]]] = {
    exp.Anonymous: lambda node: function_in_spark(node.name, [_text(each) for each in node.expressions]),
    exp.Cast: _cut_time,
    exp.Ceil: _rounded_time,
    exp.Floor: _rounded_time,
    exp.Extract: lambda node: _PARTS[node.name.upper()].format(_text(node.expression)),
    exp.Filter: lambda node: json_aggregated(node, _text),
    exp.Grouping: _grouping,
    exp.GroupingId: _grouping,
    exp.Is: lambda node: is_json(_text(node.this), str(node.expression.args.get("this")).upper()),
    exp.JSONObject: lambda node: json_made(node, _text),
    JsonArray: lambda node: json_made(node, _text),
    JsonAggregate: lambda node: json_aggregated(node, _text),
    JsonFunction: lambda node: json_in_spark(node, _text),
    exp.Overlay: lambda node: overlay_in_spark(*_arguments(node, "this", "expression", "from_", "for_")),
    exp.Substring: lambda node: substring_in_spark(*_arguments(node, "this", "start", "length")),
    exp.TimestampDiff: lambda node: months_between(
        str(node.args["unit"]).upper(), *_arguments(node, "expression", "this")
    ),
}
"""What writes a function that Spark does not have, by its class."""


def _is_changed(output: exp.Expr) -> bool:
    return any(isinstance(part, exp.ArrayAgg) or _is_written(part) or _distinct_count(part) for part in output.walk())


def _call(name: str, *arguments: exp.Expr) -> exp.Expr:
    """Return a call of a Spark function; sqlglot does not visit the arguments of a node that is replaced."""
    return call(name, *(each.transform(_said_to_spark) for each in arguments))


def is_map(node: object) -> bool:
    """Return whether an expression is ``MAP[key, value, ...]``; a column of that name would be in backquotes."""
    if not isinstance(node, exp.Bracket) or not isinstance(node.this, exp.Column):
        return False
    is_word = not node.this.table and not node.this.this.quoted
    return is_word and node.this.name.upper() == "MAP" and len(node.expressions) % 2 == 0


def _similar_in_spark(node: exp.SimilarTo | exp.Escape) -> exp.Expr:
    """Return ``SIMILAR TO``, which may have an ESCAPE, with Spark's ``RLIKE``; ``LIKE ... ESCAPE`` unchanged.

    Raises:
        InvalidInputError: the pattern is not a literal, or not valid.
    """
    escape = node.expression if isinstance(node, exp.Escape) else None
    similar = node.this if isinstance(node, exp.Escape) else node
    if not isinstance(similar, exp.SimilarTo):
        return node
    pattern = similar.expression
    given = [pattern] if escape is None else [pattern, escape]
    if not all(each.is_string for each in given):
        msg = "SIMILAR TO: expected a pattern in single quotes, got an expression; use RLIKE with a Java pattern."
        raise InvalidInputError(msg)
    text = r"(?s)\A(?:" + _java(pattern.name, "" if escape is None else escape.name) + r")\z"
    return exp.RegexpLike(this=similar.this, expression=exp.Literal.string(text))


def _java(pattern: str, escape: str) -> str:
    """Return a pattern in Java's syntax; the escape character is empty if there is none."""
    if len(escape) > 1:
        msg = f"SIMILAR TO ... ESCAPE: expected one character, got {escape!r}."
        raise InvalidInputError(msg)
    found, at = [], 0
    while at < len(pattern):
        letter, at = pattern[at], at + 1
        if letter == escape:
            found.append(re.escape(pattern[at : at + 1]))
            at += 1
        elif letter == "[":
            inside, at = _enumeration(pattern, at, escape)
            found.append(inside)
        elif letter in "%_":
            found.append(".*" if letter == "%" else ".")
        else:
            found.append(letter if letter in _OPERATORS else re.escape(letter))
    text = "".join(found)
    try:
        re.compile(text)
    except re.error as error:
        raise _invalid(pattern) from error
    if at > len(pattern):
        raise _invalid(pattern)
    return text


def _enumeration(pattern: str, at: int, escape: str) -> tuple[str, int]:
    """Return ``[...]`` in Java's syntax and the position after it, from the position after the bracket."""
    found = ["["]
    while at < len(pattern) and pattern[at] != "]":
        name = next((each for each in _CLASSES if pattern[at : at + len(each)].upper() == each), None)
        if name is not None:
            found.append(_CLASSES[name])
            at += len(name)
            continue
        letter, at = pattern[at], at + 1
        if letter == escape and at < len(pattern):
            letter, at = pattern[at], at + 1
            found.append(re.escape(letter))
        else:
            found.append(letter if letter in "-^" else re.escape(letter))
    if at == len(pattern) or found == ["["]:
        raise _invalid(pattern)
    return "".join([*found, "]"]), at + 1


def _invalid(pattern: str) -> InvalidInputError:
    return InvalidInputError(f"SIMILAR TO: expected a regular expression of the SQL standard, got {pattern!r}.")
