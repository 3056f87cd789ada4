"""The actions of a merge on each row of a table without a key, in DuckDB, spilling to disk."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from snapshot.merge.duckdb_engine import load, read, spilling, streamed
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET
from snapshot.staging.file_rewriter import Act
from snapshot.staging.stage import AMBIGUOUS
from tablestore.local.key_changes import MEMORY
from tablestore.local.merge import PLACE, Matches

FILE_SHIFT = 40
"""A row's number is its file's number, shifted by this many bits, and its position in the file."""


@contextmanager
def row_acts(spec: TableSpec, matches: Iterable[Matches]) -> Iterator[RowActs]:
    """Store the actions of a merge on the table's rows, which ``matches`` numbers, and the rows that it inserts."""
    new = [pa.field(f"n{i}", field.type) for i, field in enumerate(spec.arrow)]
    schema = pa.schema([pa.field(PLACE, pa.int64()), pa.field("act", pa.int8()), *new])
    with spilling(memory_limit=MEMORY) as connection:
        load(connection, "pairs", schema, (_as_pairs(each, schema) for each in matches))
        updates, deletes = f"count(*) FILTER (act = {int(Act.UPDATE)})", f"count(*) FILTER (act = {int(Act.DELETE)})"
        values = ", ".join(f"any_value({f.name}) FILTER (act = {int(Act.UPDATE)}) AS {f.name}" for f in new)
        connection.execute(
            f"CREATE TEMP TABLE acts AS SELECT {PLACE}, CASE WHEN {updates} + least({deletes}, 1) > 1 THEN {AMBIGUOUS} "
            f"WHEN {updates} > 0 THEN {int(Act.UPDATE)} ELSE {int(Act.DELETE)} END AS act, {values} "
            f"FROM pairs WHERE act <> {int(Act.INSERT)} GROUP BY {PLACE}"
        )
        yield RowActs(connection, spec)


class RowActs:
    """The action of a merge on each row."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, spec: TableSpec) -> None:
        self._connection = connection
        self._spec = spec

    def files(self) -> list[int]:
        """Return the numbers of the files with rows that change."""
        found = self._connection.execute(f"SELECT DISTINCT {PLACE} >> {FILE_SHIFT} FROM acts ORDER BY 1").fetchall()
        return [number for (number,) in found]

    def rewritten(self, before: Iterable[pa.RecordBatch], stored: pa.Schema) -> Generator[pa.RecordBatch]:
        """Yield rows in the layout that the rewriter takes: those of the table, then those that are inserted.

        Args:
            before: the rows of the files that change, with their numbers.
            stored: the columns of these files, also those of other writers.
        """
        columns = range(len(self._spec.arrow))
        old = [pa.field(f"o{i}", field.type) for i, field in enumerate(stored)]
        new = [pa.field(f"n{i}", field.type) for i, field in enumerate(self._spec.arrow)]
        wanted = pa.schema([*old, pa.field(BUCKET, pa.int8()), *new])
        given = pa.schema([*old, pa.field(PLACE, pa.int64())])
        after = ", ".join(f"n{i}" for i in columns)
        rows = (pa.RecordBatch.from_arrays(batch.columns, schema=given) for batch in before)
        with streamed(self._connection, "before", given, rows):
            sql = f"SELECT {', '.join(f.name for f in old)}, coalesce(act, {int(Act.KEEP)}), {after}"
            yield from read(self._connection, f"{sql} FROM before LEFT JOIN acts USING ({PLACE})", [], wanted)
        sql = f"SELECT {', '.join('NULL' for _ in old)}, act, {after} FROM pairs WHERE act = {int(Act.INSERT)}"
        yield from read(self._connection, sql, [], wanted)


def _as_pairs(matches: Matches, schema: pa.Schema) -> pa.RecordBatch:
    acts = matches.inserted * int(Act.INSERT) + matches.updated * int(Act.UPDATE) + matches.deleted * int(Act.DELETE)
    return pa.RecordBatch.from_arrays([matches.places, pa.array(acts, pa.int8()), *matches.new], schema=schema)
