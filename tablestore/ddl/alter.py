"""Schema and option changes of a table; each change commits one snapshot without rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from log_system.kafka.client.access_policy import check_stored
from snapshot.errors import ConflictError, InvalidInputError
from snapshot.records import CommitId, Snapshot
from snapshot.schema.evolution import Change, evolved
from snapshot.schema.spark_types import check_blob_fields, check_schema, visible, with_physical_names
from snapshot.schema.spec import BLOB_FIELD, BUCKET_KEY, IGNORE_DELETE, IGNORE_PREIMAGES, ROWKIND_FIELD, TableSpec
from snapshot.schema.system_columns import with_kind
from snapshot.store.commit import ATTEMPTS_MAX, find_commit
from tablestore.context import TableContext
from tablestore.options.merge_options import (
    SEQUENCE_FIELD,
    SEQUENCE_GROUP,
    is_default,
    is_field_option,
    split_field_option,
)
from tablestore.options.partition_time import check_time
from tablestore.options.rule_of_options import merge_rule
from tablestore.options.specification import OPTIONS
from tablestore.options.table_options import parse_options, without_removed
from tablestore.options.unknown_options import refuse_unknown_option
from tablestore.write.publish import check_index

CHANGEABLE: Final = (
    "log.foreign-records", "log.headers", "log.transaction-timeout", "log.request-timeout", "log.truncate-record",
    "compaction.", "snapshot.", "write.", "publish.", "kafka.", "sequence.delete-retention",
    "partition.", "consumer.expiration-time", "dynamic-partition-overwrite",
    BLOB_FIELD, IGNORE_DELETE, IGNORE_PREIMAGES,
)  # fmt: skip
"""Options, and prefixes of options, that may change after ``create``."""
_WITHOUT_ROWS: Final = frozenset({"create", "alter"})
"""Operations of the snapshots of a table that has never had rows."""
_FIXED_WHY: Final[Mapping[str, str]] = {
    "bucket": "the bucket of each row and log record is a hash modulo this number",
    BUCKET_KEY: "the bucket of each row and log record is a hash of these columns",
    "log.retention": "it is a setting of the topic; change it there (kafka-configs --alter)",
    "log.replication-factor": "it is a setting of the topic; change it there (kafka-reassign-partitions)",
    "kafka.topic": "the log's records are in the topic that was created with the table",
}
_ANEW: Final = (
    "stored and published data depends on it. Create a new table with it, and write this table's rows into it"
)


def alter(
    table: TableContext,
    changes: Sequence[Change] = (),
    *,
    set_options: Mapping[str, Any] | None = None,
    reset_options: Sequence[str] = (),
    publish: Callable[[int], None],
) -> Snapshot | None:
    """Change a table's columns and options.

    1. Check the changes against the current definition; if one is invalid, nothing is written.
    2. Commit the new definition as one Delta version of the commit table. From now on it is in effect. A writer that
       has staged rows for the old columns notices this when it commits. If another commit came first, go back to 1.
    3. Publish and index the snapshot like any other; it has no records. After a crash before this step, the next writer
       does it.

    The base table of a table with a primary key gets the new columns from the next compaction, which is the first to
    write rows with these columns to it.

    Args:
        table: the table.
        changes: the changes of columns, applied in this order.
        set_options: options to set, by name.
        reset_options: names of options to set to their defaults.
        publish: publishes a snapshot.

    Returns:
        The snapshot; None if the table already has this definition.

    Raises:
        InvalidInputError: a change cannot be made.
        ConflictError: other writers committed first too often; nothing was changed.
        UnavailableError: a file system operation failed.
    """
    if table.log.publishes:
        # Like a write, check that the log index matches the table before committing anything.
        check_index(table.files, table.index)
    commit_id, seen = CommitId(f"alter-{uuid.uuid4().hex}", 0), table.files.latest()
    for _ in range(ATTEMPTS_MAX):
        # Step 1.
        table = table.refreshed()
        newest = table.files.latest()
        landed = find_commit(table.files.log, commit_id, newest, after=seen)
        if landed is None:
            before = table.files.spec_at_least(newest)
            after = _altered(table, before, changes, set_options or {}, reset_options, newest + 1)
            if after == before:
                return None
            # Step 2.
            try:
                landed = table.files.alter(after, newest + 1, str(commit_id))
            except ConflictError:
                continue
        # Step 3.
        publish(landed.id)
        return landed
    msg = f"table {table.path!r}: others committed first {ATTEMPTS_MAX} times in a row; nothing was changed. Try again."
    raise ConflictError(msg)


def _altered(
    table: TableContext,
    spec: TableSpec,
    changes: Sequence[Change],
    set_options: Mapping[str, Any],
    reset_options: Sequence[str],
    snapshot: int,
) -> TableSpec:
    """Return the table's definition after the changes; all checks are made here."""
    before = with_physical_names(spec.schema_json)
    # Files of other writers may have columns that the table has never had.
    schemas = (*(each.schema_json for each in spec.past), table.files.log.schema_json())
    past = [with_physical_names(each) for each in schemas]
    columns = evolved(
        before,
        changes,
        past=past,
        bound=_bound(spec),
        widens=_aggregated(spec),
        has_values=lambda: _had_rows(table, snapshot - 1),
    )
    check_schema(visible(columns), spec.primary_key, spec.partition_by)
    if columns != before:
        table.log.check_changes(spec, changes)
        spec = spec.with_columns(columns.json(), snapshot)
        # Check that the merge engine's default aggregate function accepts the types of added columns.
        merge_rule(table.options.merge, spec.arrow, spec.primary_key, spec.partition_by)
        table.log.check_columns(with_kind(spec.change_columns.named))
    if set_options or reset_options:
        spec = replace(spec, properties=_properties(table, spec, set_options, reset_options))
    return spec


