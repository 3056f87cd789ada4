"""Shaping of Arrow batches, for the tasks of ``format("tablestore")`` and for local frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.row_kind import CHANGE_TYPE, CHANGE_TYPE_NAMES, KIND, RowKind
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import SEQ, conform
from snapshot.staging.stage import change_file_schema

_TASK_SHIFT = 33
"""Row numbers of a task stay below 2**33, as in Spark's ``monotonically_increasing_id``."""


def prepare_batches(
    batches: Iterator[pa.RecordBatch], spec: TableSpec, task: int, *, preimages: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows with the table's columns and, for a key table, ``_kind`` and ``_seq``.

    See ``prepare_input.prepare_changes``, which does the same for frames.
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
            columns[KIND] = pa.repeat(pa.scalar(int(RowKind.UPDATE_AFTER), pa.int8()), batch.num_rows)
            columns[SEQ] = pa.array(np.arange(row, row + batch.num_rows))
            if CHANGE_TYPE in names:
                given = batch.column(names[CHANGE_TYPE])
                columns[KIND] = _kinds(given)
                if not preimages:
                    keep = pc.fill_null(pc.not_equal(given, RowKind.UPDATE_BEFORE.change_type), fill_value=True)
        row += batch.num_rows
        shaped = pa.RecordBatch.from_pydict(columns)
        yield conform(shaped if keep is None else shaped.filter(keep), target)


def deletes_of(keys: pa.Table, spec: TableSpec, kept: Sequence[str]) -> pa.Table:
    """Return a delete for each row of keys, with the columns in ``kept``; see ``prepare_input.deletes_of``."""
    names = {name.lower(): name for name in keys.column_names}
    columns = [
        keys.column(names[f.name.lower()]) if f.name in kept else pa.nulls(keys.num_rows, f.type) for f in spec.arrow
    ]
    kind = pa.repeat(pa.scalar(RowKind.DELETE.change_type), keys.num_rows)
    return pa.table([*columns, kind], names=[*spec.arrow.names, CHANGE_TYPE])


def _kinds(change_types: pa.Array) -> pa.Array:
    """Map ``_change_type`` to row kinds for writing, -1 if it is invalid; see ``prepare_input.kind_of``."""
    number = pc.fill_null(pc.index_in(change_types, pa.array(CHANGE_TYPE_NAMES)), -1).cast(pa.int8())
    insert = pa.scalar(int(RowKind.INSERT), pa.int8())
    return pc.if_else(pc.equal(number, insert), pa.scalar(int(RowKind.UPDATE_AFTER), pa.int8()), number)
