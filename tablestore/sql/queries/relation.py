"""``Relation``: the append-only or updating result of a continuous query or of a part of it, and operations on both.

The items of FROM are relations with a name: `QueryInput`.

An updating relation is a changelog: rows and ``_change_type``. Its signed rows (+1 for an insert and an update's new
row, -1 for a delete and an update's old row) add up, at the end of each micro-batch, to the query's result over all
rows read so far. Filters, projections and unions apply to signed rows as to plain rows and keep the result correct.
All operations are Spark plans, with their state in Spark's state store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, NoReturn

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from sqlglot import exp

from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.spark.partition_watermarks import MARK
from tablestore.spark.changelog import SIGN, changelog, signed
from tablestore.sql.parser.qualify import Source
from tablestore.sql.parser.window_types import Windows

_NET, _COPY, _LEAST, _MOST = "_net", "_copy", "_least", "_most"
_COPIES, _PLACE = "_copies", "_place"
_SIGN_OTHER, _NET_OTHER = "_sign_other", "_net_other"
_PLAIN: Final = {"watermark": "none"}
"""The metadata of a column without a watermark, since Spark takes empty metadata for those that it had before."""
APPEND: Final = "append"
UPDATE: Final = "update"


@dataclass(frozen=True)
class Ranking:
    """Rows with their rank in their group; the enclosing query selects the ranks that it needs.

    Attributes:
        position: position of the rank column.
        limited: plans the rows from a first to a last rank, with or without the rank column.
        unlimited: raises the error for a query that does not limit the rank.
    """

    position: int
    limited: Callable[[int, int, bool], Relation]
    unlimited: Callable[[], NoReturn]


@dataclass(frozen=True)
class Relation:
    """The planned rows of a table, a view, or a query or part of one.

    Attributes:
        names: names of its columns.
        rows: the rows of an append-only relation; None if it is updating.
        changelog: returns the changes of an updating relation, with the rows they replace.
        ordered: returns the same with ``_seq``, which is higher in later changes of a key; None if the order is
            unknown.
        latest: returns the changes as upserts and deletes by ``key``, at lower cost; None if that is not possible.
        every: returns all changes by key, in the order of each key, where ``changelog`` merges those of a micro-batch;
            None if that is not possible.
        key: positions of columns by which rows are unique; empty if there is a single row, None if nothing is known.
        keys: the keys of the parts of a UNION ALL whose rows change; None if it is not a union, or one is not known.
        endless: whether it is unbounded.
        chained: whether Spark's check of operators must be off: the frame is a chain of stateful operators, which
            Spark cannot know to be correct.
        timed: whether a table of it is read with a watermark.
        final: whether rows are emitted when a watermark passes, which only output mode ``append`` does.
        windows: positions of the two ends of the time windows that its rows are in; None if there are none.
        ended: whether all rows of a window are emitted in one micro-batch, when the window has ended.
        momentary: names of nondeterministic columns, such as the time of reading, with a new value at each read.
        each: function still to be applied to ``rows`` per micro-batch, since Spark cannot do it in a plan; or None.
        shape: with ``each``, a frame with the columns it returns, which must not be run.
        ranking: set if the relation can only be planned once the query around it says which places it needs.
        since: the table, with its hint, whose changes begin in the middle, so that they replace and delete rows which
            the relation never had; empty if there is none.
        blind: why the rows that changes replace are not known, at least those of the first change of each key; empty if
            they are.
    """

    names: tuple[str, ...]
    rows: DataFrame | None = None
    changelog: Callable[[], DataFrame] | None = None
    ordered: Callable[[], DataFrame] | None = None
    latest: Callable[[], DataFrame] | None = None
    every: Callable[[], DataFrame] | None = None
    key: tuple[int, ...] | None = None
    keys: tuple[tuple[int, ...], ...] | None = None
    endless: bool = True
    chained: bool = False
    timed: bool = False
    final: bool = False
    windows: tuple[int, ...] | None = None
    ended: bool = False
    momentary: frozenset[str] = frozenset()
    each: Callable[[DataFrame], DataFrame] | None = None
    shape: DataFrame | None = None
    ranking: Ranking | None = None
    since: str = ""
    blind: str = ""

    @property
    def grows(self) -> bool:
        """Whether the relation is append-only."""
        return self.rows is not None

    def changes(self) -> DataFrame:
        """Return the rows with ``_change_type``; an updating relation's include the rows that updates replace."""
        if self.rows is not None:
            # What is computed of changes goes on for ever: no row is late for it.
            return without_watermarks(self.rows).withColumn(CHANGE_TYPE, F.lit(RowKind.INSERT.change_type))
        assert self.changelog is not None, "rows that change have a changelog"
        return self.changelog()

    def renamed(self, names: Sequence[str]) -> Relation:
        """Return the relation with other column names."""

        def named(make: Callable[[], DataFrame] | None) -> Callable[[], DataFrame] | None:
            return None if make is None else lambda: _named(make(), names)

        return replace(
            self,
            names=tuple(names),
            rows=None if self.rows is None else self.rows.toDF(*names),
            changelog=named(self.changelog),
            ordered=named(self.ordered),
            latest=named(self.latest),
            every=named(self.every),
        )


