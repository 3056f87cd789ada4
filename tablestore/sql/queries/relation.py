"""What a continuous query gives: rows that are only added, or rows that change; and the few things done with either.

Rows that change are a changelog: rows and ``_change_type``. Read as signed rows (an insert and an update's new row are
added, a delete and an update's old row are taken back) they add up, at the end of each micro-batch, to the query's
answer over what has been read until then. Filters, columns and unions of signed rows are those of rows, so that nothing
else is needed to stay right. Spark's plans do all of it, its state store keeps what has to be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore.spark.normalize import changelog

_SIGN, _NET, _COPY, _LEAST, _MOST = "_sign", "_net", "_copy", "_least", "_most"
APPEND: Final = "append"
UPDATE: Final = "update"


@dataclass(frozen=True)
class Relation:
    """A table, a view, a part of a query, or all of it.

    Attributes:
        names: of its columns.
        rows: what it gives, where rows are only added; None where they change.
        changelog: makes the changes, with the rows they replace, where rows change.
        ordered: makes the same with ``_seq``, which is higher in what comes later of a key; None where nothing tells.
        latest: makes the same in upserts and deletes by ``key``, for less.
        key: positions of columns of which no two rows have the same values; empty where there is one row, None where
            nothing is known.
        endless: whether it goes on.
        chained: whether Spark's check has to be off: the frame is a chain of stateful operators that is right though
            Spark cannot know it.
        final: whether rows come when a watermark has passed, which is the case in output mode ``append`` only.
        momentary: names of columns that are times of reading, of which each reading of a row gives another.
        each: what is still to be done with ``rows``, micro-batch by micro-batch, as Spark cannot do it in a plan.
        shape: a frame, not to be run, with the columns that ``each`` gives.
    """

    names: tuple[str, ...]
    rows: DataFrame | None = None
    changelog: Callable[[], DataFrame] | None = None
    ordered: Callable[[], DataFrame] | None = None
    latest: Callable[[], DataFrame] | None = None
    key: tuple[int, ...] | None = None
    endless: bool = True
    chained: bool = False
    final: bool = False
    momentary: frozenset[str] = frozenset()
    each: Callable[[DataFrame], DataFrame] | None = None
    shape: DataFrame | None = None

    @property
    def grows(self) -> bool:
        """Whether rows are only added."""
        return self.rows is not None

    def changes(self) -> DataFrame:
        """Give rows with ``_change_type``: of rows that change with the rows that they replace."""
        if self.rows is not None:
            return self.rows.withColumn(CHANGE_TYPE, F.lit(RowKind.INSERT.change_type))
        assert self.changelog is not None, "rows that change have a changelog"
        return self.changelog()

    def renamed(self, names: Sequence[str]) -> Relation:
        """Give it other names of columns."""
        make, ordered, latest, given = self.changelog, self.ordered, self.latest, tuple(names)
        return replace(
            self,
            names=given,
            rows=None if self.rows is None else self.rows.toDF(*given),
            changelog=None if make is None else lambda: _named(make(), given),
            ordered=None if ordered is None else lambda: _named(ordered(), given),
            latest=None if latest is None else lambda: _named(latest(), given),
        )


def of_rows(frame: DataFrame, *, chained: bool = False, final: bool = False) -> Relation:
    """Make a relation of rows that are only added, or that are all there."""
    return Relation(tuple(frame.columns), frame, endless=frame.isStreaming, chained=chained, final=final)


def of_changes(frame: DataFrame, key: Sequence[int] | None) -> Relation:
    """Make a relation of changes.

    Args:
        frame: rows, ``_change_type``, and ``_seq`` where what comes later of a key has a higher one; with the rows that
            are replaced.
        key: positions of columns that tell rows apart; None where nothing is known.
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
    """Groups in their newest state.

    Attributes:
        frame: streaming, in output mode ``update``: ``outputs``, ``keys``, ``kept`` where there is one, and ``_seq``,
            which grows with each micro-batch that changes a group.
        names: what ``outputs`` are called.
        outputs: columns of the result.
        keys: columns by which groups are told apart; outputs may be among them.
        kept: the boolean column that says whether the group is in the result; None where it always is.
        chained: as in `Relation`.
    """

    frame: DataFrame
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    keys: tuple[str, ...]
    kept: str | None
    chained: bool = True


def of_groups(groups: Groups, key: Sequence[int] | None) -> Relation:
    """Make a relation of groups; its key are the outputs at these positions."""
    kind = F.lit(RowKind.INSERT.change_type)
    if groups.kept is not None:
        kind = F.when(F.col(groups.kept), kind).otherwise(RowKind.DELETE.change_type)

    def latest() -> DataFrame:
        kinds = [] if groups.kept is None else [kind.alias(CHANGE_TYPE)]
        return _named(groups.frame.select(*groups.outputs, *kinds), groups.names)

    def ordered() -> DataFrame:
        # Which row a group had before is kept by one more operator, as of an upsert table.
        records = groups.frame.withColumn(CHANGE_TYPE, kind)
        wanted = {*groups.outputs, *groups.keys}
        schema = StructType([field for field in records.schema if field.name in wanted])
        made = changelog(records, schema, groups.keys, carried=(SEQ,))
        return _named(made.select(*groups.outputs, CHANGE_TYPE, SEQ), groups.names)

    # An upsert without deletes is what Spark makes by itself.
    return Relation(
        groups.names,
        changelog=lambda: ordered().drop(SEQ),
        ordered=ordered if key is not None else None,
        latest=latest if key is not None else None,
        key=None if key is None else tuple(key),
        chained=groups.chained,
    )


