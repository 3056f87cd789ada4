"""Division, ``AVG``, ``OVERLAPS``, and rounding and adding of times as in Flink, where results depend on types.

In Flink, integers divided by an integer, and their average, are an integer, and a floating-point number divided by zero
is infinite or not a number. Spark returns DOUBLE for the first, and raises an error for the second. A DATE that is
rounded, or moved by days, is a DATE, and a rounded TIME a TIME. The types are those that Spark finds for the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    NumericType,
    ShortType,
    TimeType,
    YearMonthIntervalType,
)
from sqlglot import exp

from tablestore.sql.parser.functions.time_functions import BY_DATE

TypeOf = Callable[[exp.Expr, exp.Select | None], DataType | None]
"""Returns the type of an expression in a SELECT, or, if it is None, outside of any; None if Spark rejects it."""
TypeHere = Callable[[exp.Expr], DataType | None]
"""Returns the type of an expression in the query that is being changed; None if Spark rejects it."""
_DIGITS_OF_INT: Final = 9
"""A number of at most so many digits is an INT."""
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_FLOATING: Final = (FloatType, DoubleType)
_TYPED: Final = (exp.Div, exp.Avg, exp.Floor, exp.Ceil, exp.TimestampAdd, exp.Overlaps)
"""Expressions that depend on the types of their arguments; ``FLOOR`` and ``CEIL`` only with a unit."""


def with_flink_arithmetic(tree: exp.Expr, type_of: TypeOf) -> exp.Expr:
    """Return a query or an expression whose divisions and averages are Flink's; the tree itself may be changed.

    What Spark rejects stays as it is, so that Spark's own error remains.
    """
    if not _is_typed_within(tree):
        return tree
    holder = exp.Paren(this=tree)
    _visit(tree, type_of)
    changed: exp.Expr = holder.this.pop()
    return changed


def _visit(query: exp.Expr, type_of: TypeOf) -> None:
    """Change a query in place, inner queries first: the types of the outer one depend on theirs."""
    inner = [each for each in query.walk(prune=lambda node: _is_nested(node, query)) if _is_nested(each, query)]
    # The queries of WITH come before those that use them.
    for each in sorted(inner, key=lambda each: not isinstance(each.parent, exp.CTE)):
        _visit(each, type_of)
    if isinstance(query, exp.Select):
        _name_outputs(query)
    own = list(query.bfs(prune=lambda node: _is_nested(node, query)))
    type_here = _asking_once(type_of, query if isinstance(query, exp.Select) else None)
    for node in reversed(own):
        if _is_typed(node):
            _replace(node, type_here)


def _asking_once(type_of: TypeOf, select: exp.Select | None) -> TypeHere:
    """Return a function that asks for the type of each expression in a SELECT once: Spark analyzes a query for it."""
    known: dict[exp.Expr, DataType | None] = {}

    def type_here(expression: exp.Expr) -> DataType | None:
        if expression.is_int and len(expression.name) <= _DIGITS_OF_INT:
            return IntegerType()
        if expression not in known:
            # Of a copy, because a key must not change.
            known[expression.copy()] = type_of(expression, select)
        return known[expression]

    return type_here


def _name_outputs(select: exp.Select) -> None:
    """Set Flink's names for columns without a name that Spark would name by what a division becomes, in place."""
    for number, each in enumerate(select.expressions):
        if not isinstance(each, exp.Alias) and _is_typed_within(each):
            _put(each, lambda output: exp.alias_(output, f"EXPR${number}", quoted=True))  # noqa: B023 - called at once


def _is_typed(node: exp.Expr) -> bool:
    return isinstance(node, _TYPED) and (not isinstance(node, exp.Floor | exp.Ceil) or bool(node.args.get("to")))


def _is_typed_within(tree: exp.Expr) -> bool:
    return any(map(_is_typed, tree.find_all(*_TYPED)))


def _is_nested(node: exp.Expr, query: exp.Expr) -> bool:
    return isinstance(node, exp.Query) and node is not query


