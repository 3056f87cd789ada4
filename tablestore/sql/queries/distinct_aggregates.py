"""Rewrites exact DISTINCT aggregates over an unbounded table into deduplication and sums.

Spark refuses DISTINCT aggregates on streams, and counts wrongly with its check off; deduplication and sums it does
correctly. So each row becomes a *plain* row, and one more *distinct* row for each list of distinct values, which is
dropped if an earlier row has the same group and values. Then all rows are summed: a plain row counts as one for
``COUNT(*)``, a distinct row as one for its ``COUNT(DISTINCT ...)``. Columns that do not belong to a row are NULL.

This module works on SQL trees alone; ``append_query.py`` builds the frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from tablestore.sql.parser.error_location import RefusedError
from tablestore.sql.queries.unsupported import BATCH

ROWS: Final = "_exploded"
MARK: Final = "_plain"
#: Aggregates of one argument that ignore NULL, so they need no filter for plain rows.
_SIMPLE: Final = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)


@dataclass(frozen=True)
class ExpandedQuery:
    """A grouped query split into an inner query and an outer aggregation.

    Attributes:
        inner: query with one row for each of the table's: ``keys``, then ``plain``, then all of ``distinct``.
        keys: names of the columns to group by.
        plain: names of the arguments of aggregates without DISTINCT.
        distinct: for each list of distinct values, the names of its columns.
        outer: the query over ``ROWS``, which has ``keys``, ``plain``, all of ``distinct``, `MARK`, and a `counter` for
            each list of distinct values.
    """

    inner: exp.Select
    keys: tuple[str, ...]
    plain: tuple[str, ...]
    distinct: tuple[tuple[str, ...], ...]
    outer: exp.Select


def counter(number: int) -> str:
    """Return the name of the column that counts distinct values: 1 in their own rows, NULL in others."""
    return f"_distinct_{number}"


def has_distinct(select: exp.Select) -> bool:
    """Return whether a query has a DISTINCT aggregate."""
    return any(isinstance(aggregate.this, exp.Distinct) for aggregate in select.find_all(exp.AggFunc))


def groups_of(select: exp.Select) -> list[exp.Expr]:
    """Return the GROUP BY expressions of a query.

    Raises:
        RefusedError: it groups by the number of a column.
    """
    group = select.args.get("group")
    if group is None:
        return []
    found: list[exp.Expr] = list(group.expressions)
    for each in found:
        if isinstance(each, exp.Literal):
            msg = f"GROUP BY {each.sql()}: name the column instead of its number."
            raise RefusedError(each, msg)
    return found


def key_name(number: int) -> str:
    """Return the column name of the GROUP BY expression at a position."""
    return f"_key_{number}"


def outputs_over(select: exp.Select, said: Callable[[exp.Expr], exp.Expr]) -> list[exp.Expr]:
    """Return the output columns of a query, rewritten by ``said`` and aliased to their names."""
    outputs: list[exp.Expr] = []
    for number, each in enumerate(select.expressions):
        name = each.alias_or_name or f"EXPR${number}"
        inner = each.unalias()
        outputs.append(exp.alias_(said(inner.copy()), name, quoted=True))
    return outputs


def said_over(
    node: exp.Expr, groups: Sequence[exp.Expr], aggregate: Callable[[exp.AggFunc | exp.Filter], exp.Expr]
) -> exp.Expr:
    """Rewrite an expression over groups from the top down, and return it.

    GROUP BY expressions become their key columns; aggregates become what ``aggregate`` returns for them.

    Raises:
        RefusedError: a column is neither in GROUP BY nor in an aggregate.
    """
    for number, group in enumerate(groups):
        if node == group:
            return exp.column(key_name(number))
    if isinstance(node, exp.AggFunc | exp.Filter):
        return aggregate(node)
    if isinstance(node, exp.Column):
        raise RefusedError(node, f"column '{node.sql('spark')}' is neither in GROUP BY nor in an aggregate.")
    for name, value in list(node.args.items()):
        if isinstance(value, exp.Expr):
            node.set(name, said_over(value, groups, aggregate))
        elif isinstance(value, list):
            said = [said_over(each, groups, aggregate) if isinstance(each, exp.Expr) else each for each in value]
            node.set(name, said)
    return node


def expand_distinct(select: exp.Select) -> ExpandedQuery:
    """Split a grouped query with DISTINCT aggregates, and without HAVING, ORDER BY and LIMIT.

    Raises:
        RefusedError: an aggregate is not supported, or a column is neither in GROUP BY nor in an aggregate.
    """
    groups = groups_of(select)
    keys = tuple(key_name(number) for number in range(len(groups)))
    plain: dict[exp.Expr, str] = {}
    distinct: dict[tuple[exp.Expr, ...], tuple[str, ...]] = {}

    outputs = outputs_over(select, lambda node: said_over(node, groups, lambda agg: _aggregate(agg, plain, distinct)))
    arguments = [argument for each in distinct for argument in each]
    names = [name for each in distinct.values() for name in each]
    inner = select.copy()
    inner.set("group", None)
    pairs = [*zip(groups, keys, strict=True), *plain.items(), *zip(arguments, names, strict=True)]
    inner.set("expressions", [exp.alias_(each.copy(), name, quoted=True) for each, name in pairs])
    outer = exp.Select(expressions=outputs).from_(exp.to_table(ROWS))
    if keys:
        outer = outer.group_by(*(exp.column(key) for key in keys))
    return ExpandedQuery(inner, keys, tuple(plain.values()), tuple(distinct.values()), outer)


def collect_distinct(select: exp.Select, type_of: Callable[[exp.Expr], str]) -> None:
    """Rewrite the DISTINCT aggregates of a query over SESSION windows into functions of the set of their values.

    The window of a row is known only when it ends, so rows cannot be deduplicated by it before they are aggregated.

    Args:
        select: the SELECT, which is changed in place.
        type_of: returns the type of an aggregate, as Spark writes it.

    Raises:
        RefusedError: an aggregate is not supported.
    """
    for inside in list(select.find_all(exp.AggFunc)):
        if not isinstance(inside.this, exp.Distinct):
            continue
        node = inside.parent if isinstance(inside.parent, exp.Filter) else inside
        condition, _ = condition_of(node)
        values = only_where(condition, inside.this.expressions)
        _check_distinct(node, inside, values)
        node.replace(_of_set(inside, values, type_of))


def _of_set(inside: exp.Expr, values: list[exp.Expr], type_of: Callable[[exp.Expr], str]) -> exp.Expr:
    """Return an aggregate of distinct values as a function of their set, which has no NULL."""
    value = values[0]
    if len(values) > 1:
        there = exp.and_(*(each.copy().is_(exp.null()).not_() for each in values))
        value = exp.Case().when(there, exp.Anonymous(this="STRUCT", expressions=values))
    held = exp.Anonymous(this="COLLECT_SET", expressions=[value])
    size = exp.Anonymous(this="SIZE", expressions=[held])
    if isinstance(inside, exp.Count):
        return exp.cast(size, "BIGINT")
    plain = inside.copy()
    plain.set("this", value.copy())
    if isinstance(inside, exp.Min | exp.Max):
        return plain
    kind = exp.DataType.build(type_of(exp.Sum(this=value.copy())), dialect="spark")
    added = exp.Lambda(
        this=exp.cast(exp.Add(this=exp.column("_sum"), expression=exp.column("_value")), kind),
        expressions=[exp.to_identifier("_sum"), exp.to_identifier("_value")],
    )
    zero = exp.cast(exp.Literal.number(0), kind)
    total = exp.Anonymous(this="AGGREGATE", expressions=[held.copy(), zero, added])
    # Without values, both are NULL.
    count = exp.Anonymous(this="NULLIF", expressions=[size, exp.Literal.number(0)])
    if isinstance(inside, exp.Avg):
        average = exp.DataType.build(type_of(plain), dialect="spark")
        return exp.cast(exp.Anonymous(this="TRY_DIVIDE", expressions=[total, count]), average)
    return exp.Case().when(count.is_(exp.null()).not_(), total)


def _check_distinct(node: exp.Expr, inside: exp.Expr, values: Sequence[exp.Expr]) -> None:
    if not isinstance(inside, _SIMPLE) or (len(values) > 1 and not isinstance(inside, exp.Count)):
        msg = (
            f"{node.sql('spark')} is not supported in a continuous query: of distinct values COUNT, SUM and AVG are. "
            f"{BATCH}."
        )
        raise RefusedError(node, msg)


def _aggregate(
    node: exp.AggFunc | exp.Filter,
    plain: dict[exp.Expr, str],
    distinct: dict[tuple[exp.Expr, ...], tuple[str, ...]],
) -> exp.Expr:
    condition, inside = condition_of(node)
    argument = inside.this
    if isinstance(argument, exp.Distinct):
        return _distinct(node, inside, only_where(condition, argument.expressions), distinct)
    of_all = isinstance(inside, exp.Count) and isinstance(argument, exp.Star | exp.Literal)
    if of_all and condition is None:
        return _count(MARK)
    if isinstance(inside, _SIMPLE) and argument is not None and not inside.args.get("expressions"):
        (value,) = only_where(condition, [exp.Literal.number(1) if of_all else argument])
        return _over(inside, plain.setdefault(value, f"_argument_{len(plain)}"))
    return _among_plain_rows(node, inside, condition, plain)


def _distinct(
    node: exp.Expr, inside: exp.Expr, values: list[exp.Expr], distinct: dict[tuple[exp.Expr, ...], tuple[str, ...]]
) -> exp.Expr:
    _check_distinct(node, inside, values)
    names = distinct.setdefault(tuple(values), tuple(f"_value_{len(distinct)}_{n}" for n in range(len(values))))
    if isinstance(inside, exp.Count):
        return _count(counter(list(distinct).index(tuple(values))))
    return _over(inside, names[0])


def _among_plain_rows(
    node: exp.Expr, inside: exp.Expr, condition: exp.Expr | None, plain: dict[exp.Expr, str]
) -> exp.Expr:
    """Return any other aggregate over columns for its arguments, with a filter for plain rows."""
    if inside.find(exp.Order, exp.Distinct, exp.Query):
        msg = (
            f"{node.sql('spark')} is not supported with aggregates of distinct values in a continuous query. Use a "
            "separate query."
        )
        raise RefusedError(node, msg)

    def named(value: exp.Expr) -> exp.Expr:
        # Constant arguments, such as a percentage, must stay constants.
        if value.find(exp.Column) is None:
            return value.copy()
        return exp.column(plain.setdefault(value, f"_argument_{len(plain)}"))

    made = inside.copy()
    for name, value in inside.args.items():
        if isinstance(value, exp.Expr):
            made.set(name, named(value))
        elif isinstance(value, list):
            made.set(name, [named(each) if isinstance(each, exp.Expr) else each for each in value])
    kept: exp.Expr = exp.column(MARK).is_(exp.null()).not_()
    if condition is not None:
        kept = exp.and_(kept, named(condition))
    return exp.Filter(this=made, expression=exp.Where(this=kept))


def condition_of(node: exp.Expr) -> tuple[exp.Expr | None, exp.Expr]:
    """Return an aggregate's filter condition, or None, and the aggregate without it."""
    condition, inside = (node.expression.this, node.this) if isinstance(node, exp.Filter) else (None, node)
    if isinstance(inside, exp.CountIf):
        condition = inside.this if condition is None else exp.and_(condition, inside.this)
        inside = exp.Count(this=exp.Star())
    return condition, inside


def only_where(condition: exp.Expr | None, values: Sequence[exp.Expr]) -> list[exp.Expr]:
    """Return values as expressions that are NULL unless a condition holds."""
    if condition is None:
        return list(values)
    return [exp.Case().when(condition.copy(), value.copy()) for value in values]


def _over(aggregate: exp.Expr, name: str) -> exp.Expr:
    made = aggregate.copy()
    made.set("this", exp.column(name))
    return made


def _count(name: str) -> exp.Expr:
    return exp.func("COALESCE", exp.Sum(this=exp.column(name)), exp.cast(exp.Literal.number(0), "BIGINT"))
