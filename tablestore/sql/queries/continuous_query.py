"""Plans continuous queries over unbounded tables as streaming DataFrames, and refuses those that are not supported.

A continuous query's result is correct at the end of each micro-batch; a query for which this is impossible is refused.
Queries are planned from the inside out. Each table, view and subquery in FROM becomes a `Relation`, which is either
append-only or updating. ``append_query.py`` plans a SELECT over append-only inputs, ``updating_query.py`` a SELECT with
an updating input.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from snapshot.errors import InvalidInputError
from snapshot.storage import Storage
from tablestore.sql.catalog.binding import connector_of, expression_of
from tablestore.sql.catalog.hints import stream_read, with_hints
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.table_frames import timed_rows
from tablestore.sql.catalog.table_references import (
    BINLOG,
    check_there,
    definition_of,
    is_change_table,
    is_inside,
    tables_in,
)
from tablestore.sql.operators.stateful import StatePlace
from tablestore.sql.parser.error_location import RefusedError, placed
from tablestore.sql.parser.qualify import join_by_where, join_subqueries, named_table
from tablestore.sql.parser.statements import CreateTable, CreateView, Query
from tablestore.sql.parser.window_types import names_of, windows_of
from tablestore.sql.queries import append_query, over_query, temporal_joins, top_n_query, updating_query
from tablestore.sql.queries.batch_query import (
    batch_frame,
    batch_table,
    check_depth,
    names_of_view,
    open_inside,
    over,
    within_view,
)
from tablestore.sql.queries.lookup_joins import looked_up, take_lookups
from tablestore.sql.queries.relation import (
    APPEND,
    UPDATE,
    Parts,
    QueryInput,
    Relation,
    common,
    difference,
    distinct,
    of_rows,
    retracted_first,
    tidied,
    union,
)
from tablestore.sql.queries.sources import is_endless, source
from tablestore.sql.queries.unsupported import (
    BATCH,
    KNOWN,
    check_endless,
    check_from_the_start,
    check_not_final,
    check_same_if_repeated,
    refuse,
)
from tablestore.sql.queries.windows import joined_by_windows, windowed
from tablestore.sql.system_tables.audit_log import stream_of_changes

_CHECK: Final = "spark.sql.streaming.unsupportedOperationCheck"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_REUSE: Final = "spark.sql.exchange.reuse"


@dataclass(frozen=True)
class Plan:
    """The plan of a query's result, to be shown or written.

    Attributes:
        frame: the rows; a streaming frame if the query is unbounded.
        mode: output mode: ``append``, or ``update`` for an updating result.
        chained: whether the frame must be started inside `allowed`, with Spark's check of operators off.
        changes: whether the last column is ``_change_type``.
        transform: function still to be applied to each micro-batch, or None.
        shape: with ``transform``, a frame with the columns it returns, which must not be run.
        timed: whether the frame must be started inside `allowed`, so that all its operators have the watermark.
    """

    frame: DataFrame
    mode: str = APPEND
    chained: bool = False
    changes: bool = False
    transform: Callable[[DataFrame], DataFrame] | None = None
    shape: DataFrame | None = None
    timed: bool = False


def plan(scope: Scope, query: Query) -> Plan:
    """Plan a query whose result is shown; an updating result includes the rows that updates replace.

    Raises:
        InvalidInputError: it is not supported as a continuous query; the message has the position, the reason and an
            alternative.
    """
    found = relation(scope, query)
    return replace(plan_shown(found), timed=found.timed)


def plan_shown(found: Relation) -> Plan:
    """Plan a result that is shown or printed; an updating one includes the rows that updates replace."""
    if found.rows is not None:
        return Plan(found.rows, chained=found.chained, transform=found.each, shape=found.shape)
    # Who asks for the changes since some time wants to see each of them.
    changes = found.every() if found.since and found.every is not None else found.changes()
    return Plan(changes, UPDATE, chained=True, changes=True, transform=found.each, shape=found.shape)


def plan_into(found: Relation, key: tuple[int, ...], *, preimages: bool, combines: bool) -> Plan | None:
    """Plan a result that is written into a table in which rows replace each other by key.

    Args:
        found: the result.
        key: positions of the columns that become the table's key.
        preimages: whether the table needs the rows that updates replace, which it takes back.
        combines: whether the table combines several rows of the result that have one key.

    Returns:
        The append-only rows, or the changes by key; None if several rows of an updating result could have one key, and
        the table does not combine them.
    """
    if found.rows is not None:
        return Plan(found.rows, chained=found.chained, transform=found.each, shape=found.shape)
    own = None if found.key is None else set(found.key)
    is_unique, is_same = own is not None and own <= set(key), own == set(key)
    if not is_unique and not combines:
        return None
    if not preimages and found.latest is not None and is_same:
        frame = found.latest()
        return Plan(frame, UPDATE, found.chained, changes=len(frame.columns) > len(found.names))
    changes = found.changes()
    if not is_same:
        names = [f"_{number}" for number in range(len(found.names))]
        marked = changes.toDF(*names, changes.columns[-1])
        by_key = tidied if is_unique else retracted_first
        changes = by_key(marked, [names[number] for number in key]).toDF(*changes.columns)
    return Plan(changes, UPDATE, chained=True, changes=True, transform=found.each, shape=found.shape)


def check_replaced(found: Relation, made: CreateTable, key: tuple[int, ...], *, takes_back: bool) -> None:
    """Check that a table does not need the rows before changes, which a result lacks.

    Args:
        found: the result.
        made: the table that it is written to.
        key: positions of the columns that become the table's key.
        takes_back: whether the table takes back, or keeps, the rows that updates replace.

    Raises:
        InvalidInputError: the table needs them.
    """
    keys = found.keys if found.keys is not None else () if found.key is None else (found.key,)
    strict = connector_of(made) is not None and any(
        not column.type.nullable and column.name not in made.primary_key for column in made.physical
    )
    needs = ""
    if takes_back:
        needs = "takes back the rows that changes replace"
    elif not keys or any(set(part) != set(key) for part in keys):
        needs = "has another key than the changes"
    elif strict:
        needs = "has NOT NULL columns outside its key, for which deletes have no values"
    if needs:
        msg = (
            f"INSERT INTO '{made.name}': {found.blind}, so the rows before are not known, and the table {needs}. "
            "INSERT the changes INTO a store table with their own key, from which further queries read"
            f"{f', or {KNOWN}' if found.since else ''}."
        )
        raise InvalidInputError(msg)


@contextmanager
def allowed(spark: SparkSession, *, chained: bool, timed: bool) -> Iterator[None]:
    """Set Spark so that a query may be started whose frame is ``chained`` or ``timed``; see `Plan`.

    Spark would refuse a chain of stateful operators, since it cannot know that the planned query's result is correct.
    With a single partition it runs several operators in one task, takes the state of one for that of another, and fails
    (Spark 4.2). If two parts of a plan begin in the same way, it reuses the rows of the first in the second, whose
    operators then have no watermark and never emit a row.
    """
    wanted = {_CHECK: "false"} if chained else {}
    if chained and spark.conf.get(_PARTITIONS) == "1":
        wanted[_PARTITIONS] = "2"
    if timed:
        wanted[_REUSE] = "false"
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def relation(
    scope: Scope, query: Query, depth: int = 0, *, timed: bool = False, numbers: Iterator[int] | None = None
) -> Relation:
    """Plan a query as a relation, independently of where its result goes.

    Args:
        scope: the session's scope.
        query: the query.
        depth: number of views that the query is nested in.
        timed: whether an outer query needs the watermarks of the query's tables.
        numbers: numbers of the operators with state in an outer query.

    Raises:
        InvalidInputError: it is not supported as a continuous query; the message has the position, the reason and an
            alternative.
    """
    check_there(scope, query)
    query = with_hints(scope, query)
    if not any(is_endless(scope, name) for name in tables_in(query)):
        return of_rows(batch_frame(scope, query))
    try:
        planner = _Planner(scope, query, depth, timed or _needs_time(scope, query), numbers or itertools.count())
        found = planner.of(query.tree, {})
        if found.ranking is not None and not depth:
            found.ranking.unlimited()
        return replace(found, timed=planner.is_timed)
    except RefusedError as error:
        raise placed(error, query) from None


def _needs_time(scope: Scope, query: Query) -> bool:
    """Return whether a query needs watermarks, as windows and joins of unbounded tables do.

    Reading with a watermark takes one streaming source per Kafka partition, so other queries read without one.
    """
    tables = list(query.tree.find_all(exp.Table))
    if any(not isinstance(each.this, exp.RowNumber) for each in query.tree.find_all(exp.Window)):
        return True
    if any(windows_of(each) is not None or temporal_joins.is_event_time(scope, each, query) for each in tables):
        return True
    own = {cte.alias for cte in query.tree.find_all(exp.CTE)}
    looked_up = [each for each in tables if each.args.get("version") is not None]
    going_on = [each for each in tables if each not in looked_up and (each.name in own or is_endless(scope, each.name))]
    return query.tree.find(exp.Join) is not None and len(going_on) > 1


_BEGINS: Final = f"the hint OPTIONS('timestamp' = '...') begins at that time; {BATCH}"
_PARTS: Final = {"joins": "a join in brackets", "version": "FOR SYSTEM_TIME AS OF a time that is not that of a join"}


class _Planner:
    """Plans one query; a table that the query names several times is read once."""

    def __init__(self, scope: Scope, query: Query, depth: int, timed: bool, numbers: Iterator[int]) -> None:
        self._scope, self._query, self._depth, self._timed = scope, query, depth, timed
        self._numbers = numbers
        self._tables: dict[str, Relation] = {}
        self.is_timed = False
        """Whether a table of the query, or of a view that it reads, is read with a watermark."""

    def of(self, tree: exp.Expr, known: Mapping[str, Relation]) -> Relation:
        """Plan a query or a part of it; ``known`` has the relations of the enclosing ``WITH`` clauses, by name."""
        known = self._with(tree, known)
        if isinstance(tree, exp.Subquery):
            return self.of(tree.this, known)
        if isinstance(tree, exp.SetOperation):
            return self._set_operation(tree, known)
        if isinstance(tree, exp.Select):
            return self._select(tree, known)
        return of_rows(over(self._scope.spark, tree, {}))

    def _with(self, tree: exp.Expr, known: Mapping[str, Relation]) -> Mapping[str, Relation]:
        clause = tree.args.get("with_")
        if clause is None:
            return known
        if clause.args.get("recursive"):
            refuse(clause, "WITH RECURSIVE", BATCH)
        known = dict(known)
        for each in clause.expressions:
            made = self.of(each.this, known)
            known[each.alias] = _named(made, each.args["alias"], each)
        return known

    def _set_operation(self, tree: exp.SetOperation, known: Mapping[str, Relation]) -> Relation:
        if top_n_query.is_limited(tree):
            return self._select(top_n_query.around(tree), known)
        check_endless(tree)
        name, is_distinct = tree.key.upper(), bool(tree.args.get("distinct"))
        if tree.args.get("by_name"):
            refuse(tree.expression, f"{name} BY NAME", f"select the columns in the same order, or {BATCH}", name)
        first, second = self.of(tree.this, known), self.of(tree.expression, known)
        if first.each is not None or second.each is not None:
            refuse(tree.expression, f"{name} with a lookup join", "INSERT each INTO the table by itself", name)
        if len(first.names) != len(second.names):
            reason = f"{name}: the first query has {len(first.names)} columns, the second {len(second.names)}."
            raise RefusedError(tree.expression, reason, name)
        if first.endless != second.endless:
            why = "the rows of the bounded table would be added repeatedly. INSERT them INTO the other table"
            refuse(tree.expression, f"{name} of a bounded and an unbounded table", why, name)
        counts = is_distinct or not isinstance(tree, exp.Union)
        if counts or not (first.grows and second.grows):
            check_not_final(tree.expression, first.final or second.final)
        if counts:
            since = first.since or second.since
            check_from_the_start(tree.expression, since, f"{name} without ALL" if is_distinct else name, name)
        if isinstance(tree, exp.Union):
            both = union(first, second)
            return distinct(both) if is_distinct else both
        rule = common if isinstance(tree, exp.Intersect) else difference
        return rule(first, second, every=not is_distinct)

    def _select(self, tree: exp.Select, known: Mapping[str, Relation]) -> Relation:
        made = tree.copy()
        made.set("with_", None)
        versions = temporal_joins.take_versions(self._scope, made, self._query)
        looked = take_lookups(self._scope, made)
        if not looked and not versions:
            join_subqueries(made, lambda query: any(each.endless for _, each in self._tables_in(query, known)))
        parts = self._parts(made, known, {*looked, *versions})
        if versions:
            made, parts = temporal_joins.version_joined(self._scope, made, parts, versions, self._place)
        spark = self._scope.spark
        if not looked and not any(each.relation.endless for each in parts.inputs):
            return of_rows(over(spark, made, parts.frames()))
        join_by_where(made, parts.sources())
        made, parts = top_n_query.with_places(made, parts)
        return self._over_parts(made, parts, looked)

    def _over_parts(self, made: exp.Select, parts: Parts, looked: dict[str, exp.Table]) -> Relation:
        """Plan a SELECT over planned inputs, at least one of them unbounded."""
        spark = self._scope.spark

        def plan_base(base: exp.Select) -> Relation:
            return self._over_parts(base, parts, looked)

        if top_n_query.is_limited(made):
            return top_n_query.limited(made, parts, plan_base, self._place)
        ranked = top_n_query.ranking(made, parts, plan_base, self._place)
        if ranked is not None:
            return ranked
        check_endless(made)
        over_time = over_query.with_preceding(spark, made, parts, plan_base, self._place)
        if over_time is not None:
            return over_time
        if looked:
            return looked_up(self._scope, made, parts, looked)
        by_sets = append_query.grouped_by_sets(spark, made, parts, plan_base)
        if by_sets is not None:
            return by_sets
        rows = joined_by_windows(made, parts)
        if all(each.relation.grows for each in parts.inputs) and not append_query.has_outer_join_of_rows(*rows):
            return append_query.select(spark, *rows)
        return updating_query.select(spark, made, parts, self._place)

    def _parts(self, select: exp.Select, known: Mapping[str, Relation], taken: set[str]) -> Parts:
        """Plan the inputs of a SELECT and put the names of their frames into the tree, in place.

        ``taken`` has the names of the frames of lookup tables, which are already in the tree.
        """
        found: list[QueryInput] = []
        clause = select.args.get("from_")
        nodes = [clause.this] if clause is not None else []
        nodes += [join.this for join in select.args.get("joins") or []]
        for number, node in enumerate(nodes):
            made = None if node.name in taken else self._source(node, known)
            if made is None:
                continue
            if made.each is not None:
                why = "INSERT its result INTO a table and read that"
                refuse(node, f"'{node.alias or node.name}', a lookup join, as part of a query", why)
            # A query in FROM needs no alias; its columns are qualified all the same.
            alias = node.alias or node.name or f"_query_{number}"
            key = f"{alias}@{number}"
            place = named_table(key, alias)
            place.this.meta.update(_place_of(node))
            node.replace(place)
            found.append(QueryInput(alias, key, made, place, windows_of(node)))
        taken = taken | {each.key for each in found}
        inner: dict[str, DataFrame] = {}
        for table, made in self._tables_in(select, known, taken):
            if made.rows is None or made.endless:
                refuse(table, f"a query over '{table.name}' within an expression", "the table is unbounded; use a join")
            inner[table.name] = made.rows
        return Parts(tuple(found), inner)

    def _tables_in(
        self, query: exp.Query, known: Mapping[str, Relation], taken: Collection[str] = ()
    ) -> Iterator[tuple[exp.Table, Relation]]:
        """Yield the tables that a query names, without those in ``taken``, and their plans."""
        for table in query.find_all(exp.Table):
            if table.name not in taken and isinstance(table.this, exp.Identifier):
                yield table, known.get(table.name) or self._table(table.name)

    def _source(self, node: exp.Expr, known: Mapping[str, Relation]) -> Relation | None:
        """Plan an item of FROM; None for one that Spark evaluates itself, such as VALUES."""
        alias = node.args.get("alias")
        if isinstance(node, exp.Subquery):
            return _named(self.of(node, known), alias, node)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            return None
        for part in ("sample", "pivots", "joins", "version"):
            if node.args.get(part):
                refuse(node, _PARTS.get(part, part.upper()), _BEGINS if part == "version" else BATCH)
        made = known.get(node.name) or self._table(node.name)
        windows = windows_of(node)
        if windows is None:
            return _named(made, alias, node)
        if made.rows is None:
            why = (
                "a row could be retracted after its window has ended; count them by FLOOR(time TO MINUTE), say, instead"
            )
            refuse(node, f"a window over '{node.name}', whose rows change,", why)
        return replace(made, names=names_of(made.names), rows=windowed(made.rows, windows, node))

    def _place(self) -> StatePlace:
        """Return where the next operator with state keeps it; the same each time the query is planned.

        Raises:
            RefusedError: the query's rows could be others when a micro-batch is repeated.
        """
        check_same_if_repeated(self._query.tree)
        for name in tables_in(self._query):
            _check_definition(self._scope, name)
        return StatePlace(Storage.at(self._scope.states), f"operator-{next(self._numbers)}")

    def _table(self, name: str) -> Relation:
        """Plan a table or view of the catalog."""
        if name not in self._tables:
            self._tables[name] = self._planned(name)
        return self._tables[name]

    def _planned(self, name: str) -> Relation:
        if is_inside(self._scope, name):
            if is_change_table(self._scope, name):
                paired, definition = name.endswith(f"${BINLOG}"), definition_of(self._scope, name)
                options, made = stream_read(definition, anywhere=True), definition.made
                assert isinstance(made, CreateTable), "a view has no changes"
                changes = stream_of_changes(open_inside(self._scope, name), made, paired=paired, options=options)
                if self._timed and not paired:
                    changes = timed_rows(changes, made)
                    self._note_watermark(made)
                return of_rows(changes, chained=paired)
            return of_rows(batch_table(self._scope, name, self._depth))
        made = self._scope.definition(name).made
        if isinstance(made, CreateTable):
            self._note_watermark(made)
            return source(self._scope, made, timed=self._timed)
        return self._view(made)

    def _note_watermark(self, made: CreateTable) -> None:
        self.is_timed = self.is_timed or (self._timed and made.watermark is not None)

    def _view(self, made: CreateView) -> Relation:
        check_depth(made, self._depth)
        with within_view(made):
            planned = relation(self._scope, made.query, self._depth + 1, timed=self._timed, numbers=self._numbers)
        self.is_timed = self.is_timed or planned.timed
        return planned.renamed(names_of_view(made, planned.names))


def _check_definition(scope: Scope, name: str) -> None:
    """Check that a view, through the views that it reads, or a computed column has no random function."""
    made = definition_of(scope, name).made
    if isinstance(made, CreateTable):
        for column in made.computed:
            check_same_if_repeated(expression_of(column))
        return
    with within_view(made):
        check_same_if_repeated(made.query.tree)
        for each in tables_in(made.query):
            _check_definition(scope, each)


def _place_of(node: exp.Expr) -> dict[str, object]:
    return next((dict(each.meta) for each in node.walk() if "start" in each.meta), {})


def _named(made: Relation, alias: exp.Expr | None, node: exp.Expr) -> Relation:
    """Return a relation with the column names that follow its alias, if there are any, as in ``AS t (a, b)``."""
    names = [each.name for each in alias.args.get("columns") or []] if alias is not None else []
    if not names:
        return made
    if len(names) != len(made.names):
        reason = f"'{node.alias}' has {len(made.names)} columns, and {len(names)} names are given."
        raise RefusedError(node, reason)
    return made.renamed(names)
