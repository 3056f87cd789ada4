"""Options of a read or write through Spark's ``format("tablestore")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import index
from typing import Final, SupportsIndex

from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import ClientValue, wrap
from snapshot.errors import InvalidInputError
from snapshot.messages import did_you_mean
from tablestore.options.declaration import Group, OptionSpec, option, optional
from tablestore.options.value_types import BOOLEAN, VERBATIM, OptionType, choice, duration, integer

FORMAT = "tablestore"
NORMALIZED_FORMAT = "tablestore-normalize"
NEWEST, OWN = "newest", "own"
"""Values of option ``schema``: read an old snapshot with the table's current columns, or with its own."""


class ScanMode(StrEnum):
    """Where a streaming read starts."""

    FULL = "full"
    LATEST = "latest"
    EARLIEST = "earliest"
    FROM_SNAPSHOT = "from-snapshot"
    FROM_SNAPSHOT_FULL = "from-snapshot-full"
    FROM_TIMESTAMP = "from-timestamp"
    FROM_TAG = "from-tag"


def _millis(moment: datetime) -> int:
    if moment.tzinfo is None:
        try:
            moment = moment.astimezone()
        except (OverflowError, ValueError):  # It begins the year 1 or ends 9999: Python has no such time in UTC.
            moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_TIME: Final = OptionType(
    "time",
    "ISO-8601 text or milliseconds since the epoch",
    lambda text: int(text) if text.removeprefix("-").isdigit() else _millis(datetime.fromisoformat(text)),
)
_SCHEMA: Final = choice((NEWEST, OWN))
_NAMES: Final = OptionType("columns", "names of columns", lambda text: tuple(text.split("\x1f")), "\x1f".join)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Group):
    """The parsed options of a read or a streaming write.

    Attributes:
        runtime: Kafka client options that are not stored with the table.
        allowed: which references the table's stored options may contain.
        frame: the id of the table and the first snapshot with the columns with which Spark has made a frame or a view
            of it; None if its columns were given.
    """

    path: str = option("path", VERBATIM, None, "The table's folder.")
    columns: tuple[str, ...] | None = optional("columns", _NAMES, "The columns of a batch read; None for all.")
    snapshot: int | None = optional(
        "snapshot",
        integer(0),
        "The snapshot of a batch read (also `versionAsOf`), or the first one of a stream (`from-snapshot` or "
        "`from-snapshot-full`).",
    )
    timestamp_ms: int | None = optional(
        "timestamp", _TIME, "The same by time (also `timestampAsOf`), in milliseconds since the epoch."
    )
    tag: str | None = optional("tag", VERBATIM, "The tag of a batch read, or after which a stream starts (`from-tag`).")
    scan_mode: ScanMode = option("scan-mode", choice(ScanMode), ScanMode.FULL, "Where a stream starts.")
    change_feed: bool = option(
        "readChangeFeed",
        BOOLEAN,
        "false",
        "Whether a stream has `_change_type`, `_commit_version` and `_commit_timestamp`.",
    )
    rows_max: int | None = optional(
        "maxRowsPerTrigger",
        integer(1),
        "The maximum rows of a micro-batch; a larger snapshot is still read as a whole.",
    )
    snapshots_max: int | None = optional(
        "maxSnapshotsPerTrigger", integer(1), "The maximum snapshots of a micro-batch."
    )
    checkpoint: str | None = optional(
        "checkpointLocation",
        VERBATIM,
        "The checkpoint of a streaming write, which identifies the query across restarts.",
    )
    tasks: int = option("tasks", integer(1), "2", "How many tasks a read is split into.")
    push_filters: bool = option(
        "pushFilters",
        BOOLEAN,
        "false",
        "Whether the source applies a batch query's filters before rows reach Spark.",
    )
    schema: str = option(
        "schema", _SCHEMA, NEWEST, "Whether a batch read has the table's columns, or the snapshot's own ones."
    )
    until: int | None = optional("until", integer(0), "The last snapshot that a stream reads.")
    until_ms: int | None = optional("until-timestamp", _TIME, "The same by time, in milliseconds since the epoch.")
    consumer: str | None = optional(
        "consumer", VERBATIM, "The name under which a stream's progress is stored in the table."
    )
    changes_after: int | None = optional(
        "changesAfter", integer(0), "The snapshot after which a batch read returns changes, as a stream does."
    )
    changes_through: int | None = optional("changesThrough", integer(0), "The last snapshot of those changes.")
    state: str | None = optional(
        "stateLocation", VERBATIM, "The folder for the states of normalized streams; by default in the table's folder."
    )
    state_ttl_ms: int | None = optional(
        "stateTtl", duration(1), "After how long without a record a normalized stream forgets a key; by default never."
    )
    table_id: str | None = optional(
        "tableId", VERBATIM, "The id of the table to read; an error if it was dropped and created again."
    )
    runtime: Mapping[str, ClientValue] = field(default_factory=dict)
    allowed: Allowed = field(default_factory=Allowed.of)
    frame: tuple[str, int] | None = None

    @property
    def own_schema(self) -> bool:
        """Whether a batch read has the snapshot's own columns instead of the table's current ones."""
        return self.schema == OWN


