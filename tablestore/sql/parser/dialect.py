"""Flink's SQL as a dialect of sqlglot: its words and quotes, and how its queries are said to Spark.

Functions are Spark's: a query is read and said again with its functions as they are. What differs is translated:
strings (``'it''s'``), names in backquotes only, types, ``PROCTIME()``.
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
#: Functions of Spark that reach beyond the tables of a warehouse.
_BEYOND: Final = {
    **dict.fromkeys(("REFLECT", "TRY_REFLECT", "JAVA_METHOD"), _RUNS_CODE),
    "IDENTIFIER": "makes a name of a text, which can be that of any file",
}
_TIMES: Final = {exp.DType.TIMESTAMP: exp.DType.TIMESTAMPNTZ}


class Flink(Spark):
    """The dialect."""

    class Tokenizer(tokens.Tokenizer):
        """Words: strings in single quotes, names in backquotes."""

        QUOTES: ClassVar = ["'"]
        IDENTIFIERS: ClassVar = ["`"]
        STRING_ESCAPES: ClassVar = ["'"]
        NESTED_COMMENTS = False
        #: Such words would swallow the rest of their statement as a string.
        COMMANDS: ClassVar = set()
        KEYWORDS: ClassVar = {**tokens.Tokenizer.KEYWORDS, "BYTES": TokenType.VARBINARY}


def to_spark(tree: exp.Expr) -> str:
    """Say a query or an expression in Spark's SQL.

    Raises:
        InvalidInputError: it would run code that is not SQL, or read other files than the warehouse's. The text may be
            a view's or a computed column's, whose author must not do that in the process of whoever reads it.
    """
    return tree.copy().transform(_said_to_spark, copy=False).sql(dialect="spark", comments=False)


def _said_to_spark(node: exp.Expr) -> exp.Expr:
    why = _BEYOND.get(node.name.upper()) if isinstance(node, exp.Anonymous) else None
    if why is not None or isinstance(node, exp.QueryTransform):
        what = "TRANSFORM ... USING" if why is None else f"{node.name.upper()}()"
        msg = f"{what} {why or _RUNS_CODE}, which neither SQL nor a definition may. Do it in the program, with Spark."
        raise InvalidInputError(msg)
    if isinstance(node, exp.DataType) and node.this in _TIMES:
        node.set("this", _TIMES[node.this])
        node.set("expressions", None)
    if isinstance(node, exp.Anonymous) and node.name.upper() == PROCTIME and not node.expressions:
        proctime: exp.Expr = exp.maybe_parse(_PROCTIME_IN_SPARK, dialect="spark")
        return proctime
    return node
