"""Saves the state of a normalized stream without deleted keys, so that a new query can continue from it.

Spark's aggregates never drop a key, so a query's state also keeps deleted keys. This module reads a query's checkpoint
and saves the newest row of each live key (with a time-to-live, only of keys changed within it) and the query's position
in the log. A query that starts from a saved state (``read_stream(state=...)``) loads these rows into its state without
emitting them, and continues at that position. Together, the two queries emit one changelog.

A saved state is a folder of Parquet files and ``state.json``. That file is written last; without it, the saved state
does not exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from snapshot.errors import CorruptedError, DataLostError, InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, conform
from snapshot.staging.parquet_writer import ParquetFiles
from snapshot.storage import Storage, storage_errors
from tablestore.context import TableContext
from tablestore.options.value_types import duration
from tablestore.spark.normalize import SILENT, numbered, state_fields
from tablestore.spark.python_worker import begin_task

STATE_FILE = "state.json"
_FILE_BYTES = 128 << 20
_LIVE, _DELETED, _EXPIRED = 0, 1, 2
_FATE = "fate"
_WRITTEN = "path string, live bigint, deleted bigint, expired bigint"
_BEFORE_ANY = -1


@dataclass(frozen=True)
class SavedState:
    """The description of a saved state.

    Attributes:
        table: the table's id.
        schema: the table's columns, as in its definition.
        snapshot: the snapshot whose rows the stream started with; 0 if it started in the log.
        offsets: the stream's position in each partition of the log.
        rows: number of keys in the saved state.
        deleted: number of keys left out because they had been deleted.
        expired: number of keys left out because they had not changed within ``ttl``.
        files: names of the Parquet files in the folder.
        topic: Kafka's id of the topic that the offsets belong to; empty in files that do not have it yet.
    """

    table: str
    schema: str
    snapshot: int
    offsets: tuple[int, ...]
    rows: int
    deleted: int
    expired: int
    files: tuple[str, ...]
    topic: str = ""


@dataclass(frozen=True)
class SavedSplit:
    """A split of the rows in one file of a saved state."""

    storage: Storage
    file: str
    schema: pa.Schema

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows as the first rows of a stream, marked so that the stream emits nothing for them.

        Raises:
            DataLostError: the file is gone.
            UnavailableError: the store does not answer.
        """
        path = self.storage.path(self.file)
        try:
            with storage_errors(path, "read"), self.storage.filesystem.open(path, "rb") as source:
                for batch in pq.ParquetFile(source).iter_batches(use_threads=False):
                    count = batch.num_rows
                    rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self.schema)
                    rows = rows.append_column(KIND, pa.repeat(pa.scalar(int(RowKind.INSERT), pa.int8()), count))
                    rows = rows.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(SILENT, pa.int64()), count))
                    rows = rows.append_column(COMMIT_TIMESTAMP, batch.columns[-1])
                    yield rows.append_column(SEQ, pa.repeat(pa.scalar(_BEFORE_ANY, pa.int64()), count))
        except FileNotFoundError as error:
            msg = f"{path}: a file of a saved state is gone. Save the state again, or begin with scan_mode='full'."
            raise DataLostError(msg) from error


def save_state(
    spark: SparkSession, table: TableContext, checkpoint: str, into: str, ttl: str | None = None
) -> SavedState:
    """Save the state of a stopped query over a table's normalized stream; see ``TableStore.save_state``."""
    log, target = Storage.at(checkpoint), Storage.at(into)
    cutoff = None if ttl is None else int(time.time() * 1000) - ttl_ms(ttl)
    if target.read(STATE_FILE) is not None:
        msg = f"save_state: into={into!r} holds a saved state already; name a new folder."
        raise InvalidInputError(msg)
    batch, offset = _last_batch(log, table)
    rows = _newest_rows(spark, table.spec, log.root, batch, cutoff)
    schema = _file_schema(table.spec)
    written = rows.mapInArrow(partial(_write, target, schema), _WRITTEN).collect()
    saved = SavedState(
        table=table.spec.table_id,
        schema=table.spec.schema_json,
        snapshot=offset["snapshot"],
        offsets=tuple(offset["offsets"]),
        rows=sum(row.live for row in written),
        deleted=sum(row.deleted for row in written),
        expired=sum(row.expired for row in written),
        files=tuple(row.path for row in written if row.path is not None),
        topic=offset.get("topic", ""),
    )
    target.put(STATE_FILE, json.dumps(asdict(saved)).encode())
    return saved