def distinct(relation: Relation) -> Relation:
    """Leave each row once."""
    if relation.rows is not None:
        # What is put on it, such as groups, makes a chain.
        return of_rows(relation.rows.dropDuplicates(), chained=not relation.final, final=relation.final)
    outputs = tuple(f"_output_{number}" for number in range(len(relation.names)))
    rows = signed(_named(relation.changes(), outputs))
    counted = rows.groupBy(*outputs).agg(F.sum(_SIGN).alias(_NET), F.count(F.lit(1)).alias(SEQ))
    frame = counted.withColumn(_COPY, F.col(_NET) > 0)
    return of_groups(Groups(frame, relation.names, outputs, outputs, _COPY), range(len(outputs)))


def union(first: Relation, second: Relation) -> Relation:
    """Put the rows of both together; columns by position, named as the first's."""
    second = second.renamed(first.names)
    if first.rows is not None and second.rows is not None:
        return of_rows(
            first.rows.union(second.rows),
            chained=first.chained or second.chained,
            final=first.final or second.final,
        )
    return Relation(first.names, changelog=lambda: first.changes().union(second.changes()), chained=True)


def signed(changes: DataFrame) -> DataFrame:
    """Add the sign of each change: 1 for a row that is added, -1 for one that is taken back."""
    added = F.col(CHANGE_TYPE).isin(RowKind.INSERT.change_type, RowKind.UPDATE_AFTER.change_type)
    return changes.withColumn(_SIGN, F.when(added, F.lit(1)).otherwise(F.lit(-1)).cast("bigint"))


def tidied(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Say of changes by key what they are now that some have been left out.

    Args:
        changes: of each key, and in a micro-batch, at most one row that is taken back and one that is added.
        key: names of its columns.
    """
    rows = Window.partitionBy(*(F.col(backquoted(name)) for name in key)) if key else Window.partitionBy(F.lit(1))
    both = F.col(_LEAST) < F.col(_MOST)
    kind = (
        F.when((F.col(_SIGN) > 0) & both, RowKind.UPDATE_AFTER.change_type)
        .when(F.col(_SIGN) > 0, RowKind.INSERT.change_type)
        .when(both, RowKind.UPDATE_BEFORE.change_type)
        .otherwise(RowKind.DELETE.change_type)
    )
    # An update's old row comes first: who reads them in turn sees the key replaced, not removed.
    ranked = (
        signed(changes)
        .withColumn(_LEAST, F.min(_SIGN).over(rows))
        .withColumn(_MOST, F.max(_SIGN).over(rows))
        .withColumn(_COPY, F.row_number().over(rows.orderBy(_SIGN)))
    )
    return ranked.withColumn(CHANGE_TYPE, kind).drop(_SIGN, _LEAST, _MOST, _COPY)


def settled(changes: DataFrame) -> DataFrame:
    """Leave out what a micro-batch both adds and takes back, row for row."""
    columns = [F.col(backquoted(name)) for name in changes.columns if name != CHANGE_TYPE]
    same = Window.partitionBy(*columns)
    net = signed(changes).withColumn(_NET, F.sum(_SIGN).over(same))
    net = net.withColumn(_COPY, F.row_number().over(Window.partitionBy(*columns, F.col(_SIGN)).orderBy(F.lit(1))))
    left = net.where((F.col(_SIGN) * F.col(_NET) > 0) & (F.col(_COPY) <= F.abs(F.col(_NET))))
    return left.drop(_SIGN, _NET, _COPY)


def last_of(changes: DataFrame, key: Sequence[str], order: Column) -> DataFrame:
    """Leave of each key of a micro-batch the last change."""
    rows = Window.partitionBy(*(F.col(backquoted(name)) for name in key)).orderBy(order.desc())
    return changes.withColumn(_COPY, F.row_number().over(rows)).where(F.col(_COPY) == 1).drop(_COPY)


def first_and_last_of(changes: DataFrame, key: Sequence[str], order: Column) -> DataFrame:
    """Leave of each key of a micro-batch what it was before and what it is after, and say what that makes.

    Args:
        changes: with the rows that they replace.
        key: names of the key's columns.
        order: by which changes of a key follow each other; an update's two rows may have the same.
    """
    columns = [F.col(backquoted(name)) for name in key]
    ahead = Window.partitionBy(*columns).orderBy(order, F.col(_SIGN))
    back = Window.partitionBy(*columns).orderBy(order.desc(), F.col(_SIGN).desc())
    ranked = signed(changes).withColumn(_LEAST, F.row_number().over(ahead)).withColumn(_MOST, F.row_number().over(back))
    ends = [(F.col(_LEAST) == 1) & (F.col(_SIGN) < 0), (F.col(_MOST) == 1) & (F.col(_SIGN) > 0)]
    return tidied(ranked.where(reduce(Column.__or__, ends)).drop(_LEAST, _MOST, _SIGN), key)


def _named(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Name the columns; ``_change_type``, where it is there, stays the last."""
    return frame.toDF(*names, *frame.columns[len(names) :])
