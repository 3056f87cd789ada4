"""Queries over tables of DuckDB with more long values than fit into its memory, part by part of their keys.

DuckDB spills tables, and joins and sorts of short rows. But it joins and sorts values of about 2 KB and more only in
memory. So a query that does either gets a part of the keys at a time. Rows of one key are in the same part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.arrow_slices import slices
from snapshot.merge.waiting_rows import WaitingRows
from snapshot.schema.system_columns import SEQ

_LONG = 1024
_PART_BYTES = 16 << 20
"""Size of the long values of a part: a query may hold several copies of them."""
_SLICE_BYTES = 1 << 20
"""Size of the batches that wait to be put in order: each step reads one or two of each part."""

Rows = Iterator[pa.RecordBatch]


def long_bytes(rows: pa.RecordBatch) -> int:
    """Return the size of the long values among some rows, in bytes."""
    return sum(map(_long_bytes, rows.columns))


def by_parts(
    session: duckdb.DuckDBPyConnection, tables: Mapping[str, int], keys: Sequence[str], query: Callable[[], Rows]
) -> Rows:
    """Yield what a query over temporary tables returns for each part of their rows.

    Args:
        session: the session.
        tables: the size of each table's long values (``long_bytes``); while the query runs, each table has only the
            rows of the part.
        keys: the columns, which all tables have, by which rows belong together.
        query: runs the query and yields its rows; it must not change the tables.
    """
    parts = _parts(tables)
    if parts == 1:
        yield from query()
        return
    for table in tables:
        session.execute(f"ALTER TABLE {table} RENAME TO all_{table}")
    for part in range(parts):
        for table in tables:
            is_in = f"hash({', '.join(keys)}) % {parts} = {part}"
            session.execute(f"CREATE TEMP TABLE {table} AS SELECT * FROM all_{table} WHERE {is_in}")
        yield from query()
        for table in tables:
            session.execute(f"DROP TABLE {table}")
    for table in tables:
        session.execute(f"ALTER TABLE all_{table} RENAME TO {table}")


def in_order(
    session: duckdb.DuckDBPyConnection, tables: Mapping[str, int], keys: Sequence[str], query: Callable[[], Rows]
) -> Rows:
    """Yield the same rows as ``by_parts`` in the order of ``_seq``, in which the query returns them.

    Raises:
        UnavailableError: there is no room for a temporary file.
    """
    rows = by_parts(session, tables, keys, query)
    if _parts(tables) == 1:
        yield from rows
        return
    first = next(rows, None)
    if first is None:
        return
    sliced = chain.from_iterable(slices(batch, _SLICE_BYTES) for batch in chain([first], rows))
    with WaitingRows(first.schema) as waiting:
        # Copied, because a view of one column would hold its whole batch.
        seqs = [np.array(batch.column(SEQ)) for batch in waiting.added(sliced)]
        yield from waiting.taken(np.argsort(np.concatenate(seqs), kind="stable"))


def _parts(tables: Mapping[str, int]) -> int:
    return max(1, -(-sum(tables.values()) // _PART_BYTES))


def _long_bytes(values: pa.Array) -> int:
    if pa.types.is_nested(values.type):
        return int(values.nbytes) if values.nbytes > _LONG * len(values) else 0
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return 0
    lengths = pc.binary_length(values)
    return pc.sum(lengths.filter(pc.greater(lengths, _LONG))).as_py() or 0
