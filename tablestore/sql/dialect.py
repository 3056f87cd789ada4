"""Flink's SQL as a dialect of sqlglot: its words and quotes, and how its queries are said to Spark.

Functions are Spark's: a query is read and said again with its functions as they are. What differs is translated:
strings (``'it''s'``), names in backquotes only, types, ``PROCTIME()``.
"""

from __future__ import annotations

from typing import ClassVar, Final

from sqlglot import exp, tokens
from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import TokenType

PROCTIME: Final = "PROCTIME"
_PROCTIME_IN_SPARK: Final = "DATE_TRUNC('MILLISECOND', CURRENT_TIMESTAMP())"
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
    """Say a query or an expression in Spark's SQL."""
    return tree.copy().transform(_said_to_spark, copy=False).sql(dialect="spark", comments=False)


def _said_to_spark(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.DataType) and node.this in _TIMES:
        node.set("this", _TIMES[node.this])
        node.set("expressions", None)
    if isinstance(node, exp.Anonymous) and node.name.upper() == PROCTIME and not node.expressions:
        proctime: exp.Expr = exp.maybe_parse(_PROCTIME_IN_SPARK, dialect="spark")
        return proctime
    return node
