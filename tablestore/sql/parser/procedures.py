"""The procedures of ``CALL`` and their parameters, which are those of Paimon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Constant = str | int | bool | None


@dataclass(frozen=True)
class Call:
    """``CALL sys.procedure(...)``; the arguments by name, without those that are not given."""

    name: str
    arguments: tuple[tuple[str, Constant], ...]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a procedure.

    Attributes:
        name: its name, as in ``name => value``.
        type: the type of its values.
        required: whether it must be given.
        refused: why it is not supported and what to do instead; empty if it is.
        choices: the values that are supported; empty for all.
    """

    name: str
    type: type = str
    required: bool = False
    refused: str = ""
    choices: tuple[str, ...] = ()


TYPES: Final[Mapping[type, str]] = {str: "a text in single quotes", int: "a whole number", bool: "TRUE or FALSE"}
TABLE: Final = Parameter("table", required=True)
_TAG: Final = Parameter("tag", required=True)
_SNAPSHOT: Final = Parameter("snapshot_id", int)
_TIMESTAMP: Final = Parameter("timestamp", int, required=True)
_BACK: Final = (TABLE, Parameter("tag"), _SNAPSHOT)
_KEPT: Final = Parameter("time_retained")
_OPTIONS: Final = Parameter("options", refused="set options by ALTER TABLE ... SET")
_WHOLE: Final = "the whole table is compacted"
_NO_BRANCH: Final = "a table has no branches: CREATE TABLE ... AS SELECT * FROM t copies one"
_NO_WATERMARK: Final = "snapshots have no watermark"
_NO_INDEX: Final = "there are no such indexes"
_LOST_FILES: Final = "a table does not go on without files that it needs: restore them from a copy of its folder"

PROCEDURES: Final[Mapping[str, tuple[Parameter, ...]]] = {
    "compact": (
        TABLE,
        Parameter("partitions", refused=_WHOLE),
        Parameter("order_strategy", choices=("none",)),
        Parameter("order_by", refused="rows are not sorted by other columns than the key"),
        _OPTIONS,
        Parameter("where", refused=_WHOLE),
        Parameter("partition_idle_time", refused=_WHOLE),
        Parameter("compact_strategy", choices=("full",)),
        Parameter("buckets", refused=_WHOLE),
    ),
    "create_tag": (TABLE, _TAG, _SNAPSHOT, _KEPT),
    "create_tag_from_timestamp": (TABLE, _TAG, _TIMESTAMP, _KEPT),
    "delete_tag": (TABLE, _TAG),
    "rename_tag": (TABLE, Parameter("tagname", required=True), Parameter("targettagname", required=True)),
    "expire_tags": (TABLE, Parameter("older_than")),
    "rollback_to": _BACK,
    "rollback_to_as_latest": _BACK,
    "rollback_to_timestamp": (TABLE, _TIMESTAMP),
    "expire_snapshots": (
        TABLE,
        Parameter("retain_max", int),
        Parameter("retain_min", int),
        Parameter("older_than"),
        Parameter("max_deletes", int, refused="all snapshots that are due expire"),
        _OPTIONS,
    ),
    "expire_partitions": (
        TABLE,
        Parameter("expiration_time"),
        Parameter("timestamp_formatter"),
        Parameter("timestamp_pattern"),
        Parameter("expire_strategy", choices=("values-time",)),
        Parameter("max_expires", int, refused="all partitions that are due expire"),
        _OPTIONS,
    ),
    "remove_orphan_files": (
        TABLE,
        Parameter("older_than"),
        Parameter("dry_run", bool),
        Parameter("parallelism", int),
        Parameter("mode", choices=("local", "distributed")),
    ),
    "reset_consumer": (TABLE, Parameter("consumer_id", required=True), Parameter("next_snapshot_id", int)),
    "clear_consumers": (TABLE, Parameter("including_consumers"), Parameter("excluding_consumers")),
}
"""The parameters of each procedure, in order."""

REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("create_branch", "delete_branch", "rename_branch", "fast_forward", "merge_branch"), _NO_BRANCH),
    **dict.fromkeys(("create_tag_from_watermark", "rollback_to_watermark"), f"{_NO_WATERMARK}; use the timestamp"),
    **dict.fromkeys(
        ("create_global_index", "drop_global_index", "rewrite_file_index", "full_text_search", "vector_search"),
        _NO_INDEX,
    ),
    **dict.fromkeys(("remove_unexisting_files", "repair_earliest_snapshot"), _LOST_FILES),
    **dict.fromkeys(("merge_into", "data_evolution_merge_into"), "use MERGE INTO"),
    **dict.fromkeys(("compact_manifest", "remove_unexisting_manifests"), "there are no manifests"),
    **dict.fromkeys(("create_function", "alter_function", "drop_function"), "functions are Spark's"),
    **dict.fromkeys(("migrate_table", "migrate_database", "clone", "copy_files"), "use CREATE TABLE ... AS SELECT"),
    "drop_partition": "use ALTER TABLE ... DROP PARTITION",
    "purge_files": "use TRUNCATE TABLE, and then expire_snapshots",
    "replace_tag": "use delete_tag and create_tag",
    "compact_chain_table": _NO_BRANCH,
    "compact_database": "use compact for each table",
    "materialize_deletion_vectors": "reads always skip replaced and deleted rows; compact rewrites their files",
    "mark_partition_done": "other programs see commits in the log, or in a stream of the table",
    "query_service": "a lookup join reads the table's rows, and so does open_local() in Python",
    "reassign_row_id": "rows have no ids",
    "expire_changelogs": "changes expire with their snapshots: use expire_snapshots",
    "rescale": "the number of buckets is that of the log's partitions; INSERT the rows INTO a table with another one",
    "repair": "definitions follow their tables; 'tablestore repair' repairs a log",
    "alter_column_default_value": "use ALTER TABLE ... SET ('fields.<column>.default-value' = '...')",
    "trigger_tag_automatic_creation": "tags are created by create_tag",
}
DATABASE: Final = "sys"
PREFIX: Final = "default."
"""What Paimon writes before the name of a table in its first database."""