def saved_state(folder: str, spec: TableSpec) -> SavedState:
    """Return the description of a table's saved state.

    Raises:
        InvalidInputError: there is no saved state, it belongs to another table, or the table's columns have changed
            since.
        CorruptedError: ``state.json`` cannot be parsed.
    """
    found = find_saved_state(folder)
    if found is None:
        msg = (
            f"read_stream: state={folder!r} holds no saved state; make one with save_state(checkpoint, into). Leave "
            "it out where the query has begun."
        )
        raise InvalidInputError(msg)
    if found.table != spec.table_id or found.schema != spec.schema_json:
        what = "is another table's" if found.table != spec.table_id else "is of before the table's columns were changed"
        msg = f"read_stream: the saved state in {folder!r} {what}; begin with scan_mode='full'."
        raise InvalidInputError(msg)
    return found


def find_saved_state(folder: str) -> SavedState | None:
    """Return the description of a saved state, whatever its table; None if there is none.

    Raises:
        CorruptedError: ``state.json`` cannot be parsed.
    """
    text = Storage.at(folder).read(STATE_FILE)
    if text is None:
        return None
    try:
        raw = json.loads(text)
        return SavedState(**{**raw, "offsets": tuple(raw["offsets"]), "files": tuple(raw["files"])})
    except (ValueError, TypeError, KeyError) as error:
        msg = f"{folder}/{STATE_FILE}: not a saved state: {error}. Save it again."
        raise CorruptedError(msg) from error


def saved_splits(folder: str, spec: TableSpec) -> list[SavedSplit]:
    """Return splits of the rows of a saved state, one per file."""
    storage = Storage.at(folder)
    return [SavedSplit(storage, file, spec.change_columns.named) for file in saved_state(folder, spec).files]


def ttl_ms(ttl: str) -> int:
    """Parse a time-to-live and return it in milliseconds.

    Raises:
        InvalidInputError: the text is not a duration.
    """
    kind = duration(0)
    try:
        return kind.parse(ttl.strip())
    except ValueError as error:
        msg = f"ttl={ttl!r}: expected {kind.expected}."
        raise InvalidInputError(msg) from error


def _last_batch(checkpoint: Storage, table: TableContext) -> tuple[int, dict[str, Any]]:
    """Return the number of a query's last micro-batch, which must be complete, and the source offset at its end."""
    name = checkpoint.root
    begun, done = (highest(checkpoint.child(folder)) for folder in ("offsets", "commits"))
    if done is None:
        msg = f"save_state: checkpoint={name!r} has no micro-batch that is done; give the query's own."
        raise InvalidInputError(msg)
    if begun != done:
        msg = (
            f"save_state: the query of checkpoint={name!r} stopped in micro-batch {begun}, of which its sink may have "
            "a part. Run it once more with trigger(availableNow=True), then save its state."
        )
        raise InvalidInputError(msg)
    text = checkpoint.child("offsets").read(str(done)) or b""
    # The lines: a version, the query's settings, and one offset per source.
    lines = text.decode().splitlines()
    offset = json.loads(lines[2]) if len(lines) == 3 and lines[0] == "v1" else None
    if not isinstance(offset, dict) or offset.get("table") != table.spec.table_id or "offsets" not in offset:
        msg = f"save_state: the query of checkpoint={name!r} does not read the stream of table {table.path!r} alone."
        raise InvalidInputError(msg)
    if table.spec.since > offset["snapshot"]:
        msg = f"save_state: the columns of table {table.path!r} were changed since the query began; begin with 'full'."
        raise InvalidInputError(msg)
    return done, offset


