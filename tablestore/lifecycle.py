"""Making and removing a table: files, topic and index, without a half-made table after a crash."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType

from log_system.index import INDEX, IndexEntry, LogIndex, OffsetRange
from log_system.kafka.client import KafkaClient
from log_system.kafka.groups import delete_groups
from log_system.kafka.secrets import merge_runtime
from log_system.kafka.topic import delete_topic, describe_topic, ensure_topic, latest_offsets
from snapshot.delta import DeltaLog
from snapshot.errors import (
    AlreadyExistsError,
    CorruptedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
)
from snapshot.spark_schema import arrow_schema, check_schema, table_schema
from snapshot.spec import TableSpec
from snapshot.storage import Storage
from snapshot.table import TableFiles, is_of_another
from tablestore.merge_rule import merge_rule
from tablestore.opened import OpenedTable
from tablestore.options import Consistency, Headers, LogOptions, TableOptions, parse_options
from tablestore.partition_time import check_time

logger = logging.getLogger("tablestore")
_STRANGERS_PASS = (
    "table %s: log.compacted=true with log.headers='last': readers cannot tell another producer's records from the "
    "table's, as they can where Kafka removes nothing or each record names its snapshot. Set log.headers='all', or "
    "allow the topic to the table's writers alone (Kafka ACLs); verify() finds such records in any case."
)
_INTENT = f"{INDEX}/_intent"


@dataclass(frozen=True)
class _Intent:
    """Written before anything else is made or removed, so that whoever comes after a crash can finish the job.

    Attributes:
        verb: ``create`` or ``drop``.
        topic: the log's topic; empty without one.
        owns_topic: the topic did not exist when ``create`` began, so it is ours.
    """

    verb: str
    topic: str = ""
    owns_topic: bool = False


def as_schema(schema: StructType | str) -> StructType:
    """Read a schema given as DDL text.

    Raises:
        InvalidInputError: the text is not a schema.
    """
    if isinstance(schema, StructType):
        return schema
    try:
        parsed = StructType.fromDDL(schema)
    except PySparkException as error:
        msg = f"schema: expected a StructType or DDL text such as 'id bigint, name string', came {schema!r}: {error}"
        raise InvalidInputError(msg) from error
    return parsed if isinstance(parsed, StructType) else StructType([StructField("value", parsed)])


def create(
    path: str,
    schema: StructType,
    *,
    primary_key: Sequence[str],
    partition_by: Sequence[str],
    log_system: str | None,
    options: Mapping[str, Any],
) -> OpenedTable:
    """Make an empty table.

    1. Check everything that can be checked without changing anything.
    2. Note the intent. A crash from here to step 5 leaves no table; the next ``create`` at the path clears up.
    3. Make or check the topic.
    4. Write the index entry of the empty snapshot.
    5. Make the Delta tables, the commit table last. From here on there is a table.
    6. Remove the intent.

    Raises:
        InvalidInputError: a column, key or option is wrong, or the topic does not fit.
        AlreadyExistsError: there is a table or another Delta table at the path, or the topic has records.
        UnavailableError: the broker or the file system does not answer.
    """
    # Step 1.
    check_schema(schema, primary_key, partition_by)
    parsed = parse_options(options, log_system=log_system, primary_key=primary_key)
    merge_rule(parsed.merge, arrow_schema(schema), primary_key)
    check_time(parsed.partition.pattern, parsed.partition.formatter, partition_by)
    if parsed.log is not None and parsed.log.consistency is Consistency.EVENTUAL:
        logger.warning(
            "table %s: log.consistency='eventual' is costly: streaming reads normalize, which keeps the values of each "
            "key in state. Use 'transactional', the default, unless readers must see rows before they are committed.",
            path,
        )
    if parsed.log is not None and parsed.log.compacted and parsed.log.headers is not Headers.ALL:
        logger.warning(_STRANGERS_PASS, path)
    storage = Storage.at(path)
    storage.check_put_new()
    with storage.alone():
        _clear_way(storage, parsed.log)
        return _make(storage, schema, parsed, tuple(primary_key), tuple(partition_by))


def _make(
    storage: Storage,
    schema: StructType,
    parsed: TableOptions,
    primary_key: tuple[str, ...],
    partition_by: tuple[str, ...],
) -> OpenedTable:
    """Do steps 2 to 6 of ``create``."""
    spec = TableSpec(
        table_id=uuid.uuid4().hex,
        schema_json=table_schema(schema, primary_key).json(),
        primary_key=primary_key,
        partition_by=partition_by,
        properties=parsed.to_properties(),
    )
    # Step 2.
    intent = _Intent("create")
    if parsed.log is not None:
        client = _client(parsed.log)
        is_new = describe_topic(client, parsed.log.kafka.topic) is None
        intent = _Intent("create", parsed.log.kafka.topic, is_new)
    _note(storage, intent)
    try:
        # Step 3.
        if parsed.log is not None:
            _ensure_topic(client, parsed, parsed.log)
            spec = replace(spec, owns_topic=intent.owns_topic)
            # Step 4.
            LogIndex(storage).put(_empty_snapshot(client, parsed.log.kafka.topic, parsed.buckets))
        # Step 5.
        files = TableFiles.create(storage, spec)
    except Exception as error:
        # What another ``create`` has made here at the same time is not ours to remove, nor what may be a table.
        if not isinstance(error, OutcomeUnknownError) and not is_of_another(storage, spec.table_id):
            _undo(storage, parsed.log, intent)
        raise
    # Step 6.
    storage.delete(_INTENT)
    return OpenedTable.of(files, parsed, {})


def drop(table: OpenedTable) -> None:
    """Remove a table's files, and its topic if ``create`` made it.

    1. Note the intent. A crash from here on is finished by the next ``create`` at the path.
    2. Remove the commit table's log: from here on there is no table.
    3. Remove the topic and the consumer group.
    4. Remove the other files.

    Raises:
        TableReplacedError: the table was dropped and created again; that one stays.
    """
    with table.files.storage.alone():
        # Raise where another table is at the path by now.
        table.files.latest()
        _remove(table)


def _remove(table: OpenedTable) -> None:
    """Do the steps of ``drop``."""
    storage, log = table.files.storage, table.log
    # Step 1.
    intent = _Intent("drop", log.topic if log else "", table.spec.owns_topic)
    _note(storage, intent)
    # Step 2.
    table.files.log.storage.child("_delta_log").delete_tree()
    # Step 3.
    if log is not None:
        if table.spec.owns_topic:
            delete_topic(log.client, log.topic)
            # From now on the name may be somebody else's.
            _note(storage, replace(intent, owns_topic=False))
        delete_groups(log.client, [log.group, log.tasks_group])
    # Step 4.
    _remove_files(storage)


def _clear_way(storage: Storage, log: LogOptions | None) -> None:
    """Finish what a crashed ``create`` or ``drop`` left at the path.

    Raises:
        AlreadyExistsError: there is a table, or something that is not ours.
    """
    text = storage.read(_INTENT)
    intent = None if text is None else _Intent(**json.loads(text))
    if _is_table(storage, intent):
        msg = f"{storage.root}: there is a table already; open it, or drop it first."
        raise AlreadyExistsError(msg)
    if intent is None:
        if DeltaLog(storage).exists():
            msg = f"{storage.root}: there is a Delta table that is not of this store; choose another path."
            raise AlreadyExistsError(msg)
        if found := _strangers(storage):
            msg = f"{storage.root}: a table needs an empty folder; this one has {found[:3]}. Choose another path."
            raise AlreadyExistsError(msg)
        return
    if log is not None and intent.owns_topic and log.kafka.topic == intent.topic:
        client = _client(log)
        if intent.verb == "drop" or not _has_records(client, intent.topic):
            delete_topic(client, intent.topic)
    _remove_files(storage)


def _is_table(storage: Storage, intent: _Intent | None) -> bool:
    try:
        TableFiles.open(storage)
    except NotFoundError:
        return False
    except CorruptedError:
        if intent is not None and intent.verb == "drop":
            return False
        raise
    return True


def _strangers(storage: Storage) -> list[str]:
    """List what is in the folder, apart from the draft of an intent whose writer died."""
    drafts = {name for name in storage.names(INDEX) if name.endswith(".tmp")}
    is_draft = drafts == set(storage.names(INDEX))
    return [name for name in storage.names() if name != INDEX or not is_draft]


def _has_records(client: KafkaClient, topic: str) -> bool:
    """Tell whether a topic that a crashed ``create`` may have made is in use by somebody else meanwhile."""
    if describe_topic(client, topic) is None:
        return False
    return any(latest_offsets(client, topic, read_committed=False).values())


def _ensure_topic(client: KafkaClient, options: TableOptions, log: LogOptions) -> None:
    ensure_topic(
        client,
        log.kafka.topic,
        partitions=options.buckets,
        retention_ms=log.retention_ms,
        compacted=log.compacted,
        replication_factor=log.replication_factor,
    )


def _empty_snapshot(client: KafkaClient, topic: str, partitions: int) -> IndexEntry:
    ends = latest_offsets(client, topic, read_committed=True)
    return IndexEntry(0, 0, "create", tuple(OffsetRange(ends[p], ends[p], 0, 0) for p in range(partitions)))


def _note(storage: Storage, intent: _Intent) -> None:
    storage.put(_INTENT, json.dumps(asdict(intent)).encode())


def _undo(storage: Storage, log: LogOptions | None, intent: _Intent) -> None:
    """Take back what a failed ``create`` made; the intent goes last, so a crash here changes nothing."""
    if log is not None and intent.owns_topic:
        delete_topic(_client(log), log.kafka.topic)
    _remove_files(storage)


def _remove_files(storage: Storage) -> None:
    for name in storage.names():
        if name != INDEX:
            storage.remove_tree(name)
    for name in storage.names(INDEX):
        if f"{INDEX}/{name}" != _INTENT:
            storage.remove_tree(f"{INDEX}/{name}")
    storage.delete_tree()


def _client(log: LogOptions) -> KafkaClient:
    return KafkaClient(merge_runtime(log.kafka.client, {}))
