"""Batch and streaming reads as Spark frames."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import InvalidInputError
from tablestore import overlay
from tablestore.normalize import normalize as normalized
from tablestore.opened import OpenedTable
from tablestore.read_options import FORMAT, NEWEST, parse_read_options, parse_schema_choice, timestamp_millis
from tablestore.root_columns import root_columns
from tablestore.shape import quoted


def read(
    spark: SparkSession,
    table: OpenedTable,
    *,
    snapshot: int | None,
    timestamp: datetime | str | int | None,
    columns: Sequence[str] | None,
    schema: str = NEWEST,
) -> DataFrame:
    """Read a snapshot: with Spark's own Delta reader where nothing or little has to be merged, else bucket by bucket.

    Raises:
        NotFoundError: there is no such snapshot.
        InvalidInputError: snapshot and timestamp are both given, a column is unknown, or ``schema`` is neither word.
    """
    is_own = parse_schema_choice(schema)
    if snapshot is not None and timestamp is not None:
        msg = "read: snapshot and timestamp exclude each other; give one."
        raise InvalidInputError(msg)
    files = table.files
    if timestamp is not None:
        snapshot = files.snapshot_as_of(timestamp_millis(timestamp)).id
    elif snapshot is not None:
        snapshot = files.snapshot(snapshot).id
    else:
        snapshot = files.latest()
    spec = files.spec_of(snapshot) if is_own else table.spec
    names = spec.schema.fieldNames()
    unknown = [name for name in columns or () if name not in names]
    if unknown:
        msg = f"read: unknown columns {unknown}; the table has {names}."
        raise InvalidInputError(msg)
    wanted = list(columns) if columns is not None else names
    layout = files.layout(snapshot) if table.spec.has_key else None
    if layout is None or not layout.changes:
        version = snapshot if layout is None else layout.root_version
        frame = spark.read.format("delta").option("versionAsOf", version).load(table.path)
        selected = root_columns(frame.schema, spec, wanted)
        if selected is not None:
            return frame.select(*selected)
    options = {**_base_options(spark, table), "snapshot": str(snapshot), "schema": schema}
    if layout is not None and layout.changes and overlay.is_worth_it(layout):
        found = overlay.overlaid(spark, table.path, spec, layout, wanted, options)
        if found is not None:
            return found
    if columns is not None:
        options["columns"] = "\x1f".join(wanted)
    return spark.read.format(FORMAT).options(**options).load().select(*[quoted(name) for name in wanted])


def read_stream(
    spark: SparkSession,
    table: OpenedTable,
    *,
    scan_mode: str,
    snapshot: int | None,
    timestamp: datetime | str | int | None,
    max_rows: int | None,
    max_snapshots: int | None,
    normalize: bool | None,
) -> DataFrame:
    """Follow a table's changes; the options are checked now, not when the query starts.

    What an eventual log gives goes through the normalize operator, unless that is switched off.

    Raises:
        InvalidInputError: an option is wrong, or two do not go together.
    """
    given = {
        "scan-mode": scan_mode,
        "snapshot": snapshot,
        "timestamp": None if timestamp is None else timestamp_millis(timestamp),
        "maxRowsPerTrigger": max_rows,
        "maxSnapshotsPerTrigger": max_snapshots,
    }
    options = _base_options(spark, table) | {k: str(v) for k, v in given.items() if v is not None}
    options["readChangeFeed"] = "true"
    parse_read_options(options)
    if normalize and not table.is_eventual:
        msg = (
            f"read_stream: normalize=True goes with log.consistency='eventual'; table {table.path!r} is transactional, "
            "so its stream has no repeats. Leave it out."
        )
        raise InvalidInputError(msg)
    if table.is_eventual and max_snapshots is not None:
        msg = "read_stream: max_snapshots does not go with log.consistency='eventual'; use max_rows."
        raise InvalidInputError(msg)
    normalizes = table.is_eventual if normalize is None else normalize
    if not normalizes:
        return spark.readStream.format(FORMAT).options(**options).load()
    options["normalize"] = "true"
    return normalized(spark.readStream.format(FORMAT).options(**options).load(), table.spec)


def _base_options(spark: SparkSession, table: OpenedTable) -> dict[str, str]:
    cores = spark.conf.get("spark.default.parallelism", None) or spark.conf.get(
        "spark.sql.leafNodeDefaultParallelism", None
    )
    tasks = {"tasks": cores} if cores else {}
    return {"path": table.path, **tasks, **table.runtime}
