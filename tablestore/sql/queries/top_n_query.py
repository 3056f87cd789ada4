"""Plans Top-N: ROW_NUMBER() with a filter of its places, and ORDER BY with LIMIT, over unbounded tables.

In ``SELECT ... FROM (SELECT ..., ROW_NUMBER() OVER (PARTITION BY g ORDER BY o) AS n FROM t) WHERE n <= 3`` the inner
query is planned as a `Ranking`, whose places the query around it gives. Deduplication is the Top-N of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType
from sqlglot import exp

from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import SEQ
from tablestore.sql.operators.group_places import RANK, Order, Places
from tablestore.sql.operators.held_types import is_held, is_ordered
from tablestore.sql.operators.stateful import StatePlace
from tablestore.sql.operators.top_n import top_n
from tablestore.sql.parser.qualify import conjuncts, output_names, own_nodes, qualified
from tablestore.sql.queries.relation import Parts, Ranking, Relation, of_changes, of_rows, tidied
from tablestore.sql.queries.unsupported import BATCH, TOP_N, check_from_the_start, check_not_final, refuse

_MIRRORED: Final[dict[type[exp.Expr], type[exp.Expr]]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}
_Plan = Callable[[exp.Select], Relation]


@dataclass(frozen=True)
class _Ranked:
    """A SELECT to be ranked, with the columns that rank it.

    Attributes:
        base: the SELECT without its ranking; after its own outputs come the columns ``groups`` and ``order``.
        names: names of its own outputs.
        groups: positions of the columns that identify a group.
        order: position, whether descending, and whether NULLs are first, of each column to order by.
        node: the part of the query to point at.
    """

    base: exp.Select
    names: tuple[str, ...]
    groups: tuple[int, ...]
    order: tuple[tuple[int, bool, bool], ...]
    node: exp.Expr


def is_limited(tree: exp.Query) -> bool:
    """Return whether a query has ORDER BY and LIMIT."""
    return tree.args.get("order") is not None and tree.args.get("limit") is not None


def around(tree: exp.SetOperation) -> exp.Select:
    """Return a SELECT from a set operation, with its ORDER BY and LIMIT."""
    inner = tree.copy()
    clauses = {part: inner.args.get(part) for part in ("order", "limit", "offset", "with_")}
    for part in clauses:
        inner.set(part, None)
    select = exp.select("*").from_(exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier("_all"))))
    for part, clause in clauses.items():
        select.set(part, clause)
    return select


def limited(select: exp.Select, parts: Parts, plan: _Plan, place: Callable[[], StatePlace]) -> Relation:
    """Plan a SELECT with ORDER BY and LIMIT; ``plan`` plans one over the same inputs.

    Raises:
        RefusedError: it is not supported; the message has an alternative.
    """
    base = qualified(select, parts.sources())
    order, limit, offset = (base.args.get(part) for part in ("order", "limit", "offset"))
    assert order is not None, "`is_limited` says so"
    assert limit is not None, "`is_limited` says so"
    for part in ("order", "limit", "offset"):
        base.set(part, None)
    skipped = _number(offset.expression) if offset is not None else 0
    if isinstance(limit, exp.Fetch):
        options = limit.args.get("limit_options")
        if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
            refuse(limit, "FETCH with PERCENT or WITH TIES", f"use LIMIT; {BATCH}", "FETCH")
        count = _number(limit.args.get("count"))
    else:
        count = _number(limit.expression)
    if count is None or skipped is None or count < 1:
        refuse(limit, "LIMIT or OFFSET of other than a number, from 1 on,", BATCH)
    ranked = _split(base, (), order, is_outer=True)
    return _planned(ranked, plan, place, skipped + 1, skipped + count, None)


def ranking(select: exp.Select, parts: Parts, plan: _Plan, place: Callable[[], StatePlace]) -> Relation | None:
    """Plan a SELECT one of whose outputs is ROW_NUMBER(); its places are given by the query around it.

    Returns:
        A relation with a `Ranking`; None if the SELECT has no window functions, or others.
    """
    if not any(isinstance(node, exp.Window) for node in own_nodes(select)):
        return None
    said = qualified(select, parts.sources())
    outputs = [each.unalias() for each in said.expressions]
    found = [number for number, each in enumerate(outputs) if isinstance(each, exp.Window)]
    windows = [node for node in own_nodes(said) if isinstance(node, exp.Window)]
    if len(found) != 1 or len(windows) != 1 or said.args.get("distinct") or not _is_row_number(windows[0]):
        return None
    (position,), (window,) = found, windows
    names = output_names(said)
    base = said.copy()
    base.set("expressions", [each for number, each in enumerate(base.expressions) if number != position])
    ranked = _split(base, tuple(window.args.get("partition_by") or ()), window.args["order"], is_outer=False)

    def limit(first: int, last: int, is_ranked: bool) -> Relation:
        made = _planned(ranked, plan, place, first, last, position if is_ranked else None)
        return made.renamed(names if is_ranked else [each for n, each in enumerate(names) if n != position])

    def unlimited() -> NoReturn:
        refuse(window, "ROW_NUMBER() without an upper limit of its places", f"filter it in the query around: {TOP_N}")

    return Relation(names, changelog=unlimited, ranking=Ranking(position, limit, unlimited))


def with_places(select: exp.Select, parts: Parts) -> tuple[exp.Select, Parts]:
    """Plan the inputs of a SELECT that are rankings, by the places that its WHERE asks for.

    Returns:
        The SELECT, without the conditions that the rankings apply, and its inputs without rankings.

    Raises:
        RefusedError: WHERE does not limit the places.
    """
    if all(each.relation.ranking is None for each in parts.inputs):
        return select, parts
    said = qualified(select, parts.sources())
    inputs = []
    for part in parts.inputs:
        found = part.relation.ranking
        if found is not None:
            said, made = _with_places_of(said, part.alias, part.relation.names[found.position], found)
            part = replace(part, relation=made)  # noqa: PLW2901 - the input as it is planned
        inputs.append(part)
    return said, Parts(tuple(inputs), parts.inner)


def _with_places_of(said: exp.Select, alias: str, name: str, found: Ranking) -> tuple[exp.Select, Relation]:
    where = said.args.get("where")
    first, last = 1, None
    kept: list[exp.Expr] = []
    for each in conjuncts(where and where.this):
        bounds = _bounds(each.unnest(), alias, name)
        if bounds is None:
            kept.append(each)
            continue
        first = max(first, bounds[0])
        last = bounds[1] if last is None else last if bounds[1] is None else min(last, bounds[1])
    if last is None:
        found.unlimited()
    if last < first:
        refuse(where, "a filter of ROW_NUMBER() that no row meets", "rows are numbered from 1; change it")
    said = said.copy()
    said.set("where", None)
    for each in kept:
        said = said.where(each.copy())
    is_ranked = any(isinstance(node, exp.Column) and node.table == alias and node.name == name for node in said.walk())
    return said, found.limited(first, last, is_ranked)


def _bounds(condition: exp.Expr, alias: str, name: str) -> tuple[int, int | None] | None:
    """Return the places that a condition allows, the last one None if it has no upper limit; None for another one."""

    def is_rank(node: exp.Expr) -> bool:
        return isinstance(node, exp.Column) and node.table == alias and node.name == name

    if isinstance(condition, exp.Between):
        low, high = _number(condition.args["low"]), _number(condition.args["high"])
        return (low, high) if is_rank(condition.this) and low is not None and high is not None else None
    if not isinstance(condition, exp.EQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
        return None
    one, other = condition.this.unnest(), condition.expression.unnest()
    kind: type[exp.Expr] = type(condition)
    if is_rank(other):
        one, other = other, one
        kind = _MIRRORED.get(kind, kind)
    number = _number(other)
    if not is_rank(one) or number is None:
        return None
    bounds: dict[type[exp.Expr], tuple[int, int | None]] = {
        exp.EQ: (number, number),
        exp.LT: (1, number - 1),
        exp.LTE: (1, number),
        exp.GT: (number + 1, None),
        exp.GTE: (number, None),
    }
    return bounds[kind]


def _number(node: exp.Expr | None) -> int | None:
    is_whole = isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit()
    return int(node.name) if is_whole and node is not None else None


def _is_row_number(window: exp.Window) -> bool:
    plain = not any(window.args.get(part) for part in ("spec", "alias", "first"))
    return isinstance(window.this, exp.RowNumber) and plain and window.args.get("order") is not None


def _split(base: exp.Select, groups: tuple[exp.Expr, ...], order: exp.Order, *, is_outer: bool) -> _Ranked:
    """Add the columns that rank a SELECT to its outputs, unless they are among them.

    Args:
        base: the qualified SELECT, which is changed in place.
        groups: the expressions of PARTITION BY.
        order: the items of ORDER BY.
        is_outer: whether ORDER BY is the query's own, which may name outputs by their alias or number.
    """
    names = output_names(base)
    outputs = [each.unalias() for each in base.expressions]
    expressions = list(base.expressions)
    lower = [each.lower() for each in names]

    def position(node: exp.Expr) -> int:
        node = node.unnest()
        number = _number(node)
        if is_outer and number is not None and 1 <= number <= len(names):
            return number - 1
        if is_outer and isinstance(node, exp.Column) and not node.table and node.name.lower() in lower:
            return lower.index(node.name.lower())
        if node not in outputs:
            if base.args.get("distinct"):
                refuse(node, "ORDER BY of other columns than those of SELECT DISTINCT", "select them too")
            outputs.append(node)
            expressions.append(exp.alias_(node.copy(), f"_ranks_{len(outputs)}", quoted=True))
        return outputs.index(node)

    by = tuple(position(each) for each in groups)
    ordered = tuple(
        (position(each.this), bool(each.args.get("desc")), bool(each.args.get("nulls_first")))
        for each in order.expressions
    )
    base.set("expressions", expressions)
    return _Ranked(base, names, by, ordered, order)


def _planned(
    ranked: _Ranked, plan: _Plan, place: Callable[[], StatePlace], first: int, last: int, rank_at: int | None
) -> Relation:
    """Plan the rows at some places; ``rank_at`` is the position of the place among the outputs, None for none."""
    source = plan(ranked.base)
    if source.each is not None:
        refuse(ranked.node, "Top-N over a lookup join", "INSERT its result INTO a table and read that")
    check_from_the_start(ranked.node, source.since, "Top-N")
    is_of_windows = source.ended and set(source.windows or ()) <= set(ranked.groups)
    check_not_final(ranked.node, source.final and not is_of_windows)
    columns = [f"_{number}" for number in range(len(source.names))]
    source = source.renamed(columns)
    outputs = columns[: len(ranked.names)]
    changes = source.changes()
    _check_types(ranked, [field.dataType for field in changes.schema][: len(columns)])
    groups = tuple(dict.fromkeys(columns[number] for number in ranked.groups))
    order = tuple(Order(columns[number], descending, nulls) for number, descending, nulls in ranked.order)
    places = Places(groups, order, first, last, ranked=rank_at is not None, grows=source.grows)
    result, names = list(outputs), list(ranked.names)
    if rank_at is not None:
        result.insert(rank_at, RANK)
        names.insert(rank_at, RANK)
    if is_of_windows:
        return _of_ended_windows(source, places, result).renamed(names)
    key = _key(source, outputs, places)
    frame = top_n(changes, places, outputs, key, place())
    if key is not None and not set(groups) <= set(key):
        # A row that moves to another group goes in one task and comes in another.
        frame = tidied(frame, key)
    carried = [CHANGE_TYPE] if key is None else [CHANGE_TYPE, SEQ]
    return of_changes(
        frame.select(*result, *carried).toDF(*names, *carried), None if key is None else [result.index(n) for n in key]
    )


def _of_ended_windows(source: Relation, places: Places, result: Sequence[str]) -> Relation:
    """Plan the rows at some places of windows, each of which is complete in the micro-batch that emits it."""
    rows = source.rows
    assert rows is not None, "windows that end only add rows"
    first = [getattr(F.col(each.column), each.method)() for each in places.order]
    # A repeated micro-batch must have the same places.
    others = [F.col(name) for name in rows.columns if name not in {each.column for each in places.order}]
    place = F.row_number().over(Window.partitionBy(*places.groups).orderBy(*first, *others)).cast("bigint")
    kept = rows.withColumn(RANK, place).where(F.col(RANK).between(places.first, places.last))
    made = of_rows(kept.select(*result), chained=True, final=True)
    ends = [source.names[position] for position in source.windows or ()]
    there = set(ends) <= set(result)
    return replace(made, windows=tuple(map(result.index, ends)) if there else None, ended=there)


def _key(source: Relation, outputs: list[str], places: Places) -> list[str] | None:
    """Return columns of the result by which its rows are unique; None if there are none."""
    if set(places.groups) <= set(outputs):
        if places.first == places.last:
            return list(places.groups)
        if places.ranked:
            return [*places.groups, RANK]
    if source.key is not None and all(number < len(outputs) for number in source.key):
        return [outputs[number] for number in source.key]
    return None


def _check_types(ranked: _Ranked, types: list[DataType]) -> None:
    for number, _, _ in ranked.order:
        if not is_ordered(types[number]):
            refuse(ranked.node, f"ORDER BY of {types[number].simpleString()} in a Top-N", "order by a part of it")
    for number in ranked.groups:
        if isinstance(types[number], MapType):
            refuse(ranked.node, "PARTITION BY of a MAP", "use a part of it")
    for each in types:
        if not is_held(each):
            refuse(ranked.node, f"a column of type {each.simpleString()} in a Top-N", "CAST it to STRING")
