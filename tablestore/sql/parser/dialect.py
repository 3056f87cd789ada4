"""Flink SQL as a sqlglot dialect, and its translation to Spark SQL.

Functions are Spark's and are passed through unchanged. The translation covers what differs: strings (``'it''s'``),
identifiers in backquotes only, types, the constructors ``ROW(...)`` and ``MAP[...]``, elements of arrays and maps,
``TO_TIMESTAMP_LTZ`` of a number, and ``PROCTIME()``.
"""

from __future__ import annotations

from typing import ClassVar, Final

from sqlglot import exp, tokens
from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import TokenType

from snapshot.errors import InvalidInputError

PROCTIME: Final = "PROCTIME"
_PROCTIME_IN_SPARK: Final = "DATE_TRUNC('MILLISECOND', CURRENT_TIMESTAMP())"
_RUNS_CODE: Final = "runs code that is not SQL"
#: Spark functions that can run code or read data outside the warehouse's tables, with the reason to refuse them.
_BEYOND: Final = {
    **dict.fromkeys(("REFLECT", "TRY_REFLECT", "JAVA_METHOD"), _RUNS_CODE),
    "IDENTIFIER": "turns a text into an identifier, which can name any file",
}
_FROM_EPOCH: Final = {"0": "TIMESTAMP_SECONDS", "3": "TIMESTAMP_MILLIS"}
"""Spark's functions for ``TO_TIMESTAMP_LTZ(number, precision)``, by the precision."""
_TIMES: Final = {exp.DType.TIMESTAMP: exp.DType.TIMESTAMPNTZ}


class Flink(Spark):
    """The sqlglot dialect of Flink SQL."""

    class Tokenizer(tokens.Tokenizer):
        """Tokenizer with strings in single quotes and identifiers in backquotes."""

        QUOTES: ClassVar = ["'"]
        IDENTIFIERS: ClassVar = ["`"]
        STRING_ESCAPES: ClassVar = ["'"]
        HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]
        NESTED_COMMENTS = False
        #: Empty: sqlglot reads the rest of a statement after a command keyword as one string.
        COMMANDS: ClassVar = set()
        KEYWORDS: ClassVar = {**tokens.Tokenizer.KEYWORDS, "BYTES": TokenType.VARBINARY, "ROW": TokenType.STRUCT}


def to_spark(tree: exp.Expr) -> str:
    """Return a query or an expression in Spark SQL.

    Raises:
        InvalidInputError: it would run code other than SQL, or read files outside the warehouse. The text may be that
            of a view or computed column, whose author must not do this in the process of another user who reads it.
    """
    return tree.copy().transform(_said_to_spark, copy=False).sql(dialect="spark", comments=False)


def _said_to_spark(node: exp.Expr) -> exp.Expr:
    why = _BEYOND.get(node.name.upper()) if isinstance(node, exp.Anonymous) else None
    if why is not None or isinstance(node, exp.QueryTransform):
        what = "TRANSFORM ... USING" if why is None else f"{node.name.upper()}()"
        msg = f"{what} {why or _RUNS_CODE}, which SQL and definitions must not do. Use Spark in the program."
        raise InvalidInputError(msg)
    if isinstance(node, exp.DataType) and node.this in _TIMES:
        node.set("this", _TIMES[node.this])
        node.set("expressions", None)
    if isinstance(node, exp.Bracket):
        # An array's first element has the index 1, and one that is not there is NULL; keys of maps stay as they are.
        return (
            _call("MAP", *node.expressions) if _is_map(node) else _call("TRY_ELEMENT_AT", node.this, *node.expressions)
        )
    if isinstance(node, exp.Anonymous) and node.name.upper() == "ROW":
        return _call("STRUCT", *node.expressions)
    if isinstance(node, exp.Anonymous) and node.name.upper() == "TO_TIMESTAMP_LTZ" and len(node.expressions) == 2:
        number, precision = node.expressions
        name = _FROM_EPOCH.get(precision.name)
        return node if name is None else _call(name, number)
    if isinstance(node, exp.Anonymous) and node.name.upper() == PROCTIME and not node.expressions:
        proctime: exp.Expr = exp.maybe_parse(_PROCTIME_IN_SPARK, dialect="spark")
        return proctime
    return node


def _call(name: str, *arguments: exp.Expr) -> exp.Expr:
    """Return a call of a Spark function; sqlglot does not visit the arguments of a node that is replaced."""
    return exp.Anonymous(this=name, expressions=[each.transform(_said_to_spark) for each in arguments])


def _is_map(node: exp.Bracket) -> bool:
    """Return whether a bracket is ``MAP[key, value, ...]``; a column of that name would be in backquotes."""
    named = node.this
    is_word = isinstance(named, exp.Column) and not named.table and not named.this.quoted
    return is_word and named.name.upper() == "MAP" and len(node.expressions) % 2 == 0
