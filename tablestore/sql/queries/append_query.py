"""Plans a SELECT over append-only inputs, with Spark's own operators and SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType
from sqlglot import exp

from snapshot.quoting import backquoted
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.spark.partition_watermarks import MARK as WATERMARK
from tablestore.connectors.spark.partition_watermarks import instant
from tablestore.spark.changelog import holds_map
from tablestore.sql.parser.qualify import (
    conjuncts,
    grouping_sets,
    kept_groups,
    of_grouping_set,
    output_names,
    own_nodes,
    qualified,
)
from tablestore.sql.parser.window_types import END, START, TIME, WindowKind
from tablestore.sql.queries.batch_query import over
from tablestore.sql.queries.distinct_aggregates import (
    MARK,
    ROWS,
    ExpandedQuery,
    collect_distinct,
    counter,
    expand_distinct,
    groups_of,
    has_distinct,
    key_name,
)
from tablestore.sql.queries.relation import (
    Groups,
    Parts,
    QueryInput,
    Relation,
    distinct,
    of_groups,
    of_rows,
    union,
    with_metadata,
    without_watermarks,
)
from tablestore.sql.queries.unsupported import BATCH, check_not_final, refuse
from tablestore.sql.queries.windows import MARK as MARK_OF_WINDOW
from tablestore.sql.queries.windows import is_by_windows, marked, over_sessions, timed, windows_in

_HAS_INSTANT: Final = "has_instant"
"""Key in the metadata of an event-time column whose instants are in a column beside it."""
KEPT: Final = "_kept"
"""Name of the boolean column that is true if HAVING keeps a group."""


def select(spark: SparkSession, tree: exp.Select, parts: Parts) -> Relation:
    """Plan a SELECT whose inputs are all append-only.

    Raises:
        RefusedError: it is not supported as a continuous query.
    """
    is_outer = _check_joins(tree, parts)
    tree = _without_null_keys(tree, parts)
    frames = parts.frames()
    if len(parts.endless) > 1:
        tree, frames = _with_instants(qualified(tree, parts.sources()), parts)
    chained = any(each.relation.chained for each in parts.inputs) or (len(parts.endless) > 1 and not is_outer)
    final = is_outer or any(each.relation.final for each in parts.inputs)
    if any(each.windows is not None for each in parts.inputs):
        # Without the hidden column of windows.
        tree = qualified(tree, parts.sources())
    if is_grouped(tree) or _sessions(parts) is not None:
        made = _windows(spark, tree, parts, frames, chained or len(parts.endless) > 1)
        if made is None:
            check_not_final(tree.expressions[0], final)
            # A group that is not of windows goes on: no row is late for it.
            bare = {key: without_watermarks(frame) if frame.isStreaming else frame for key, frame in frames.items()}
            made = of_groups(*_grouped(spark, tree, parts, bare, chained))
    else:
        rows = tree.copy()
        rows.set("distinct", None)
        made = of_rows(_retimed(over(spark, rows, frames)), chained=chained, final=final)
        made = replace(made, **_carried_windows(tree, parts))
    return _distinct(made) if tree.args.get("distinct") else made


def _distinct(relation: Relation) -> Relation:
    """Return a relation without duplicate rows, which Spark forgets when the windows that they are in have ended."""
    if relation.windows is None or relation.rows is None:
        return distinct(relation)
    numbered = relation.rows.toDF(*(f"_{number}" for number in range(len(relation.names))))
    rows = marked(numbered, f"_{relation.windows[1]}").dropDuplicates().drop(MARK_OF_WINDOW)
    return replace(relation, rows=rows.toDF(*relation.names), chained=True)


def grouped_by_sets(
    spark: SparkSession, tree: exp.Select, parts: Parts, plan: Callable[[exp.Select], Relation]
) -> Relation | None:
    """Plan a SELECT with GROUPING SETS, ROLLUP or CUBE as the union of its groupings; None if it has none of them.

    ``plan`` plans a SELECT over the same inputs.
    """
    if not grouping_sets(tree):
        return None
    said = qualified(tree, parts.sources())
    sets = grouping_sets(said)
    frames = {**parts.inner}
    for each in parts.inputs:
        frames[each.key] = each.relation.changes() if each.relation.rows is None else each.relation.rows
    nulls: dict[exp.Expr, exp.Expr] = {}

    def null_of(node: exp.Expr) -> exp.Expr:
        if node not in nulls:
            nulls[node] = exp.cast(exp.null(), _type_over(spark, node, said, frames), dialect="spark")
        return nulls[node].copy()

    is_distinct = said.args.get("distinct") is not None
    said.set("distinct", None)
    known = set(chain(*sets))
    groupings = (of_grouping_set(said, kept, null_of, known - set(kept)) for kept in sets)
    made = reduce(union, map(plan, groupings))
    return distinct(made) if is_distinct else made


def is_grouped(select: exp.Select) -> bool:
    """Return whether a SELECT is an aggregation."""
    return (
        select.args.get("group") is not None
        or select.args.get("having") is not None
        or any(isinstance(node, exp.AggFunc) for node in own_nodes(select))
    )


def prepared(select: exp.Select) -> tuple[exp.Select, tuple[str, ...]]:
    """Return a grouped query with numbered names for its outputs and HAVING as the output `KEPT`, and these names."""
    made = select.copy()
    outputs = [each.unalias() for each in made.expressions]
    names = tuple(f"_output_{number}" for number in range(len(outputs)))
    named = [exp.alias_(each.copy(), name, quoted=True) for each, name in zip(outputs, names, strict=True)]
    having = made.args.get("having")
    if having is not None:
        named.append(exp.alias_(exp.func("COALESCE", having.this.copy(), exp.false()), KEPT))
        made.set("having", None)
    made.set("expressions", named)
    made.set("distinct", None)
    return made, names


def _grouped(
    spark: SparkSession, tree: exp.Select, parts: Parts, frames: dict[str, DataFrame], chained: bool
) -> tuple[Groups, tuple[int, ...] | None]:
    said = qualified(tree, parts.sources())
    groups = groups_of(said)
    made, outputs = prepared(said)
    keys = tuple(key_name(number) for number in range(len(groups)))
    kept = KEPT if said.args.get("having") is not None else None
    counted = exp.alias_(exp.Count(this=exp.Star()), SEQ)
    if has_distinct(made):
        taken = expand_distinct(made)
        outer = taken.outer.select(*(exp.column(key) for key in keys), counted)
        frame = over(spark, outer, {ROWS: _exploded(spark, taken, frames)})
        chained = True
    else:
        made = made.select(*(exp.alias_(group.copy(), key) for group, key in zip(groups, keys, strict=True)), counted)
        frame = over(spark, made, frames)
    return Groups(frame, output_names(said), outputs, keys, kept, chained), kept_groups(said, groups)


def _sessions(parts: Parts) -> QueryInput | None:
    """Return the input with SESSION windows; None if there is none."""
    kinds = ((each, each.windows.kind) for each in parts.inputs if each.windows is not None)
    return next((each for each, kind in kinds if kind is WindowKind.SESSION), None)


def _windows(
    spark: SparkSession, tree: exp.Select, parts: Parts, frames: dict[str, DataFrame], chained: bool
) -> Relation | None:
    """Plan an aggregation over time windows, whose groups are emitted when the watermark passes.

    Returns:
        The plan; None if it does not group by both ends of windows.
    """
    said = qualified(tree, parts.sources())
    by = {(each.table, each.name) for each in groups_of(said) if isinstance(each, exp.Column)}
    sessions = _sessions(parts)
    known = {sessions.alias: (START, END)} if sessions is not None else windows_in(said, parts)
    own = (each for each in parts.endless if each.alias in known)
    part = sessions or next((each for each in own if {(each.alias, name) for name in known[each.alias]} <= by), None)
    if part is None:
        return None
    positions = _positions(said, part.alias, known[part.alias])
    times = None if part.windows is None else _positions(said, part.alias, (TIME,))
    if sessions is not None and part.windows is not None:
        over_sessions(said, part.alias, part.windows)
    else:
        said.args["group"].append("expressions", exp.column(MARK_OF_WINDOW, table=part.alias, quoted=True))
    if part.windows is None and MARK_OF_WINDOW not in frames[part.key].columns:
        frames = {**frames, part.key: marked(frames[part.key], known[part.alias][1])}
    said.set("distinct", None)
    chained = chained or part.windows is None
    frame = _groups(spark, said, frames, once=chained or sessions is not None)
    made = of_rows(timed(frame, times) if times else frame, chained=chained, final=True)
    return replace(made, windows=positions, ended=positions is not None)


def _type_over(spark: SparkSession, node: exp.Expr, said: exp.Select, frames: dict[str, DataFrame]) -> str:
    """Return the type of an expression of a query, as Spark writes it."""
    probe = said.copy()
    for clause in ("group", "having", "order", "limit", "distinct"):
        probe.set(clause, None)
    probe.set("expressions", [exp.alias_(node.copy(), "probe")])
    return over(spark, probe, frames).schema[0].dataType.simpleString()


def _groups(spark: SparkSession, said: exp.Select, frames: dict[str, DataFrame], *, once: bool) -> DataFrame:
    """Return the result of a qualified aggregation, of DISTINCT values too.

    With ``once`` the rows are read once: a session is known only when it ends, and rows of operators with state would
    need a second copy of that state.
    """
    if not has_distinct(said):
        return over(spark, said, frames)
    if once:
        names = output_names(said)
        collect_distinct(said, lambda each: _type_over(spark, each, said, frames))
        return over(spark, said, frames).toDF(*names)
    made, outputs = prepared(said)
    taken = expand_distinct(made)
    frame = over(spark, taken.outer, {ROWS: _exploded(spark, taken, frames)})
    if said.args.get("having") is not None:
        frame = frame.where(F.col(KEPT))
    return frame.select(*outputs).toDF(*output_names(said))


def _carried_windows(tree: exp.Select, parts: Parts) -> dict[str, Any]:
    """Return the fields of a relation for the windows among the outputs of a SELECT without aggregation."""
    known = windows_in(tree, parts)
    said = qualified(tree, parts.sources()) if known else tree
    for part in (each for each in parts.endless if each.alias in known):
        windows = _positions(said, part.alias, known[part.alias])
        if windows is not None:
            is_ended = len(parts.endless) == 1 and part.windows is None and part.relation.ended
            return {"windows": windows, "ended": is_ended}
    return {}


def _positions(said: exp.Select, alias: str, names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the positions of columns of an input among the outputs of a SELECT; None if one is missing."""
    outputs = [each.unalias() for each in said.expressions]
    own = [each.name if isinstance(each, exp.Column) and each.table == alias else None for each in outputs]
    return tuple(own.index(name) for name in names) if set(names) <= set(own) else None


