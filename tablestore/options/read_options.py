"""Options of a read or write through Spark's ``format("tablestore")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import ClientValue, wrap
from snapshot.errors import InvalidInputError
from snapshot.suggestions import did_you_mean

FORMAT = "tablestore"
NEWEST, OWN = "newest", "own"
"""Values of option ``schema``: read an old snapshot with the table's current columns, or with its own."""


class ScanMode(StrEnum):
    """Where a streaming read starts."""

    FULL = "full"
    LATEST = "latest"
    EARLIEST = "earliest"
    FROM_SNAPSHOT = "from-snapshot"
    FROM_TIMESTAMP = "from-timestamp"
    FROM_TAG = "from-tag"


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a read or a streaming write.

    Attributes:
        path: the table's folder.
        columns: the columns of a batch read; None for all.
        snapshot: the snapshot that a batch read returns, or the first one of a stream (``from-snapshot``).
        timestamp_ms: the same by time, in milliseconds since the epoch.
        scan_mode: where a stream starts.
        change_feed: whether a stream has ``_change_type``, ``_commit_version`` and ``_commit_timestamp``.
        rows_max: the maximum rows of a micro-batch; a larger snapshot is still read as a whole.
        snapshots_max: the maximum snapshots of a micro-batch.
        checkpoint: the checkpoint of a streaming write, which identifies the query across restarts.
        tasks: how many tasks a read is split into.
        push_filters: whether the source applies a batch query's filters before rows reach Spark.
        own_schema: whether a batch read has the snapshot's own columns instead of the table's current ones.
        normalize: whether the stream's rows are input of the normalize operator: one per key and micro-batch, with
            ``_seq``.
        runtime: Kafka client options that are not stored with the table.
        allowed: which references the table's stored options may contain.
        tag: the tag that a batch read returns, or after which a stream starts (``from-tag``).
        until: the last snapshot that a stream reads.
        until_ms: the same by time, in milliseconds since the epoch.
        consumer: the name under which a stream's progress is stored in the table.
        changes_after: the snapshot after which a batch read returns changes, as a stream does.
        changes_through: the last snapshot of those changes.
        state: the folder of a saved state from which a normalized stream continues.
    """

    path: str
    columns: tuple[str, ...] | None = None
    snapshot: int | None = None
    timestamp_ms: int | None = None
    scan_mode: ScanMode = ScanMode.FULL
    change_feed: bool = False
    rows_max: int | None = None
    snapshots_max: int | None = None
    checkpoint: str | None = None
    tasks: int = 2
    push_filters: bool = False
    own_schema: bool = False
    normalize: bool = False
    runtime: Mapping[str, ClientValue] = field(default_factory=dict)
    allowed: Allowed = field(default_factory=Allowed.of)
    tag: str | None = None
    until: int | None = None
    until_ms: int | None = None
    consumer: str | None = None
    changes_after: int | None = None
    changes_through: int | None = None
    state: str | None = None


_NAMES = {
    "path": "path",
    "columns": "columns",
    "snapshot": "snapshot",
    "timestamp": "timestamp",
    "scan-mode": "scan-mode",
    "readchangefeed": "readChangeFeed",
    "maxrowspertrigger": "maxRowsPerTrigger",
    "maxsnapshotspertrigger": "maxSnapshotsPerTrigger",
    "checkpointlocation": "checkpointLocation",
    "tasks": "tasks",
    "pushfilters": "pushFilters",
    "schema": "schema",
    "normalize": "normalize",
    "tag": "tag",
    "until": "until",
    "until-timestamp": "until-timestamp",
    "consumer": "consumer",
    "changesafter": "changesAfter",
    "changesthrough": "changesThrough",
    "state": "state",
    "allowreferences": "allowReferences",
}


_OF_SPARK = ("numrows", "queryname", "owner", "provider", "comment", "location", "external", "is_managed_location")
"""Options that Spark adds itself, for the console sink, for queries and for tables of its catalog."""


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options passed by Spark; names are case-insensitive.

    Raises:
        InvalidInputError: an option is unknown, a value is invalid, ``path`` is missing, or two options exclude each
            other.
    """
    given = {name.lower(): value for name, value in options.items()}
    allowed = Allowed.parse(given["allowreferences"], "allowReferences") if "allowreferences" in given else Allowed.of()
    runtime = {name: value for name, value in given.items() if name.startswith("kafka.")}
    for name in given:
        if name not in _NAMES and name not in runtime and name not in _OF_SPARK:
            known = f"Known options are {', '.join(_NAMES.values())}."
            hint = did_you_mean(name, _NAMES.values(), otherwise=known)
            msg = f"unknown option {name!r} for format({FORMAT!r}). {hint}"
            raise InvalidInputError(msg)
    # For a table of Spark's catalog, Spark passes the folder as ``location``.
    path = given.get("path") or given.get("location")
    if not path:
        msg = f"option 'path' is required for format({FORMAT!r}): the table's folder."
        raise InvalidInputError(msg)
    snapshot, timestamp = _count(given, "snapshot", 0), given.get("timestamp")
    tag = given.get("tag")
    if (snapshot is not None) + (timestamp is not None) + (tag is not None) > 1:
        msg = "options 'snapshot', 'timestamp' and 'tag' exclude each other; give one."
        raise InvalidInputError(msg)
    if "until" in given and "until-timestamp" in given:
        msg = "options 'until' and 'until-timestamp' exclude each other; give one."
        raise InvalidInputError(msg)
    until_time = given.get("until-timestamp")
    return ReadOptions(
        path=path,
        columns=tuple(given["columns"].split("\x1f")) if "columns" in given else None,
        snapshot=snapshot,
        timestamp_ms=None if timestamp is None else timestamp_millis(timestamp),
        scan_mode=_scan_mode(given.get("scan-mode"), snapshot, timestamp, tag),
        change_feed=_flag(given, "readchangefeed"),
        rows_max=_count(given, "maxrowspertrigger", 1),
        snapshots_max=_count(given, "maxsnapshotspertrigger", 1),
        checkpoint=given.get("checkpointlocation"),
        tasks=_count(given, "tasks", 1) or 2,
        push_filters=_flag(given, "pushfilters"),
        own_schema=parse_schema_choice(given.get("schema", NEWEST)),
        normalize=_flag(given, "normalize"),
        runtime=wrap(runtime),
        allowed=allowed,
        tag=tag,
        until=_count(given, "until", 0),
        until_ms=None if until_time is None else timestamp_millis(until_time),
        consumer=given.get("consumer"),
        changes_after=_count(given, "changesafter", 0),
        changes_through=_count(given, "changesthrough", 0),
        state=given.get("state"),
    )


