"""Runs ``CALL``: the maintenance of store tables, under the names that Paimon's procedures have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from snapshot.errors import InvalidInputError, NotFoundError
from tablestore.connectors.java_regex import compile_pattern
from tablestore.sql.catalog.results import Result
from tablestore.sql.catalog.session_scope import Scope
from tablestore.sql.catalog.settings import ZONE
from tablestore.sql.parser.procedures import PREFIX, Call
from tablestore.sql.queries.batch_query import open_table
from tablestore.table.store import TableStore

_SUCCESS: Final = ("Success",)
_BACK: Final = ("previous_snapshot_id", "current_snapshot_id")
_MILLIS: Final = 1000
Rows = list[tuple[str, ...]]


def call(scope: Scope, statement: Call) -> Result:
    """Run a procedure.

    Raises:
        NotFoundError: there is no such table, snapshot, tag or consumer.
        InvalidInputError: it is not a store table, or a value is not valid.
    """
    given: dict[str, Any] = dict(statement.arguments)
    name = given.pop("table").removeprefix(PREFIX).strip("`")
    table = open_table(scope, name)
    if not isinstance(table, TableStore):
        msg = f"CALL {statement.name}: '{name}' is a table of a connector; expected a store table."
        raise InvalidInputError(msg)
    if "older_than" in given:
        given["older_than"] = _moment(scope, statement.name, given["older_than"])
    columns, run = _RUN[statement.name]
    return Result(statement, columns=columns, rows=tuple(run(table, **given) or [_SUCCESS]))


def _moment(scope: Scope, procedure: str, text: str) -> datetime:
    """Return a time that a text gives by the clock of the session."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"CALL {procedure}: argument 'older_than': expected a time such as '2024-01-31 12:00:00', got '{text}'."
        raise InvalidInputError(msg) from None
    zone = scope.settings.get(ZONE)
    return moment.replace(tzinfo=ZoneInfo(zone)) if zone and not moment.tzinfo else moment


def _at(millis: int) -> datetime:
    try:
        return datetime.fromtimestamp(millis / _MILLIS, UTC)
    except (ValueError, OverflowError, OSError):
        msg = f"argument 'timestamp': expected milliseconds since 1970-01-01 00:00:00 UTC, got {millis}."
        raise InvalidInputError(msg) from None


def _compact(table: TableStore, **_: object) -> Rows:
    table.compact()
    return []


def _create_tag(table: TableStore, tag: str, snapshot_id: int | None = None, time_retained: str | None = None) -> Rows:
    table.tags.create(tag, snapshot_id, retained=time_retained)
    return []


def _create_tag_from_timestamp(table: TableStore, tag: str, timestamp: int, time_retained: str | None = None) -> Rows:
    later = [each.id for each in table.snapshots() if each.timestamp_ms > timestamp]
    if not later:
        msg = f"CALL create_tag_from_timestamp: no snapshot is newer than {_at(timestamp)}."
        raise NotFoundError(msg)
    made = table.tags.create(tag, min(later), retained=time_retained)
    return [(made.name, str(made.snapshot.id))]


def _delete_tag(table: TableStore, tag: str) -> Rows:
    for name in tag.split(","):
        table.tags.delete(name.strip())
    return []


def _rename_tag(table: TableStore, tagname: str, targettagname: str) -> Rows:
    renamed = next((tag for tag in table.tags.all() if tag.name == tagname), None)
    left = None if renamed is None or renamed.expires_ms is None else _at(renamed.expires_ms) - datetime.now(UTC)
    table.tags.create(targettagname, tagname, retained=left if left is None else max(left, timedelta(milliseconds=1)))
    table.tags.delete(tagname)
    return []


def _expire_tags(table: TableStore, older_than: datetime | None = None) -> Rows:
    return [(name,) for name in table.tags.expire(older_than)] or [("No expired tags.",)]


def _rollback_to(table: TableStore, tag: str | None = None, snapshot_id: int | None = None) -> Rows:
    return _rolled_back(table, _target("rollback_to", tag, snapshot_id))


def _rollback_to_as_latest(table: TableStore, tag: str | None = None, snapshot_id: int | None = None) -> Rows:
    target = _target("rollback_to_as_latest", tag, snapshot_id)
    ((before, now),) = _rolled_back(table, target)
    if tag is not None:
        target = next(each.snapshot.id for each in table.tags.all() if each.name == tag)
    return [(before, str(target), now)]


