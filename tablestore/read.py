"""Batch and streaming reads as Spark frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from log_system.kafka.allowed import DEFAULT
from log_system.kafka.secrets import reveal
from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.storage import Storage
from snapshot.table import TableFiles
from snapshot.tags import check_name
from tablestore import overlay, scan
from tablestore.normalize import normalize as normalized
from tablestore.opened import OpenedTable
from tablestore.plan import snapshot_parts
from tablestore.points import Point, between, is_tag
from tablestore.read_options import (
    FORMAT,
    NEWEST,
    ScanMode,
    parse_read_options,
    parse_schema_choice,
    timestamp_millis,
)
from tablestore.root_columns import root_columns, shielded
from tablestore.saved_state import saved_state
from tablestore.spark_parts import frame_of_parts


def read(
    spark: SparkSession,
    table: OpenedTable,
    *,
    snapshot: int | None,
    timestamp: datetime | str | int | None,
    columns: Sequence[str] | None,
    push_filters: bool = False,
    tag: str | None = None,
    schema: str = NEWEST,
) -> DataFrame:
    """Read a snapshot: with Spark's own Delta reader where nothing or little has to be merged, else bucket by bucket.

    Args:
        spark: the session.
        table: the table.
        snapshot: the snapshot's id; None for the newest.
        timestamp: in its place, a time.
        columns: the columns wanted; None for all.
        tag: in the snapshot's place, its tag.
        push_filters: the caller scans the frame once only, so its filters may be applied in the files.
        schema: ``newest`` for the columns that the table has, ``own`` for those it had in the snapshot.

    Raises:
        NotFoundError: there is no such snapshot.
        InvalidInputError: two of snapshot, timestamp and tag are given, a column is unknown, or ``schema`` is neither
            word.
    """
    is_own = parse_schema_choice(schema)
    files = table.files
    snapshot = _snapshot_id(files, snapshot, timestamp, tag)
    spec = files.spec_of(snapshot) if is_own else table.spec
    names = spec.schema.fieldNames()
    unknown = [name for name in columns or () if name not in names]
    if unknown:
        msg = f"read: unknown columns {unknown}; the table has {names}."
        raise InvalidInputError(msg)
    wanted = list(columns) if columns is not None else names
    # Delta may have forgotten the versions of a snapshot that has expired and is kept by a tag, which lists its files.
    tagged = snapshot < files.oldest(fresh=False)
    layout = files.layout(snapshot) if table.spec.has_key or tagged else None
    if not tagged and (layout is None or not layout.changes):
        version = snapshot if layout is None else layout.root_version
        frame = shielded(spark.read.format("delta").option("versionAsOf", version).load(table.path), files)
        selected = root_columns(frame.schema, spec, wanted)
        if selected is not None:
            return frame.select(*selected)
    options = {**_base_options(spark, table), "snapshot": str(snapshot), "schema": schema}
    tasks = parse_read_options(options).tasks
    if layout is not None and layout.changes:
        prunable = columns is None or bool(spec.partition_by)
        found = scan.scanned(spark, files, spec, layout, wanted, tasks)
        if found is None and not tagged and overlay.is_worth_it(layout, len(wanted), prunable=prunable):
            found = overlay.overlaid(spark, files, spec, layout, wanted, tasks)
        if found is not None:
            return found
    if push_filters:
        pushed = {**options, "columns": "\x1f".join(wanted), "pushFilters": "true"}
        return spark.read.format(FORMAT).options(**pushed).load().select(*[backquoted(name) for name in wanted])
    return frame_of_parts(spark, snapshot_parts(files, snapshot, tasks=tasks, columns=wanted, spec=spec), spec, wanted)


def _snapshot_id(
    files: TableFiles, snapshot: int | None, timestamp: datetime | str | int | None, tag: str | None
) -> int:
    if (snapshot is not None) + (timestamp is not None) + (tag is not None) > 1:
        msg = "read: snapshot, timestamp and tag exclude each other; give one."
        raise InvalidInputError(msg)
    if timestamp is not None:
        return files.snapshot_as_of(timestamp_millis(timestamp)).id
    if tag is not None:
        return files.tags.get(tag).snapshot.id
    return files.latest() if snapshot is None else files.snapshot(snapshot).id


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What ``TableStore.read_stream`` was asked for; see there."""

    scan_mode: str
    snapshot: int | None
    timestamp: datetime | str | int | None
    tag: str | None
    until: Point | None
    consumer: str | None
    max_rows: int | None
    max_snapshots: int | None
    normalize: bool | None
    state: str | None


