"""Tombstones: keys of deleted rows with their sequence, so that late rows with an older sequence stay deleted.

A write adds a file of tombstones to its commit; compactions merge the files of a bucket and drop old tombstones. A
tombstone does not mean that the key has no row, only that rows with an older sequence are late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from snapshot.delta.log import DataFile
from snapshot.merge.duckdb_engine import errors_mapped, file_arguments, read, read_parquet, spilling
from snapshot.merge.merge_rules import MergeRule
from snapshot.merge.numbered_columns import keys_of, names_in, same_key
from snapshot.merge.remote_files import RemoteFiles, remote_files
from snapshot.schema.duckdb_types import type_name
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SEQ
from snapshot.staging.parquet_writer import TOMBSTONES, ParquetFiles, removed_on_error
from snapshot.storage import Storage

_GATHERED = "gathered"


def tombstone_schema(spec: TableSpec, rule: MergeRule) -> pa.Schema:
    """Return the columns of a tombstone: the key, the sequence and ``_seq`` (staging time, ms since the epoch)."""
    fields = [spec.arrow.field(name) for name in spec.primary_key]
    fields += [spec.arrow.field(name).with_nullable(True) for name in rule.buries]
    return pa.schema([*fields, pa.field(SEQ, pa.int64())])


def load_graves(
    session: duckdb.DuckDBPyConnection,
    spec: TableSpec,
    rule: MergeRule,
    sizes: Mapping[str, int],
    remote: RemoteFiles | None,
) -> None:
    """Create the table ``graves`` (numbered key and sequence columns) of the tombstones with keys in ``new``."""
    if not sizes:
        kinds = [f"NULL::{kind} AS {inner}" for _, inner, kind in _columns(spec, rule)]
        session.execute(f"CREATE OR REPLACE TEMP TABLE graves AS SELECT {', '.join(kinds)} WHERE FALSE")
        return
    session.execute(
        f"CREATE OR REPLACE TEMP TABLE graves AS SELECT * FROM {read_parquet(_columns(spec, rule))} AS tombstones "
        f"SEMI JOIN new ON {same_key(keys_of(spec), 'new', 'tombstones')}",
        [file_arguments(sizes, remote)],
    )


@dataclass(frozen=True)
class GatherTask:
    """Merges the tombstone files of one bucket into one. Picklable.

    Attributes:
        storage: folder of the changes.
        spec: the table.
        rule: its merge rule.
        bucket: the bucket.
        files: its tombstone files.
        written_ms: no file that a write added is younger than this; in milliseconds since the epoch, by the clock of
            the file system: that of the writer may have been behind.
        staged_after_ms: tombstones staged before this time are dropped.
        target_bytes: size at which a file is finished.
    """

    storage: Storage
    spec: TableSpec
    rule: MergeRule
    bucket: int
    files: tuple[DataFile, ...]
    written_ms: int
    staged_after_ms: int
    target_bytes: int


def is_gathered(file: DataFile) -> bool:
    """Return whether a tombstone file was made from others, so that its tombstones are older than the file."""
    return f"-{_GATHERED}-" in file.path.rpartition("/")[2]


def gather(task: GatherTask) -> list[DataFile]:
    """Write the newest tombstone of each key to new files, except expired ones; runs in a Spark task."""
    spec, rule = task.spec, task.rule
    gathered = [file for file in task.files if is_gathered(file)]
    staged = [file for file in task.files if not is_gathered(file)]
    parts = [(ms, files) for ms, files in ((0, gathered), (task.written_ms, staged)) if files]
    columns = [*_columns(spec, rule), (SEQ, SEQ, "BIGINT")]
    names, keys = [inner for _, inner, _ in columns], ", ".join(keys_of(spec))
    newest_first = "ASC" if rule.sequences[0].descending else "DESC"
    order = ", ".join(f"{inner} {newest_first} NULLS LAST" for inner in names_in(spec, rule.buries))
    dated = f"SELECT * REPLACE (greatest({SEQ}, ?::BIGINT) AS {SEQ}) FROM {read_parquet(columns)}"
    sql = (
        f"SELECT {', '.join(names)} FROM ({' UNION ALL '.join([dated] * len(parts))}) WHERE {SEQ} >= ? "
        f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY {order}, {SEQ} DESC) = 1"
    )
    schema = tombstone_schema(spec, rule)
    writer = ParquetFiles(
        task.storage,
        schema,
        prefix=f"{task.bucket:05d}-{_GATHERED}",
        folder=TOMBSTONES,
        partition={BUCKET: str(task.bucket)},
        target_bytes=task.target_bytes,
        differences=True,
    )
    remote = remote_files(task.storage.filesystem)
    arguments: list[Any] = []
    for ms, files in parts:
        sizes = {task.storage.path(file.path): file.size for file in files}
        arguments += [ms, file_arguments(sizes, remote)]
    with removed_on_error({0: writer}, task.storage), errors_mapped("gather tombstones"):
        with spilling(remote=remote) as session:
            for rows in read(session, sql, [*arguments, task.staged_after_ms], schema):
                writer.write(rows)
        return writer.close()


def _columns(spec: TableSpec, rule: MergeRule) -> list[tuple[str, str, str]]:
    names = [*spec.primary_key, *rule.buries]
    kinds = [type_name(spec.arrow.field(name).type) for name in names]
    return list(zip(names, names_in(spec, names), kinds, strict=True))
