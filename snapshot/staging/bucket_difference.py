"""The changes that turn one state of a bucket into another, computed in DuckDB within bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import duckdb
import pyarrow as pa

from snapshot.merge.duckdb_engine import errors_mapped, read, spilling
from snapshot.merge.key_parts import by_parts
from snapshot.merge.merge_reader import BaseFile, BucketFiles, ChangeFile, MergeReader
from snapshot.merge.numbered_columns import (
    ROW_HASH,
    columns_of,
    exactly,
    keys_of,
    load_numbered,
    same_key,
    same_row,
)
from snapshot.merge.plain_reader import plain_rows
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import SEQ, renumbered, with_kind
from snapshot.staging.stage import change_file_schema
from snapshot.storage import Storage


@dataclass(frozen=True)
class BucketDifference:
    """Computes the changes between two states of a bucket. Picklable.

    Attributes:
        storage: the table's root folder.
        spec: the table.
        now: the current state.
        then: the state to restore.
        between: change files with every key in which the two may differ; None to compare all rows.
    """

    storage: Storage
    spec: TableSpec
    now: BucketFiles
    then: BucketFiles
    between: tuple[ChangeFile, ...] | None

    def changes(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes that turn ``now`` into ``then``: upserts for new and different rows, and deletes.

        Yields:
            The table's columns (of a delete, only the key), ``_kind`` and ``_seq``.
        """
        with (
            errors_mapped("compare two snapshots"),
            spilling() as session,
            MergeReader(
                self.spec.arrow, self.spec.primary_key, stored=self.spec.scanned, filesystem=self.storage.filesystem
            ) as engine,
        ):
            asked = None if self.between is None else self._keys(session, engine, self.between)
            sizes = {}
            for name, files in (("now", self.now), ("was", self.then)):
                rows = engine.merged(files.base, files.changes, keys=asked)
                sizes[name] = load_numbered(session, name, self.spec.arrow, rows)
            query = partial(read, session, self._query(), [], change_file_schema(self.spec))
            yield from renumbered(by_parts(session, sizes, keys_of(self.spec), query))

    def _keys(self, session: duckdb.DuckDBPyConnection, engine: MergeReader, between: Sequence[ChangeFile]) -> pa.Table:
        """Return the distinct keys of change files; at most one per change."""
        names = list(self.spec.primary_key)
        schema = pa.schema([self.spec.arrow.field(name) for name in names])
        batches = (batch.select(names) for batch in engine.changes_in_order(between, columns=names))
        load_numbered(session, "changed", schema, batches)
        return session.sql("SELECT DISTINCT * FROM changed").to_arrow_table()

    def _query(self) -> str:
        spec, keys = self.spec, keys_of(self.spec)
        meets = same_key(keys, "now", "was")
        row = ", ".join(f"was.{column} AS {column}" for column in columns_of(spec))
        gone = ", ".join(f"now.{column}" if column in keys else "NULL" for column in columns_of(spec))
        return f"""
            SELECT {", ".join(columns_of(spec))}, kind::TINYINT AS {KIND}, 0::BIGINT AS {SEQ} FROM (
                SELECT {row}, {RowKind.UPDATE_AFTER:d} AS kind FROM was LEFT JOIN now ON {meets}
                WHERE now.{keys[0]} IS NULL OR NOT ({same_row(spec, "now", "was")})
                UNION ALL
                SELECT {gone}, {RowKind.DELETE:d} FROM now ANTI JOIN was ON {meets}
            )
        """


@dataclass(frozen=True)
class FilesDifference:
    """The rows of files removed from a table without a key, and of the files that replaced them.

    Attributes:
        storage: the table's folder.
        spec: the table.
        gone: the removed files.
        come: the added files.
    """

    storage: Storage
    spec: TableSpec
    gone: tuple[BaseFile, ...]
    come: tuple[BaseFile, ...]

    def changes(self) -> Iterator[pa.RecordBatch]:
        """Yield the differences between the two multisets of rows.

        Yields:
            The table's columns and ``_kind``: first the deleted rows, then the inserted ones.
        """
        schema = with_kind(self.spec.change_columns.named)
        with (
            errors_mapped("compare the files of another writer's commit"),
            spilling() as session,
            MergeReader(self.spec.arrow, (), stored=self.spec.scanned, filesystem=self.storage.filesystem) as engine,
        ):
            sizes = {}
            fields = list(zip(self.spec.arrow, self.spec.physical, strict=True))
            for name, files in (("gone", self.gone), ("come", self.come)):
                # DuckDB would hold a row group's large values, and other writers' row groups may be large.
                plain = plain_rows(self.storage, files, (), fields, None, emit_changes=False)
                rows = engine.merged(files, ()) if plain is None else plain
                sizes[name] = load_numbered(session, name, self.spec.arrow, rows, hashed=True)
            for kind, some, others in ((RowKind.DELETE, "gone", "come"), (RowKind.INSERT, "come", "gone")):
                columns, exact = ", ".join(columns_of(self.spec)), ", ".join(exactly(self.spec))
                apart = f"SELECT {exact} FROM {some} EXCEPT ALL SELECT {exact} FROM {others}"
                query = partial(read, session, f"SELECT {columns}, {kind:d}::TINYINT FROM ({apart})", [], schema)
                yield from by_parts(session, sizes, [ROW_HASH], query)
