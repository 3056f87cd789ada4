"""The entry point of DML statements: checks the arguments, then stages and commits the changes as one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession

from snapshot.errors import InvalidInputError
from snapshot.merge.predicate import Predicate
from snapshot.records import CommitId, Snapshot
from snapshot.row_kind import CHANGE_TYPE
from snapshot.staging.stage import StagedFile, Stager
from tablestore.context import TableContext
from tablestore.dml import copy_on_write, merge_on_read
from tablestore.dml.conditions import Condition, Value, checked_condition, checked_values, columns_read, empty
from tablestore.dml.dynamic_overwrite import check_dynamic
from tablestore.dml.merge_clauses import Clause
from tablestore.dml.merge_join import On, checked_merge
from tablestore.dml.predicate_pushdown import pushed_predicate
from tablestore.write.frame_input import check_columns
from tablestore.write.writer import Writer

Batch = tuple[str, int] | None
Changes = tuple[DataFrame, bool]
"""A frame of changes, and whether each bucket's are already in a single partition."""


class Verbs:
    """Runs DML statements on one table. Each call makes one snapshot."""

    def __init__(self, spark: SparkSession, writer: Writer) -> None:
        """Write with ``writer``."""
        self._spark = spark
        self._writer = writer

    @property
    def _table(self) -> TableContext:
        return self._writer.table

    def delete(self, where: Condition, batch: Batch) -> Snapshot | None:
        """Delete the rows that a condition selects."""
        self._writer.refresh().check_says_deletes("delete")
        checked = self._writer.checked(lambda: (self._condition(where, "delete"), self._needs(where)))

        def changes(base: int) -> Changes:
            condition, needs = checked()
            return merge_on_read.delete(self._spark, self._table, base, condition, needs), bool(needs.conditions)

        if self._table.spec.has_key:
            return self._change("delete", batch, changes)
        return self._replace(
            "delete", batch, lambda base: copy_on_write.delete(self._spark, self._table, checked()[0], base)
        )

    def update(self, where: Condition, values: Mapping[str, Value], batch: Batch) -> Snapshot | None:
        """Set columns of the rows that a condition selects."""
        self._writer.refresh().check_says_deletes("update")

        def check() -> tuple[Column, dict[str, Column]]:
            columns = checked_values(values, self._table.spec.schema, self._no_rows(), "update: set")
            return self._condition(where, "update"), columns

        checked = self._writer.checked(check)

        def changes(base: int) -> Changes:
            condition, columns = checked()
            moves = bool(set(columns) & set(self._table.spec.primary_key))
            needs = Predicate() if moves else self._needs(where)
            found = merge_on_read.update(self._spark, self._table, base, condition, columns, needs)
            return found, bool(needs.conditions)

        if self._table.spec.has_key:
            return self._change("update", batch, changes)
        return self._replace(
            "update", batch, lambda base: copy_on_write.update(self._spark, self._table, *checked(), base)
        )

    def overwrite(self, frame: DataFrame, where: Condition | None, batch: Batch, *, dynamic: bool) -> Snapshot | None:
        """Replace the rows that a condition selects, some partitions, or all rows."""
        self._writer.refresh().check_says_deletes("overwrite", all_rows=where is None and not dynamic)

        def check() -> Column | None:
            self._check_new_rows(frame)
            return None if where is None or dynamic else self._condition(where, "overwrite")

        checked = self._writer.checked(check)
        if dynamic:
            return self._overwrite_partitions(frame, where, batch, checked)
        if not self._table.spec.has_key:
            return self._replace(
                "overwrite",
                batch,
                lambda base: copy_on_write.overwrite(self._spark, self._table, frame, checked(), base),
                all_rows=where is None,
            )

        def changes(base: int) -> Changes:
            condition, spec = checked(), self._table.spec
            columns = dict.fromkeys([*spec.primary_key, *columns_read(self._spark, spec.schema, condition)])
            old = merge_on_read.rows_at(self._spark, self._table, base, list(columns))
            old = old if condition is None else old.where(condition)
            return merge_on_read.overwrite(frame, old, spec, condition), False

        return self._change("overwrite", batch, changes, all_rows=where is None)

    def truncate(self, batch: Batch) -> Snapshot | None:
        """Delete all rows."""
        self._writer.refresh().check_says_deletes("truncate", all_rows=True)
        if self._table.spec.has_key:
            return self._change(
                "truncate",
                batch,
                lambda base: (merge_on_read.delete(self._spark, self._table, base, None, Predicate()), False),
                all_rows=True,
            )
        return self._replace("truncate", batch, lambda base: copy_on_write.truncate(self._table, base), all_rows=True)

    def merge(self, source: DataFrame, on: On, when: Sequence[Clause], batch: Batch) -> Snapshot | None:
        """Merge rows of a source into the table."""
        self._writer.refresh().check_says_deletes("merge")
        checked = self._writer.checked(lambda: checked_merge(self._spark, self._table.spec, source, on, when))
        if self._table.spec.has_key:
            return self._change(
                "merge",
                batch,
                lambda base: (merge_on_read.merge(self._spark, self._table, base, checked()), False),
            )
        with read_once(source) as persisted:
            return self._replace(
                "merge",
                batch,
                lambda base: copy_on_write.merge(self._spark, self._table, replace(checked(), source=persisted), base),
            )

    def _overwrite_partitions(
        self, frame: DataFrame, where: Condition | None, batch: Batch, check: Callable[[], object]
    ) -> Snapshot | None:
        check_dynamic(self._table.spec, where)

        def stage(base: int) -> copy_on_write.Staging:
            check()
            return copy_on_write.overwrite_partitions(self._table, frame, base)

        if not self._table.spec.has_key:
            return self._replace("overwrite", batch, stage)
        with read_once(frame) as persisted:

            def changes(base: int) -> Changes:
                check()
                old = merge_on_read.of_partitions(self._spark, self._table, base, persisted)
                return merge_on_read.overwrite(persisted, old, self._table.spec, None), False

            return self._change("overwrite", batch, changes)

    def _change(
        self,
        kind: str,
        batch: Batch,
        changes: Callable[[int], Changes],
        *,
        all_rows: bool = False,
    ) -> Snapshot | None:
        """Write the changes that a statement computes from a snapshot's rows, in a table with a key."""

        def stage(stager: Stager) -> list[StagedFile]:
            assert stager.base is not None
            frame, by_bucket = changes(stager.base)
            return merge_on_read.stage(frame, self._table, stager, by_bucket=by_bucket)

        return self._writer.write(stage, CommitId.of(batch), kind=kind, all_rows=all_rows)

    def _replace(
        self, kind: str, batch: Batch, stage: Callable[[int], copy_on_write.Staging], *, all_rows: bool = False
    ) -> Snapshot | None:
        """Replace files of a table without a key."""
        return self._writer.replace(stage, CommitId.of(batch), kind=kind, all_rows=all_rows)

    def _needs(self, where: Condition) -> Predicate:
        """Return the part of a condition by which our own reader can filter rows.

        If the condition is on partition columns, the part is empty: Spark then prunes partitions without reading them.
        """
        spec = self._table.spec
        needs = pushed_predicate(where, spec.schema) if isinstance(where, str) else Predicate()
        return Predicate() if needs.columns & set(spec.partition_by) else needs

    def _condition(self, where: Condition, verb: str) -> Column:
        return checked_condition(where, self._no_rows(), f"{verb}: where")

    def _no_rows(self) -> DataFrame:
        # Not kept: Spark Connect checks nothing on a frame whose columns it has been asked for before.
        return empty(self._spark, self._table.spec.schema)

    def _check_new_rows(self, frame: DataFrame) -> None:
        """Check that the columns of a frame of new rows are the table's.

        Raises:
            InvalidInputError: columns are missing, unknown or of another type, or the frame has ``_change_type``.
        """
        if any(name.lower() == CHANGE_TYPE for name in frame.columns):
            msg = f"overwrite: expected no column {CHANGE_TYPE!r}: all rows are new. Drop it, or write() the changes."
            raise InvalidInputError(msg)
        check_columns(frame.schema, self._table.spec)


@contextmanager
def read_once(frame: DataFrame) -> Iterator[DataFrame]:
    """Persist a frame while several jobs read it, so that all of them see the same rows."""
    if frame.isLocal():
        yield frame
        return
    persisted = frame.persist()
    try:
        yield persisted
    finally:
        persisted.unpersist()
