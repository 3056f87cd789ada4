"""Rewrites a SELECT before it is planned: adds tables to columns, and joins in FROM what WHERE joins.

This works on SQL trees alone. Later planning steps then need not resolve names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, product, takewhile
from operator import is_not

from sqlglot import exp

from tablestore.sql.parser.error_location import RefusedError

_VALUE = "_value_{}"
_NOT_IN_EXISTS = ("with_", "group", "having", "qualify", "distinct", "limit", "offset")
"""Parts of a SELECT within EXISTS that keep it from being a join."""


@dataclass(frozen=True)
class Source:
    """A table in FROM.

    Attributes:
        alias: its alias in the query.
        names: names of its columns.
    """

    alias: str
    names: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Return whether the table has a column, ignoring case as Spark does."""
        return name.lower() in {each.lower() for each in self.names}


def own_nodes(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the nodes of a SELECT without those inside nested queries."""
    return select.walk(prune=lambda node: isinstance(node, exp.Query) and node is not select)


def conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """Return the conditions that AND connects in a condition; none for None."""
    if condition is None:
        return []
    inner = condition.unnest()
    return [part for each in inner.flatten() for part in conjuncts(each)] if isinstance(inner, exp.And) else [condition]


def table_alias(name: str) -> exp.TableAlias:
    """Return the node of an alias in FROM."""
    return exp.TableAlias(this=exp.to_identifier(name, quoted=True))


def query_of_cte(table: exp.Table) -> exp.Select | None:
    """Return a query of all rows of the common table expression that a table names; None if it names none."""
    known: list[exp.Expr] = []
    inside: exp.Expr = table
    while (node := inside.parent) is not None:
        clause = node.args.get("with_")
        if isinstance(node, exp.With):
            known = [*takewhile(partial(is_not, inside), node.expressions), *known]
        elif clause is not None and clause is not inside:
            known = [*clause.expressions, *known]
        inside = node
    names = [each.alias for each in known]
    if table.name not in names:
        return None
    number = len(names) - names[::-1].index(table.name)
    made = exp.Select(expressions=[exp.Star()]).from_(exp.Table(this=table.this.copy()))
    made.set("with_", exp.With(expressions=[each.copy() for each in known[:number]]))
    return made


def named_table(name: str, alias: str) -> exp.Table:
    """Return the node of a table in FROM, with an alias."""
    return exp.Table(this=exp.to_identifier(name, quoted=True), alias=table_alias(alias))


def read_instead(table: exp.Table, name: str) -> None:
    """Let a table in FROM be another one, in place; in the query it keeps its name."""
    if not table.alias:
        table.set("alias", table_alias(table.name))
    table.this.set("this", name)
    table.this.set("quoted", True)


def qualified(select: exp.Select, sources: Mapping[str, Source]) -> exp.Select:
    """Return a SELECT with ``*`` expanded and each column qualified with its table.

    The aliases in ``sources`` are in lower case.

    Raises:
        RefusedError: a column is ambiguous, or a table is not in FROM.
    """
    made = select.copy()
    outputs: list[exp.Expr] = []
    for each in made.expressions:
        outputs += _columns_of(each, sources) if each.is_star and not each.find(exp.AggFunc) else [each]
    made.set("expressions", outputs)
    for node in list(own_nodes(made)):
        if isinstance(node, exp.Column) and node.table:
            _split_fields(node, sources)
    aliases = {each.alias.lower(): each.this for each in made.expressions if isinstance(each, exp.Alias)}
    for node in list(own_nodes(made)):
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            _qualify(node, sources, aliases)
    for part in ("group", "having"):
        clause = made.args.get(part)
        for node in list(clause.walk()) if clause is not None else []:
            if isinstance(node, exp.Column) and not node.table and node.name.lower() in aliases:
                node.replace(aliases[node.name.lower()].copy())
    return made


def _columns_of(star: exp.Expr, sources: Mapping[str, Source]) -> list[exp.Expr]:
    if any(star.args.get(part) or (isinstance(star.this, exp.Star) and star.this.args.get(part)) for part in ("except_", "replace", "rename")):  # fmt: skip  # noqa: E501
        raise RefusedError(star, "* EXCEPT and * REPLACE are not supported in a continuous query: name the columns.")
    table = star.table if isinstance(star, exp.Column) else ""
    if table and table.lower() not in sources:
        raise RefusedError(star, f"'{table}.*': there is no table '{table}' in FROM.")
    chosen = [sources[table.lower()]] if table else list(sources.values())
    return [exp.column(name, table=source.alias, quoted=True) for source in chosen for name in source.names]


def _split_fields(column: exp.Column, sources: Mapping[str, Source]) -> None:
    """Make ``table.row.field`` and ``row.field``, which are parsed as columns, fields of a column, in place."""
    parts = column.parts
    source = sources.get(parts[0].name.lower())
    tables = 1 if source is not None and source.has(parts[1].name) else 0
    if len(parts) == tables + 1 or (not tables and not any(each.has(parts[0].name) for each in sources.values())):
        return
    row = exp.Column(this=parts[tables].copy(), table=parts[0].copy() if tables else None)
    column.replace(exp.Dot.build([row, *(each.copy() for each in parts[tables + 1 :])]))


def _qualify(column: exp.Column, sources: Mapping[str, Source], aliases: Mapping[str, exp.Expr]) -> None:
    if column.table:
        source = sources.get(column.table.lower())
        if source is not None:
            # Use one spelling, so that references to the same column compare as equal.
            column.set("table", exp.to_identifier(source.alias, quoted=True))
            name = next((each for each in source.names if each.lower() == column.name.lower()), column.name)
            _named(column, name)
        return
    found = [source for source in sources.values() if source.has(column.name)]
    if len(found) > 1 and column.name.lower() not in aliases:
        tables = " and ".join(f"'{each.alias}'" for each in found)
        raise RefusedError(column, f"column '{column.name}' is in {tables}; name the table.")
    if len(found) == 1:
        name = next(each for each in found[0].names if each.lower() == column.name.lower())
        _named(column, name)
        column.set("table", exp.to_identifier(found[0].alias, quoted=True))


def _named(column: exp.Column, name: str) -> None:
    places = dict(column.this.meta)
    column.set("this", exp.to_identifier(name, quoted=True))
    column.this.meta.update(places)


def join_by_where(select: exp.Select, sources: Mapping[str, Source]) -> None:
    """Move what joins the tables after a comma or CROSS JOIN from WHERE to their ON, in place.

    A SELECT with a RIGHT or FULL JOIN stays as it is: its WHERE applies to rows of NULLs too.
    """
    joins, where, first = select.args.get("joins") or [], select.args.get("where"), select.args.get("from_")
    if where is None or first is None or any(join.side in {"RIGHT", "FULL"} for join in joins):
        return
    seen, rest = {first.this.alias_or_name.lower()}, conjuncts(where.this)
    aliases = seen | {join.this.alias_or_name.lower() for join in joins}
    for join in joins:
        alias = join.this.alias_or_name.lower()
        seen.add(alias)
        tables = [_tables_of(each, sources, aliases) for each in rest]
        own = [each for each, of in zip(rest, tables, strict=True) if alias in of and len(of) > 1 and of <= seen]
        if join.kind == "CROSS" and any(isinstance(each.unnest(), exp.EQ) for each in own):
            join.set("kind", None)
            join.set("on", exp.and_(*own))
            rest = [each for each in rest if each not in own]
    select.set("where", exp.Where(this=exp.and_(*rest)) if rest else None)


def _tables_of(condition: exp.Expr, sources: Mapping[str, Source], aliases: Collection[str]) -> set[str]:
    """Return the lower-case aliases of the tables in a condition; none if one is not known."""
    found: set[str] = set()
    for column in condition.find_all(exp.Column):
        named = [alias for alias, source in sources.items() if source.has(column.name)]
        owners = [column.table.lower()] if column.table else named if set(aliases) <= set(sources) else []
        if len(owners) != 1 or owners[0] not in sources:
            return set()
        found.update(owners)
    return set() if condition.find(exp.Query) else found


def join_subqueries(select: exp.Select, is_endless: Callable[[exp.Query], bool]) -> None:
    """Replace [NOT] IN and [NOT] EXISTS of unbounded queries by joins with their distinct rows, in place.

    They are conditions of WHERE. Conditions for which this is not possible stay.
    """
    joins, where, first = select.args.get("joins") or [], select.args.get("where"), select.args.get("from_")
    if where is None or first is None:
        return
    aliases = [item.this.alias_or_name for item in (first, *joins)]
    if any(isinstance(each, exp.Star) for each in select.expressions) and not all(aliases):
        return
    added: list[exp.Join] = []
    rest: list[exp.Expr] = []
    outer = {alias.lower() for alias in aliases}
    for condition in conjuncts(where.this):
        inner = condition.unnest()
        is_absent = isinstance(inner, exp.Not)
        found = _matches(inner, outer)
        if not found or not is_endless(found[0][1]):
            rest.append(condition)
            continue
        for columns, rows, also in found:
            alias = f"_in_{len(added)}"
            added.append(_distinct_join(alias, columns, rows, also, side="LEFT" if is_absent else ""))
            if is_absent:
                # A value that equals a column is not NULL.
                rest.append(exp.column(_VALUE.format(0), table=alias, quoted=True).is_(exp.null()))
    if not added:
        return
    outputs: list[exp.Expr] = []
    for each in select.expressions:
        of_all = [exp.Column(this=exp.Star(), table=exp.to_identifier(alias, quoted=True)) for alias in aliases]
        outputs += of_all if isinstance(each, exp.Star) else [each]
    select.set("expressions", outputs)
    select.set("joins", [*joins, *added])
    select.set("where", exp.Where(this=exp.and_(*rest)) if rest else None)


def _distinct_join(
    alias: str, columns: Sequence[exp.Expr], rows: exp.Query, also: exp.Expr | None, *, side: str
) -> exp.Join:
    """Return the join of columns with the distinct rows of a query, which has as many, if a condition holds, too."""
    names = [exp.to_identifier(_VALUE.format(number), quoted=True) for number in range(len(columns))]
    inner = exp.Subquery(this=rows, alias=exp.TableAlias(this=exp.to_identifier("_rows"), columns=names))
    distinct = exp.select(*(exp.column(name.copy()) for name in names)).distinct().from_(inner)
    equal = [
        exp.EQ(this=column.copy(), expression=exp.column(name.copy(), table=alias, quoted=True))
        for column, name in zip(columns, names, strict=True)
    ]
    on = exp.and_(*equal, also)
    return exp.Join(this=exp.Subquery(this=distinct, alias=table_alias(alias)), on=on, side=side)


def _matches(condition: exp.Expr, outer: Collection[str]) -> list[tuple[list[exp.Expr], exp.Query, exp.Expr | None]]:
    """Return the rows that a row must match for IN or EXISTS to hold, and must not match for NOT IN or NOT EXISTS.

    Returns:
        columns of the tables around, the query of what they equal, and a further condition; nothing if the rows are not
        known. NOT IN holds if none of the rows that meet the equalities has the value or NULL; for a value of NULL, if
        there is no such row.
    """
    is_absent = isinstance(condition, exp.Not)
    condition = condition.this.unnest() if is_absent else condition
    found = _subquery_of(condition, outer)
    if found is None:
        return []
    if not (is_absent and isinstance(condition, exp.In)):
        return [(*found, None)]
    rows, compared = condition.args["query"].unnest(), condition.this
    if not isinstance(rows, exp.Select) or len(rows.selects) != 1:
        return []
    nulls = _existing(rows.where(rows.selects[0].unalias().is_(exp.null())), outer)
    every = _existing(rows.copy(), outer)
    if nulls is None or every is None:
        return []
    return [(*found, None), (*nulls, None), (*every, compared.is_(exp.null()))]


def _subquery_of(condition: exp.Expr, outer: Collection[str]) -> tuple[list[exp.Expr], exp.Query] | None:
    """Return the columns that IN or EXISTS compares, and the query of what they equal; None if there is none."""
    if isinstance(condition, exp.Exists) and isinstance(condition.this, exp.Select):
        return _existing(condition.this.copy(), outer)
    if not isinstance(condition, exp.In) or not isinstance(condition.args.get("query"), exp.Subquery):
        return None
    rows, compared = condition.args["query"].unnest(), condition.this
    columns = list(compared.expressions) if isinstance(compared, exp.Tuple) else [compared]
    is_plain = all(isinstance(each, exp.Column) for each in columns) and not rows.args.get("with_")
    same = not any(each.is_star for each in rows.selects) and len(rows.selects) == len(columns)
    if not is_plain or not same:
        return None
    if not _names_any(rows, outer):
        return columns, rows.copy()
    return _existing(rows.copy(), outer, columns) if isinstance(rows, exp.Select) else None


def _existing(
    rows: exp.Select, outer: Collection[str], compared: Sequence[exp.Expr] = ()
) -> tuple[list[exp.Expr], exp.Query] | None:
    """Return the columns of the tables around EXISTS, and its query, changed in place, with what they equal.

    ``compared`` are the columns that equal what the query selects, as with IN.
    """
    clauses = (rows.args.get("from_"), *(rows.args.get("joins") or []))
    outer = set(outer) - {each.this.alias_or_name.lower() for each in clauses if each is not None}
    has_aggregate = any(isinstance(node, exp.AggFunc) for node in own_nodes(rows))
    if has_aggregate or any(rows.args.get(part) for part in _NOT_IN_EXISTS):
        return None
    columns = [*compared]
    values = [each.unalias() for each in rows.selects] if compared else []
    rest: list[exp.Expr] = []
    for condition in conjuncts(rows.args["where"].this if rows.args.get("where") else None):
        one = condition.unnest()
        sides = [one.this, one.expression] if isinstance(one, exp.EQ) else []
        theirs = [each for each in sides if isinstance(each, exp.Column) and each.table.lower() in outer]
        if len(theirs) == 1:
            columns += theirs
            values += [each for each in sides if each is not theirs[0]]
        else:
            rest.append(condition)
    if not columns or any(_names_any(each, outer) for each in (*values, *rest)):
        return None
    rows.set("expressions", values)
    rows.set("where", exp.Where(this=exp.and_(*rest)) if rest else None)
    # The tables of a join may be named only there.
    return None if _names_any(rows, outer) else (columns, rows)


def _names_any(node: exp.Expr, tables: Collection[str]) -> bool:
    return any(column.table.lower() in tables for column in node.find_all(exp.Column))


def kept_key(select: exp.Select, keys: Mapping[str, tuple[str, ...]]) -> tuple[int, ...] | None:
    """Return the positions of key columns among the outputs, or None if one is not an output.

    ``keys`` has those of each table, by lower-case alias.
    """
    outputs = [each.unalias() for each in select.expressions]
    places = {
        (each.table.lower(), each.name.lower()): number
        for number, each in reversed(list(enumerate(outputs)))
        if isinstance(each, exp.Column)
    }
    wanted = [(table, name.lower()) for table, names in keys.items() for name in names]
    return tuple(places[each] for each in wanted) if all(each in places for each in wanted) else None


def kept_groups(select: exp.Select, groups: Sequence[exp.Expr]) -> tuple[int, ...] | None:
    """Return the positions of the GROUP BY expressions among the outputs, or None if one is not an output."""
    outputs = [each.unalias() for each in select.expressions]
    return tuple(outputs.index(group) for group in groups) if all(group in outputs for group in groups) else None


def grouping_sets(select: exp.Select) -> list[tuple[exp.Expr, ...]]:
    """Return the lists of expressions by which GROUP BY groups; none unless it has GROUPING SETS, ROLLUP or CUBE."""
    group = select.args.get("group")
    parts: list[exp.Expr] = [] if group is None else group.expressions
    if not any(isinstance(each, exp.GroupingSets | exp.Rollup | exp.Cube) for each in parts):
        return []
    return [tuple(dict.fromkeys(chain(*choice))) for choice in product(*map(_sets, parts))]


def _sets(node: exp.Expr) -> list[tuple[exp.Expr, ...]]:
    if isinstance(node, exp.GroupingSets):
        return [each for part in node.expressions for each in _sets(part)]
    if not isinstance(node, exp.Rollup | exp.Cube):
        return [tuple(node.expressions) if isinstance(node, exp.Tuple) else (node.unnest(),)]
    members = [each for part in node.expressions for each in _sets(part)]
    sizes = range(len(members), -1, -1)
    chosen = [members[:size] for size in sizes]
    if isinstance(node, exp.Cube):
        chosen = [list(each) for size in sizes for each in combinations(members, size)]
    return [tuple(chain(*each)) for each in chosen]


def of_grouping_set(
    select: exp.Select, kept: Sequence[exp.Expr], null_of: Callable[[exp.Expr], exp.Expr], others: Collection[exp.Expr]
) -> exp.Select:
    """Return a query that groups by one of its grouping sets.

    Args:
        select: the query, in which tables are added to columns.
        kept: the expressions of the set.
        null_of: returns NULL with the type of an expression.
        others: expressions of other sets only, which are NULL.
    """

    def within(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Grouping | exp.GroupingId):
            bits = ["0" if each in kept else "1" for each in node.expressions]
            return exp.cast(exp.Literal.number(int("".join(bits), 2)), "BIGINT")
        if isinstance(node, exp.AggFunc) or node in kept:
            return node
        if node in others:
            return null_of(node)
        for each in list(node.iter_expressions()):
            each.replace(within(each))
        return node

    made = select.copy()
    made.set("group", exp.Group(expressions=[each.copy() for each in kept]) if kept else None)
    outputs = zip(select.expressions, output_names(select), strict=True)
    made.set("expressions", [exp.alias_(within(each.unalias().copy()), name, quoted=True) for each, name in outputs])
    having = made.args.get("having")
    if having is not None:
        having.set("this", within(having.this))
    elif not kept and made.find(exp.AggFunc) is None:
        # All rows are one group.
        made.set("having", exp.Having(this=exp.GTE(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(0))))
    return made


def output_names(select: exp.Select) -> tuple[str, ...]:
    """Return the names of a query's columns; unnamed columns get the names that Flink gives them."""

    def own(output: exp.Expr) -> str:
        # sqlglot names a function by its argument.
        return str(output.alias or (output.name if isinstance(output, exp.Column | exp.Dot) else ""))

    return tuple(own(each) or f"EXPR${number}" for number, each in enumerate(select.expressions))