@dataclass(frozen=True)
class QueryInput:
    """A table, view or subquery in FROM.

    Attributes:
        alias: its alias in the SELECT.
        key: name of its frame in the SELECT that Spark runs.
        relation: its plan.
        place: its node in the tree of the SELECT.
        windows: time windows over it, or None.
    """

    alias: str
    key: str
    relation: Relation
    place: exp.Table
    windows: Windows | None = None


@dataclass(frozen=True)
class Parts:
    """All inputs of a SELECT.

    Attributes:
        inputs: the inputs in FROM.
        inner: frames of bounded tables that are read by subqueries within expressions, by table name.
    """

    inputs: tuple[QueryInput, ...]
    inner: Mapping[str, DataFrame]

    def frames(self) -> dict[str, DataFrame]:
        """Return the frames by their names in the SELECT; all inputs must be append-only."""
        return self.frames_but(None)

    def frames_but(self, one: QueryInput | None) -> dict[str, DataFrame]:
        """Return the same without the frame of one input; all others must be append-only."""
        found = dict(self.inner)
        for each in self.inputs:
            if each is not one:
                assert each.relation.rows is not None, "rows that change are no plain frame"
                found[each.key] = each.relation.rows
        return found

    def sources(self) -> dict[str, Source]:
        """Return the inputs' columns, by lower-case alias."""
        return {each.alias.lower(): Source(each.alias, each.relation.names) for each in self.inputs}

    def at(self, node: exp.Expr) -> QueryInput | None:
        """Return the input whose node is an item of FROM; None for one that Spark evaluates itself, such as VALUES."""
        return next((each for each in self.inputs if each.place is node), None)

    @property
    def endless(self) -> tuple[QueryInput, ...]:
        """The unbounded inputs."""
        return tuple(each for each in self.inputs if each.relation.endless)


def of_rows(frame: DataFrame, *, chained: bool = False, final: bool = False) -> Relation:
    """Return a relation of append-only or bounded rows."""
    return Relation(tuple(frame.columns), frame, endless=frame.isStreaming, chained=chained, final=final)


def of_changes(frame: DataFrame, key: Sequence[int] | None) -> Relation:
    """Return an updating relation of changes.

    Args:
        frame: rows with ``_change_type``, which include the rows that updates replace, and with ``_seq`` if it is
            higher in later changes of a key.
        key: positions of columns by which rows are unique; None if nothing is known.
    """
    names = tuple(name for name in frame.columns if name not in {CHANGE_TYPE, SEQ})
    return Relation(
        names,
        changelog=lambda: frame.drop(SEQ),
        ordered=(lambda: frame) if SEQ in frame.columns else None,
        key=None if key is None else tuple(key),
        chained=True,
    )


@dataclass(frozen=True)
class Groups:
    """The current state of the groups of an aggregation.

    Attributes:
        frame: streaming frame for output mode ``update``, with ``outputs``, ``keys``, ``kept`` unless it is None, and
            ``_seq``, which increases with each micro-batch that changes a group.
        names: names of ``outputs`` in the result.
        outputs: columns of the result.
        keys: columns that identify a group; some may also be outputs.
        kept: boolean column that is true if the group is in the result; None if every group is.
        chained: as in `Relation`.
    """

    frame: DataFrame
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    keys: tuple[str, ...]
    kept: str | None
    chained: bool = True


