"""A merge as a join: which rows of table and source match, and which clause applies to each pair.

The resulting frames have ``_seq`` (the number of the clause; NULL for none), ``_kind`` (NULL if there is no row of the
table), ``o0``, ... (the row of the table) and ``n0``, ... (its new values by the clause). Within the join, the table's
columns are called ``target.`` and the source's ``source.``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import KIND
from snapshot.schema.spark_types import as_nullable, can_widen
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SEQ
from tablestore.dml.conditions import Condition, checked_condition, checked_values, empty, holds
from tablestore.dml.merge_clauses import Action, Clause, Match, check_clauses, check_sets_all, keeps_key, named_columns

On = str | Sequence[str] | Column
TARGET, SOURCE = "target", "source"


@dataclass(frozen=True)
class MergeJoin:
    """A merge whose expressions have been checked.

    Attributes:
        source: the rows of the source.
        on: the match condition.
        clauses: the clauses, in order.
        conditions: the condition of each clause; None for all rows.
        values: the values by column that each clause sets.
        by_key: rows match exactly if their primary keys are equal, and no clause sets another key.
    """

    source: DataFrame
    on: Column
    clauses: tuple[Clause, ...]
    conditions: tuple[Column | None, ...]
    values: tuple[dict[str, Column], ...]
    by_key: bool

    def has(self, match: Match) -> bool:
        """Return whether there is a clause for such rows."""
        return any(each.match is match for each in self.clauses)

    def joined(self, target: DataFrame, spec: TableSpec, *, how: str, extra: Sequence[str] = ()) -> DataFrame:
        """Return the table's rows joined with the source's, as the module describes.

        Args:
            target: rows of the table, with a ``_kind`` that is not NULL and the ``extra`` columns.
            spec: the table definition.
            how: the join type; the table is the left side.
            extra: further columns of ``target`` to keep.
        """
        source = self.source.withColumn(BUCKET, F.lit(1)).alias(SOURCE)
        both = target.alias(TARGET).join(source, on=self.on, how=how)
        matched = both.withColumn(SEQ, self._clause())
        names = spec.schema.fieldNames()
        old = [F.col(f"{TARGET}.{backquoted(name)}").alias(f"o{number}") for number, name in enumerate(names)]
        new = [self._value(name).alias(f"n{number}") for number, name in enumerate(names)]
        kept = [F.col(f"{TARGET}.{backquoted(name)}") for name in (KIND, *extra)]
        return matched.select(*old, *new, F.col(SEQ), *kept)

    def actions(self, *wanted: Action) -> Column:
        """Return a column that is true where a row's clause does one of these actions."""
        return F.col(SEQ).isin([n for n, each in enumerate(self.clauses) if each.action in wanted])

    def _clause(self) -> Column:
        """Return the number of the first clause that applies; NULL if none does."""
        in_target, in_source = F.col(f"{TARGET}.{KIND}").isNotNull(), F.col(f"{SOURCE}.{BUCKET}").isNotNull()
        of = {
            Match.MATCHED: in_target & in_source,
            Match.NOT_MATCHED: ~in_target,
            Match.NOT_MATCHED_BY_SOURCE: ~in_source,
        }
        clause = F.when(F.lit(False), F.lit(-1))
        for number, each in enumerate(self.clauses):
            condition = self.conditions[number]
            fits = of[each.match] if condition is None else of[each.match] & holds(condition)
            clause = clause.when(fits, F.lit(number))
        return clause

    def _value(self, name: str) -> Column:
        """Return a column's value after the clause; the table's value if the clause does not set it."""
        value = F.when(F.lit(False), F.col(f"{TARGET}.{backquoted(name)}"))
        for number, each in enumerate(self.clauses):
            if name in self.values[number]:
                value = value.when(F.col(SEQ) == number, self.values[number][name])
            elif each.action is Action.INSERT:
                value = value.when(F.col(SEQ) == number, F.lit(None))
        return value.otherwise(F.col(f"{TARGET}.{backquoted(name)}"))


def checked_merge(spark: SparkSession, spec: TableSpec, source: DataFrame, on: On, when: Sequence[Clause]) -> MergeJoin:
    """Check a merge against the columns of table and source.

    Raises:
        InvalidInputError: ``on`` or a clause cannot be evaluated; or a clause sets an unknown column, sets a value of
            another type or is never reached.
    """
    check_clauses(when)
    taken = {KIND, BUCKET, SEQ} & {name.lower() for name in source.columns}
    if taken:
        msg = f"merge: the source has columns {sorted(taken)}, names that the store reserves; rename them."
        raise InvalidInputError(msg)
    here = empty(spark, spec.schema).alias(TARGET)
    there = empty(spark, source.schema).alias(SOURCE)
    both = here.crossJoin(there)
    sides = {Match.MATCHED: both, Match.NOT_MATCHED: there, Match.NOT_MATCHED_BY_SOURCE: here}

    def check(condition: Condition, clause: Clause) -> Column:
        checked_condition(condition, sides[clause.match], f"merge: {clause.match}")
        # The join has the columns of both sides, so those that both have must be qualified in every clause.
        return checked_condition(condition, both, f"merge: {clause.match}")

    condition, names = _on(on, spec, source, both)
    conditions: list[Column | None] = []
    values: list[dict[str, Column]] = []
    for each in when:
        conditions.append(None if each.condition is None else check(each.condition, each))
        _values(each, spec, source, sides[each.match])
        values.append(_values(each, spec, source, both))
    by_key = names == set(spec.primary_key) and keeps_key(when, spec.primary_key)
    return MergeJoin(source, condition, tuple(when), tuple(conditions), tuple(values), spec.has_key and by_key)


def _on(on: On, spec: TableSpec, source: DataFrame, both: DataFrame) -> tuple[Column, set[str] | None]:
    """Parse ``on``: names of columns that both sides have, or a condition.

    Returns:
        The condition and, if names were given, the names of the table's columns; otherwise None.
    """
    named = None if isinstance(on, Column) else named_columns(on, spec, source.columns)
    if named is None:
        assert isinstance(on, Column | str)
        return checked_condition(on, both, "merge: on"), None
    condition = F.lit(True)
    for mine, theirs in named:
        condition = condition & (F.col(f"{TARGET}.{backquoted(mine)}") == F.col(f"{SOURCE}.{backquoted(theirs)}"))
    return condition, {mine for mine, _ in named}


def _values(clause: Clause, spec: TableSpec, source: DataFrame, on: DataFrame) -> dict[str, Column]:
    """Return the checked values that a clause sets; if it names none, all columns of the source."""
    if clause.action is Action.DELETE:
        return {}
    if clause.values is not None:
        return checked_values(clause.values, spec.schema, on, f"merge: {clause.match} then {clause.action}")
    source_fields = {field.name.lower(): field for field in source.schema.fields}
    check_sets_all(clause, spec, source.columns)
    assignments: dict[str, Column] = {}
    for field in spec.schema.fields:
        theirs = source_fields[field.name.lower()]
        if not can_widen(theirs.dataType, field.dataType):
            msg = (
                f"merge: column {field.name!r} is {field.dataType.simpleString()}, the source's is "
                f"{theirs.dataType.simpleString()}; cast it."
            )
            raise InvalidInputError(msg)
        assignments[field.name] = F.col(f"{SOURCE}.{backquoted(theirs.name)}").cast(as_nullable(field.dataType))
    return assignments
