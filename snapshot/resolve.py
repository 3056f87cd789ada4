"""Resolve: a batch of upserts and deletes against the rows it replaces, while it is staged (``changelog-producer``).

Of each key the batch has one change, its last. What it becomes:

===========  =================  =========================================
change       row in the table   becomes
===========  =================  =========================================
upsert       none               ``INSERT``
upsert       the same           nothing
upsert       another            ``UPDATE_BEFORE`` with it, ``UPDATE_AFTER``
delete       none               nothing
delete       any                ``DELETE`` with it
===========  =================  =========================================

The rows are those of one snapshot, so the commit has to find that nobody committed since (``commit.py``).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from snapshot.duck import connect, errors_mapped, load, read
from snapshot.merge import BaseFile, ChangeFile, MergeEngine
from snapshot.rowkind import KIND, RowKind
from snapshot.schema import SEQ
from snapshot.spec import TableSpec
from snapshot.storage import Storage

_MEMORY = "256MB"


@dataclass(frozen=True)
class Lookup:
    """The rows of one snapshot, to be found by key. Picklable.

    Attributes:
        snapshot: the snapshot.
        storage: the table's root folder.
        spec: the table.
        base: for each bucket, its base files.
        changes: for each bucket, the change files that the base does not contain yet.
    """

    snapshot: int
    storage: Storage
    spec: TableSpec
    base: Mapping[int, tuple[BaseFile, ...]]
    changes: Mapping[int, tuple[ChangeFile, ...]]

    def resolve(self, parts: Iterable[tuple[int, pa.RecordBatch]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Turn upserts and deletes into the changes they make.

        Args:
            parts: buckets and rows of them, one row a key: the table's columns, ``_kind``, ``_seq``.
            schema: of the rows, and of what is given.

        Yields:
            The changes, bucket by bucket, in the order of the rows, ``_seq`` counted anew in each bucket.
        """
        spill = tempfile.mkdtemp(prefix="resolve-")
        session = connect(memory_limit=_MEMORY, temp_directory=spill, filesystem=None)
        try:
            with errors_mapped("look up replaced rows"):
                session.execute("SET TimeZone = 'UTC'")
                buckets: dict[int, None] = {}
                for bucket, part in parts:
                    if bucket not in buckets:
                        load(session, f"new{bucket}", _numbered(schema), iter(()))
                        buckets[bucket] = None
                    session.register("part", _renamed(part))
                    session.execute(f"INSERT INTO new{bucket} SELECT * FROM part")
                    session.unregister("part")
                for bucket in sorted(buckets):
                    yield from self._resolved(session, bucket, schema)
                    session.execute(f"DROP TABLE new{bucket}")
        finally:
            session.close()
            shutil.rmtree(spill, ignore_errors=True)

    def _resolved(self, session: duckdb.DuckDBPyConnection, bucket: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        filesystem = None if self.storage.is_local else self.storage.filesystem
        keys = [self.spec.arrow.get_field_index(name) for name in self.spec.primary_key]
        asked = session.sql(f"SELECT {', '.join(f'c{key}' for key in keys)} FROM new{bucket}").to_arrow_table()
        spec = self.spec
        with MergeEngine(spec.arrow, spec.primary_key, stored=spec.stored, filesystem=filesystem) as engine:
            old = engine.merged(self.base.get(bucket, ()), self.changes.get(bucket, ()), keys=asked)
            load(session, "old", _numbered(self.spec.arrow), map(_renamed, old))
        yield from read(session, _changes(f"new{bucket}", len(self.spec.arrow), keys), [], schema)
        session.execute("DROP TABLE old")


def _changes(new: str, columns: int, keys: list[int]) -> str:
    """Write the query of the changes that upserts and deletes make."""
    same_key = " AND ".join(f"old.c{key} = new.c{key}" for key in keys)
    # As text too, since -0.0 equals 0.0 and is another value.
    same_row = " AND ".join(
        f"old.c{i} IS NOT DISTINCT FROM new.c{i} AND old.c{i}::VARCHAR IS NOT DISTINCT FROM new.c{i}::VARCHAR"
        for i in range(columns)
    )
    kind, seq, row = f"new.c{columns}", f"new.c{columns + 1}", ", ".join(f"{{0}}.c{i} AS c{i}" for i in range(columns))
    is_delete, existed = f"{kind} = {RowKind.DELETE:d}", f"old.c{keys[0]} IS NOT NULL"
    return f"""
        SELECT {", ".join(f"c{i}" for i in range(columns))}, kind::TINYINT AS {KIND},
            row_number() OVER (ORDER BY seq, step) - 1 AS {SEQ}
        FROM (
            SELECT {row.format("old")}, {seq} AS seq, 0 AS step,
                CASE WHEN {is_delete} THEN {RowKind.DELETE:d} ELSE {RowKind.UPDATE_BEFORE:d} END AS kind
            FROM {new} AS new JOIN old ON {same_key}
            WHERE {is_delete} OR NOT ({same_row})
            UNION ALL
            SELECT {row.format("new")}, {seq} AS seq, 1 AS step,
                CASE WHEN {existed} THEN {RowKind.UPDATE_AFTER:d} ELSE {RowKind.INSERT:d} END AS kind
            FROM {new} AS new LEFT JOIN old ON {same_key}
            WHERE NOT ({is_delete}) AND NOT ({existed} AND {same_row})
        )
        ORDER BY seq, step
    """


def _numbered(schema: pa.Schema) -> pa.Schema:
    """Rename columns to their numbers, so that no user's name can hide one of ours."""
    return pa.schema([field.with_name(f"c{i}").with_nullable(True) for i, field in enumerate(schema)])


def _renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=_numbered(batch.schema))
