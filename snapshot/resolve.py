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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from snapshot.duck import errors_mapped, read, spilling
from snapshot.merge import BaseFile, ChangeFile, MergeEngine
from snapshot.numbered import columns_of, keys_of, load_numbered, numbered, same_key, same_row
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
        with spilling("resolve-", memory_limit=_MEMORY) as session, errors_mapped("look up replaced rows"):
            buckets: dict[int, None] = {}
            for bucket, part in parts:
                if bucket not in buckets:
                    load_numbered(session, f"new{bucket}", schema, iter(()))
                    buckets[bucket] = None
                session.register("part", numbered(part))
                session.execute(f"INSERT INTO new{bucket} SELECT * FROM part")
                session.unregister("part")
            for bucket in sorted(buckets):
                yield from self._resolved(session, bucket, schema)
                session.execute(f"DROP TABLE new{bucket}")

    def rows(self, bucket: int, keys: pa.Table | None) -> Iterator[pa.RecordBatch]:
        """Find rows of a bucket.

        Args:
            bucket: the bucket.
            keys: the keys whose rows are wanted, in the order of the primary key's columns; None for all.

        Yields:
            The table's columns, in no particular order.
        """
        filesystem = None if self.storage.is_local else self.storage.filesystem
        with MergeEngine(self.spec.arrow, self.spec.primary_key, filesystem=filesystem) as engine:
            yield from engine.merged(self.base.get(bucket, ()), self.changes.get(bucket, ()), keys=keys)

    def _resolved(self, session: duckdb.DuckDBPyConnection, bucket: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        asked = session.sql(f"SELECT {', '.join(keys_of(self.spec))} FROM new{bucket}").to_arrow_table()
        load_numbered(session, "old", self.spec.arrow, self.rows(bucket, asked))
        yield from read(session, _changes(f"new{bucket}", self.spec), [], schema)
        session.execute("DROP TABLE old")


def _changes(new: str, spec: TableSpec) -> str:
    """Write the query of the changes that upserts and deletes make."""
    columns, keys = columns_of(spec), keys_of(spec)
    on_key, unchanged = same_key(keys, "old", "new"), same_row(columns, "old", "new")
    kind, seq, row = f"new.c{len(columns)}", f"new.c{len(columns) + 1}", ", ".join(f"{{0}}.{c} AS {c}" for c in columns)
    is_delete, existed = f"{kind} = {RowKind.DELETE:d}", f"old.{keys[0]} IS NOT NULL"
    return f"""
        SELECT {", ".join(columns)}, kind::TINYINT AS {KIND}, row_number() OVER (ORDER BY seq, step) - 1 AS {SEQ}
        FROM (
            SELECT {row.format("old")}, {seq} AS seq, 0 AS step,
                CASE WHEN {is_delete} THEN {RowKind.DELETE:d} ELSE {RowKind.UPDATE_BEFORE:d} END AS kind
            FROM {new} AS new JOIN old ON {on_key}
            WHERE {is_delete} OR NOT ({unchanged})
            UNION ALL
            SELECT {row.format("new")}, {seq} AS seq, 1 AS step,
                CASE WHEN {existed} THEN {RowKind.UPDATE_AFTER:d} ELSE {RowKind.INSERT:d} END AS kind
            FROM {new} AS new LEFT JOIN old ON {on_key}
            WHERE NOT ({is_delete}) AND NOT ({existed} AND {unchanged})
        )
        ORDER BY seq, step
    """