_KNOWN: Final = {spec.name.lower(): spec.name for spec in ReadOptions.specs()} | {"allowreferences": "allowReferences"}
_OF_DELTA: Final = {"versionasof": "snapshot", "timestampasof": "timestamp"}
"""Options that Delta calls otherwise."""
_OF_SPARK = ("numrows", "queryname")
"""Options that Spark adds itself, for the console sink and for queries."""


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options passed by Spark; names are case-insensitive.

    Raises:
        InvalidInputError: an option is unknown, a value is invalid, ``path`` is missing, or two options exclude each
            other.
    """
    given = _renamed({name.lower(): value for name, value in options.items()})
    allowed = Allowed.parse(given["allowreferences"], "allowReferences") if "allowreferences" in given else Allowed.of()
    runtime = {name: value for name, value in given.items() if name.startswith("kafka.")}
    for name in given:
        if name not in _KNOWN and name not in runtime and name not in _OF_SPARK:
            known = f"Known options are {', '.join(_KNOWN.values())}."
            hint = did_you_mean(name, _KNOWN.values(), otherwise=known)
            msg = f"unknown option {name!r} for format({FORMAT!r}). {hint}"
            raise InvalidInputError(msg)
    path = given.get("path")
    if not path:
        msg = f"option 'path' is required for format({FORMAT!r}): the table's folder."
        raise InvalidInputError(msg)
    for names in (("snapshot", "timestamp", "tag"), ("until", "until-timestamp")):
        if sum(name in given for name in names) > 1:
            shown = f"{', '.join(map(repr, names[:-1]))} and {names[-1]!r}"
            msg = f"options {shown} exclude each other; give one."
            raise InvalidInputError(msg)
    found = ReadOptions.read(given, path=path, runtime=wrap(runtime), allowed=allowed)
    return replace(found, scan_mode=_scan_mode(found, is_given="scan-mode" in given))


def _renamed(given: Mapping[str, str]) -> dict[str, str]:
    """Return options with those that have Delta's name (``versionAsOf``, ``timestampAsOf``) under their own.

    Raises:
        InvalidInputError: both names of an option are given.
    """
    for alias, name in _OF_DELTA.items():
        if alias in given and name in given:
            msg = f"options {alias!r} and {name!r} are the same option; give one."
            raise InvalidInputError(msg)
    return {_OF_DELTA.get(name, name): value for name, value in given.items()}


def parse_schema_choice(text: str) -> bool:
    """Return whether a snapshot is read with its own columns (``own``), not the table's current ones (``newest``).

    Raises:
        InvalidInputError: the text is neither.
    """
    return OptionSpec("schema", _SCHEMA).parse(text) == OWN


def timestamp_millis(value: object) -> int:
    """Convert a time to milliseconds since the epoch.

    Args:
        value: a datetime (with a time zone, or in local time), ISO-8601 text, or milliseconds since the epoch.

    Raises:
        InvalidInputError: the value is none of these.
    """
    if isinstance(value, datetime):
        return _millis(value)
    if isinstance(value, str):
        return OptionSpec("timestamp", _TIME).parse(value)
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return index(value)  # NumPy's whole numbers are not int
    msg = f"timestamp: expected a datetime, ISO-8601 text or milliseconds since the epoch, got {value!r}."
    raise InvalidInputError(msg)


def _scan_mode(options: ReadOptions, *, is_given: bool) -> ScanMode:
    """Return where a stream starts, by default where the option for a start says.

    Raises:
        InvalidInputError: the given mode needs another option, or excludes it.
    """
    needs: dict[ScanMode, tuple[str, object]] = {
        ScanMode.FROM_SNAPSHOT: ("snapshot", options.snapshot),
        ScanMode.FROM_SNAPSHOT_FULL: ("snapshot", options.snapshot),
        ScanMode.FROM_TIMESTAMP: ("timestamp", options.timestamp_ms),
        ScanMode.FROM_TAG: ("tag", options.tag),
    }
    mode = options.scan_mode
    if not is_given:
        return next((kind for kind, (_, value) in needs.items() if value is not None), mode)
    own = needs.get(mode, ("", None))[0]
    for kind, (name, value) in needs.items():
        if mode is kind and value is None:
            msg = f"option 'scan-mode'='{mode}' needs option {name!r}, the position to start from."
            raise InvalidInputError(msg)
        if name != own and value is not None:
            msg = f"option {name!r} needs 'scan-mode'='{kind}', got '{mode}'. Remove one of them."
            raise InvalidInputError(msg)
    return mode
