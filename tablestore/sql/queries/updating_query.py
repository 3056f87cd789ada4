"""Plans a SELECT over updating inputs, by means of signed rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp

from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import SEQ
from tablestore.sql.operators.stateful import StatePlace
from tablestore.sql.parser.qualify import kept_groups, kept_key, output_names, own_nodes, qualified
from tablestore.sql.queries.append_query import KEPT, is_grouped, prepared
from tablestore.sql.queries.batch_query import over
from tablestore.sql.queries.distinct_aggregates import ROWS, groups_of
from tablestore.sql.queries.joins import check_kinds, joined
from tablestore.sql.queries.relation import Groups, Parts, QueryInput, Relation, distinct, of_changes, of_groups, tidied
from tablestore.sql.queries.retraction import retract
from tablestore.sql.queries.signed_groups import LIVE, grouped
from tablestore.sql.queries.unsupported import (
    BATCH,
    KNOWN,
    check_from_the_start,
    check_not_final,
    check_repeatable,
    refuse,
)


def select(spark: SparkSession, tree: exp.Select, parts: Parts, place: Callable[[], StatePlace]) -> Relation:
    """Plan a SELECT with at least one updating input.

    Args:
        spark: the Spark session.
        tree: the SELECT, whose FROM names frames.
        parts: the inputs of the SELECT.
        place: returns where the next operator keeps its state.

    Raises:
        RefusedError: it is not supported as a continuous query.
    """
    check_repeatable(tree)
    check_not_final(tree.expressions[0], any(each.relation.final for each in parts.inputs))
    for clause in ("laterals", "connect", "match", "pivots"):
        if tree.args.get(clause):
            refuse(tree.expressions[0], f"{clause.upper()} over rows that change", BATCH)
    check_kinds(tree)
    for part in parts.inputs:
        if part.windows is not None:
            why = "group its rows by windows first, and INSERT them INTO a table"
            refuse(part.place, f"a window over '{part.alias}' beside tables whose rows change", why)
    said = qualified(tree, parts.sources())
    times = {(each.alias, name) for each in parts.inputs for name in each.relation.momentary}
    for node in own_nodes(said):
        if isinstance(node, exp.Column) and (node.table, node.name) in times:
            refuse(node, f"column '{node.name}', a time of reading, of rows that change,", "leave it out")
    since = next((each.relation.since for each in parts.inputs if each.relation.since), "")
    is_joined = len(parts.inputs) > 1 or bool(said.args.get("joins"))
    if is_joined or is_grouped(said) or tree.args.get("distinct"):
        what = "a join" if is_joined else "an aggregate" if is_grouped(said) else "DISTINCT"
        check_from_the_start(tree.expressions[0], since, what)
    if is_joined:
        said, part = joined(said, parts, place)
    else:
        (part,) = parts.inputs
    made = _grouped(spark, said, part, place) if is_grouped(said) else _rows(spark, said, part)
    return distinct(made) if tree.args.get("distinct") else made


def _rows(spark: SparkSession, said: exp.Select, part: QueryInput) -> Relation:
    names = output_names(said)
    source, where = part.relation, said.args.get("where")
    if where is not None and source.blind:
        why = f"a row that leaves the filter may have been in the result before; {KNOWN}"
        refuse(where.this, f"WHERE over '{source.since}', which begins in the middle,", why, "WHERE")
    key = None
    if source.key is not None:
        key = kept_key(said, {part.alias.lower(): tuple(source.names[position] for position in source.key)})
    rows = said.copy()
    rows.set("distinct", None)
    outputs = [each.unalias() for each in rows.expressions]
    own = [f"_output_{number}" for number in range(len(outputs))]
    rows.set("expressions", [exp.alias_(each.copy(), name) for each, name in zip(outputs, own, strict=True)])
    # The order of changes is only defined per key, so carry it on only if the output still has the key.
    ordered = source.ordered if key is not None else None
    carried = [CHANGE_TYPE] if ordered is None else [CHANGE_TYPE, SEQ]
    changes = source.changes() if ordered is None else ordered()

    def over_changes(changes: DataFrame, carried: list[str]) -> DataFrame:
        columns = [exp.column(name, table=part.alias, quoted=True) for name in carried]
        return over(spark, rows.select(*columns), {part.key: changes})

    frame = over_changes(changes, carried)
    if key is not None and where is not None:
        # WHERE may keep only one row of an update, which makes it an insert or a delete.
        frame = tidied(frame, [own[position] for position in key])
    made = replace(of_changes(frame.toDF(*names, *carried), key), since=source.since, blind=source.blind)
    every = source.every
    if every is None or key is None:
        return made
    return replace(made, every=lambda: over_changes(every(), [CHANGE_TYPE]).toDF(*names, CHANGE_TYPE))


def _grouped(spark: SparkSession, said: exp.Select, part: QueryInput, place: Callable[[], StatePlace]) -> Relation:
    made, outputs = prepared(said)
    taken = retract(made)
    changes = {part.key: part.relation.changes()}
    rows = over(spark, taken.inner.select(exp.column(CHANGE_TYPE, table=part.alias, quoted=True)), changes)
    groups = grouped(rows, taken, place)
    outer = taken.outer.select(*(exp.column(name) for name in (*taken.keys, LIVE, SEQ)))
    frame = over(spark, outer, {ROWS: groups})
    kept = F.col(LIVE) & F.col(KEPT) if KEPT in frame.columns else F.col(LIVE)
    can_go = bool(taken.keys) or KEPT in frame.columns
    frame = frame.withColumn(KEPT, kept).drop(LIVE)
    found = Groups(frame, output_names(said), outputs, taken.keys, KEPT if can_go else None)
    return of_groups(found, kept_groups(said, groups_of(said)))