def _target(procedure: str, tag: str | None, snapshot_id: int | None) -> int | str:
    given = [each for each in (tag, snapshot_id) if each is not None]
    if len(given) != 1:
        msg = f"CALL {procedure}: expected one of the arguments 'snapshot_id' and 'tag'."
        raise InvalidInputError(msg)
    return given[0]


def _rollback_to_timestamp(table: TableStore, timestamp: int) -> Rows:
    return _rolled_back(table, _at(timestamp))


def _rolled_back(table: TableStore, to: int | str | datetime) -> Rows:
    before = table.snapshots(1)[0].id
    made = table.maintenance.rollback(to)
    return [(str(before), str(before if made is None else made.id))]


def _expire_snapshots(
    table: TableStore,
    retain_max: int | None = None,
    retain_min: int | None = None,
    older_than: datetime | None = None,
) -> Rows:
    """Expire snapshots: those beyond ``retain_max``, and older ones beyond ``retain_min``."""
    reports = []
    if retain_max is not None:
        reports.append(table.maintenance.expire(keep_last=retain_max, older_than="0 s"))
    if older_than is not None or retain_min is not None:
        reports.append(
            table.maintenance.expire(
                keep_last=retain_min, older_than=older_than or f"{table.options.snapshot.retention_ms} ms"
            )
        )
    if not reports:
        reports.append(table.maintenance.expire())
    return [(str(sum(report.snapshots for report in reports)),)]


def _expire_partitions(
    table: TableStore,
    expiration_time: str | None = None,
    timestamp_formatter: str | None = None,
    timestamp_pattern: str | None = None,
    **_: object,
) -> Rows:
    report = table.maintenance.expire_partitions(
        expiration_time=expiration_time, timestamp_formatter=timestamp_formatter, timestamp_pattern=timestamp_pattern
    )
    return [(name,) for name in report.partitions] or [("No expired partitions.",)]


def _remove_orphan_files(
    table: TableStore, older_than: datetime | str = "1 d", *, dry_run: bool = False, **_: object
) -> Rows:
    report = table.maintenance.remove_orphans(older_than=older_than, dry_run=dry_run)
    return [(str(len(report.files)),), (str(report.bytes),)]


def _reset_consumer(table: TableStore, consumer_id: str, next_snapshot_id: int | None = None) -> Rows:
    table.consumers.reset(consumer_id, None if next_snapshot_id is None else max(next_snapshot_id - 1, 0))
    return []


def _clear_consumers(table: TableStore, including_consumers: str = "", excluding_consumers: str = "") -> Rows:
    wanted = compile_pattern(including_consumers or ".*", "including_consumers")
    kept = compile_pattern(excluding_consumers or "(?!)", "excluding_consumers")
    for consumer in table.consumers.all():
        if wanted.fullmatch(consumer.name) and not kept.fullmatch(consumer.name):
            table.consumers.reset(consumer.name)
    return []


_RUN: Final[Mapping[str, tuple[tuple[str, ...], Callable[..., Rows]]]] = {
    "compact": (("result",), _compact),
    "create_tag": (("result",), _create_tag),
    "create_tag_from_timestamp": (("tag_name", "snapshot_id"), _create_tag_from_timestamp),
    "delete_tag": (("result",), _delete_tag),
    "rename_tag": (("result",), _rename_tag),
    "expire_tags": (("expired_tags",), _expire_tags),
    "rollback_to": (_BACK, _rollback_to),
    "rollback_to_as_latest": ((_BACK[0], "rolled_back_snapshot_id", _BACK[1]), _rollback_to_as_latest),
    "rollback_to_timestamp": (_BACK, _rollback_to_timestamp),
    "expire_snapshots": (("result",), _expire_snapshots),
    "expire_partitions": (("expired_partitions",), _expire_partitions),
    "remove_orphan_files": (("result",), _remove_orphan_files),
    "reset_consumer": (("result",), _reset_consumer),
    "clear_consumers": (("result",), _clear_consumers),
}
"""The result's columns and the function of each procedure, whose parameters are in ``parser/call_statements.py``."""
