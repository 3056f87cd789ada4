"""Values as text, as by ``CAST(value AS STRING)``, where Flink writes them differently from Spark."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StructType
from sqlglot import exp

from tablestore.sql.parser.functions.calls import call


def in_text(value: exp.Expr, kind: DataType) -> exp.Expr | None:
    """Return a value as Flink writes it: ``TRUE``, ``[1, NULL]``, ``{k=v}``, ``(1, x)``; None if Spark does so, too."""
    if isinstance(kind, BooleanType):
        return exp.Upper(this=exp.cast(value.copy(), "STRING"))
    if isinstance(kind, ArrayType):
        return _listed("[", _each(value, lambda element: _part(element, kind.elementType)), "]")
    if isinstance(kind, MapType):
        entries = call("MAP_ENTRIES", value.copy())
        return _listed("{", _each(entries, lambda entry: _entry(entry, kind)), "}")
    if isinstance(kind, StructType):
        fields = [_part(_field(value, each.name), each.dataType) for each in kind.fields]
        text = _listed("(", call("ARRAY", *fields), ")")
        return exp.If(this=exp.Is(this=value.copy(), expression=exp.null()), true=exp.null(), false=text)
    return None


def _part(value: exp.Expr, kind: DataType) -> exp.Expr:
    """Return a value within another one as text."""
    text = in_text(value, kind)
    return call("COALESCE", exp.cast(value.copy(), "STRING") if text is None else text, exp.Literal.string("NULL"))


def _entry(entry: exp.Expr, kind: MapType) -> exp.Expr:
    key, value = _part(_field(entry, "key"), kind.keyType), _part(_field(entry, "value"), kind.valueType)
    return call("CONCAT", key, exp.Literal.string("="), value)


def _listed(start: str, texts: exp.Expr, end: str) -> exp.Expr:
    joined = call("ARRAY_JOIN", texts, exp.Literal.string(", "))
    return call("CONCAT", exp.Literal.string(start), joined, exp.Literal.string(end))


def _each(array: exp.Expr, change: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    # A variable, not a column of the query.
    changed = exp.Lambda(this=change(exp.var("_each")), expressions=[exp.var("_each")])
    return call("TRANSFORM", array.copy(), changed)


def _field(row: exp.Expr, name: str) -> exp.Expr:
    return exp.Dot(this=exp.Paren(this=row.copy()), expression=exp.to_identifier(name, quoted=True))
