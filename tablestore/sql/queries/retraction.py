"""Splits aggregations over updating inputs, whose rows may be retracted.

A row has a sign: +1 if it is added, -1 if it is retracted. COUNT, SUM and AVG are sums of values times signs, so a
retracted row leaves no trace. For DISTINCT aggregates each distinct value is counted first, and only its appearance
and disappearance are passed on. MIN and MAX are values of an operator of their own (``operators/extremes.py``).

This module works on SQL trees alone; ``signed_groups.py`` builds the frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlglot import exp

from tablestore.sql.parser.error_location import RefusedError
from tablestore.sql.queries.distinct_aggregates import (
    ROWS,
    condition_of,
    groups_of,
    key_name,
    only_where,
    outputs_over,
    said_over,
)
from tablestore.sql.queries.unsupported import ONE_ROW, refuse


class Sum(StrEnum):
    """Aggregates that support retraction."""

    COUNT = "COUNT"
    SUM = "SUM"
    AVG = "AVG"
    MIN = "MIN"
    MAX = "MAX"

    @property
    def is_extreme(self) -> bool:
        """Whether it is one of the values instead of a sum of weights."""
        return self in {Sum.MIN, Sum.MAX}


_SUMS: Final[Mapping[type[exp.Expr], Sum]] = {
    exp.Count: Sum.COUNT,
    exp.Sum: Sum.SUM,
    exp.Avg: Sum.AVG,
    exp.Min: Sum.MIN,
    exp.Max: Sum.MAX,
}

_WHY: Final = (
    "is not supported in a continuous query over rows that change; COUNT, SUM, AVG, MIN and MAX are, of DISTINCT "
    "values too. INSERT the rows INTO a store table and query it in batch mode: SET 'execution.runtime-mode' = 'batch'."
)


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of a query.

    Attributes:
        sum: which aggregate it is.
        arguments: names of its arguments in ``RetractableQuery.inner``; empty for ``COUNT(*)``.
        distinct: whether it is a DISTINCT aggregate.
        node: the expression in the query.
    """

    sum: Sum
    arguments: tuple[str, ...]
    distinct: bool
    node: exp.Expr


@dataclass(frozen=True)
class RetractableQuery:
    """A grouped query split into an inner query, aggregates and an outer query.

    Attributes:
        inner: query with one row for each of the table's: ``keys``, then the arguments of the aggregates.
        keys: names of the columns to group by.
        aggregates: the aggregates, by their column names in ``outer``.
        outer: the query over ``ROWS``, which has ``keys`` and ``aggregates``.
    """

    inner: exp.Select
    keys: tuple[str, ...]
    aggregates: dict[str, Aggregate]
    outer: exp.Select


def retract(select: exp.Select) -> RetractableQuery:
    """Split a grouped query over signed rows: a qualified SELECT without HAVING, ORDER BY, LIMIT and DISTINCT.

    Raises:
        RefusedError: an aggregate does not support retraction, or a column is neither in GROUP BY nor in an aggregate.
    """
    groups = groups_of(select)
    keys = tuple(key_name(number) for number in range(len(groups)))
    arguments: dict[exp.Expr, str] = {}
    found: dict[str, Aggregate] = {}

    def aggregated(node: exp.AggFunc | exp.Filter) -> exp.Expr:
        made = _aggregate(node, arguments)
        for name, each in found.items():
            if (each.sum, each.arguments, each.distinct) == (made.sum, made.arguments, made.distinct):
                return exp.column(name)
        name = f"_aggregate_{len(found)}"
        found[name] = made
        return exp.column(name)

    outputs = outputs_over(select, lambda node: said_over(node, groups, aggregated))
    inner = select.copy()
    inner.set("group", None)
    pairs = [*zip(groups, keys, strict=True), *arguments.items()]
    named = [exp.alias_(each.copy(), name, quoted=True) for each, name in pairs]
    inner.set("expressions", named or [exp.alias_(exp.Literal.number(1), "_one")])
    outer = exp.Select(expressions=outputs).from_(exp.to_table(ROWS))
    return RetractableQuery(inner, keys, found, outer)


def _aggregate(node: exp.AggFunc | exp.Filter, arguments: dict[exp.Expr, str]) -> Aggregate:
    condition, inside = condition_of(node)
    kind = _SUMS.get(type(inside))
    if kind is None:
        if isinstance(inside, exp.First | exp.Last | exp.FirstValue | exp.LastValue | exp.AnyValue):
            why = f"rows that change come in no order by which a first or last one is known; ORDER them: {ONE_ROW}"
            refuse(node, f"{node.sql('spark')} over rows that change", why)
        raise RefusedError(node, f"{node.sql('spark')} {_WHY}")
    distinct = isinstance(inside.this, exp.Distinct)
    of_all = isinstance(inside.this, exp.Star | exp.Literal)
    values: list[exp.Expr] = inside.this.expressions if distinct else [inside.this, *inside.expressions]
    if of_all:
        values = [] if condition is None else [exp.Literal.number(1)]
    if kind is not Sum.COUNT and len(values) != 1:
        raise RefusedError(node, f"{node.sql('spark')} is not supported in a continuous query: it takes one argument.")
    values = only_where(condition, values)
    names = tuple(arguments.setdefault(value, f"_argument_{len(arguments)}") for value in values)
    return Aggregate(kind, names, distinct and not kind.is_extreme, node)
