"""Copy on write: rewrites files of an append table without the deleted rows, or with the new values of updated rows.

Runs in Spark tasks, on Arrow batches. The changes go into separate files, which the commit lists
(``changes.listed``), because the rewritten files do not show which rows are new.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.records import RowCheck
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.fields_of_others import with_fields_of_others
from snapshot.schema.nested_nulls import refuse_nested_nulls
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import conform, kind_column, relabelled, with_kind
from snapshot.staging.parquet_writer import ParquetFiles, PartitionedFiles, removed_on_error
from snapshot.staging.stage import (
    CHANGES,
    Role,
    StagedFile,
    refuse_broken_text,
    refuse_nulls,
    refuse_partitions,
    refuse_rejected,
)
from snapshot.storage import Storage


class Act(IntEnum):
    """The action on a row; a negative number is a reason to refuse the row instead (``stage.py``)."""

    KEEP = 0
    DELETE = 1
    UPDATE = 2
    INSERT = 3


@dataclass(frozen=True)
class FileRewriter:
    """Rewrites the rows of files that a DML statement replaces. Picklable.

    Attributes:
        storage: the table's folder.
        spec: the table, which has no key.
        stored: the same with the columns and fields of other writers (``TableSpec.with_columns_of_others``).
        target_bytes: size at which a file is finished.
        check: rejects rows that the log would not accept; None without a log.
    """

    storage: Storage
    spec: TableSpec
    stored: TableSpec
    target_bytes: int
    check: RowCheck | None = None

    def stage(self, batches: Iterable[pa.RecordBatch], task: int) -> list[StagedFile]:
        """Write a task's rows.

        Args:
            batches: the existing row (NULL for an insert) with the columns of ``stored``, an int8 ``Act`` and, if rows
                are updated or inserted, the table's columns of the new row (NULL for a row that is deleted or stays).
            task: the task's number.

        Raises:
            InvalidInputError: a row is invalid, or has NULL in a NOT NULL column; or an update would lose values of a
                field of another writer.
        """
        kept = self._data(task, self.stored.in_files)
        new = self._data(task, self.spec)
        changes = ParquetFiles(
            self.storage,
            with_kind(self.spec.physical),
            prefix=f"{task:05d}",
            folder=CHANGES,
            target_bytes=self.target_bytes,
        )
        width = len(self.stored.arrow)
        with (
            removed_on_error({0: changes}, self.storage),
            removed_on_error(kept.writers, self.storage),
            removed_on_error(new.writers, self.storage),
        ):
            for batch in batches:
                acts = batch.column(width)
                refuse_rejected(acts)
                before = _named(batch.columns[:width], self.stored)
                has_after = batch.num_columns > width + 1
                after = self._checked(batch.columns[width + 1 :], acts) if has_after else before.slice(0, 0)
                act = acts.to_numpy(zero_copy_only=False)
                kept.write(self._in_files(_only(before, act == Act.KEEP)))
                changes.write(self._as_changes(_only(before, act == Act.DELETE), RowKind.DELETE))
                if has_after:
                    updated = act == Act.UPDATE
                    kept.write(self._in_files(_only(before, updated), _only(after, updated)))
                    changes.write(self._pairs(_only(before, updated), _only(after, updated)))
                    inserted = conform(_only(after, act == Act.INSERT), self.spec.arrow)
                    if self.check is not None:
                        self.check.check(inserted)
                    new.write(inserted)
            return [
                *(StagedFile(file, 0, role=Role.KEPT) for file in kept.close()),
                *(StagedFile(file, 0, role=Role.CHANGES) for file in changes.close()),
                *(StagedFile(file, 0) for file in new.close()),
            ]

    def remove(self, staged: Iterable[StagedFile]) -> None:
        """Remove staged files that no commit will use."""
        self.storage.delete(*(each.file.path for each in staged))

    @property
    def _changes(self) -> pa.Schema:
        return with_kind(self.spec.arrow)

    def _data(self, task: int, spec: TableSpec) -> PartitionedFiles:
        return PartitionedFiles(self.storage, spec, prefix=f"part-{task:05d}", target_bytes=self.target_bytes)

    def _in_files(self, before: pa.RecordBatch, after: pa.RecordBatch | None = None) -> pa.RecordBatch:
        """Return rows as files hold them: as before or, if given, the new ones, with what others' parts held before."""
        before = relabelled(conform(before, self.stored.arrow), self.stored.physical)
        # A column that is there twice is in the files as its second copy.
        columns = dict(zip(before.schema.names, before.columns, strict=True))
        if after is not None:
            new = relabelled(conform(after, self.spec.arrow), self.spec.physical)
            for shown, name, values in zip(after.schema.names, new.schema.names, new.columns, strict=True):
                columns[name] = with_fields_of_others(values, columns[name], shown)
        wanted = self.stored.in_files
        arrays = [columns[name] for name in wanted.physical.names]
        rows = pa.RecordBatch.from_arrays(arrays, names=wanted.physical.names)
        return relabelled(conform(rows, wanted.physical), wanted.arrow)

    def _checked(self, columns: list[pa.Array], acts: pa.Array) -> pa.RecordBatch:
        """Return the new rows after checking that they can be stored."""
        after = _named(columns, self.spec)
        wanted = pc.greater_equal(acts, int(Act.UPDATE))
        refuse_nested_nulls(after, self.spec.arrow)
        refuse_broken_text(after)
        refuse_partitions(after, self.spec, wanted)
        for field in self.spec.arrow:
            if not field.nullable:
                column = after.column(field.name)
                refuse_nulls(pc.and_(column.is_null(), wanted), field.name, self.spec)
        return after

    def _as_changes(self, rows: pa.RecordBatch, kind: RowKind) -> pa.RecordBatch:
        kinds = kind_column(kind, rows.num_rows)
        changes = conform(rows.append_column(KIND, kinds), self._changes)
        if self.check is not None:
            self.check.check(changes)
        return relabelled(changes, with_kind(self.spec.physical))

    def _pairs(self, before: pa.RecordBatch, after: pa.RecordBatch) -> pa.RecordBatch:
        """Return the preimage and the postimage of each update, one after the other."""
        sides = [self._as_changes(before, RowKind.UPDATE_BEFORE), self._as_changes(after, RowKind.UPDATE_AFTER)]
        order = np.arange(2 * before.num_rows).reshape(2, -1).T.ravel()
        return pa.concat_batches(sides).take(pa.array(order))


def _named(columns: list[pa.Array], spec: TableSpec) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, names=spec.arrow.names)


def _only(rows: pa.RecordBatch, wanted: np.ndarray) -> pa.RecordBatch:
    if rows.num_rows == 0 or wanted.all():
        return rows
    return rows.filter(pa.array(wanted))
