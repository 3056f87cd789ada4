"""Opens the log of a table by its options: the one place that knows which log systems there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from log_system.base import LogStorage, LogSystem
from log_system.files.log import FilesLog, NoStorage
from log_system.index import LogIndex
from log_system.kafka.client.access_policy import Allowed, merge_runtime
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.secrets import ClientValue
from log_system.kafka.log import KafkaLog
from log_system.kafka.option_checks import Consistency
from log_system.kafka.system import EventualLog, TransactionalLog
from log_system.kafka.topic_storage import TopicStorage
from snapshot.store.table_files import TableFiles
from tablestore.options.specification import ForeignRecords, LogOptions, TableOptions
from tablestore.reconcile import MissingChanges, Repairs

SERVERS = "kafka.bootstrap.servers"


def open_log(
    files: TableFiles,
    options: TableOptions,
    index: LogIndex,
    runtime: Mapping[str, ClientValue],
    allowed: Allowed,
) -> LogSystem:
    """Return the log of a table; nothing connects yet.

    Args:
        files: the table.
        options: its options.
        index: its log index.
        runtime: client options that are not stored, such as credentials.
        allowed: the references that stored options may hold in this process.

    Raises:
        InvalidInputError: a runtime option is not a client option, or a stored option is one that only the program may
            set.
    """
    if options.log is None:
        return FilesLog(files, options.buckets)
    storage = _topic(options, options.log, runtime, allowed)
    settings = _settings(files, options, options.log, storage)
    system = EventualLog if options.log.consistency is Consistency.EVENTUAL else TransactionalLog
    source = partial(Repairs, files) if files.spec.has_key else partial(MissingChanges, files, index=index)
    return system(settings, storage, files, index, source)


def log_storage(options: TableOptions, runtime: Mapping[str, ClientValue], allowed: Allowed) -> LogStorage:
    """Return where the log of a table to be created is stored; arguments and errors are those of ``open_log``."""
    return NoStorage() if options.log is None else _topic(options, options.log, runtime, allowed)


def _topic(
    options: TableOptions, log: LogOptions, runtime: Mapping[str, ClientValue], allowed: Allowed
) -> TopicStorage:
    merged = merge_runtime(log.kafka.client, runtime, allowed)
    return TopicStorage(
        client=KafkaClient(merged, wait_seconds=log.request_timeout_ms / 1000),
        name=log.kafka.topic,
        partitions=options.buckets,
        retention_ms=log.retention_ms,
        compacted=log.compacted,
        replication_factor=log.replication_factor,
    )


def _settings(files: TableFiles, options: TableOptions, log: LogOptions, topic: TopicStorage) -> KafkaLog:
    spec = files.spec
    return KafkaLog(
        table_id=spec.table_id,
        client=topic.client,
        topic=topic.name,
        partitions=topic.partitions,
        format=log.format,
        changelog=options.looks_up or not spec.has_key,
        schema=files.change_schema,
        primary_key=spec.primary_key,
        headers=log.headers.value,
        transaction_timeout_ms=log.transaction_timeout_ms,
        driver_rows_max=options.publish.driver_rows_max,
        transaction_rows_max=options.publish.transaction_rows_max,
        mixed=log.consistency is Consistency.EVENTUAL,
        servers=spec.properties.get(SERVERS, ""),
        topic_id=spec.topic_id,
        skips_foreign=log.foreign_records is ForeignRecords.SKIP,
        compacted=topic.compacted,
    )