def parse_schema_choice(text: str) -> bool:
    """Return whether a snapshot is read with its own columns (``own``), not the table's current ones (``newest``).

    Raises:
        InvalidInputError: the text is neither.
    """
    if text not in (OWN, NEWEST):
        msg = f"option 'schema': expected '{NEWEST}' (the table's columns) or '{OWN}' (the snapshot's), got {text!r}."
        raise InvalidInputError(msg)
    return text == OWN


def timestamp_millis(value: str | int | datetime) -> int:
    """Convert a time to milliseconds since the epoch.

    Args:
        value: a datetime (with a time zone, or in local time), ISO-8601 text, or milliseconds since the epoch.

    Raises:
        InvalidInputError: the value is none of these.
    """
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        return int(value)
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except ValueError as error:
        msg = f"option 'timestamp': expected ISO-8601 text or milliseconds since the epoch, got {value!r}."
        raise InvalidInputError(msg) from error
    return int(moment.astimezone().timestamp() * 1000)


def _scan_mode(text: str | None, snapshot: int | None, timestamp: str | None, tag: str | None) -> ScanMode:
    if text is None:
        if snapshot is not None:
            return ScanMode.FROM_SNAPSHOT
        if tag is not None:
            return ScanMode.FROM_TAG
        return ScanMode.FULL if timestamp is None else ScanMode.FROM_TIMESTAMP
    try:
        mode = ScanMode(text.lower())
    except ValueError as error:
        msg = f"option 'scan-mode': expected one of {', '.join(ScanMode)}, got {text!r}."
        raise InvalidInputError(msg) from error
    needs: dict[ScanMode, tuple[str, object]] = {
        ScanMode.FROM_SNAPSHOT: ("snapshot", snapshot),
        ScanMode.FROM_TIMESTAMP: ("timestamp", timestamp),
        ScanMode.FROM_TAG: ("tag", tag),
    }
    for kind, (name, value) in needs.items():
        if mode is kind and value is None:
            msg = f"option 'scan-mode'='{mode}' needs option {name!r}; set where to begin."
            raise InvalidInputError(msg)
        if mode is not kind and value is not None:
            msg = f"option {name!r} goes with 'scan-mode'='{kind}', not with '{mode}'; drop one."
            raise InvalidInputError(msg)
    return mode


def _count(given: Mapping[str, str], name: str, least: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isdigit() or int(text) < least:
        msg = f"option {_NAMES[name]!r}: expected a whole number of at least {least}, got {text!r}."
        raise InvalidInputError(msg)
    return int(text)


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        msg = f"option {_NAMES[name]!r}: expected true or false, got {text!r}."
        raise InvalidInputError(msg)
    return text == "true"
