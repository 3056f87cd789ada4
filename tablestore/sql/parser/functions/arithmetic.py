"""Division, ``AVG``, ``OVERLAPS``, rounding, casts to text, and adding to times as in Flink, by the types of arguments.

In Flink, integers divided by an integer, and their average, are an integer, and a floating-point number divided by zero
is infinite or not a number. Spark returns DOUBLE for the first, and raises an error for the second. A decimal divided
by an integer has the digits that the integer's type needs; Spark takes a literal for a decimal of its own few digits. A
rounded number keeps its type. A DATE that is rounded, or moved by days, is a DATE, and a rounded or moved TIME a TIME.
The types are those that Spark finds for the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    NumericType,
    ShortType,
    StructType,
    TimeType,
    YearMonthIntervalType,
)
from sqlglot import exp

from tablestore.sql.parser.functions.calls import call, called, name_outputs, wrap
from tablestore.sql.parser.functions.texts import in_text
from tablestore.sql.parser.functions.time_functions import BY_DATE

TypeOf = Callable[[exp.Expr, exp.Select | None], DataType | None]
"""Returns the type of an expression in a SELECT, or, if it is None, outside of any; None if Spark rejects it."""
TypeHere = Callable[[exp.Expr], DataType | None]
"""Returns the type of an expression in the query that is being changed; None if Spark rejects it."""
_DIGITS_OF_INT: Final = 9
"""A number of at most so many digits is an INT."""
_DIGITS: Final[Mapping[type, int]] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
"""The digits of the decimal that an integer becomes beside another one."""
_FLOATING: Final = (FloatType, DoubleType)
_WHOLE: Final = exp.Literal.number("9007199254740992D")
"""From here on, 2 to the power of 53, a DOUBLE has no fraction."""
_TEXTS: Final = (exp.DType.TEXT, exp.DType.CHAR, exp.DType.VARCHAR)
_ROUNDED: Final = (exp.Floor, exp.Ceil, exp.Sign)
_TYPED: Final = (exp.Div, exp.Avg, *_ROUNDED, exp.TimestampAdd, exp.Overlaps, exp.Cast, exp.Anonymous)
"""Expressions that may depend on the types of their arguments."""


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
        name_outputs(query, _is_typed_within)
    own = [each for each in query.bfs(prune=lambda node: _is_nested(node, query)) if _is_typed(each)]
    operands = [operand for each in own for operand in _operands(each) if not _is_typed_within(operand)]
    type_here = _asking_once(type_of, query if isinstance(query, exp.Select) else None, operands)
    for node in reversed(own):
        _replace(node, type_here)


def _operands(node: exp.Expr) -> list[exp.Expr]:
    """Return the arguments on whose types a node depends."""
    if isinstance(node, exp.Div):
        return [node.this, node.expression]
    if isinstance(node, exp.Overlaps):
        return [each.expressions[1] for each in (node.this, node.expression)]
    if isinstance(node, exp.Anonymous) or isinstance(node.this, exp.Distinct):
        return (node if isinstance(node, exp.Anonymous) else node.this).expressions[:1]
    return [node.this]


def _asking_once(type_of: TypeOf, select: exp.Select | None, operands: Sequence[exp.Expr]) -> TypeHere:
    """Return a function that asks for the type of each expression in a SELECT once: Spark analyzes a query for it.

    It asks for the types of all ``operands`` in one query, if Spark accepts them beside each other.
    """
    known: dict[exp.Expr, DataType | None] = {}
    # Copies, because a key must not change.
    asked = list(dict.fromkeys(each.copy() for each in operands if not _is_short(each)))
    if len(asked) > 1:
        whole = type_of(call("STRUCT", *(each.copy() for each in asked)), select)
        if isinstance(whole, StructType):
            known = dict(zip(asked, [field.dataType for field in whole.fields], strict=True))

    def type_here(expression: exp.Expr) -> DataType | None:
        if _is_short(expression):
            return IntegerType()
        if expression not in known:
            known[expression.copy()] = type_of(expression, select)
        return known[expression]

    return type_here


def _is_short(expression: exp.Expr) -> bool:
    """Return whether an expression is a number that is an INT."""
    return expression.is_int and len(expression.name) <= _DIGITS_OF_INT


def _is_typed(node: exp.Expr) -> bool:
    if isinstance(node, exp.Cast):
        return node.to.this in _TEXTS and not isinstance(node.this, exp.Literal)
    if isinstance(node, exp.Anonymous):
        return called(node) == "TRUNCATE"
    # FLOOR and CEIL with a number of digits are Spark's.
    return isinstance(node, _TYPED) and not node.args.get("decimals")


def _is_typed_within(tree: exp.Expr) -> bool:
    return any(map(_is_typed, tree.find_all(*_TYPED)))


def _is_nested(node: exp.Expr, query: exp.Expr) -> bool:
    return isinstance(node, exp.Query) and node is not query


def _replace(node: exp.Expr, type_of: TypeHere) -> None:
    kind, *others = map(type_of, _operands(node))
    if isinstance(node, exp.Div):
        _replace_division(node, [kind, *others])
    elif isinstance(node, exp.Overlaps):
        one, one_end = _period(node.this, kind)
        other, other_end = _period(node.expression, others[0])
        ends = exp.and_(exp.GTE(this=one_end, expression=other), exp.GTE(this=other_end, expression=one))
        node.replace(exp.Paren(this=ends))
    elif isinstance(node, exp.TimestampAdd) or (isinstance(node, exp.Floor | exp.Ceil) and node.args.get("to")):
        _replace_time(node, kind)
    elif isinstance(node, exp.Cast):
        text = None if kind is None else in_text(node.this, kind)
        if text is not None:
            node.set("this", text)
    elif not isinstance(node, exp.Avg):
        _replace_rounded(node, _operands(node)[0], kind)
    elif isinstance(kind, IntegralType):
        top: exp.Expr = node
        while isinstance(top.parent, exp.Filter | exp.Window) and top.parent.this is top:
            top = top.parent
        wrap(top, lambda average: exp.cast(average, _name(kind)))


def _replace_division(node: exp.Div, kinds: list[DataType | None]) -> None:
    if all(isinstance(each, IntegralType) for each in kinds):
        widest = max(kinds, key=lambda each: _DIGITS[type(each)])
        wrap(node, lambda div: exp.cast(exp.IntDiv(this=div.this, expression=div.expression), _name(widest)))
    elif any(isinstance(each, _FLOATING) for each in kinds) and all(isinstance(each, NumericType) for each in kinds):
        floating = FloatType() if all(isinstance(each, FloatType) for each in kinds) else DoubleType()
        wrap(node, lambda div: exp.cast(_with_infinity(div), _name(floating)))
    elif any(isinstance(each, DecimalType) for each in kinds):
        for name, kind in zip(("this", "expression"), kinds, strict=True):
            if isinstance(kind, IntegralType):
                node.set(name, exp.cast(node.args[name], f"DECIMAL({_DIGITS[type(kind)]}, 0)"))


def _replace_rounded(node: exp.Expr, value: exp.Expr, kind: DataType | None) -> None:
    """Change ``FLOOR``, ``CEIL``, ``SIGN`` and ``TRUNCATE`` of a number, in place, so that they keep its type.

    Spark's ``FLOOR`` and ``CEIL`` of a DOUBLE are a BIGINT, which is another number beyond the range of that type.
    """
    if isinstance(kind, IntegralType) or (isinstance(kind, NumericType) and isinstance(node, exp.Sign)):
        wrap(node, lambda rounded: exp.cast(rounded, _name(kind)))
    elif isinstance(kind, _FLOATING):
        has_fraction = exp.LT(this=exp.Abs(this=value.copy()), expression=_WHOLE.copy())
        if isinstance(node, exp.Anonymous):
            value.replace(exp.cast(value.copy(), "DECIMAL(38, 18)"))
        wrap(node, lambda each: exp.If(this=has_fraction, true=exp.cast(each, _name(kind)), false=value.copy()))


def _replace_time(node: exp.Floor | exp.Ceil | exp.TimestampAdd, kind: DataType | None) -> None:
    """Change ``FLOOR`` and ``CEIL`` to a unit, and ``TIMESTAMPADD``, of a DATE or TIME, in place."""
    unit = node.args["unit" if isinstance(node, exp.TimestampAdd) else "to"].name.upper()
    if isinstance(kind, DateType):
        node.set("this", exp.cast(node.this, "TIMESTAMP"))
        if unit in BY_DATE:
            wrap(node, lambda moved: exp.cast(moved, "DATE"))
    elif isinstance(kind, TimeType):
        day = exp.cast(exp.Literal.string("1970-01-01"), "DATE")
        node.set("this", call("MAKE_TIMESTAMP_NTZ", day, node.this.copy()))
        wrap(node, lambda rounded: exp.cast(rounded, "TIME(3)"))


def is_of_periods(node: exp.Overlaps) -> bool:
    """Return whether ``OVERLAPS`` has two values on each side."""
    return all(isinstance(each, exp.Tuple) and len(each.expressions) == 2 for each in (node.this, node.expression))


def _period(given: exp.Expr, kind: DataType | None) -> tuple[exp.Expr, exp.Expr]:
    """Return the start and the end of a period, in order; its second value, which has this type, may be its length."""
    start, end = given.expressions
    if isinstance(kind, DayTimeIntervalType | YearMonthIntervalType):
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


def _name(data_type: DataType | None) -> str:
    return "" if data_type is None else data_type.simpleString().upper()