def _had_rows(table: TableContext, newest: int) -> bool:
    """Return whether some snapshot up to the newest one had rows, or may have had and has expired."""
    oldest = newest
    for found in table.files.snapshots(newest):
        oldest = found.id
        if found.operation not in _WITHOUT_ROWS:
            return True
    return oldest != 0


def _bound(spec: TableSpec) -> dict[str, str]:
    """Return the columns that must not change, with the reasons."""
    bound = {name: f"it is a partition column, {list(spec.partition_by)}" for name in spec.partition_by}
    bound |= {name: f"it is in the primary key, {list(spec.primary_key)}" for name in spec.primary_key}
    for name in spec.schema.fieldNames():
        option = _option_naming(spec.properties, name)
        if option is not None and name not in bound:
            first = "reset that first, or " if is_changeable(option) else ""
            bound[name] = f"option {option!r} names it; {first}create a new table"
    return bound


def _aggregated(spec: TableSpec) -> set[str]:
    """Return the columns that only options of the columns themselves name: a wider type holds the same values."""
    own = {split_field_option(name) for name in spec.properties if is_field_option(name)}
    ordering = {each for column, what in own if what == SEQUENCE_GROUP for each in column.split(",")}
    ordering |= {name.strip() for name in spec.properties.get(SEQUENCE_FIELD.name, "").split(",")}
    return {column for column, what in own if what != SEQUENCE_GROUP} - ordering - {*spec.partition_by}


def _option_naming(properties: Mapping[str, str], column: str) -> str | None:
    """Return the option that refers to a column, in its name (``fields.<column>.``) or its value; None if none does."""
    for key, value in properties.items():
        names = [each.strip() for each in value.split(",")]
        if key.startswith("fields."):
            named = key.removeprefix("fields.").rpartition(".")[0].split(",")
            if column in named or column in names:
                return key
        elif key in ("sequence.field", BLOB_FIELD, BUCKET_KEY, ROWKIND_FIELD) and column in names:
            return key
    return None


def _properties(
    table: TableContext, spec: TableSpec, set_options: Mapping[str, Any], reset_options: Sequence[str]
) -> dict[str, str]:
    """Return the options to store."""
    for name in (*set_options, *reset_options):
        _check_changeable(table.path, name)
    kept: dict[str, Any] = {name: text for name, text in spec.properties.items() if name not in reset_options}
    parsed = parse_options(without_removed(kept) | dict(set_options), primary_key=spec.primary_key)
    if parsed.log is not None:
        client = parsed.log.kafka.client
        new = {name: text for name, text in client.items() if f"kafka.{name}" in set_options}
        check_stored(new, table.allowed, client["bootstrap.servers"])
    if parsed.merge.sequence_field and parsed.merge.ignore_delete is not table.options.merge.ignore_delete:
        msg = (
            f"table {table.path!r}: option {IGNORE_DELETE!r} cannot change after create with {SEQUENCE_FIELD.name!r}: "
            "a late row is recognized by the sequence of the delete before it, which is looked up only while deletes "
            "are not ignored. Create a new table with it, and write this table's rows into it."
        )
        raise InvalidInputError(msg)
    merge_rule(parsed.merge, spec.arrow, spec.primary_key, spec.partition_by)
    check_blob_fields(spec.schema, parsed.blob_fields or ())
    check_time(parsed.partition.pattern, parsed.partition.formatter, spec.partition_by)
    return parsed.to_properties()


def is_changeable(name: str) -> bool:
    """Return whether an option may change after ``create``."""
    return (name not in _FIXED_WHY and name.startswith(CHANGEABLE)) or is_default(name)


def _check_changeable(path: str, name: str) -> None:
    known = [spec.name for spec in OPTIONS]
    if is_changeable(name):
        return
    if name not in known and not is_field_option(name) and not name.startswith("kafka."):
        refuse_unknown_option(name, known, path)
    msg = f"table {path!r}: option {name!r} cannot change after create: {_FIXED_WHY.get(name, _ANEW)}."
    raise InvalidInputError(msg)
