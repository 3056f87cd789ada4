"""Streaming reads of a table: checks the options, then configures Spark's source."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import InvalidInputError
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from snapshot.store.tags import check_name
from tablestore.context import TableContext
from tablestore.options.read_options import (
    FORMAT,
    NORMALIZED_FORMAT,
    parse_read_options,
    timestamp_millis,
)
from tablestore.read.batch import source_options
from tablestore.read.time_travel import Point, is_tag
from tablestore.spark.connect import check_streams
from tablestore.streaming.eventual_stream import check_uncommitted


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The arguments of ``TableStore.read_stream``; see there."""

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
    state_ttl: str | None


def read_stream(spark: SparkSession, table: TableContext, wanted: Stream) -> DataFrame:
    """Return a streaming frame of a table's changes; options are checked now, not when the query starts.

    The records of an eventual log pass through the normalize operator, unless that is switched off.

    Raises:
        InvalidInputError: an option is wrong, or two options exclude each other.
    """
    check_streams(spark)
    given = {
        "scan-mode": wanted.scan_mode,
        "snapshot": wanted.snapshot,
        "timestamp": None if wanted.timestamp is None else timestamp_millis(wanted.timestamp),
        "maxRowsPerTrigger": wanted.max_rows,
        "maxSnapshotsPerTrigger": wanted.max_snapshots,
        "tag": wanted.tag,
        "consumer": wanted.consumer,
        "stateLocation": None if wanted.state is None else Storage.at(wanted.state).root,
        "stateTtl": wanted.state_ttl,
        **_until(table.files, wanted.until),
    }
    if wanted.consumer is not None:
        check_name(wanted.consumer, "consumer")
    if wanted.tag is not None:
        table.files.tags.get(wanted.tag)
    options = source_options(spark, table) | {k: str(v) for k, v in given.items() if v is not None}
    options["readChangeFeed"] = "true"
    parsed = parse_read_options(options)
    if table.log.shows_uncommitted:
        check_uncommitted(parsed)
    if wanted.normalize and not table.log.shows_uncommitted:
        msg = (
            f"read_stream: normalize=True needs log.consistency='eventual'; table {table.path!r} is transactional, "
            "so its stream has no repeats. Leave it out."
        )
        raise InvalidInputError(msg)
    if wanted.normalize and not table.spec.has_key:
        msg = (
            f"read_stream: normalize=True needs a primary key, by which repeats are found; table {table.path!r} has "
            "none, so its stream has each row at least once. Leave it out."
        )
        raise InvalidInputError(msg)
    by_itself = table.log.shows_uncommitted and table.spec.has_key
    normalizes = by_itself if wanted.normalize is None else wanted.normalize
    if not normalizes and (wanted.state is not None or wanted.state_ttl is not None):
        msg = (
            "read_stream: state and state_ttl need a normalized stream, which needs log.consistency='eventual' and a "
            "primary key, and not normalize=False. Leave them out."
        )
        raise InvalidInputError(msg)
    if wanted.state is not None:
        Storage.at(wanted.state).check_put_new()
    return spark.readStream.format(NORMALIZED_FORMAT if normalizes else FORMAT).options(**options).load()


def _until(files: TableFiles, until: Point | None) -> dict[str, object]:
    """Return the option for the end of a stream: a snapshot or a time, either of which may be in the future."""
    if until is None:
        return {}
    if isinstance(until, str) and is_tag(until):
        until = files.tags.get(until).snapshot.id
    if isinstance(until, int) or (isinstance(until, str) and until.isdigit()):
        return {"until": int(until)}
    return {"until-timestamp": timestamp_millis(until)}