def highest(folder: Storage) -> int | None:
    """Return the highest numeric name in a folder of Spark's checkpoint; None if there is none."""
    return max((int(name) for name in folder.names() if name.isdigit()), default=None)


def _newest_rows(spark: SparkSession, spec: TableSpec, checkpoint: str, batch: int, cutoff: int | None) -> DataFrame:
    """Return each key's newest row with commit timestamp and fate; the table's columns are named ``c0``, ``c1``, ..."""
    operators = spark.read.format("state-metadata").load(checkpoint).select("operatorName", "stateStoreName").collect()
    state = None
    if [tuple(row) for row in operators] == [("stateStoreSave", "default")]:
        state = spark.read.format("statestore").option("batchId", batch).load(checkpoint)
    if state is None or not _is_normalize(state.schema, spec):
        msg = (
            f"save_state: the query of checkpoint={checkpoint!r} keeps another state than normalize's, which a new "
            "query would not have. Only one without aggregates, joins of streams and dropDuplicates of its own goes on."
        )
        raise InvalidInputError(msg)
    is_second = "get(value.orderings, 1) > get(value.orderings, 0)"
    found = state.select("key", F.expr(f"get(value.values, CASE WHEN {is_second} THEN 1 ELSE 0 END)").alias("new"))
    held = {name: F.col("new")[number] for name, number in numbered(spec.schema, spec.primary_key).items()}
    held |= {name: F.col(f"key.{backquoted(name)}") for name in spec.primary_key}
    time_ = F.col("new")[COMMIT_TIMESTAMP]
    fate = F.when(F.col("new")["deleted"], _DELETED)
    if cutoff is not None:
        fate = fate.when(time_ < F.timestamp_millis(F.lit(cutoff)), _EXPIRED)
    columns = [held[name].alias(f"c{number}") for number, name in enumerate(spec.schema.fieldNames())]
    return found.select(*columns, time_.alias(COMMIT_TIMESTAMP), fate.otherwise(_LIVE).cast("tinyint").alias(_FATE))


def _is_normalize(state: StructType, spec: TableSpec) -> bool:
    expected = state_fields(spec)
    keys = StructType([spec.schema[name] for name in spec.primary_key])
    value = state["value"].dataType
    if not isinstance(value, StructType) or "values" not in value.fieldNames():
        return False
    rows = getattr(value["values"].dataType, "elementType", None)
    return rows is not None and _named(rows) == _named(expected) and _named(state["key"].dataType) == _named(keys)


def _named(kind: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in kind.fields]


def _file_schema(spec: TableSpec) -> pa.Schema:
    columns = spec.change_columns.named
    fields = [field.with_name(f"c{number}") for number, field in enumerate(columns)]
    return pa.schema([*fields, pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC"))])


def _write(target: Storage, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the live keys of a partition of the state, in a task; yield the files' names and the key counts by fate."""
    begin_task()
    context = TaskContext.get()
    files = ParquetFiles(target, schema, prefix=f"{context.partitionId() if context else 0}", target_bytes=_FILE_BYTES)
    counts = [0, 0, 0]
    for batch in batches:
        fates = batch.column(batch.schema.get_field_index(_FATE))
        for each in pc.value_counts(fates).to_pylist():
            counts[each["values"]] += each["counts"]
        files.write(conform(batch.filter(pc.equal(fates, _LIVE)), schema))
    yield _told([None], counts)
    written = [file.path for file in files.close()]
    if written:
        yield _told(written, [0, 0, 0])


def _told(paths: Sequence[str | None], counts: Sequence[int]) -> pa.RecordBatch:
    columns = [pa.array(paths, pa.string()), *(pa.repeat(pa.scalar(n, pa.int64()), len(paths)) for n in counts)]
    return pa.RecordBatch.from_arrays(columns, names=["path", "live", "deleted", "expired"])