def _exploded(spark: SparkSession, taken: ExpandedQuery, frames: dict[str, DataFrame]) -> DataFrame:
    """Return the plain and distinct rows that the outer query of `expand_distinct` aggregates.

    The rows are a union of branches, and Spark would read the sources once for each. If all branches start with the
    same exchange, Spark runs it once and reuses it, but not with a watermark (see `allowed`). For that, the branches
    must not differ in columns or filters below the exchange. So it partitions by all columns, and rows with a NULL
    value are only filtered after it, which costs one row per group in state.
    """
    rows = over(spark, taken.inner, frames)
    kinds = {field.name: field.dataType for field in rows.schema}
    if not any(map(holds_map, kinds.values())):
        # With one distinct count and no other columns, `dropDuplicates` needs exactly this partitioning.
        rows = rows.repartition(*(F.col(name) for name in rows.columns))

    columns = [*taken.keys, *taken.plain, *(name for names in taken.distinct for name in names)]

    def branch(frame: DataFrame, kept: tuple[str, ...], mark: int | None, own: int | None) -> DataFrame:
        own_columns = {*taken.keys, *kept}
        # A cast, even to the same type, would take the watermark off a column.
        chosen = [F.col(name) if name in own_columns else F.lit(None).cast(kinds[name]).alias(name) for name in columns]
        chosen.append(F.lit(mark).cast("bigint").alias(MARK))
        numbers = range(len(taken.distinct))
        chosen += [F.lit(1 if number == own else None).cast("bigint").alias(counter(number)) for number in numbers]
        return frame.select(*chosen)

    branches = [branch(rows, taken.plain, 1, None)]
    for number, names in enumerate(taken.distinct):
        there = reduce(lambda one, other: one & other, (F.col(name).isNotNull() for name in names))
        new = rows.select(*taken.keys, *names).dropDuplicates().where(there)
        branches.append(branch(new, names, None, number))
    return reduce(DataFrame.union, branches)


