"""Adds to the rows of a micro-batch the earlier rows of their groups that the frames of OVER need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from snapshot.quoting import quoted
from tablestore.normalize.segments import HASH
from tablestore.sql.operators.row_multiset import COUNT, query
from tablestore.sql.operators.stateful import StatefulStep, StatePlace, Task, run_in_buckets
from tablestore.sql.operators.version_join import TIME

NUMBER: Final = "_number"
"""Name of the bigint column with the place of a row in its group, by time; rows of one time are in any fixed order."""
IS_EARLIER: Final = "_is_earlier"
"""Name of the boolean column that is true in the rows that are added."""


@dataclass(frozen=True)
class Preceding:
    """Which rows before a row its frames need.

    Attributes:
        rows: how many at least.
        microseconds: how much earlier those are that are needed in any case; -1 for none.
        all: whether all are needed.
    """

    rows: int = 0
    microseconds: int = -1
    all: bool = False

    def and_also(self, other: Preceding) -> Preceding:
        """Return what two frames need."""
        return Preceding(
            max(self.rows, other.rows), max(self.microseconds, other.microseconds), all=self.all or other.all
        )


def preceding_rows(
    rows: DataFrame, groups: Sequence[str], held: Sequence[str], needed: Preceding, place: StatePlace
) -> DataFrame:
    """Return rows with the earlier rows of their groups.

    Args:
        rows: streaming frame with `TIME`, later in each micro-batch than in those before. No name of a column may have
            a dot.
        groups: names of the columns that identify a group.
        held: names of the columns that are needed of earlier rows; the other ones are NULL in these.
        needed: which earlier rows are needed.
        place: where the state is.

    Returns:
        The columns of ``rows``, `NUMBER` and `IS_EARLIER`.
    """
    names = tuple(rows.columns)
    kept = tuple(dict.fromkeys([*groups, TIME, *held]))
    added = [StructField(NUMBER, LongType()), StructField(IS_EARLIER, BooleanType())]
    schema = StructType([StructField(field.name, field.dataType) for field in rows.schema] + added)
    return run_in_buckets(rows, groups, place, _PrecedingRows(names, tuple(groups), kept, needed), schema)


@dataclass(frozen=True)
class _PrecedingRows(StatefulStep):
    """The state is the rows that frames of later rows need."""

    names: tuple[str, ...]
    groups: tuple[str, ...]
    held: tuple[str, ...]
    needed: Preceding

    def run(self, task: Task, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        with task.state(pa.schema([rows.schema.field(name) for name in self.held])) as state:
            before = state.rows(np.unique(rows.column(HASH).to_numpy()))
            found = self._found(task, rows, before)
            state.put(self._changes(task, found))
        arrays = [found.column(name).cast(rows.schema.field(name).type) for name in self.names]
        arrays += [found.column(NUMBER), found.column(IS_EARLIER)]
        yield from pa.table(arrays, names=[*self.names, NUMBER, IS_EARLIER]).to_batches()

    def _found(self, task: Task, rows: pa.Table, before: pa.Table) -> pa.Table:
        """Return the rows and those before them, numbered, and whether the state has them from now on."""
        held, others = _named(self.held), _named([name for name in self.names if name not in self.held])
        group = f"PARTITION BY {_named(self.groups)}" if self.groups else ""
        # Rows of one time come in one micro-batch. Later, those of the state lack the other columns, so these are last.
        order = ", ".join(filter(None, [quoted(TIME), held, others]))
        last = f"{NUMBER} > count(*) OVER ({group}) - {self.needed.rows}"
        late = f"{quoted(TIME)} >= max({quoted(TIME)}) OVER ({group}) - {self.needed.microseconds}"
        copies = f"SELECT {HASH}, {held}, sum({COUNT})::BIGINT AS {COUNT} FROM before GROUP BY ALL"
        text = (
            f"SELECT *, {self.needed.all} OR {last} OR {late} AS is_held FROM (SELECT *, row_number() OVER ({group} "
            f"ORDER BY {order}) AS {NUMBER} FROM (SELECT *, false AS {IS_EARLIER} FROM rows UNION ALL BY NAME "
            f"SELECT {HASH}, {held}, true AS {IS_EARLIER} FROM ({copies}), range({COUNT})))"
        )
        return query(task.db, text, rows=rows, before=before)

    def _changes(self, task: Task, found: pa.Table) -> pa.Table:
        """Return which rows come into the state, and which go."""
        text = (
            f"SELECT {HASH}, if({IS_EARLIER}, -1, 1)::BIGINT AS {COUNT}, {_named(self.held)} FROM found "
            f"WHERE is_held <> {IS_EARLIER}"
        )
        return query(task.db, text, found=found)


def _named(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
