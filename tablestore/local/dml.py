"""Deletes, updates and overwrites of rows in this process; each is one snapshot.

In a table with a key, the changes of the rows are staged like a write. In a table without one, the files with affected
rows are rewritten, as ``dml/copy_on_write.py`` does with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import DuckDBPyConnection

from snapshot.delta.log import DataFile
from snapshot.errors import InvalidInputError
from snapshot.records import CommitId, Snapshot
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SEQ, conform, kind_column
from snapshot.staging.file_rewriter import Act
from snapshot.staging.stage import OUTSIDE, StagedFile, Stager, change_file_schema
from snapshot.store.changes import SnapshotChanges
from tablestore.context import TableContext
from tablestore.dml.dynamic_overwrite import check_dynamic, replaced_partitions
from tablestore.dml.merge_clauses import Clause
from tablestore.local.key_changes import changes_of_pairs, pairs_of
from tablestore.local.merge import PLACE, LocalMerge
from tablestore.local.partitions import condition_of, distinct_rows
from tablestore.local.repeatable import Batches
from tablestore.local.row_acts import FILE_SHIFT, row_acts
from tablestore.local.row_changes import RowChanges, Value
from tablestore.local.rows import reader
from tablestore.local.staging import stage_changes, stage_in_one
from tablestore.local.text_filter import TextPredicate
from tablestore.local.threads import cores, run_in_threads
from tablestore.write.arrow_input import prepare_batches
from tablestore.write.optimistic_retry import Replaced
from tablestore.write.writer import Writer

_BEFORE_ALL = 1 << 62
"""Subtracted from the ``_seq`` of deletes, to order them before all new rows."""
Staging = tuple[Sequence[StagedFile], Replaced]
NewRows = tuple[Batches, RowChanges]
"""New rows, and the condition that they have to satisfy."""


class LocalVerbs:
    """Runs statements on one table. Each call makes one snapshot."""

    def __init__(self, writer: Writer) -> None:
        """Write with ``writer``."""
        self._writer = writer

    @property
    def _table(self) -> TableContext:
        return self._writer.table

    def delete(self, where: str, commit_id: CommitId | None) -> Snapshot | None:
        """Delete the rows that a condition selects."""
        self._writer.refresh().check_says_deletes("delete")
        changes = self._writer.checked(lambda: RowChanges(self._table.spec.arrow, "delete", where))
        if not self._table.spec.has_key:
            return self._writer.replace(
                lambda base: self._rewrite(changes(), base, Act.DELETE), commit_id, kind="delete"
            )
        return self._change("delete", commit_id, lambda base: self._deletes(base, changes().where))

    def update(self, where: str | None, values: Mapping[str, Value], commit_id: CommitId | None) -> Snapshot | None:
        """Set columns of the rows that a condition selects."""
        self._writer.refresh().check_says_deletes("update")
        spec = self._table.spec
        if not values:
            msg = f"update: set: expected new values by column, such as {{'price': 'price * 2'}}; got {values!r}."
            raise InvalidInputError(msg)
        changes = self._writer.checked(lambda: RowChanges(self._table.spec.arrow, "update", where, values))
        if not spec.has_key:
            return self._writer.replace(
                lambda base: self._rewrite(changes(), base, Act.UPDATE), commit_id, kind="update"
            )
        of_rows = self._moves if changes().columns & set(spec.primary_key) else self._updates
        return self._change("update", commit_id, lambda base: of_rows(base, changes()))

    def overwrite(
        self, rows: Batches, where: str | None, commit_id: CommitId | None, *, dynamic: bool
    ) -> Snapshot | None:
        """Replace the rows that a condition selects, the partitions that occur in the rows, or all rows."""
        self._writer.refresh().check_says_deletes("overwrite", all_rows=where is None and not dynamic)
        if dynamic:
            check_dynamic(self._table.spec, where)
            if not self._table.spec.has_key:
                return self._writer.replace(
                    lambda base: self._overwrite_partitions(rows, base), commit_id, kind="overwrite"
                )
            where = condition_of(self._table.spec.arrow, self._partitions_of(rows))
        changes = self._writer.checked(lambda: RowChanges(self._table.spec.arrow, "overwrite", where))
        if self._table.spec.has_key:
            return self._change(
                "overwrite",
                commit_id,
                lambda base: chain(
                    self._deletes(base, changes().where, before_all=True), self._upserts(rows, changes())
                ),
                all_rows=where is None,
            )

        def stage(base: int) -> Staging:
            found = changes()
            return self._rewrite(None if where is None else found, base, Act.DELETE, (rows, found))

        return self._writer.replace(stage, commit_id, kind="overwrite", all_rows=where is None)

    def truncate(self, commit_id: CommitId | None) -> Snapshot | None:
        """Delete all rows."""
        self._writer.refresh().check_says_deletes("truncate", all_rows=True)
        if self._table.spec.has_key:
            return self._change("truncate", commit_id, lambda base: self._deletes(base, None), all_rows=True)
        return self._writer.replace(
            lambda base: self._rewrite(None, base, Act.DELETE), commit_id, kind="truncate", all_rows=True
        )

    def merge(
        self, source: Batches, on: str | Sequence[str], when: Sequence[Clause], commit_id: CommitId | None
    ) -> Snapshot | None:
        """Merge rows of a source into the table."""
        self._writer.refresh().check_says_deletes("merge")
        merge = self._writer.checked(lambda: LocalMerge(self._table.spec, source.schema, on, when))
        with merge().opened(source()) as engine:
            if self._table.spec.has_key:
                return self._change("merge", commit_id, lambda base: self._merged(merge(), engine, base))
            return self._writer.replace(lambda base: self._merge_files(merge(), engine, base), commit_id, kind="merge")

    def _change(
        self,
        kind: str,
        commit_id: CommitId | None,
        changes: Callable[[int], Iterator[pa.RecordBatch]],
        *,
        all_rows: bool = False,
    ) -> Snapshot | None:
        """Write the changes that a statement computes from a snapshot's rows, in a table with a key."""

        def stage(stager: Stager) -> list[StagedFile]:
            assert stager.base is not None
            return stage_changes(changes(stager.base), stager)

        return self._writer.write(stage, commit_id, kind=kind, all_rows=all_rows)

    def _rows(self, snapshot: int, columns: Sequence[str], where: TextPredicate | None) -> Iterator[pa.RecordBatch]:
        schema = self._table.spec.arrow
        wanted = pa.schema([schema.field(name) for name in columns])
        return reader(self._table.files, snapshot, wanted, where, cores())()

    def _deletes(
        self, snapshot: int, where: TextPredicate | None, *, before_all: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield deletes of the rows that a condition selects; ``before_all`` orders them before all other changes."""
        schema, keys = change_file_schema(self._table.spec), self._table.spec.primary_key
        first = -_BEFORE_ALL if before_all else 0
        for batch in self._rows(snapshot, keys, where):
            columns = {name: batch.column(name) for name in keys}
            yield _as_changes(columns, batch.num_rows, RowKind.DELETE, first, schema)
            first += batch.num_rows

    def _updates(self, snapshot: int, changes: RowChanges) -> Iterator[pa.RecordBatch]:
        schema, first = change_file_schema(self._table.spec), 0
        with changes.evaluator() as evaluator:
            for batch in self._rows(snapshot, self._table.spec.arrow.names, changes.where):
                after = evaluator.updated(batch)
                columns = dict(zip(after.schema.names, after.columns, strict=True))
                yield _as_changes(columns, batch.num_rows, RowKind.UPDATE_AFTER, first, schema)
                first += batch.num_rows

    def _moves(self, snapshot: int, changes: RowChanges) -> Iterator[pa.RecordBatch]:
        """Yield the changes of an update that sets key columns."""
        spec = self._table.spec

        def pairs() -> Iterator[pa.RecordBatch]:
            with changes.evaluator() as evaluator:
                for batch in self._rows(snapshot, spec.arrow.names, changes.where):
                    keys = [batch.column(name) for name in spec.primary_key]
                    yield pairs_of(spec, keys, evaluator.updated(batch).columns, np.ones(batch.num_rows, dtype=bool))

        return changes_of_pairs(spec, pairs(), self._rows(snapshot, spec.primary_key, None))

    def _merged(self, merge: LocalMerge, engine: DuckDBPyConnection, snapshot: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a merge into a table with a key."""
        spec = self._table.spec

        def pairs() -> Iterator[pa.RecordBatch]:
            for found in merge.matches(engine, self._rows(snapshot, merge.columns, None)):
                keys = [found.old[name] for name in spec.primary_key]
                yield pairs_of(spec, keys, found.new, found.updated, found.inserted, found.deleted)

        # A row that matches by its key alone cannot arrive under the key of another row.
        held = None if merge.by_key else self._rows(snapshot, spec.primary_key, None)
        return changes_of_pairs(spec, pairs(), held)

    def _merge_files(self, merge: LocalMerge, engine: DuckDBPyConnection, base: int) -> Staging:
        """Stage a merge into a table without a key: rewrite the files with rows that it changes."""
        table, files = self._table, self._table.files.base_table.files(base)
        rows = self._numbered(files, range(len(files)), base, merge.columns, table.spec)
        with row_acts(table.spec, merge.matches(engine, rows, places=True)) as acts:
            changed = acts.files()
            stored = table.stored_spec() if changed else table.spec
            before = self._numbered(files, changed, base, stored.arrow.names, stored)
            with closing(acts.rewritten(before, stored.arrow)) as rewritten:
                staged = stage_in_one(rewritten, table.file_rewriter(stored))
        return staged, Replaced((), [files[number] for number in changed], base)

    def _numbered(
        self, files: Sequence[DataFile], numbers: Iterable[int], base: int, columns: Sequence[str], spec: TableSpec
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of files with their numbers, which are the same each time; ``numbers`` selects the files."""
        for number in numbers:
            first = number << FILE_SHIFT
            for batch in self._file_rows(files[number], base, spec):
                place = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
                yield batch.select(columns).append_column(PLACE, place)
                first += batch.num_rows

    def _partitions_of(self, rows: Batches) -> list[dict[str, object]]:
        """Return the distinct partition values of rows."""
        names = list(self._table.spec.partition_by)
        batches = prepare_batches(rows.under(self._table.spec)(), self._table.spec, task=0)
        return distinct_rows((batch.select(names) for batch in batches), self._table.spec.arrow, names)

    def _overwrite_partitions(self, rows: Batches, base: int) -> Staging:
        spec = self._table.spec
        every = RowChanges(spec.arrow, "overwrite", None)
        staged = stage_in_one(self._inserts(rows, every, spec.arrow), self._table.file_rewriter(spec))
        return staged, replaced_partitions(self._table.files, staged, base)

    def _upserts(self, rows: Batches, changes: RowChanges) -> Iterator[pa.RecordBatch]:
        """Yield new rows as changes; staging rejects those that do not satisfy the condition."""
        with changes.evaluator() as evaluator:
            for batch in prepare_batches(rows.under(self._table.spec)(), self._table.spec, task=0):
                inside = evaluator.matches(batch)
                kinds = pc.if_else(inside, batch.column(KIND), pa.scalar(OUTSIDE, pa.int8()))
                yield batch.set_column(batch.schema.get_field_index(KIND), batch.schema.field(KIND), kinds)

    def _inserts(self, rows: Batches, changes: RowChanges, stored: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield new rows of a table without a key in the layout that the rewriter takes: old row, act, new row."""
        with changes.evaluator() as evaluator:
            for batch in prepare_batches(rows.under(self._table.spec)(), self._table.spec, task=0):
                acts = pc.if_else(
                    evaluator.matches(batch), pa.scalar(int(Act.INSERT), pa.int8()), pa.scalar(OUTSIDE, pa.int8())
                )
                absent = [pa.nulls(batch.num_rows, field.type) for field in stored]
                yield _for_rewriter(absent, acts, batch.columns)

    def _rewrite(self, changes: RowChanges | None, base: int, act: Act, new: NewRows | None = None) -> Staging:
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
        stored = table.stored_spec() if some else table.spec
        kept = () if changes is None else self._acts(some, base, changes, act, stored)
        added = () if new is None else self._inserts(*new, stored.arrow)
        staged = stage_in_one(chain(kept, added), table.file_rewriter(stored)) if some or new else []
        return staged, Replaced(whole, some, base)

    def _count(self, file: DataFile, base: int, changes: RowChanges) -> int:
        """Return how many rows of a file a condition selects."""
        with changes.evaluator() as evaluator:
            return sum(
                pc.sum(evaluator.matches(batch)).as_py() or 0 for batch in self._file_rows(file, base, self._table.spec)
            )

    def _acts(
        self, files: Sequence[DataFile], base: int, changes: RowChanges, act: Act, stored: TableSpec
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files in the layout that the rewriter takes, the rows that stay apart from the others."""
        width = len(self._table.spec.arrow)
        with changes.evaluator() as evaluator:
            for batch in chain.from_iterable(self._file_rows(file, base, stored) for file in files):
                matches = evaluator.matches(batch)
                stay, affected = batch.filter(pc.invert(matches)), batch.filter(matches)
                yield _for_rewriter(stay.columns, _acts(Act.KEEP, stay.num_rows))
                after = evaluator.updated(affected).columns[:width] if act is Act.UPDATE else ()
                yield _for_rewriter(affected.columns, _acts(act, affected.num_rows), after)

    def _file_rows(self, file: DataFile, base: int, spec: TableSpec) -> Iterator[pa.RecordBatch]:
        files = self._table.files
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
        KIND: kind_column(kind, rows),
        SEQ: pa.array(np.arange(first, first + rows, dtype=np.int64)),
    }
    given = {**columns, **system}
    arrays = [given[field.name] if field.name in given else pa.nulls(rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