def _replace(node: exp.Expr, type_of: TypeHere) -> None:
    if isinstance(node, exp.Floor | exp.Ceil | exp.TimestampAdd):
        _replace_time(node, type_of(node.this))
        return
    if isinstance(node, exp.Overlaps):
        one, one_end = _period(node.this, type_of)
        other, other_end = _period(node.expression, type_of)
        ends = exp.and_(exp.GTE(this=one_end, expression=other), exp.GTE(this=other_end, expression=one))
        node.replace(exp.Paren(this=ends))
        return
    if isinstance(node, exp.Avg):
        kind = type_of(node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this)
        if isinstance(kind, IntegralType):
            top: exp.Expr = node
            while isinstance(top.parent, exp.Filter | exp.Window) and top.parent.this is top:
                top = top.parent
            _put(top, lambda average: exp.cast(average, _name(kind)))
        return
    kinds = list(map(type_of, (node.this, node.expression)))
    if all(isinstance(each, IntegralType) for each in kinds):
        widest = max(kinds, key=lambda each: _INTEGERS.index(type(each)))
        _put(node, lambda div: exp.cast(exp.IntDiv(this=div.this, expression=div.expression), _name(widest)))
    elif any(isinstance(each, _FLOATING) for each in kinds) and all(isinstance(each, NumericType) for each in kinds):
        kind = FloatType() if all(isinstance(each, FloatType) for each in kinds) else DoubleType()
        _put(node, lambda div: exp.cast(_with_infinity(div), _name(kind)))


def _replace_time(node: exp.Floor | exp.Ceil | exp.TimestampAdd, kind: DataType | None) -> None:
    """Change ``FLOOR`` and ``CEIL`` to a unit, and ``TIMESTAMPADD``, of a DATE or TIME, in place."""
    unit = node.args["unit" if isinstance(node, exp.TimestampAdd) else "to"].name.upper()
    if isinstance(kind, DateType):
        node.set("this", exp.cast(node.this, "TIMESTAMP"))
        if unit in BY_DATE:
            _put(node, lambda moved: exp.cast(moved, "DATE"))
    elif isinstance(kind, TimeType) and not isinstance(node, exp.TimestampAdd):
        day = exp.cast(exp.Literal.string("1970-01-01"), "DATE")
        node.set("this", exp.Anonymous(this="MAKE_TIMESTAMP_NTZ", expressions=[day, node.this.copy()]))
        _put(node, lambda rounded: exp.cast(rounded, "TIME(3)"))


def is_of_periods(node: exp.Overlaps) -> bool:
    """Return whether ``OVERLAPS`` has two values on each side."""
    return all(isinstance(each, exp.Tuple) and len(each.expressions) == 2 for each in (node.this, node.expression))


def _period(given: exp.Expr, type_of: TypeHere) -> tuple[exp.Expr, exp.Expr]:
    """Return the start and the end of a period, in order; its second value may be its length."""
    start, end = given.expressions
    if isinstance(type_of(end), DayTimeIntervalType | YearMonthIntervalType):
        end = exp.Paren(this=exp.Add(this=start, expression=end))
    ordered = exp.LTE(this=start.copy(), expression=end.copy())
    low = exp.If(this=ordered, true=start.copy(), false=end.copy())
    return low, exp.If(this=ordered.copy(), true=end.copy(), false=start.copy())


def _with_infinity(div: exp.Expr) -> exp.Expr:
    """Return a division that is the dividend times infinity where the divisor is zero."""
    divisor, text = exp.Paren(this=div.expression), exp.Literal.string
    is_zero = exp.EQ(this=divisor.copy(), expression=exp.Literal.number(0))
    is_negative = exp.EQ(this=exp.cast(divisor.copy(), "STRING"), expression=text("-0.0"))
    infinity = exp.cast(exp.If(this=is_negative, true=text("-Infinity"), false=text("Infinity")), "DOUBLE")
    endless = exp.Mul(this=exp.Paren(this=div.this.copy()), expression=infinity)
    return exp.If(this=is_zero, true=endless, false=exp.Div(this=div.this, expression=divisor))


def _put(node: exp.Expr, around: Callable[[exp.Expr], exp.Expr]) -> None:
    """Replace a node by an expression around it."""
    mark = exp.Null()
    node.replace(mark)
    mark.replace(around(node))


def _name(data_type: DataType | None) -> str:
    return "" if data_type is None else data_type.simpleString().upper()