def read_stream(spark: SparkSession, table: OpenedTable, wanted: Stream) -> DataFrame:
    """Follow a table's changes; the options are checked now, not when the query starts.

    What an eventual log gives goes through the normalize operator, unless that is switched off.

    Raises:
        InvalidInputError: an option is wrong, or two do not go together.
    """
    given = {
        "scan-mode": wanted.scan_mode,
        "snapshot": wanted.snapshot,
        "timestamp": None if wanted.timestamp is None else timestamp_millis(wanted.timestamp),
        "maxRowsPerTrigger": wanted.max_rows,
        "maxSnapshotsPerTrigger": wanted.max_snapshots,
        "tag": wanted.tag,
        "consumer": wanted.consumer,
        **_until(table.files, wanted.until),
    }
    if wanted.consumer is not None:
        check_name(wanted.consumer, "consumer")
    if wanted.tag is not None:
        table.files.tags.get(wanted.tag)
    options = _base_options(spark, table) | {k: str(v) for k, v in given.items() if v is not None}
    options["readChangeFeed"] = "true"
    parse_read_options(options)
    if wanted.normalize and not table.is_eventual:
        msg = (
            f"read_stream: normalize=True goes with log.consistency='eventual'; table {table.path!r} is transactional, "
            "so its stream has no repeats. Leave it out."
        )
        raise InvalidInputError(msg)
    if table.is_eventual and wanted.max_snapshots is not None:
        msg = "read_stream: max_snapshots does not go with log.consistency='eventual'; use max_rows."
        raise InvalidInputError(msg)
    if table.is_eventual and (wanted.until is not None or wanted.consumer is not None):
        msg = (
            "read_stream: until and consumer do not go with log.consistency='eventual', whose stream does not keep "
            "snapshots apart. Leave them out."
        )
        raise InvalidInputError(msg)
    normalizes = table.is_eventual if wanted.normalize is None else wanted.normalize
    if wanted.state is not None:
        if not normalizes or wanted.scan_mode != ScanMode.FULL:
            msg = (
                "read_stream: state is that of a normalized stream, with which it begins; it goes with "
                "log.consistency='eventual', and neither with normalize=False nor with another scan_mode than 'full'."
            )
            raise InvalidInputError(msg)
        options["state"] = Storage.at(wanted.state).root
        saved_state(options["state"], table.spec)
    if not normalizes:
        return spark.readStream.format(FORMAT).options(**options).load()
    options["normalize"] = "true"
    records = spark.readStream.format(FORMAT).options(**options).load()
    return normalized(records, table.spec, goes_on=wanted.state is not None)


def read_changes(spark: SparkSession, table: OpenedTable, from_: Point, to: Point | None) -> DataFrame:
    """Give the changes after a snapshot, up to another, from the table's files.

    Raises:
        NotFoundError: there is no such snapshot or tag.
        DataLostError: changes in between have expired.
        InvalidInputError: the second comes before the first.
    """
    after, through = between(table.files, from_, to)
    given = {"changesAfter": after, "changesThrough": through, "readChangeFeed": "true"}
    options = _base_options(spark, table) | {name: str(value) for name, value in given.items()}
    return spark.read.format(FORMAT).options(**options).load()


def _until(files: TableFiles, until: Point | None) -> dict[str, object]:
    """Say where a stream ends: at a snapshot, which may be yet to come, or at a time, which may be, too."""
    if until is None:
        return {}
    if isinstance(until, str) and is_tag(until):
        until = files.tags.get(until).snapshot.id
    if isinstance(until, int) or (isinstance(until, str) and until.isdigit()):
        return {"until": int(until)}
    return {"until-timestamp": timestamp_millis(until)}


def _base_options(spark: SparkSession, table: OpenedTable) -> dict[str, str]:
    cores = spark.conf.get("spark.default.parallelism", None) or spark.conf.get(
        "spark.sql.leafNodeDefaultParallelism", None
    )
    tasks = {"tasks": cores} if cores else {}
    # Spark runs the data source in processes whose environment may differ from this one's.
    allowed = {"allowReferences": table.allowed.text} if table.allowed.entries != DEFAULT else {}
    return {"path": table.path, **tasks, **allowed, **reveal(table.runtime)}
