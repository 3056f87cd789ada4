"""Shaping of Arrow batches, for the tasks of ``format("tablestore")`` and for local frames."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.errors import InvalidInputError
from snapshot.merge.merge_rules import LAST_ROW, MergeRule
from snapshot.row_kind import CHANGE_TYPE, CHANGE_TYPE_NAMES, KIND, SIGNS, RowKind
from snapshot.schema.defaults import filled
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, conform, kind_column
from snapshot.staging.stage import UNKNOWN_KIND, UNKNOWN_SIGN, change_file_schema

_CARRIED = (COMMIT_VERSION, COMMIT_TIMESTAMP)
_TASK_SHIFT = 33
"""Row numbers of a task stay below 2**33, as in Spark's ``monotonically_increasing_id``."""


def prepare_batches(
    batches: Iterator[pa.RecordBatch], spec: TableSpec, task: int, rule: MergeRule = LAST_ROW
) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows with the table's columns and, for a key table, ``_kind`` and ``_seq``.

    See ``frame_input.prepare_changes``, which does the same for frames.
    """
    target = change_file_schema(spec) if spec.has_key else spec.arrow
    row = task << _TASK_SHIFT
    for batch in batches:
        names = {name.lower(): number for number, name in enumerate(batch.schema.names)}
        columns = {
            field.name: batch.column(names[field.name.lower()])
            if field.name.lower() in names
            else pa.nulls(batch.num_rows, field.type)
            for field in spec.arrow
        }
        keep = None
        if spec.has_key:
            columns[KIND] = kind_column(RowKind.UPDATE_AFTER, batch.num_rows)
            columns[SEQ] = pa.array(np.arange(row, row + batch.num_rows))
            marks = marks_in(batch.schema.names, spec)
            if marks is not None:
                columns[KIND] = _kinds(batch.column(names[marks.column.lower()]), marks)
                if not rule.takes_preimages:
                    keep = pc.not_equal(columns[KIND], int(RowKind.UPDATE_BEFORE))
        row += batch.num_rows
        if spec.defaults:
            columns = filled(columns, spec.defaults, in_deletes=filled_in_deletes(spec, rule))
        shaped = pa.RecordBatch.from_pydict(columns)
        yield conform(shaped if keep is None else shaped.filter(keep), target)


def filled_in_deletes(spec: TableSpec, rule: MergeRule) -> Collection[str]:
    """Return the columns that have their default in deletes too: those that a delete takes back or is ordered by."""
    return spec.defaults.keys() if rule.takes_preimages else rule.buries


@dataclass(frozen=True)
class KindMarks:
    """The column of a write that says what each row does, and the words for that.

    Attributes:
        column: the column with the kinds.
        names: the name of each kind, by its number.
        unknown: what stands for a kind with another name, which is refused.
        before: the kind of a preimage, which may delete its row.
    """

    column: str
    names: tuple[str, str, str, str]
    unknown: int
    before: RowKind = RowKind.UPDATE_BEFORE


def marks_in(names: Sequence[str], spec: TableSpec) -> KindMarks | None:
    """Return where rows with these columns have their kinds: in ``_change_type``, or as option ``rowkind.field`` says.

    Returns:
        The column and the names of kinds; None if every row is an upsert.
    """
    if CHANGE_TYPE in {name.lower() for name in names}:
        return KindMarks(CHANGE_TYPE, CHANGE_TYPE_NAMES, UNKNOWN_KIND)
    if not spec.rowkind_field:
        return None
    # As in Paimon, whose rows of an update need not have the same key.
    before = RowKind.UPDATE_BEFORE if spec.merges or spec.ignores_preimages else RowKind.DELETE
    return KindMarks(spec.rowkind_field, SIGNS, UNKNOWN_SIGN, before)


def check_names(names: Sequence[str], spec: TableSpec) -> None:
    """Check the names of the columns of rows to write; case does not count.

    Columns that were added to the table later may be missing, so that existing writers continue to work; their rows
    have NULL in them. So may columns with a default.

    Raises:
        InvalidInputError: a column is missing or unknown, or is ``_change_type`` although the table has no key.
    """
    given = {name.lower() for name in names}
    wanted = {name.lower() for name in spec.arrow.names}
    allowed = wanted | ({CHANGE_TYPE, *_CARRIED} if spec.has_key else set())
    if CHANGE_TYPE in given and not spec.has_key:
        msg = (
            f"column {CHANGE_TYPE!r}: only a table with a primary key takes {', '.join(CHANGE_TYPE_NAMES)}; "
            "this table has none. Drop the column to append the rows."
        )
        raise InvalidInputError(msg)
    may_lack = spec.added | spec.defaults.keys()
    missing = [name for name in spec.arrow.names if name.lower() not in given and name not in may_lack]
    extra = [name for name in names if name.lower() not in allowed]
    if missing or extra:
        parts = [f"missing {missing}" if missing else "", f"unknown {extra}" if extra else ""]
        msg = (
            f"the frame's columns are not the table's: {' and '.join(filter(None, parts))}. "
            f"The table has {spec.arrow.names}; select these."
        )
        raise InvalidInputError(msg)


def delete_columns(names: Sequence[str], spec: TableSpec, rule: MergeRule) -> tuple[str, ...]:
    """Return the columns that deletes by key need: those of the key, and the sequence fields if there are any.

    Raises:
        InvalidInputError: the table has no key; the keys lack a key column or a sequence field; or the merge engine
            needs whole rows for deletes.
    """
    if not spec.has_key:
        msg = "delete: this table has no primary key to find rows by."
        raise InvalidInputError(msg)
    if rule.takes_deletes_back:
        msg = (
            f"delete: with merge-engine='{rule.name}' a delete takes its row's values back, and keys alone have none. "
            f"Write whole rows with a column {CHANGE_TYPE!r} that says 'delete'."
        )
        raise InvalidInputError(msg)
    given = {name.lower() for name in names}
    missing = [name for name in spec.primary_key if name.lower() not in given]
    if missing:
        msg = f"delete: the frame lacks key columns {missing}; it has {list(names)}."
        raise InvalidInputError(msg)
    missing = [name for name in rule.buries if name.lower() not in given]
    if missing:
        msg = (
            f"delete: with sequence.field a delete needs its sequence too; the frame lacks {missing}; it has "
            f"{list(names)}. Without it, no row would be older than the delete."
        )
        raise InvalidInputError(msg)
    return (*spec.primary_key, *rule.buries)


def deletes_of(keys: pa.Table, spec: TableSpec, kept: Sequence[str]) -> pa.Table:
    """Return a delete for each row of keys, with the columns in ``kept`` and ``_change_type``."""
    names = {name.lower(): name for name in keys.column_names}
    columns = [
        keys.column(names[f.name.lower()]) if f.name in kept else pa.nulls(keys.num_rows, f.type) for f in spec.arrow
    ]
    kind = pa.repeat(pa.scalar(RowKind.DELETE.change_type), keys.num_rows)
    return pa.table([*columns, kind], names=[*spec.arrow.names, CHANGE_TYPE])


def deletes_reader(keys: pa.RecordBatchReader, spec: TableSpec, kept: Sequence[str]) -> pa.RecordBatchReader:
    """Return the stream of what ``deletes_of`` makes of a stream of keys."""
    deletes = (deletes_of(pa.table(batch), spec, kept) for batch in keys)
    batches = (batch for table in deletes for batch in table.to_batches())
    return pa.RecordBatchReader.from_batches(deletes_of(keys.schema.empty_table(), spec, kept).schema, batches)


def _kinds(given: pa.Array, marks: KindMarks) -> pa.Array:
    """Map names of kinds to row kinds for writing; as ``frame_input.prepare_changes`` does."""
    number = pc.fill_null(pc.index_in(given, pa.array(marks.names)), marks.unknown).cast(pa.int8())
    for kind, written in ((RowKind.INSERT, RowKind.UPDATE_AFTER), (RowKind.UPDATE_BEFORE, marks.before)):
        number = pc.if_else(pc.equal(number, int(kind)), pa.scalar(int(written), pa.int8()), number)
    return number