def _with_instants(select: exp.Select, parts: Parts) -> tuple[exp.Select, dict[str, DataFrame]]:
    """Rewrite bounds in ON, in place, from TIMESTAMP_NTZ to TIMESTAMP, the only type by which Spark evicts join state.

    Returns:
        The SELECT, and its frames with an added TIMESTAMP column for each TIMESTAMP_NTZ column with a watermark.
    """
    frames, instants = parts.frames(), {}
    for part in parts.endless:
        for field in frames[part.key].schema:
            if WATERMARK in field.metadata and isinstance(field.dataType, TimestampNTZType):
                name = f"_instant_{field.name}"
                time = instant(F.col(backquoted(field.name)), field.dataType).alias(name, metadata={WATERMARK: 0})
                # Spark accepts one watermark column per stream, so the original column loses its mark.
                bare = F.col(backquoted(field.name)).alias(field.name, metadata={_HAS_INSTANT: True})
                frames[part.key] = frames[part.key].withColumn(name, time).withColumn(field.name, bare)
                instants[part.alias, field.name] = name
    for join in select.args.get("joins") or []:
        for column in list(join.args["on"].find_all(exp.Column)) if join.args.get("on") else []:
            if (column.table, column.name) in instants:
                column.set("this", exp.to_identifier(instants[column.table, column.name], quoted=True))
    return select, frames


