"""The changes of a statement that may move rows to other keys; DuckDB decides them, spilling to disk.

Its input are pairs: a row before the statement and after it. A pair has the columns ``k0``, ... (the old row's key),
``n0``, ... (the new row), ``of_old`` and ``of_new`` (the ``Fate`` under the old and the new key; NULL for none).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.merge.duckdb_engine import load, read, spilling, streamed
from snapshot.row_kind import KIND
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import SEQ
from snapshot.staging.stage import change_file_schema
from tablestore.dml.row_fates import Fate, change_of_fate

MEMORY = "512MB"
"""The memory limit of a statement's DuckDB, which spills the rest."""
_OLD, _NEW = "of_old", "of_new"


def pair_schema(spec: TableSpec) -> pa.Schema:
    """Return the columns of pairs."""
    keys = [pa.field(f"k{i}", spec.arrow.field(name).type) for i, name in enumerate(spec.primary_key)]
    new = [pa.field(f"n{i}", field.type) for i, field in enumerate(spec.arrow)]
    return pa.schema([*keys, *new, pa.field(_OLD, pa.int8()), pa.field(_NEW, pa.int8())])


def pairs_of(
    spec: TableSpec,
    keys: Sequence[pa.Array],
    new: Sequence[pa.Array],
    updated: np.ndarray,
    inserted: np.ndarray | None = None,
    deleted: np.ndarray | None = None,
) -> pa.RecordBatch:
    """Return pairs of rows.

    Args:
        spec: the table.
        keys: the old rows' key columns.
        new: the new rows' columns.
        updated: a mask of the rows that have new values.
        inserted: a mask of the rows without an old row; None if there are none.
        deleted: a mask of the rows without a new row; None if there are none.
    """
    same = np.ones(len(updated), dtype=bool)
    for name, old in zip(spec.primary_key, keys, strict=True):
        equal = pc.fill_null(pc.equal(old, new[spec.arrow.get_field_index(name)]), fill_value=False)
        same &= equal.to_numpy(zero_copy_only=False)
    of_new, of_old = np.zeros(len(updated), dtype=np.int8), np.zeros(len(updated), dtype=np.int8)
    of_new[updated & same] = Fate.CHANGED
    of_new[updated & ~same] = Fate.ARRIVED
    of_old[updated & ~same] = Fate.LEFT
    if inserted is not None:
        of_new[inserted] = Fate.ARRIVED
    if deleted is not None:
        of_old[deleted] = Fate.DELETED
    fates = [pa.array(each, mask=each == 0) for each in (of_old, of_new)]
    return pa.RecordBatch.from_arrays([*keys, *new, *fates], schema=pair_schema(spec))


def changes_of_pairs(
    spec: TableSpec, pairs: Iterable[pa.RecordBatch], held: Iterable[pa.RecordBatch] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the change of each key, in the layout of change files; staging rejects those that are marked as invalid.

    ``held`` has the keys of all rows before the statement, read to the end; None if no row can arrive under the key of
    a row that stays.
    """
    schema, keys = change_file_schema(spec), range(len(spec.primary_key))
    places = [spec.arrow.get_field_index(name) for name in spec.primary_key]
    columns = [f"c{i}" for i in range(len(spec.arrow))]
    with spilling(memory_limit=MEMORY) as connection:
        load(connection, "pairs", pair_schema(spec), pairs)
        of_key = {place: f"k{i}" for i, place in enumerate(places)}
        new = ", ".join(f"n{i} AS c{i}" for i in range(len(columns)))
        old = ", ".join(of_key.get(i, "NULL") for i in range(len(columns)))
        fates = f"SELECT {new}, {_NEW} AS {KIND} FROM pairs WHERE {_NEW} IS NOT NULL"
        fates += f" UNION ALL SELECT {old}, {_OLD} FROM pairs WHERE {_OLD} IS NOT NULL"
        if held is not None:
            names = [f"k{i}" for i in keys]
            wanted = pa.schema([pair_schema(spec).field(i) for i in keys])
            renamed = (pa.RecordBatch.from_arrays(batch.columns, schema=wanted) for batch in held)
            equal = " AND ".join(f"held.k{i} = pairs.n{place}" for i, place in enumerate(places))
            with streamed(connection, "held", wanted, renamed):
                connection.execute(
                    f"CREATE TEMP TABLE stays AS SELECT {', '.join(names)} FROM held SEMI JOIN "
                    f"(SELECT * FROM pairs WHERE {_NEW} = {int(Fate.ARRIVED)}) AS pairs ON {equal}"
                )
            fates += f" UNION ALL SELECT {old}, {int(Fate.STAYS)} FROM stays"
        kind = change_of_fate(", ".join(f"c{place}" for place in places))
        decided = f"SELECT {', '.join(columns)}, {kind} AS {KIND} FROM ({fates})"
        sql = f"SELECT *, row_number() OVER () AS {SEQ} FROM ({decided}) WHERE {KIND} IS NOT NULL"
        yield from read(connection, sql, [], schema)
