"""Deletes, updates and overwrites of rows in this process; each is one snapshot.

In a table with a key, the changes of the rows are staged like a write. In a table without one, the files with affected
rows are rewritten, as ``dml/copy_on_write.py`` does with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.delta.log import DataFile
from snapshot.errors import InvalidInputError
from snapshot.records import Snapshot
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import BUCKET, SEQ, conform
from snapshot.staging.file_rewriter import Act
from snapshot.staging.stage import OUTSIDE, StagedFile, Stager, change_file_schema
from snapshot.store.changes import SnapshotChanges
from snapshot.store.commit import CommitId
from tablestore.context import TableContext
from tablestore.local.repeatable import Batches
from tablestore.local.row_changes import RowChanges, Value
from tablestore.local.rows import reader
from tablestore.local.staging import stage_changes, stage_in_one
from tablestore.local.threads import cores, run_in_threads
from tablestore.write.arrow_input import prepare_batches
from tablestore.write.optimistic_retry import Replaced
from tablestore.write.writer import Writer

_BEFORE_ALL = 1 << 62
"""Subtracted from the ``_seq`` of deletes, to order them before all new rows."""
Staging = tuple[Sequence[StagedFile], Replaced]


class LocalVerbs:
    """Runs statements on one table. Each call makes one snapshot."""

    def __init__(self, writer: Writer) -> None:
        """Write with ``writer``."""
        self._writer = writer

    @property
    def _table(self) -> TableContext:
        return self._writer.table

    def delete(self, where: str, batch: object) -> Snapshot | None:
        """Delete the rows that a condition selects."""
        self._check("delete")
        changes = RowChanges(self._table.spec.arrow, "delete", where)
        if not self._table.spec.has_key:
            return self._writer.replace(
                lambda base: self._rewrite(changes, base, Act.DELETE), CommitId.of(batch), kind="delete"
            )
        return self._change("delete", batch, lambda base: self._deletes(base, where))

    def update(self, where: str | None, values: Mapping[str, Value], batch: object) -> Snapshot | None:
        """Set columns of the rows that a condition selects."""
        self._check("update")
        spec = self._table.spec
        if not values:
            msg = f"update: set: expected new values by column, such as {{'price': 'price * 2'}}; got {values!r}."
            raise InvalidInputError(msg)
        changes = RowChanges(spec.arrow, "update", where, values)
        if not spec.has_key:
            return self._writer.replace(
                lambda base: self._rewrite(changes, base, Act.UPDATE), CommitId.of(batch), kind="update"
            )
        if moved := changes.columns & set(spec.primary_key):
            msg = (
                f"update: set: {sorted(moved)} belong to the primary key; rows move to other keys only with "
                "TableStore.update, which needs Spark. Delete the rows and write new ones, or use that."
            )
            raise InvalidInputError(msg)
        return self._change("update", batch, lambda base: self._updates(base, where, changes))

    def overwrite(self, rows: Batches, where: str | None, batch: object) -> Snapshot | None:
        """Replace the rows that a condition selects, or all rows."""
        self._check("overwrite", all_rows=where is None)
        changes = RowChanges(self._table.spec.arrow, "overwrite", where)
        if self._table.spec.has_key:
            return self._change(
                "overwrite",
                batch,
                lambda base: chain(self._deletes(base, where, before_all=True), self._upserts(rows, changes)),
                all_rows=where is None,
            )

        def stage(base: int) -> Staging:
            return self._rewrite(None if where is None else changes, base, Act.DELETE, self._inserts(rows, changes))

        return self._writer.replace(stage, CommitId.of(batch), kind="overwrite", all_rows=where is None)

    def truncate(self, batch: object) -> Snapshot | None:
        """Delete all rows."""
        self._check("truncate", all_rows=True)
        if self._table.spec.has_key:
            return self._change("truncate", batch, lambda base: self._deletes(base, None), all_rows=True)
        return self._writer.replace(
            lambda base: self._rewrite(None, base, Act.DELETE), CommitId.of(batch), kind="truncate", all_rows=True
        )

    def _check(self, verb: str, *, all_rows: bool = False) -> None:
        """Reload the table's definition, and check that the log can express the statement's changes."""
        self._writer.refresh()
        self._table.check_says_deletes(verb, all_rows=all_rows)

    def _change(
        self,
        kind: str,
        batch: object,
        changes: Callable[[int], Iterator[pa.RecordBatch]],
        *,
        all_rows: bool = False,
    ) -> Snapshot | None:
        """Write the changes that a statement computes from a snapshot's rows, in a table with a key."""

        def stage(stager: Stager) -> list[StagedFile]:
            assert stager.base is not None
            return stage_changes(changes(stager.base), stager)

        return self._writer.write(stage, CommitId.of(batch), kind=kind, all_rows=all_rows)

    def _rows(self, snapshot: int, columns: Sequence[str], where: str | None) -> Iterator[pa.RecordBatch]:
        schema = self._table.spec.arrow
        wanted = pa.schema([schema.field(name) for name in columns])
        return reader(self._table.files, snapshot, wanted, where, cores())()

    def _deletes(self, snapshot: int, where: str | None, *, before_all: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield deletes of the rows that a condition selects; ``before_all`` orders them before all other changes."""
        schema, keys = change_file_schema(self._table.spec), self._table.spec.primary_key
        first = -_BEFORE_ALL if before_all else 0
        for batch in self._rows(snapshot, keys, where):
            columns = {name: batch.column(name) for name in keys}
            yield _as_changes(columns, batch.num_rows, RowKind.DELETE, first, schema)
            first += batch.num_rows

    def _updates(self, snapshot: int, where: str | None, changes: RowChanges) -> Iterator[pa.RecordBatch]:
        schema, first = change_file_schema(self._table.spec), 0
        with changes.evaluator() as evaluator:
            for batch in self._rows(snapshot, self._table.spec.arrow.names, where):
                after = evaluator.updated(batch)
                columns = dict(zip(after.schema.names, after.columns, strict=True))
                yield _as_changes(columns, batch.num_rows, RowKind.UPDATE_AFTER, first, schema)
                first += batch.num_rows

    def _upserts(self, rows: Batches, changes: RowChanges) -> Iterator[pa.RecordBatch]:
        """Yield new rows as changes; staging rejects those that do not satisfy the condition."""
        with changes.evaluator() as evaluator:
            for batch in prepare_batches(rows(), self._table.spec, task=0):
                inside = evaluator.matches(batch)
                kinds = pc.if_else(inside, batch.column(KIND), pa.scalar(OUTSIDE, pa.int8()))
                yield batch.set_column(batch.schema.get_field_index(KIND), batch.schema.field(KIND), kinds)

    def _inserts(self, rows: Batches, changes: RowChanges) -> Iterator[pa.RecordBatch]:
        """Yield new rows of a table without a key in the layout that the rewriter takes: old row, act, new row."""
        schema = self._table.spec.arrow
        with changes.evaluator() as evaluator:
            for batch in prepare_batches(rows(), self._table.spec, task=0):
                acts = pc.if_else(
                    evaluator.matches(batch), pa.scalar(int(Act.INSERT), pa.int8()), pa.scalar(OUTSIDE, pa.int8())
                )
                absent = [pa.nulls(batch.num_rows, field.type) for field in schema]
                yield _for_rewriter(absent, acts, batch.columns)

    def _rewrite(self, changes: RowChanges | None, base: int, act: Act, new: Iterable[pa.RecordBatch] = ()) -> Staging:
        """Stage a delete or update of the rows that a condition selects, all of them without one, and new rows."""
        table = self._table
        files = table.files.base_table.files(base)
        if changes is None:
            whole, some = list(files), []
        else:
            counts = run_in_threads(files, lambda file: self._count(file, base, changes))
            affected = [(file, count) for file, count in zip(files, counts, strict=True) if count]
            gone = {file.path for file, count in affected if act is Act.DELETE and count == file.rows}
            whole = [file for file, _ in affected if file.path in gone]
            some = [file for file, _ in affected if file.path not in gone]
        rows = chain(self._acts(some, base, changes, act) if changes is not None else (), new)
        staged = stage_in_one(rows, table.file_rewriter()) if some or new else []
        return staged, Replaced(whole, some, base)

    def _count(self, file: DataFile, base: int, changes: RowChanges) -> int:
        """Return how many rows of a file a condition selects."""
        with changes.evaluator() as evaluator:
            return sum(pc.sum(evaluator.matches(batch)).as_py() or 0 for batch in self._file_rows(file, base))

    def _acts(self, files: Sequence[DataFile], base: int, changes: RowChanges, act: Act) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files in the layout that the rewriter takes, the rows that stay apart from the others."""
        with changes.evaluator() as evaluator:
            for batch in chain.from_iterable(self._file_rows(file, base) for file in files):
                matches = evaluator.matches(batch)
                stay, affected = batch.filter(pc.invert(matches)), batch.filter(matches)
                yield _for_rewriter(stay.columns, _acts(Act.KEEP, stay.num_rows))
                after = evaluator.updated(affected).columns if act is Act.UPDATE else ()
                yield _for_rewriter(affected.columns, _acts(act, affected.num_rows), after)

    def _file_rows(self, file: DataFile, base: int) -> Iterator[pa.RecordBatch]:
        files, spec = self._table.files, self._table.spec
        for batch in SnapshotChanges(files.snapshot(base), files.storage, spec.columns, {0: (file,)}).batches(0):
            yield conform(batch.select(spec.arrow.names), spec.arrow)


def _acts(act: Act, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(int(act), pa.int8()), rows)


def _for_rewriter(before: Sequence[pa.Array], acts: pa.Array, after: Sequence[pa.Array] = ()) -> pa.RecordBatch:
    names = [*(f"o{n}" for n in range(len(before))), BUCKET, *(f"n{n}" for n in range(len(after)))]
    return pa.RecordBatch.from_arrays([*before, acts, *after], names=names)


def _as_changes(
    columns: Mapping[str, pa.Array], rows: int, kind: RowKind, first: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Return rows as changes of one kind, numbered from ``first``; columns that are not given are NULL."""
    system = {
        KIND: pa.repeat(pa.scalar(int(kind), pa.int8()), rows),
        SEQ: pa.array(np.arange(first, first + rows, dtype=np.int64)),
    }
    given = {**columns, **system}
    arrays = [given[field.name] if field.name in given else pa.nulls(rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
