"""Which partitions of a store table a query reads, as the option ``scan.partitions`` of a hint says."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import and_, or_
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.schema.defaults import value_of
from snapshot.schema.spark_types import arrow_type

_NEWEST: Final = "max_pt()"
_COUNTS: Final = {_NEWEST: 1, "max_two_pt()": 2}
_EXPECTED: Final = (
    "'max_pt()' or 'max_two_pt()', the newest partitions, 'a=max_pt(),b=max_pt()', the newest by the first columns, or "
    "partitions with a value for each column: 'a=x,b=1;a=y,b=2'"
)


@dataclass(frozen=True)
class PartitionChoice:
    """The partitions to read.

    Attributes:
        by: the columns by whose greatest values partitions are chosen; empty if ``values`` are given.
        count: how many of these values.
        values: for each given partition, the columns and their values as texts.
        refresh_ms: for how long a lookup join keeps the newest partitions that it found, in milliseconds.
        refresh_async: whether the lookup that finds newer partitions still reads those before.
    """

    by: tuple[str, ...]
    count: int
    values: tuple[tuple[tuple[str, str], ...], ...]
    refresh_ms: int = 0
    refresh_async: bool = False

    @classmethod
    def of(cls, text: str, names: Sequence[str]) -> PartitionChoice:
        """Parse a choice.

        Raises:
            InvalidInputError: it is not one of the table's partitions.
        """
        wanted, columns = text.replace(" ", "").lower(), tuple(names)
        if wanted in _COUNTS:
            return cls(columns, _COUNTS[wanted], ())
        chosen = [
            {name.strip(): value.strip() for name, _, value in (pair.partition("=") for pair in part.split(","))}
            for part in text.split(";")
        ]
        if len(chosen) == 1 and all(value.replace(" ", "").lower() == _NEWEST for value in chosen[0].values()):
            by = tuple(chosen[0])
            if by == columns[: len(by)]:
                return cls(by, 1, ())
        elif all(set(each) == set(columns) for each in chosen):
            return cls((), 0, tuple(tuple(each.items()) for each in chosen))
        msg = f"expected {_EXPECTED}; the partition columns are {', '.join(columns)}; got '{text}'."
        if all(set(each) < set(columns) for each in chosen):
            msg += " Paimon takes a column that is left out for NULL; say what else it can be in a WHERE."
        raise InvalidInputError(msg)

    def newest(self, frame: DataFrame) -> list[Row]:
        """Return the values of the newest partitions that have rows, in the columns by which they are chosen."""
        columns = [F.col(backquoted(each)) for each in self.by]
        return frame.select(*columns).distinct().orderBy(*(each.desc() for each in columns)).head(self.count)

    def rows_of(self, frame: DataFrame, found: Sequence[Row] | None = None) -> DataFrame:
        """Return the rows in the chosen partitions; of the newest, in those that were found, if any are given."""
        if self.values:
            types = {field.name: field.dataType for field in frame.schema}
            for name, text in chain.from_iterable(self.values):
                value_of(text, arrow_type(types[name]), f"option 'scan.partitions': column '{name}'")
            return frame.where(
                _one_of([(name, F.lit(text).cast(types[name])) for name, text in each] for each in self.values)
            )
        rows = self.newest(frame) if found is None else found
        # A table without rows has no newest partition.
        newest = [[(name, F.lit(value)) for name, value in zip(self.by, row, strict=True)] for row in rows]
        return frame.where(_one_of(newest)) if newest else frame.limit(0)


@dataclass
class KeptPartitions:
    """The newest partitions of the tables that a lookup join reads, which are looked for again after an interval."""

    _found: dict[str, tuple[list[Row], float]] = field(default_factory=dict)

    def rows_of(self, name: str, choice: PartitionChoice, frame: DataFrame) -> DataFrame:
        """Return the rows of a table in the chosen partitions."""
        if choice.values:
            return choice.rows_of(frame)
        kept, until = self._found.get(name, ([], 0.0))
        # The clock of the day, since a query may be planned in another process than it runs in. It may have gone back.
        if kept and 0 < until - time.time() <= choice.refresh_ms / 1000:
            return choice.rows_of(frame, kept)
        found = choice.newest(frame)
        self._found[name] = found, time.time() + choice.refresh_ms / 1000
        return choice.rows_of(frame, kept if kept and choice.refresh_async else found)


def _one_of(partitions: Iterable[Sequence[tuple[str, Column]]]) -> Column:
    return reduce(
        or_,
        (reduce(and_, (F.col(backquoted(name)).eqNullSafe(value) for name, value in each)) for each in partitions),
    )