def of_groups(groups: Groups, key: Sequence[int] | None) -> Relation:
    """Return an updating relation of groups, whose key is the outputs at these positions."""
    kind = F.lit(RowKind.INSERT.change_type)
    if groups.kept is not None:
        kind = F.when(F.col(groups.kept), kind).otherwise(RowKind.DELETE.change_type)

    def latest() -> DataFrame:
        kinds = [] if groups.kept is None else [kind.alias(CHANGE_TYPE)]
        return _named(groups.frame.select(*groups.outputs, *kinds), groups.names)

    def ordered() -> DataFrame:
        # One more stateful operator keeps each group's previous row, as for an upsert table.
        records = groups.frame.withColumn(CHANGE_TYPE, kind)
        wanted = {*groups.outputs, *groups.keys}
        schema = StructType([field for field in records.schema if field.name in wanted])
        made = changelog(records, schema, groups.keys, carried=(SEQ,))
        return _named(made.select(*groups.outputs, CHANGE_TYPE, SEQ), groups.names)

    # `latest` is what Spark's update mode emits, without another stateful operator: `chained` stays that of the groups.
    return Relation(
        groups.names,
        changelog=lambda: ordered().drop(SEQ),
        ordered=ordered if key is not None else None,
        latest=latest if key is not None else None,
        key=None if key is None else tuple(key),
        chained=groups.chained,
    )


def distinct(relation: Relation) -> Relation:
    """Return a relation without duplicate rows."""
    if relation.rows is not None:
        times = [field for field in relation.rows.schema if MARK in field.metadata]
        # Spark takes one watermark in an operator; without any, no row is late.
        rows = without_watermarks(relation.rows) if len(times) > 1 else relation.rows
        # A stateful operator on top of this one, such as an aggregate, makes a chain.
        return of_rows(rows.dropDuplicates(), chained=relation.chained or not relation.final, final=relation.final)
    return _counted(relation, None, F.col(_NET) > 0)


def common(first: Relation, second: Relation, *, every: bool) -> Relation:
    """Return the INTERSECT of two relations, by column position, with the names of the first.

    With ``every`` it is the INTERSECT ALL, which has each copy of a row that is in both.
    """
    if every:
        return _copied(first, second, F.least(_NET, _NET_OTHER))
    return _counted(first, second, (F.col(_NET) > 0) & (F.col(_NET_OTHER) > 0))


def difference(first: Relation, second: Relation, *, every: bool) -> Relation:
    """Return the EXCEPT of two relations, by column position, with the names of the first.

    With ``every`` it is the EXCEPT ALL, which has the copies of a row that the second relation lacks.
    """
    if every:
        return _copied(first, second, F.col(_NET) - F.col(_NET_OTHER))
    return _counted(first, second, (F.col(_NET) > 0) & (F.col(_NET_OTHER) <= 0))


def _counted(first: Relation, second: Relation | None, kept: Column) -> Relation:
    """Return the distinct rows that are kept by their numbers of copies in one or two relations."""
    frame, outputs = _sums(first, second)
    groups = Groups(frame.withColumn(_COPY, kept), first.names, outputs, outputs, _COPY)
    return of_groups(groups, range(len(outputs)))


def _copied(first: Relation, second: Relation, copies: Column) -> Relation:
    """Return rows in as many copies as follow from their numbers in two relations; none if that is below one."""
    frame, outputs = _sums(first, second)
    frame = frame.withColumn(_COPIES, copies).withColumn(_COPY, F.col(_COPIES) > 0)
    counted = of_groups(Groups(frame, (*outputs, _COPIES), (*outputs, _COPIES), outputs, _COPY), None)

    def changes() -> DataFrame:
        rows = _rows_of(outputs)
        both = signed(counted.changes()).withColumn(_NET, F.sum(F.col(_COPIES) * F.col(SIGN)).over(rows))
        once = both.withColumn(_PLACE, F.row_number().over(rows.orderBy(SIGN))).where(F.col(_PLACE) == 1)
        kind = F.when(F.col(_NET) > 0, RowKind.INSERT.change_type).otherwise(RowKind.DELETE.change_type)
        repeated = F.explode(F.array_repeat(kind, F.abs(_NET).cast("int"))).alias(CHANGE_TYPE)
        return _named(once.select(*outputs, repeated), first.names)

    return Relation(first.names, changelog=changes, chained=True)


def _sums(first: Relation, second: Relation | None) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the number of copies of each row of one or two relations, and the names of the row's columns."""
    outputs = tuple(f"_output_{number}" for number in range(len(first.names)))
    rows = signed(_named(first.changes(), outputs))
    sums = [F.sum(SIGN).alias(_NET), F.count(F.lit(1)).alias(SEQ)]
    if second is not None:
        others, zero = signed(_named(second.changes(), outputs)), F.lit(0).cast("bigint")
        rows = rows.select(*outputs, SIGN, zero.alias(_SIGN_OTHER)).union(
            others.select(*outputs, zero.alias(SIGN), F.col(SIGN).alias(_SIGN_OTHER))
        )
        sums.append(F.sum(_SIGN_OTHER).alias(_NET_OTHER))
    return rows.groupBy(*outputs).agg(*sums), outputs


