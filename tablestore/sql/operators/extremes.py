"""MIN and MAX over rows that change, with all values of each group and their numbers of copies as state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from snapshot.quoting import quoted
from tablestore.normalize.segments import HASH
from tablestore.sql.operators.group_places import Order, Places, change_places
from tablestore.sql.operators.row_multiset import COUNT, query
from tablestore.sql.operators.stateful import StatefulStep, StatePlace, Task, run_in_buckets


@dataclass(frozen=True)
class Extreme:
    """A MIN or MAX.

    Attributes:
        name: name of the result.
        column: name of the column with the values; NULL is ignored.
        is_max: whether it is a MAX.
    """

    name: str
    column: str
    is_max: bool

    @property
    def at(self) -> str:
        """Name of the column with the micro-batch in which the result changed."""
        return f"{self.name}_at"


def with_extremes(
    signed: DataFrame, sign: str, groups: Sequence[str], extremes: Sequence[Extreme], place: StatePlace
) -> DataFrame:
    """Return signed rows, and further rows that say how the MIN and MAX of their groups change.

    Args:
        signed: streaming frame of rows that are added or retracted. No name of a column may have a dot.
        sign: name of the column with 1 for an added row, -1 for a retracted one.
        groups: names of the columns that identify a group.
        extremes: the results.
        place: where the state is.

    Returns:
        The columns of ``signed``, and for each of the extremes its value and ``at``. A further row has the group, one
        value that is not NULL unless the group has no values any more, and its ``at``; the rest is NULL.
    """
    fields = [StructField(field.name, field.dataType) for field in signed.schema]
    for each in extremes:
        fields += [StructField(each.name, signed.schema[each.column].dataType), StructField(each.at, LongType())]
    return run_in_buckets(signed, groups, place, _Extremes(sign, tuple(groups), tuple(extremes)), StructType(fields))


@dataclass(frozen=True)
class _Extremes(StatefulStep):
    sign: str
    groups: tuple[str, ...]
    extremes: tuple[Extreme, ...]

    def run(self, task: Task, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        plain = rows.drop_columns([HASH])
        added = [(each, column) for each in self.extremes for column in (each.name, each.at)]
        fields = list(plain.schema)
        for each, column in added:
            fields.append(pa.field(column, pa.int64() if column == each.at else plain.schema.field(each.column).type))
        schema = pa.schema(fields)
        found = [self._changed(task, number, rows, schema) for number in range(len(self.extremes))]
        yield from _widened(plain, schema).to_batches()
        for table in found:
            yield from table.to_batches()

    def _changed(self, task: Task, number: int, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return the new value of each group in which an extreme changes."""
        extreme = self.extremes[number]
        columns = [*self.groups, extreme.column]
        there = rows.filter(pc.is_valid(rows.column(extreme.column)))
        changes = there.select([HASH, *columns]).append_column(COUNT, there.column(self.sign))
        order = Order(extreme.column, descending=extreme.is_max, nulls_first=False)
        held = pa.schema([rows.schema.field(each) for each in columns])
        with task.state(held, task.folder.child(str(number))) as state:
            found = change_places(task.db, state, changes, columns, Places(self.groups, (order,), 1, 1), columns)
        # The group whose value only goes has none any more.
        groups = ", ".join(map(quoted, self.groups))
        value = f"any_value({quoted(extreme.column)}) FILTER (WHERE {COUNT} > 0) AS {quoted(extreme.name)}"
        text = (
            f"SELECT {groups}{', ' if groups else ''}{value}, {task.batch}::BIGINT AS {quoted(extreme.at)} FROM found"
        )
        text += f" GROUP BY {groups}" if groups else " HAVING count(*) > 0"
        return _widened(query(task.db, text, found=found), schema)


def _widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns of a schema; those that they do not have are NULL."""
    names = set(rows.schema.names)
    arrays = [
        rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=pa.schema([field.with_nullable(True) for field in schema]))
