"""Flink SQL as a sqlglot dialect, and its translation to Spark SQL.

Functions are Spark's and are passed through unchanged. The translation covers what differs: strings (``'it''s'``),
identifiers in backquotes only, types, ``PROCTIME()``.
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
_TIMES: Final = {exp.DType.TIMESTAMP: exp.DType.TIMESTAMPNTZ}


class Flink(Spark):
    """The sqlglot dialect of Flink SQL."""

    class Tokenizer(tokens.Tokenizer):
        """Tokenizer with strings in single quotes and identifiers in backquotes."""

        QUOTES: ClassVar = ["'"]
        IDENTIFIERS: ClassVar = ["`"]
        STRING_ESCAPES: ClassVar = ["'"]
        NESTED_COMMENTS = False
        #: Empty: sqlglot reads the rest of a statement after a command keyword as one string.
        COMMANDS: ClassVar = set()
        KEYWORDS: ClassVar = {**tokens.Tokenizer.KEYWORDS, "BYTES": TokenType.VARBINARY}


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
    if isinstance(node, exp.Anonymous) and node.name.upper() == PROCTIME and not node.expressions:
        proctime: exp.Expr = exp.maybe_parse(_PROCTIME_IN_SPARK, dialect="spark")
        return proctime
    return node
