"""A table opened in this process: its files, options and log. The rest of the package works on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

from log_system.base import LogPublisher, LogSystem, LogWatch
from log_system.index import LogIndex
from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import ClientValue, wrap
from log_system.report import Compared, Progress, Report
from snapshot.errors import DataLostError, InvalidInputError, NotFoundError, TableReplacedError
from snapshot.merge.merge_rules import MergeRule
from snapshot.schema.spec import TableSpec
from snapshot.side_by_side import side_by_side
from snapshot.staging.file_rewriter import FileRewriter
from snapshot.storage import Storage
from snapshot.store.creation import check_created, check_same, dropped_on_error, replaced
from snapshot.store.table_files import TableFiles
from tablestore.log_systems import open_log
from tablestore.options.rule_of_options import merge_rule
from tablestore.options.specification import TableOptions
from tablestore.options.table_options import parse_stored


@dataclass(frozen=True)
class TableContext:
    """An open table.

    Attributes:
        files: the table's Delta files.
        options: the table's options.
        log: the table's log; its own files for a table without a broker.
        index: the table's log index; empty without a log system.
        runtime: client options given when the table was opened; never stored.
        allowed: the references that the table's stored options may hold in this process.
    """

    files: TableFiles
    options: TableOptions
    log: LogSystem
    index: LogIndex
    runtime: Mapping[str, ClientValue]
    allowed: Allowed

    @classmethod
    def open(
        cls,
        path: str,
        runtime: Mapping[str, object] | None = None,
        allowed: Allowed | None = None,
        table_id: str | None = None,
    ) -> TableContext:
        """Open a table by its path.

        Args:
            path: the table's folder.
            runtime: ``kafka.*`` client options that are not stored, such as credentials.
            allowed: the references that the stored options may hold; None takes them from the environment.
            table_id: the id of the table that is expected there; None for any.

        Raises:
            NotFoundError: there is no table.
            TableReplacedError: there is another one than expected.
            CorruptedError: another tool made the table; see ``check_created``.
            InvalidInputError: a runtime option is not a client option, or the table has no log; or a stored option is
                one that only the program may set.
        """
        runtime = wrap(runtime or {})
        files = TableFiles.open(Storage.at(path))
        try:
            with dropped_on_error(files):
                # Reads and writes ask for the oldest snapshot next.
                next(side_by_side(files.storage, partial(check_created, files), partial(files.oldest, fresh=False)))
        except TableReplacedError:
            return cls.open(path, runtime, allowed, table_id)
        if table_id not in (None, files.spec.table_id):
            raise replaced(path)
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
        index = LogIndex(files.storage, files.oldest, files.spec.table_id)
        log = open_log(files, options, index, runtime, allowed)
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
        check_same(self.files)

    @contextmanager
    def own_folder(self) -> Iterator[int | None]:
        """Open the table's folder for ``Storage.put`` and the like; it is that of no other table.

        Entries of logs and index, consumers and tags have the same names in a table that is created again at the path.

        Raises:
            NotFoundError: the table was dropped.
            TableReplacedError: the table was dropped and created again.
        """
        with self.files.storage.opened() as folder:
            # This looks at the table that is at the path now, after the folder was opened.
            self.check_same()
            yield folder

    def check_log(self, watch: LogWatch) -> None:
        """Check by its watch that the table's log still exists.

        Raises:
            DataLostError: the log was created again, for the same table.
            NotFoundError: the table was dropped, or its log was deleted.
            TableReplacedError: the table was dropped and created again, and its log with it.
        """
        try:
            watch.look()
        except (DataLostError, NotFoundError):
            self.check_same()
            raise

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
        return merge_rule(self.options.merge, self.spec.arrow, self.spec.primary_key, self.spec.partition_by)

    @property
    def looks_up(self) -> bool:
        """Whether a write looks up the existing rows of its keys in the table."""
        return self.options.looks_up or self.rule.merges

    @contextmanager
    def open_publisher(self) -> Iterator[LogPublisher | None]:
        """Open a publisher of the table's log, None without a log, and close its connections at the end."""
        publisher = self.log.publisher()
        try:
            yield publisher
        finally:
            if publisher is not None:
                publisher.discard()

    def check_says_deletes(self, verb: str, *, all_rows: bool = False) -> None:
        """Check that the log can express the changes of a statement that deletes or replaces rows.

        Args:
            verb: the statement's name in messages.
            all_rows: all rows are removed, which a single truncate record may express.

        Raises:
            InvalidInputError: the log's format cannot express a delete in this table.
        """
        log = self.options.log
        if log is None or (all_rows and log.truncate_record):
            return
        if not self.spec.has_key and log.traits.deletes_need_key:
            msg = (
                f"{verb}: log.format={log.format!r} identifies a deleted row by its primary key, and table "
                f"{self.path!r} has none. Nothing was written. Create such a table with log.format='arrow' or "
                "'debezium-json', or with a primary key."
            )
            raise InvalidInputError(msg)

    def stored_spec(self) -> TableSpec:
        """Return the definition of a table without a key, with other writers' columns as of the last look."""
        return self.spec.with_columns_of_others(self.files.log.schema_json())

    def file_rewriter(self, stored: TableSpec) -> FileRewriter:
        """Return the writer that replaces files of a table without a key; ``stored`` is that of ``stored_spec``."""
        return FileRewriter(
            self.files.storage,
            self.spec,
            stored,
            self.options.write.target_file_size_bytes,
            check=self.log.record_check(),
        )

    def verify(self, progress: Progress | None = None, from_snapshot: int | None = None) -> Report:
        """Compare log and table; change nothing.

        Args:
            progress: called with the number of offsets read so far and the total.
            from_snapshot: the first snapshot to compare; None for all that are still in the log.

        Raises:
            NotFoundError: the log index has no entry of the snapshot before ``from_snapshot``.
            TableStoreError: as in ``compare``.
            UnavailableError: the broker or the file system does not answer.
        """
        after = None if from_snapshot is None or from_snapshot < 1 else self.compared_up_to(from_snapshot - 1)
        return self.compare(progress, after)

    def compare(
        self, progress: Progress | None = None, after: Compared | None = None, through: int | None = None
    ) -> Report:
        """Compare a part of log and table, as ``LogSystem.verify`` does.

        Raises:
            NotFoundError: the table was dropped. Until that is done, its log and files seem damaged.
            TableReplacedError: the table was dropped and created again.
        """
        try:
            report = self.log.verify(progress, after, through)
        except Exception:
            self.check_same()
            raise
        if not report.ok:
            self.check_same()
        return report

    def compared_up_to(self, snapshot: int) -> Compared:
        """Return the position, by the log index, at which a comparison of log and table after a snapshot starts.

        Raises:
            NotFoundError: the log index has no entry of the snapshot.
            CorruptedError: the entry is damaged.
        """
        if not self.log.publishes:
            return Compared(snapshot)
        entry = self.index.get(snapshot)
        if entry is None:
            latest = self.index.latest()
            msg = (
                f"table {self.path!r}: expected snapshot {snapshot + 1} to follow one that is in the log, and the log "
                f"index does not list {snapshot}; its newest is {'none' if latest is None else latest.snapshot}. "
                "Choose another one, or compare the whole log."
            )
            raise NotFoundError(msg)
        return Compared(snapshot, entry.ends, entry.commit, entry.topic)

    def newest_visible(self) -> int:
        """Return the newest snapshot that readers of the log may see."""
        return self.log.newest()