def _retimed(frame: DataFrame) -> DataFrame:
    """Return the rows of a join in which the event times that lost their marks by `_with_instants` have them again."""
    bare = [position for position, field in enumerate(frame.schema) if _HAS_INSTANT in field.metadata]
    return with_metadata(frame, bare, {WATERMARK: 0}) if bare else frame


def _without_null_keys(tree: exp.Select, parts: Parts) -> exp.Select:
    """Return a SELECT whose FULL JOINs of unbounded tables match no NULLs.

    Spark's FULL JOIN of streams takes two keys that are NULL for equal. In other joins it filters these rows before.
    """
    full = ((n, parts.at(join.this)) for n, join in enumerate(tree.args.get("joins") or []) if join.side == "FULL")
    numbers = [number for number, part in full if part is not None and part.relation.endless]
    if not numbers:
        return tree
    made = tree.copy()
    for number in numbers:
        join = made.args["joins"][number]
        on = join.args["on"]
        equal = [each.unnest() for each in conjuncts(on)]
        checks = [_apart(each.this, each.expression) for each in equal if isinstance(each, exp.EQ)]
        join.set("on", exp.and_(on, *checks))
    return made


def _apart(one: exp.Expr, other: exp.Expr) -> exp.Expr:
    """Return an equality that holds unless a value is NULL, and is itself never NULL."""
    is_null = [exp.Is(this=each.copy(), expression=exp.Null()) for each in (one, other)]
    zero = exp.Literal.number(0)
    numbers = [exp.If(this=each, true=exp.Literal.number(n), false=zero.copy()) for n, each in enumerate(is_null, 1)]
    return exp.EQ(this=numbers[0], expression=numbers[1])