def union(first: Relation, second: Relation) -> Relation:
    """Return the UNION ALL of two relations, by column position, with the names of the first."""
    second = second.renamed(first.names)
    if first.rows is not None and second.rows is not None:
        return of_rows(
            first.rows.union(second.rows),
            chained=first.chained or second.chained,
            final=first.final or second.final,
        )
    known = [() if part.grows else part.keys or (part.key and (part.key,)) for part in (first, second)]
    keys = None if None in known else tuple(key for part in known for key in part or ())
    return Relation(
        first.names,
        changelog=lambda: first.changes().union(second.changes()),
        keys=keys,
        chained=True,
        since=first.since or second.since,
        blind=first.blind or second.blind,
    )


def tidied(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Recompute ``_change_type`` of changes by key after some of their rows have been removed.

    Args:
        changes: changes with, per key and micro-batch, at most one retracted row and one added row.
        key: names of the key columns.
    """
    rows = _rows_of(key)
    both = F.col(_LEAST) < F.col(_MOST)
    kind = (
        F.when((F.col(SIGN) > 0) & both, RowKind.UPDATE_AFTER.change_type)
        .when(F.col(SIGN) > 0, RowKind.INSERT.change_type)
        .when(both, RowKind.UPDATE_BEFORE.change_type)
        .otherwise(RowKind.DELETE.change_type)
    )
    ranked = signed(changes).withColumn(_LEAST, F.min(SIGN).over(rows)).withColumn(_MOST, F.max(SIGN).over(rows))
    return _retracted_first(ranked, rows).withColumn(CHANGE_TYPE, kind).drop(SIGN, _LEAST, _MOST)


def retracted_first(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return changes with the retracted rows of each key before those that are added."""
    return _retracted_first(signed(changes), _rows_of(key)).drop(SIGN)


def _retracted_first(changes: DataFrame, rows: WindowSpec) -> DataFrame:
    # A reader that applies the rows in order then replaces a key instead of removing it. The filter, which all rows
    # pass, uses the number, without which Spark leaves the window out, and with it the order.
    numbered = changes.withColumn(_COPY, F.row_number().over(rows.orderBy(SIGN)))
    return numbered.where(F.col(_COPY) > 0).drop(_COPY)


def last_of(changes: DataFrame, key: Sequence[str], order: Column) -> DataFrame:
    """Return the last change of each key in a micro-batch."""
    rows = _rows_of(key).orderBy(order.desc())
    return changes.withColumn(_COPY, F.row_number().over(rows)).where(F.col(_COPY) == 1).drop(_COPY)


def first_and_last_of(changes: DataFrame, key: Sequence[str], order: Column) -> DataFrame:
    """Merge the changes of each key in a micro-batch into one change, from the first old row to the last new row.

    Args:
        changes: changes that include the rows they replace.
        key: names of the key columns.
        order: order of the changes of a key; an update's two rows may have the same value.
    """
    ahead = _rows_of(key).orderBy(order, F.col(SIGN))
    back = _rows_of(key).orderBy(order.desc(), F.col(SIGN).desc())
    ranked = signed(changes).withColumn(_LEAST, F.row_number().over(ahead)).withColumn(_MOST, F.row_number().over(back))
    ends = [(F.col(_LEAST) == 1) & (F.col(SIGN) < 0), (F.col(_MOST) == 1) & (F.col(SIGN) > 0)]
    return tidied(ranked.where(reduce(Column.__or__, ends)).drop(_LEAST, _MOST, SIGN), key)


def without_watermarks(frame: DataFrame) -> DataFrame:
    """Return a frame of whose rows no operator takes one for late."""
    return with_metadata(frame, range(len(frame.columns)), _PLAIN)


def with_metadata(frame: DataFrame, positions: Collection[int], metadata: Mapping[str, object]) -> DataFrame:
    """Return a frame with other metadata of some columns; several columns may have one name."""
    numbered = frame.toDF(*(f"_{number}" for number in range(len(frame.columns))))
    return numbered.select(
        *(
            F.col(f"_{number}").alias(name, metadata=dict(metadata))
            if number in positions
            else F.col(f"_{number}").alias(name)
            for number, name in enumerate(frame.columns)
        )
    )


def _rows_of(key: Sequence[str]) -> WindowSpec:
    """Return the window of the rows of a key; without columns, of all rows."""
    return Window.partitionBy(*(F.col(backquoted(name)) for name in key)) if key else Window.partitionBy(F.lit(1))


def _named(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Rename the leading columns of a frame; those after them, such as ``_change_type``, keep their names."""
    return frame.toDF(*names, *frame.columns[len(names) :])
