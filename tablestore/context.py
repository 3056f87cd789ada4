"""A table opened in this process: its files, options and log. The rest of the package works on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from log_system.gate import Gate
from log_system.index import LogIndex
from log_system.kafka.client.access_policy import Allowed, merge_runtime
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.secrets import ClientValue, wrap
from log_system.kafka.log import KafkaLog
from log_system.kafka.record_limits import RecordCheck
from snapshot.errors import InvalidInputError, TableReplacedError
from snapshot.merge.merge_rules import MergeRule
from snapshot.schema.spec import TableSpec
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from tablestore.options.rule_of_options import merge_rule
from tablestore.options.table_options import Consistency, ForeignRecords, LogOptions, TableOptions, parse_stored

SERVERS = "kafka.bootstrap.servers"


@dataclass(frozen=True)
class TableContext:
    """An open table.

    Attributes:
        files: the table's Delta files.
        options: the table's options.
        log: the table's log; None without a log system.
        index: the table's log index; empty without a log system.
        runtime: client options given when the table was opened; never stored.
        allowed: the references that the table's stored options may hold in this process.
    """

    files: TableFiles
    options: TableOptions
    log: KafkaLog | None
    index: LogIndex
    runtime: Mapping[str, ClientValue]
    allowed: Allowed

    @classmethod
    def open(
        cls, path: str, runtime: Mapping[str, object] | None = None, allowed: Allowed | None = None
    ) -> TableContext:
        """Open a table by its path.

        Args:
            path: the table's folder.
            runtime: ``kafka.*`` client options that are not stored, such as credentials.
            allowed: the references that the stored options may hold; None takes them from the environment.

        Raises:
            NotFoundError: there is no table.
            InvalidInputError: a runtime option is not a client option, or the table has no log; or a stored option is
                one that only the program may set.
        """
        runtime = wrap(runtime or {})
        files = TableFiles.open(Storage.at(path))
        options = parse_stored(files.spec.properties, files.spec.primary_key)
        if runtime and options.log is None:
            msg = f"option '{next(iter(runtime))}': table {path!r} has no log system, so it takes no client options."
            raise InvalidInputError(msg)
        return cls.of(files, options, runtime, allowed or Allowed.of())

    @classmethod
    def of(
        cls, files: TableFiles, options: TableOptions, runtime: Mapping[str, ClientValue], allowed: Allowed
    ) -> TableContext:
        """Build an open table from its parts."""
        log = None
        if options.log is not None:
            merged = merge_runtime(options.log.kafka.client, runtime, allowed)
            client = KafkaClient(merged, wait_seconds=options.log.request_timeout_ms / 1000)
            log = kafka_log(files.spec, options, options.log, client, files)
        index = LogIndex(files.storage, files.oldest, files.spec.table_id)
        return cls(files, options, log, index, runtime, allowed)

    def refreshed(self) -> TableContext:
        """Return the table as currently defined: ``self`` unless its columns or options have changed."""
        files = self.files.refreshed()
        if files is self.files:
            return self
        options = parse_stored(files.spec.properties, files.spec.primary_key)
        return self.of(files, options, self.runtime, self.allowed)

    def check_same(self) -> None:
        """Check that the table at the path is still the one that was opened, by opening it again.

        Raises:
            NotFoundError: the table was dropped.
            TableReplacedError: the table was dropped and created again.
        """
        if TableFiles.open(self.files.storage).spec.table_id != self.spec.table_id:
            msg = f"table {self.path!r} was dropped and created again since it was opened. Open the table again."
            raise TableReplacedError(msg)

    @property
    def path(self) -> str:
        """The table's folder."""
        return self.files.storage.root

    @property
    def spec(self) -> TableSpec:
        """The table's definition."""
        return self.files.spec

    @cached_property
    def rule(self) -> MergeRule:
        """The rule by which rows of the same key are merged."""
        return merge_rule(self.options.merge, self.spec.arrow, self.spec.primary_key)

    @property
    def looks_up(self) -> bool:
        """Whether a write looks up the existing rows of its keys in the table."""
        return self.options.looks_up or self.rule.merges

    @property
    def is_eventual(self) -> bool:
        """Whether changes reach the log before they are committed."""
        return self.options.log is not None and self.options.log.consistency is Consistency.EVENTUAL

    @property
    def record_check(self) -> RecordCheck | None:
        """Rejects rows whose records the log would not accept; None without a log."""
        return None if self.log is None else RecordCheck(self.log)

    def newest_visible(self) -> int:
        """Return the newest snapshot that a stream may see: published if there is a log, else committed."""
        return self.files.latest() if self.log is None else Gate(self.index).newest()


def kafka_log(
    spec: TableSpec, options: TableOptions, log: LogOptions, client: KafkaClient, files: TableFiles
) -> KafkaLog:
    """Return the description of a table's log that publishers and readers use."""
    return KafkaLog(
        table_id=spec.table_id,
        client=client,
        topic=log.kafka.topic,
        partitions=options.buckets,
        format=log.format.value,
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
    )