def _check_joins(tree: exp.Select, parts: Parts) -> bool:
    """Check the joins of unbounded tables; return whether one is an outer join, whose rows wait for a watermark.

    Raises:
        RefusedError: a join would never emit its rows, or its state could not be correct; the message has an
            alternative.
    """
    is_outer = False
    seen = [each for each in parts.inputs if tree.args.get("from_") and each.place is tree.args["from_"].this]
    for join in tree.args.get("joins") or []:
        part = parts.at(join.this)
        before = [each for each in seen if each.relation.endless]
        if part is None or not (part.relation.endless and before):
            _check_static(join, part, before)
            seen += [part] if part is not None else []
            continue
        seen.append(part)
        what = f"JOIN of '{before[0].alias}' and '{part.alias}'"
        if join.args.get("using"):
            refuse(part.place, f"USING in a {what}", "use ON")
        if join.method or join.kind not in {"", "INNER", "CROSS", "OUTER"}:
            refuse(part.place, f"a {join.method or join.kind} {what}", "use INNER, LEFT, RIGHT or FULL JOIN ... ON")
        condition = join.args.get("on") or tree.args.get("where")
        if condition is None or condition.find(exp.EQ) is None:
            why = f"both are unbounded, and each row would match every other; add an equality, or {BATCH}"
            refuse(part.place, f"a {what} without an equality", why)
        if join.side:
            is_outer = True
            if not _is_timed(condition, before[0], part):
                why = (
                    "whether a row has no match is known only when none can arrive any more; declare a WATERMARK on "
                    "both tables and use BETWEEN of their times in ON, or use an INNER JOIN"
                )
                refuse(part.place, f"a {join.side} {what} without bounds of time", why)
    return is_outer


def has_outer_join_of_rows(tree: exp.Select, parts: Parts) -> bool:
    """Return whether an outer join has no bounds of time, so that a row may get its first partner at any time.

    Its result updates. Rows of windows are not joined so.
    """
    if any(each.windows is not None or each.relation.final or not each.relation.endless for each in parts.inputs):
        return False
    joins = [(each, parts.at(each.this)) for each in tree.args.get("joins") or [] if each.side]
    return any(part is not None and not _is_timed(each.args.get("on"), parts.inputs[0], part) for each, part in joins)


def _is_timed(condition: exp.Expr | None, *sides: QueryInput) -> bool:
    """Return whether a join of tables with watermarks has a condition that bounds their times, or is by windows."""
    if is_by_windows(condition):
        return True
    kinds = (exp.Between, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.EQ)
    bounds = [each for each in conjuncts(condition) if each.find(*kinds)]
    return any(all(_has_time_of(side, each) for side in sides) for each in bounds)


def _has_time_of(side: QueryInput, condition: exp.Expr) -> bool:
    """Return whether a condition has the column with the watermark of a table."""
    fields = () if side.relation.rows is None else side.relation.rows.schema
    times = {field.name.lower() for field in fields if WATERMARK in field.metadata}
    columns = condition.find_all(exp.Column)
    return any(each.table in {"", side.alias} and each.name.lower() in times for each in columns)


def _check_static(join: exp.Join, part: QueryInput | None, before: list[QueryInput]) -> None:
    """Raise an error for a join that would need all rows of an unbounded table before it can emit a row."""
    goes_on = part is not None and part.relation.endless
    whole = {"RIGHT": bool(before), "FULL": bool(before) or goes_on, "LEFT": goes_on}.get(join.side, False)
    if whole or (goes_on and join.kind in {"SEMI", "ANTI"}):
        name = join.this.alias or join.this.name
        why = f"whether a row has no match is known only at the end; {BATCH}"
        refuse(
            join.this,
            f"a {join.side or join.kind} JOIN with '{name}', in which all rows of a table with an end stay,",
            why,
        )
