"""Creates and drops tables (files, topic and log index) so that a crash never leaves a partly created table."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace

from log_system.base import LogIdentity, LogStorage
from log_system.index import INDEX, LogIndex
from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import ClientValue, wrap
from log_system.kafka.option_checks import creation_warnings
from snapshot.delta.log import DeltaLog
from snapshot.delta.remove_log import remove_log
from snapshot.errors import (
    AlreadyExistsError,
    CorruptedError,
    NotFoundError,
    OutcomeUnknownError,
    TableStoreError,
    UnavailableError,
)
from snapshot.schema.spark_types import arrow_schema, check_blob_fields, check_bucket_key, check_schema
from snapshot.schema.spec import TableSpec
from snapshot.storage import Storage
from snapshot.store.creation import check_created, is_of_another
from snapshot.store.table_files import TableFiles
from tablestore.after_write import after_write
from tablestore.context import TableContext
from tablestore.ddl.intent import INTENT, Intent, kafka_properties, put_intent, read_intent, storage_of
from tablestore.ddl.table_definition import TableDefinition
from tablestore.log_systems import SERVERS, log_storage
from tablestore.options.partition_time import check_time
from tablestore.options.rule_of_options import merge_rule
from tablestore.options.specification import LogOptions

logger = logging.getLogger("tablestore")


def create(
    definition: TableDefinition, runtime: Mapping[str, object] | None = None, allowed: Allowed | None = None
) -> TableContext:
    """Create an empty table; ``runtime`` and ``allowed`` are as for ``TableContext.open``.

    1. Make all checks that change nothing.
    2. Write the intent. A crash from here to step 5 leaves no table; the next ``create`` at the path cleans up.
    3. Create or check the topic, and check that no other table uses it.
    4. Write the log index entry of the empty snapshot.
    5. Create the Delta tables, the commit table last. From now on the table exists.
    6. Delete the intent.

    Raises:
        InvalidInputError: a column, key or option is invalid, or an existing topic does not match the options.
        AlreadyExistsError: there is a table or another Delta table at the path, or the topic has records.
        UnavailableError: the broker or the file system does not respond.
    """
    runtime, allowed = wrap(runtime or {}), allowed or Allowed.of()
    schema, primary_key, partition_by = definition.schema, definition.primary_key, definition.partition_by
    # Step 1.
    check_schema(schema, primary_key, partition_by)
    parsed = definition.parsed
    # The stored options must be valid for any process that opens the table: check them without this process's runtime
    # options first.
    log_storage(parsed, {}, allowed)
    log = log_storage(parsed, runtime, allowed)
    merge_rule(parsed.merge, arrow_schema(schema), primary_key, partition_by)
    check_bucket_key(schema, parsed.bucket_key or ())
    check_blob_fields(schema, parsed.blob_fields or ())
    check_time(parsed.partition.pattern, parsed.partition.formatter, partition_by)
    if parsed.log is not None:
        for text in creation_warnings(parsed.log, primary_key):
            logger.warning("table %s: %s", definition.path, text)
    storage = Storage.at(definition.path)
    storage.check_put_new()
    with storage.alone():
        _clear_way(storage, parsed.log, runtime, allowed)
        files = _make(storage, definition, log)
    return TableContext.of(files, parsed, runtime, allowed)


def exists(path: str) -> bool:
    """Return whether there is a table at a path; the remains of an interrupted ``create`` or ``drop`` are none.

    Raises:
        CorruptedError: there is a table, and its definition cannot be read.
        UnavailableError: the file system does not respond.
    """
    storage = Storage.at(path)
    return _is_table(storage, read_intent(storage))


def _make(storage: Storage, definition: TableDefinition, log: LogStorage) -> TableFiles:
    """Run steps 2 to 6 of ``create``."""
    spec = TableSpec(
        table_id=uuid.uuid4().hex,
        schema_json=definition.stored_schema.json(),
        primary_key=tuple(definition.primary_key),
        partition_by=tuple(definition.partition_by),
        properties=definition.parsed.to_properties(),
    )
    # Step 2.
    intent = Intent("create", table_id=spec.table_id, topic=log.name, properties=kafka_properties(spec))
    making = _Making(storage, intent, log)
    making.note()
    try:
        # Step 3.
        identity = log.create(spec.table_id, making.note)
        spec = replace(spec, owns_topic=identity.owned, topic_id=identity.topic_id, cluster_id=identity.cluster_id)
        # Step 4.
        entry = log.first_entry(spec.table_id)
        if entry is not None:
            LogIndex(storage).put(entry)
        # Step 5.
        files = TableFiles.create(storage, spec)
    except Exception as error:
        # Do not remove files of a concurrent ``create``, nor files that may be a table because the outcome of their
        # commit is unknown.
        if not isinstance(error, OutcomeUnknownError) and not is_of_another(storage, spec.table_id):
            making.undo()
        raise
    # Step 6. The table exists, with which an intent means nothing.
    after_write(storage.root, "deleting the intent", lambda: storage.delete(INTENT))
    return files


class _Making:
    """A ``create`` in progress: tracks what it has created and can undo it."""

    def __init__(self, storage: Storage, intent: Intent, log: LogStorage) -> None:
        self._storage = storage
        self._intent = intent
        self._log = log

    def note(self, identity: LogIdentity | None = None) -> None:
        """Write the intent, with the identity of the log once it is known."""
        if identity is not None:
            self._intent = self._intent.of(identity)
        put_intent(self._storage, self._intent)

    def undo(self) -> None:
        """Undo a failed ``create``; the intent is deleted last, so that an undo that crashes can be repeated."""
        try:
            _finish(self._storage, self._intent, self._log)
        except TableStoreError as error:
            # Only log this error: the caller raises the one that made ``create`` fail.
            logger.warning(
                "%s: cleaning up failed; the next create or drop here removes the rest: %s", self._storage.root, error
            )


def drop(table: TableContext, *, keep_topic: bool = False) -> str | None:
    """Drop a table: delete its files, and its topic if ``create`` created it.

    1. Get the topic's ids from the broker and check whether the table owns the topic. If the broker does not respond,
       the drop ends here with nothing changed.
    2. Write the intent. After a crash from here on, ``drop_at`` or the next ``create`` at the path finishes the drop.
    3. Delete the commit table's Delta log. From now on the table does not exist.
    4. Delete the topic, then the consumer groups, which show other tables that the topic is in use.
    5. Delete the other files.

    Args:
        table: the table.
        keep_topic: keep the topic; then the broker need not be reachable.

    Returns:
        The topic that was deleted; None if none was.

    Raises:
        NotFoundError: there is no longer a table at the path.
        TableReplacedError: the table was dropped and created again; the new table is kept.
        UnavailableError: the broker or the file system does not respond; drop again.
    """
    with table.files.storage.alone():
        return _remove(table, keep_topic=keep_topic)


def drop_at(
    path: str,
    runtime: Mapping[str, object] | None = None,
    allowed: Allowed | None = None,
    *,
    keep_topic: bool = False,
) -> str | None:
    """Drop the table at a path as ``drop`` does, or clean up after an interrupted ``drop`` or ``create``.

    Args:
        path: the table's folder.
        runtime: ``kafka.*`` client options that are not stored, such as credentials.
        allowed: which references stored options may contain; None for the list in the environment.
        keep_topic: as for ``drop``.

    Returns:
        The topic that was deleted; None if none was.

    Raises:
        NotFoundError: there is neither a table nor the rest of one.
        UnavailableError: the broker or the file system does not respond; drop again.
    """
    storage = Storage.at(path)
    try:
        table = TableContext.open(path, runtime, allowed)
    except (NotFoundError, CorruptedError):
        with storage.alone():
            intent = read_intent(storage)
            if intent is None or _is_table(storage, intent):
                raise
            log = None
            if intent.topic and not keep_topic:
                log = storage_of(intent, wrap(runtime or {}), allowed or Allowed.of())
            return _finish(storage, intent, log)
    return drop(table, keep_topic=keep_topic)


def _remove(table: TableContext, *, keep_topic: bool) -> str | None:
    """Run the steps of ``drop``."""
    storage, log, spec = table.files.storage, table.log.storage, table.spec
    table.check_same()
    check_created(table.files)
    # Step 1.
    intent = Intent("drop", table_id=spec.table_id, topic=log.name, properties=kafka_properties(spec))
    if not keep_topic and (identity := log.identify(spec)) is not None:
        intent = intent.of(identity)
    # Step 2.
    put_intent(storage, intent)
    # Step 3.
    remove_log(table.files.log.storage)
    # Steps 4 and 5.
    return _finish(storage, intent, None if keep_topic else log)


def _finish(storage: Storage, intent: Intent, log: LogStorage | None) -> str | None:
    """Delete the log that the intent names, if it is proven to be the table's, and the table's files.

    Without ``log``, the topic and its consumer groups are kept; brokers expire the groups.

    Returns:
        The topic that was deleted; None if none was.
    """
    deleted = None
    if log is not None:
        deleted = log.remove(
            intent.table_id,
            intent.identity,
            dropping=intent.verb == "drop",
            deleted=lambda: put_intent(storage, replace(intent, owns_topic=False)),
        )
    _remove_files(storage)
    return deleted


def _clear_way(storage: Storage, log: LogOptions | None, runtime: Mapping[str, ClientValue], allowed: Allowed) -> None:
    """Clean up after a ``create`` or ``drop`` that crashed at the path.

    The cluster is the one of the old table, whatever the options of the new table are.

    Raises:
        AlreadyExistsError: the folder contains a table, or files that are not the store's.
        UnavailableError: the cluster of the old table's topic does not respond.
    """
    intent = read_intent(storage)
    if _is_table(storage, intent):
        msg = f"{storage.root}: a table exists already; open it, or drop it first."
        raise AlreadyExistsError(msg)
    if intent is None:
        if DeltaLog(storage).exists():
            msg = f"{storage.root}: a Delta table that does not belong to the store exists; choose another path."
            raise AlreadyExistsError(msg)
        if found := _strangers(storage):
            msg = (
                f"{storage.root}: expected an empty folder, got one with {found[:3]}. Choose another path, or, if "
                "a table was dropped here, delete what is left of it."
            )
            raise AlreadyExistsError(msg)
        return
    if intent.topic:
        servers = "" if log is None else log.kafka.bootstrap_servers
        given = runtime if servers == intent.properties.get(SERVERS) else {}
        try:
            _finish(storage, intent, storage_of(intent, given, allowed))
        except UnavailableError as error:
            msg = (
                f"{storage.root}: a {intent.verb} of a table with topic {intent.topic!r} was interrupted, and its "
                f"broker does not answer: {error} To keep that topic, run 'tablestore drop --keep-topic "
                f"{storage.root}' first."
            )
            raise UnavailableError(msg) from error
        return
    _finish(storage, intent, None)


def _is_table(storage: Storage, intent: Intent | None) -> bool:
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
    """Return what is in the folder, but no empty folder and no draft of an intent whose writer crashed."""
    drafts = {name for name in storage.names(INDEX) if name.endswith(".tmp")}
    is_draft = drafts == set(storage.names(INDEX))
    names = [name for name in storage.names() if name != INDEX or not is_draft]
    return [name for name in names if next(storage.files(name), None) is not None]


def _remove_files(storage: Storage) -> None:
    remove_log(storage)
    for name in storage.names():
        if name != INDEX:
            storage.remove_tree(name)
    for name in storage.names(INDEX):
        if f"{INDEX}/{name}" != INTENT:
            storage.remove_tree(f"{INDEX}/{name}")
    storage.delete_tree()
