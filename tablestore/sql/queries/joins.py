"""Plans joins of unbounded tables, at least one of them updating.

The join itself is an operator of our own, ``row_join``. Here its two sides are prepared, and what is known of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType
from sqlglot import exp

from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import SEQ
from tablestore.spark.changelog import holds_map, signed
from tablestore.sql.operators.held_types import is_held
from tablestore.sql.operators.row_join import JoinSide, row_join
from tablestore.sql.operators.stateful import StatePlace
from tablestore.sql.parser.qualify import conjuncts, named_table, output_names
from tablestore.sql.queries.batch_query import over
from tablestore.sql.queries.relation import Parts, QueryInput, Relation, of_changes, tidied
from tablestore.sql.queries.unsupported import BATCH, refuse

Names = Collection[tuple[str, str] | None]
JOINED: Final = "_joined"
_MET: Final = "_met"
_BOUNDS: Final = "each other condition must be over one side, and bounds of time need a WATERMARK in both tables"
_SIDES: Final = {"": "INNER", "INNER": "INNER", "LEFT": "LEFT", "RIGHT": "RIGHT", "FULL": "FULL"}


@dataclass(frozen=True)
class _On:
    """The condition of a join.

    Attributes:
        columns: pairs of columns, left and right, that are equal.
        expressions: pairs of expressions that are equal.
        others: further conditions, each of columns of one side.
    """

    columns: Sequence[tuple[str, str]]
    expressions: Sequence[tuple[exp.Expr, exp.Expr]]
    others: Sequence[exp.Expr]

    def side(self, number: int) -> list[str | exp.Expr]:
        """Return what equals that of the other side; 0 is the left one."""
        return [*(pair[number] for pair in self.columns), *(pair[number] for pair in self.expressions)]


@dataclass(frozen=True)
class JoinedRows:
    """The result of the joins planned so far.

    Attributes:
        relation: the joined rows; after the first join, its columns have generated names.
        names: names of the relation's columns, by table alias and column of the query.
        same: pairs of columns that are equal by the join condition, each with a third column, which holds their value.
            After an outer join one of the two may be NULL; the third column then is what COALESCE of the two would be.
    """

    relation: Relation
    names: dict[tuple[str, str], str]
    same: tuple[tuple[tuple[str, str], tuple[str, str], str], ...] = ()


def check_kinds(select: exp.Select) -> None:
    """Raise an error for a join of a kind that tables whose rows change do not have."""
    for join in select.args.get("joins") or []:
        method = join.method or ("USING" if join.args.get("using") else "")
        if method or (join.side or join.kind) not in _SIDES:
            what = f"{method or join.kind or join.side} JOIN of tables whose rows change"
            refuse(join.this, what, "use INNER, LEFT, RIGHT or FULL JOIN ... ON", "JOIN")


def joined(select: exp.Select, parts: Parts, place: Callable[[], StatePlace]) -> tuple[exp.Select, QueryInput]:
    """Join the inputs of a SELECT; return the SELECT over the join, and the join as its input.

    Args:
        select: the SELECT, whose columns are qualified.
        parts: its inputs.
        place: returns where the next operator keeps its state.

    Raises:
        RefusedError: this join is not supported; the message has an alternative.
    """
    for part in parts.inputs:
        if not part.relation.endless:
            why = (
                f"rows of '{part.alias}' may have changed when a row is retracted; INSERT them INTO a store table first"
            )
            refuse(part.place, f"a join of '{part.alias}', which is bounded, and a table whose rows change", why)
    joins = select.args.get("joins") or []
    if len(parts.inputs) != len(joins) + 1:
        refuse(select.expressions[0], "VALUES or a function of tables beside tables whose rows change", BATCH)
    used = {_name(node) for node in select.find_all(exp.Column)}
    first = parts.inputs[0]
    found = JoinedRows(first.relation, {(first.alias, name): name for name in first.relation.names})
    conditions: list[exp.Expr] = []
    for join, part in zip(joins, parts.inputs[1:], strict=True):
        if conditions and join.side in {"RIGHT", "FULL"}:
            why = "the rows of the joins before would be removed too late; write those joins as a query in FROM"
            refuse(part.place, f"a {join.side} JOIN after an inner join with other conditions than equalities", why)
        found, left_over = _join(found, join, part, used, place)
        conditions += left_over
    return over_join(select, found, conditions)


def over_join(select: exp.Select, found: JoinedRows, conditions: Sequence[exp.Expr]) -> tuple[exp.Select, QueryInput]:
    """Return a SELECT over joined rows in place of its tables, and the joined rows as its input.

    ``conditions`` are those of ON that are still to be applied.
    """
    select = select.copy()
    outputs = zip(select.expressions, output_names(select), strict=True)
    select.set("expressions", [exp.alias_(each.unalias().copy(), name, quoted=True) for each, name in outputs])
    place = exp.Table(this=exp.to_identifier(JOINED, quoted=True))
    select.set("joins", None)
    select.set("from_", exp.From(this=place))
    for condition in conditions:
        select = select.where(condition.copy())

    def said(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Coalesce):
            pair = {_name(each) for each in (node.this, *node.expressions)}
            for one, other, both in found.same:
                if pair == {one, other}:
                    return exp.column(both, table=JOINED, quoted=True)
        name = _name(node)
        if name is not None and name in found.names:
            return exp.column(found.names[name], table=JOINED, quoted=True)
        return node

    made = select.transform(said)
    assert isinstance(made, exp.Select), "a SELECT stays one"
    return made, QueryInput(JOINED, JOINED, found.relation, place)


def _name(node: exp.Expr) -> tuple[str, str] | None:
    return (node.table, node.name) if isinstance(node, exp.Column) else None


def _join(
    left: JoinedRows, join: exp.Join, part: QueryInput, used: Names, place: Callable[[], StatePlace]
) -> tuple[JoinedRows, list[exp.Expr]]:
    """Join one more table, and return the join and the conditions of ON still to be applied to it.

    ``used`` are the columns that the query names.
    """
    side = _SIDES[join.side or join.kind]
    equal, others = equalities(join.args.get("on"), left.names, part.alias)
    pairs = {id(each): pair for each in others if (pair := _pair_of(each, left.names, part.alias)) is not None}
    if not equal and not pairs:
        refuse(part.place, f"a join with '{part.alias}' without an equality of both", "give one", "JOIN")
    rest = [each for each in others if id(each) not in pairs]
    # An inner join meets them after it as well.
    within, later = ([], rest) if side == "INNER" else (rest, [])
    return _joined_by(left, part, _On(equal, [*pairs.values()], within), side, used, place), later


def _pair_of(condition: exp.Expr, names: Names, alias: str) -> tuple[exp.Expr, exp.Expr] | None:
    """Return the two sides of an equality if one is over columns in ``names`` and the other over those of a table."""
    inner = condition.unnest()
    if not isinstance(inner, exp.EQ) or inner.find(exp.Query):
        return None
    for left, right in ((inner.this, inner.expression), (inner.expression, inner.this)):
        columns, columns_right = ({_name(node) for node in each.find_all(exp.Column)} for each in (left, right))
        is_of_table = {each and each[0] for each in columns_right} == {alias}
        if columns and columns.issubset(names) and is_of_table:
            return left, right
    return None


def equalities(
    condition: exp.Expr | None, names: Mapping[tuple[str, str], str], alias: str
) -> tuple[list[tuple[str, str]], list[exp.Expr]]:
    """Split a condition into pairs of equal columns, left and right, and the remaining conditions.

    Args:
        condition: the condition; None for none.
        names: the columns of the left side, by table alias and column of the query.
        alias: the alias of the right side.
    """
    equal: list[tuple[str, str]] = []
    others: list[exp.Expr] = []
    for each in conjuncts(condition):
        inner = each.unnest()
        found = [_name(inner.this), _name(inner.expression)] if isinstance(inner, exp.EQ) else []
        one = next((names[name] for name in found if name is not None and name in names), None)
        other = next((name[1] for name in found if name is not None and name[0] == alias), None)
        if one is not None and other is not None:
            equal.append((one, other))
        else:
            others.append(each)
    return equal, others


@dataclass(frozen=True)
class _SideRows:
    """The rows of one side of a join by columns.

    Attributes:
        rows: signed rows with the columns that are used, `keys`, and `_MET` if ON has conditions of this side alone.
        columns: names of the used columns in ``rows``, by their names in the relation.
        names: the same, by table alias and column of the query.
        keys: names of the columns that equal those of the other side.
    """

    rows: DataFrame
    columns: dict[str, str]
    names: dict[tuple[str, str], str]
    keys: tuple[str, ...]

    def keyed(self, types: Sequence[DataType]) -> _SideRows:
        """Return the same with keys of some types, which are NULL in rows that do not meet the conditions."""
        rows, keys, is_met = self.rows, [], _MET in self.rows.columns
        for key, kind in zip(self.keys, types, strict=True):
            if rows.schema[key].dataType == kind and not is_met:
                keys.append(key)
                continue
            keys.append(f"{key}_joined")
            column = F.col(key).cast(kind)
            rows = rows.withColumn(keys[-1], F.when(F.col(_MET), column) if is_met else column)
        return replace(self, rows=rows, keys=tuple(keys))


def _joined_by(
    left: JoinedRows, part: QueryInput, on: _On, side: str, used: Names, place: Callable[[], StatePlace]
) -> JoinedRows:
    """Join one more table, with all of the condition."""
    right = JoinedRows(part.relation, {(part.alias, name): name for name in part.relation.names})
    conditions, conditions_right = _by_side(on.others, left.names, right.names, side)
    one = _side_rows(left, on.side(0), conditions, used, "_left_")
    other = _side_rows(right, on.side(1), conditions_right, used, "_right_")
    for field in (*one.rows.schema, *other.rows.schema):
        if not is_held(field.dataType):
            refuse(part.place, f"a column of type {field.dataType.simpleString()} in a join", "CAST it to STRING")
    try:
        types = [common_type(one.rows, a, other.rows, b) for a, b in zip(one.keys, other.keys, strict=True)]
    except AnalysisException:
        refuse(part.place, f"a join with '{part.alias}' by columns of different types", "CAST one of them", "JOIN")
    if any(map(holds_map, types)):
        refuse(part.place, f"a join with '{part.alias}' by a MAP", "use a part of it", "JOIN")
    one, other = one.keyed(types), other.keyed(types)
    changes = row_join(
        one.rows,
        JoinSide(tuple(one.columns.values()), one.keys, is_kept=side in {"LEFT", "FULL"}),
        other.rows,
        JoinSide(tuple(other.columns.values()), other.keys, is_kept=side in {"RIGHT", "FULL"}),
        place(),
    )
    names, same, either = one.names | other.names, [], {}
    for a, b in on.columns:
        column, column_right = one.columns[a], other.columns[b]
        if changes.schema[column].dataType != changes.schema[column_right].dataType:
            continue
        # The column that is NULL only where both are.
        either[a] = column_right if side == "RIGHT" else column
        if side == "FULL":
            either[a] = f"{column}_or_right"
            changes = changes.withColumn(either[a], F.coalesce(column, column_right))
        if side == "INNER":
            names[part.alias, b] = column
        same += [(name, (part.alias, b), either[a]) for name, own in left.names.items() if own == a]
    shown = [name for name in changes.columns if name not in {CHANGE_TYPE, SEQ}]
    key = _key(left, right, on, side, (one.columns, other.columns, either))
    if key is None:
        return JoinedRows(of_changes(changes.select(*shown, CHANGE_TYPE), None), names, tuple(same))
    # A row that moves to another partner goes in one task and comes in another.
    changes = tidied(changes.select(*shown, CHANGE_TYPE, SEQ), key)
    return JoinedRows(of_changes(changes, [shown.index(each) for each in key]), names, tuple(same))


def _side_rows(
    joined: JoinedRows, keys: Sequence[str | exp.Expr], conditions: Sequence[exp.Expr], used: Names, prefix: str
) -> _SideRows:
    """Return the rows of one side.

    Args:
        joined: the side.
        keys: the columns and expressions that equal those of the other side.
        conditions: conditions of ON of this side alone.
        used: the columns that the query names. The state has only these, and those by which rows are joined.
        prefix: begin of the names of columns.
    """
    relation, names = joined.relation, joined.names
    needed = {column for name, column in names.items() if name in used} | {key for key in keys if isinstance(key, str)}
    places = [relation.names.index(name) for name in dict.fromkeys(relation.names) if name in needed]
    columns = {relation.names[place]: f"{prefix}{number}" for number, place in enumerate(places)}
    numbered = relation.changes().toDF(*(f"_{number}" for number in range(len(relation.names))), CHANGE_TYPE)
    chosen = [F.col(f"_{place}").alias(new) for place, new in zip(places, columns.values(), strict=True)]
    rows = signed(numbered.select(*chosen, CHANGE_TYPE)).drop(CHANGE_TYPE)
    own = {name: columns[column] for name, column in names.items() if column in columns}

    def renamed(node: exp.Expr) -> exp.Expr:
        name = _name(node)
        return node if name is None else exp.column(own[name], table=JOINED, quoted=True)

    made = {f"{prefix}key_{number}": key for number, key in enumerate(keys) if isinstance(key, exp.Expr)}
    if conditions:
        made[_MET] = exp.and_(*(each.copy() for each in conditions))
    if made:
        added = [exp.alias_(each.transform(renamed), name, quoted=True) for name, each in made.items()]
        tree = exp.select("*", *added).from_(named_table(JOINED, JOINED))
        rows = over(rows.sparkSession, tree, {JOINED: rows})
    found = [columns[key] if isinstance(key, str) else f"{prefix}key_{number}" for number, key in enumerate(keys)]
    return _SideRows(rows, columns, own, tuple(found))


def _by_side(
    conditions: Sequence[exp.Expr], names: Names, others: Names, side: str
) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """Return the conditions over the columns of the left side, and those over the columns of the right side.

    Raises:
        RefusedError: a condition is over both.
    """
    found: tuple[list[exp.Expr], list[exp.Expr]] = ([], [])
    for condition in conditions:
        columns = {_name(node) for node in condition.find_all(exp.Column)}
        if not (columns.issubset(names) or columns.issubset(others)):
            what = f"a {side} JOIN with a condition over both sides that is not an equality"
            refuse(condition, what, f"{_BOUNDS}; {BATCH}")
        found[0 if columns.issubset(names) else 1].append(condition)
    return found


def common_type(one: DataFrame, column: str, other: DataFrame, column_of_other: str) -> DataType:
    """Return the type that can hold the values of a column of each of two frames.

    Raises:
        AnalysisException: there is none.
    """
    return one.select(column).union(other.select(column_of_other)).schema[0].dataType


def _key(
    left: JoinedRows, right: JoinedRows, on: _On, side: str, columns: Sequence[Mapping[str, str]]
) -> list[str] | None:
    """Return the columns by which the rows of a join are unique; None if they are not known, or not in the result.

    Args:
        left: the left side.
        right: the right side.
        on: the condition.
        side: the kind of the join.
        columns: names in the result of the columns of the left side and of the right side, and of those that have the
            value of either side, by the column of the left side.
    """
    if left.relation.key is None or right.relation.key is None:
        return None
    key, key_right = ([each.relation.names[n] for n in each.relation.key or ()] for each in (left, right))
    by_left, by_right = (_columns_in(on.side(number), each.names) for number, each in enumerate((left, right)))
    own, others, either = columns
    # Otherwise, two rows that are no partners of each other could have the same keys.
    is_by_keys = by_left == set(key) == either.keys() and by_right == set(key_right)
    is_by_keys = is_by_keys and not (on.expressions or on.others)
    # A row that has no partner has NULL in the columns of the other side.
    if side in {"INNER", "LEFT"} and by_right.issuperset(key_right):
        found = [own.get(each) for each in key]
    elif side in {"INNER", "RIGHT"} and by_left.issuperset(key):
        found = [others.get(each) for each in key_right]
    elif side == "FULL" and is_by_keys:
        found = [either[each] for each in key]
    else:
        found = [*map(own.get, key), *map(others.get, key_right)]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _columns_in(keys: Sequence[str | exp.Expr], names: Mapping[tuple[str, str], str]) -> set[str]:
    """Return those of the columns and expressions of one side that are columns of its relation."""
    found = {each for each in keys if isinstance(each, str)}
    return found | {names[each.table, each.name] for each in keys if isinstance(each, exp.Column)}
