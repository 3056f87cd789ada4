"""Changelog lookup: resolves staged upserts and deletes against the existing rows of their keys.

A merge engine (``merge/merge_rules.py``) first merges all rows of a key, including the existing one, into one change.
Without a merge engine, the batch has only the last change of each key. With ``changelog-producer=lookup`` the change
becomes:

===========  =================  =========================================
change       existing row       becomes
===========  =================  =========================================
upsert       none               ``INSERT``
upsert       the same           nothing
upsert       another            ``UPDATE_BEFORE`` (old), ``UPDATE_AFTER``
delete       none               nothing
delete       any                ``DELETE`` with all columns of the old row
===========  =================  =========================================

Without lookup, the merged row becomes an ``UPDATE_AFTER`` or a ``DELETE``, or nothing if it equals the existing row.
The existing rows are those of one snapshot, so the commit must check that no other commit followed
(``store/commit.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import duckdb
import pyarrow as pa

from snapshot.arrow_slices import unsliced
from snapshot.merge.aggregate_sql import merge
from snapshot.merge.duckdb_engine import errors_mapped, read, spilling
from snapshot.merge.key_parts import in_order, long_bytes
from snapshot.merge.merge_reader import BucketFiles, MergeReader
from snapshot.merge.merge_rules import MergeRule
from snapshot.merge.numbered_columns import columns_of, keys_of, load_numbered, names_in, numbered, same_key, same_row
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import SEQ, renumbered
from snapshot.staging.tombstones import load_graves, tombstone_schema
from snapshot.storage import Storage


@dataclass(frozen=True)
class Lookup:
    """Looks up rows of one snapshot by key. Picklable.

    Attributes:
        storage: the table's root folder.
        spec: the table.
        files: the files of each bucket that has any.
        tombstones: for each bucket, the sizes of its tombstone files (``parquet_writer.py``) by their paths.
    """

    storage: Storage
    spec: TableSpec
    files: Mapping[int, BucketFiles]
    tombstones: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def resolve(
        self,
        parts: Iterable[tuple[int, pa.RecordBatch]],
        schema: pa.Schema,
        rule: MergeRule,
        *,
        changelog: bool,
        keeps_same: bool,
        bury: Callable[[int, pa.RecordBatch], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes that upserts and deletes make to the existing rows.

        Args:
            parts: buckets with their rows: the table's columns, ``_kind``, ``_seq``. If the rule does not merge, one
                row per key.
            schema: the schema of the rows and of the result.
            rule: how rows of a key are merged.
            changelog: whether the result contains the rows before the changes.
            keeps_same: without ``changelog``, whether a row equal to the existing one is yielded too.
            bury: called with a bucket and tombstones: key, sequence, and ``_seq``, the time in milliseconds since the
                epoch.

        Yields:
            The changes, bucket by bucket, in the order of the rows; ``_seq`` starts at 0 in each bucket.

        Raises:
            InvalidInputError: a merged value cannot be stored.
        """
        merged = "settled" if rule.merges else "new"
        query = _changelog(merged, self.spec) if changelog else _upserts(merged, self.spec, keeps_same=keeps_same)
        mapped = errors_mapped("look up replaced rows")
        with self._engine() as engine, spilling(remote=engine.remote) as session, mapped:
            sizes: dict[int, int] = {}
            for bucket, part in parts:
                if bucket not in sizes:
                    load_numbered(session, f"new{bucket}", schema, iter(()))
                sizes[bucket] = sizes.get(bucket, 0) + long_bytes(part)
                session.register("part", unsliced(numbered(part)))
                session.execute(f"INSERT INTO new{bucket} SELECT * FROM part")
                session.unregister("part")
            for bucket in sorted(sizes):
                session.execute(f"ALTER TABLE new{bucket} RENAME TO new")
                tables = {"new": sizes[bucket], **self._look_up(session, engine, bucket, rule)}
                changes = partial(self._changes, session, rule, query, schema, partial(bury, bucket))
                # Numbered here, because a window of DuckDB would hold all rows in memory.
                yield from renumbered(in_order(session, tables, keys_of(self.spec), changes))
                for table in tables:
                    session.execute(f"DROP TABLE {table}")

    def rows(self, bucket: int, keys: pa.Table | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a bucket with these keys, in the order of the primary key; all rows if ``keys`` is None.

        Yields:
            The table's columns, in no particular order.
        """
        with self._engine() as engine:
            yield from self._rows(engine, bucket, keys)

    def _rows(self, engine: MergeReader, bucket: int, keys: pa.Table | None) -> Iterator[pa.RecordBatch]:
        files = self.files.get(bucket, BucketFiles())
        return engine.merged(files.base, files.changes, keys=keys)

    def _look_up(
        self, session: duckdb.DuckDBPyConnection, engine: MergeReader, bucket: int, rule: MergeRule
    ) -> dict[str, int]:
        """Create the table ``old`` of existing rows with new keys and, if the rule merges tombstones, ``graves``.

        Returns:
            The size of the long values of each table.
        """
        old: Iterator[pa.RecordBatch] = iter(())
        if bucket in self.files:
            keys = ", ".join(keys_of(self.spec))
            asked = session.sql(f"SELECT DISTINCT {keys} FROM new").to_arrow_table()
            old = self._rows(engine, bucket, asked)
        sizes = {"old": load_numbered(session, "old", self.spec.arrow, old)}
        if rule.buries and rule.merges:
            load_graves(session, self.spec, rule, self.tombstones.get(bucket, {}), engine.remote)
            sizes["graves"] = 0
        return sizes

    def _changes(
        self,
        session: duckdb.DuckDBPyConnection,
        rule: MergeRule,
        query: str,
        schema: pa.Schema,
        bury: Callable[[pa.RecordBatch], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes that the rows of the table ``new`` make to those of ``old``, in the order of ``_seq``."""
        if rule.merges:
            merge(session, self.spec, rule)
        elif rule.buries:
            session.execute(f"CREATE TEMP TABLE buried AS {_deleted(self.spec, rule)}")
        yield from read(session, query, [], schema)
        if rule.buries:
            for rows in read(session, *_tombstones(self.spec, rule)):
                bury(rows)
            session.execute("DROP TABLE buried")
        if rule.merges:
            session.execute("DROP TABLE settled")

    def _engine(self) -> MergeReader:
        spec = self.spec
        return MergeReader(spec.arrow, spec.primary_key, stored=spec.scanned, filesystem=self.storage.filesystem)


def _deleted(spec: TableSpec, rule: MergeRule) -> str:
    """Return a query for the tombstones of deletes that are not merged: key and sequence of the deleted rows."""
    keys = keys_of(spec)
    columns = ", ".join(f"old.{c}" for c in [*keys, *names_in(spec, rule.buries)])
    joined = f"new JOIN old ON {same_key(keys, 'old', 'new')}"
    return f"SELECT {columns} FROM {joined} WHERE new.c{len(spec.arrow)} = {RowKind.DELETE:d}"


def _tombstones(spec: TableSpec, rule: MergeRule) -> tuple[str, list[int], pa.Schema]:
    """Return a query for the tombstones to store, with its parameters and schema."""
    names = ", ".join(names_in(spec, [*spec.primary_key, *rule.buries]))
    now_ms = time.time_ns() // 1_000_000
    return f"SELECT {names}, ?::BIGINT FROM buried", [now_ms], tombstone_schema(spec, rule)


def _upserts(merged: str, spec: TableSpec, *, keeps_same: bool) -> str:
    """Return a query for the merged rows that differ from existing rows, and the deletes of existing rows."""
    columns, keys = columns_of(spec), keys_of(spec)
    kind, seq = f"new.c{len(columns)}", f"new.c{len(columns) + 1}"
    existed = f"old.{keys[0]} IS NOT NULL"
    unchanged = "FALSE" if keeps_same else same_row(spec, "old", "new")
    return f"""
        SELECT {", ".join(f"new.{c}" for c in columns)}, {kind}::TINYINT AS {KIND},
            {seq} AS {SEQ}
        FROM {merged} AS new LEFT JOIN old ON {same_key(keys, "old", "new")}
        WHERE CASE WHEN {kind} = {RowKind.DELETE:d} THEN {existed} ELSE NOT ({existed} AND {unchanged}) END
        ORDER BY {seq}
    """


def _changelog(merged: str, spec: TableSpec) -> str:
    """Return a query for the changes that upserts and deletes make, with the previous rows."""
    columns, keys = columns_of(spec), keys_of(spec)
    on_key, unchanged = same_key(keys, "old", "new"), same_row(spec, "old", "new")
    kind, seq, row = f"new.c{len(columns)}", f"new.c{len(columns) + 1}", ", ".join(f"{{0}}.{c} AS {c}" for c in columns)
    is_delete, existed = f"{kind} = {RowKind.DELETE:d}", f"old.{keys[0]} IS NOT NULL"
    return f"""
        SELECT {", ".join(columns)}, kind::TINYINT AS {KIND}, seq AS {SEQ}
        FROM (
            SELECT {row.format("old")}, {seq} AS seq, 0 AS step,
                CASE WHEN {is_delete} THEN {RowKind.DELETE:d} ELSE {RowKind.UPDATE_BEFORE:d} END AS kind
            FROM {merged} AS new JOIN old ON {on_key}
            WHERE {is_delete} OR NOT ({unchanged})
            UNION ALL
            SELECT {row.format("new")}, {seq} AS seq, 1 AS step,
                CASE WHEN {existed} THEN {RowKind.UPDATE_AFTER:d} ELSE {RowKind.INSERT:d} END AS kind
            FROM {merged} AS new LEFT JOIN old ON {on_key}
            WHERE NOT ({is_delete}) AND NOT ({existed} AND {unchanged})
        )
        ORDER BY seq, step
    """
