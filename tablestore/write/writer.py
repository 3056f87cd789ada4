"""The write path: prepare, stage, commit, publish and index."""

from __future__ import annotations

import itertools
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from log_system.base import LogPublisher
from log_system.index import IndexEntry
from snapshot.errors import NOT_COMMITTED, DataLostError, UnavailableError
from snapshot.records import CommitId, SentRange, Snapshot
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET
from snapshot.staging.parquet_writer import bucket_in
from snapshot.staging.stage import Role, StagedFile, Stager
from snapshot.store.commit import Replacement, check_kept, commit, find_commit
from snapshot.store.lookup import lookup_in
from snapshot.store.truncate_changes import truncating
from tablestore.context import TableContext
from tablestore.write.foreign_commits import adopt
from tablestore.write.metrics import Meter
from tablestore.write.optimistic_retry import (
    Replaced,
    StaleError,
    check_columns_of,
    check_files,
    check_rows,
    check_same,
    until_fresh,
)
from tablestore.write.publish import (
    LogMovedError,
    PublishPendingError,
    TakeOverBackoff,
    pending_on_error,
    publish_through,
    recover,
)

T = TypeVar("T")
logger = logging.getLogger("tablestore")

_LANDED = (
    "table %s: write %s landed before (the newest under that name is batch %s, the snapshot %d); it is not written "
    "again. That is right for the batch a query repeats after a crash. If the query has started over, its checkpoint "
    "deleted, its rows are skipped: give it a new name."
)
_BEGUN_ANEW = (
    "table %s: write %s is the first of a query that has started over: its checkpoint was deleted, and up to batch %d "
    "was written from there. What it reads again is written again: without a primary key, rows are doubled. If that is "
    "not wanted, stop it and let its source begin where the table ends."
)


class Writer:
    """Writes to one table. Several writers, in any processes, may write to a table concurrently."""

    def __init__(
        self,
        table: TableContext,
        publisher: LogPublisher | None,
        reopen: Callable[[TableContext], LogPublisher | None] | None = None,
    ) -> None:
        """Write to ``table`` and publish with ``publisher``.

        Args:
            table: the table.
            publisher: publisher of the table's log; None without a log.
            reopen: opens a new publisher if the table's log has moved to other brokers. With None, other writers
                publish what is committed by then.
        """
        self._table = table
        self._publisher = publisher
        self._reopen = reopen
        self._writer_id = uuid.uuid4().hex
        self._batch = 0
        self._recovered = publisher is None
        self.meter = Meter(table.path)
        self._turns = TakeOverBackoff(count=self.meter.count)

    def write(
        self,
        stage: Callable[[Stager], Sequence[StagedFile]],
        commit_id: CommitId | None = None,
        *,
        kind: str | None = None,
        all_rows: bool = False,
    ) -> Snapshot | None:
        """Write rows as one snapshot.

        A crash in steps 1 to 3 leaves files that no snapshot refers to. Nothing rolls these steps back.

        1. Prepare: check the columns; add each row's kind and order.
        2. Stage: write files, in one Spark job or in this process. With ``changelog-producer=lookup``, the changes also
           hold the rows that they replace. With ``log.consistency=eventual``, staging also sends the changes to the
           log; if it crashes, the next writer or ``recover()`` repairs the log.
        3. Commit: one Delta version. From here on, the rows are in the table.
        4. Publish and index: write the snapshot, and any earlier one that the log lacks, to the log. A crash before or
           during this step leaves a committed snapshot that the next writer or ``recover()`` publishes.

        Changes that depend on the table's contents are staged again if another writer commits first. These are the
        changes of a DML statement, those of a merge engine, and all changes with ``changelog-producer=lookup``. Any
        change is staged again if the table's columns change before the commit, also if staging fails for that reason.

        Args:
            stage: steps 1 and 2: prepares and stages the rows with the given stager; may be called several times. The
                rows of a DML statement are computed from the stager's snapshot ``base``.
            commit_id: identifies a write that the caller may repeat after a crash; None for any other write.
            kind: the snapshot's kind, for a DML statement; None for a write.
            all_rows: replace all existing rows with the staged ones.

        Returns:
            The snapshot; None if nothing was staged.

        Raises:
            InvalidInputError: the rows do not fit the table; nothing was committed.
            ConflictError: other writers committed first too often; nothing was committed.
            PublishPendingError: committed, but not yet in the log.
        """
        if commit_id is not None and (landed := self.publish_landed(commit_id)) is not None:
            return landed
        self.recover_once()
        tries = itertools.count()

        def attempt() -> Snapshot | None:
            before = next(tries)
            self.refresh()
            stager = self.stager(whole_buckets=True, pinned=kind is not None, all_rows=all_rows)
            with self._stale_on_error(stager.base):
                staged = stage(stager)
            made = self.write_staged(staged, commit_id, stager.base, kind=kind, spec=stager.spec, all_rows=all_rows)
            if made is None and before and stager.tap is not None:
                # Earlier attempts sent records that are now stale; no later commit will repair them, so repair here.
                self._recover()
            return made

        return self.meter.made(kind or "write", lambda: until_fresh(self._table.path, attempt))

    def replace(
        self,
        stage: Callable[[int], tuple[Sequence[StagedFile], Replaced]],
        commit_id: CommitId | None = None,
        *,
        kind: str,
        all_rows: bool = False,
    ) -> Snapshot | None:
        """Replace files of an append table with staged ones, and publish the changes.

        If an append commits in the meantime, it is ordered after this write, as with Delta's ``WriteSerializable``: its
        rows were not read, and they stay. If another writer removes files in the meantime, this write is staged again.
        It is also staged again after an append if the log has a truncate record for this write, because the append
        precedes that record in the log.

        Args:
            stage: given a snapshot, stages new files and returns them with the files of that snapshot that they
                replace; may be called several times.
            commit_id: as for ``write``.
            kind: the snapshot's kind.
            all_rows: all files are replaced.

        Returns:
            The snapshot; None if there was nothing to replace.

        Raises:
            ConflictError: other writers removed files first too often; nothing was committed.
        """
        if commit_id is not None and (landed := self.publish_landed(commit_id)) is not None:
            return landed
        self.recover_once()

        def attempt() -> Snapshot | None:
            self.refresh()
            spec, base = self._table.spec, self._table.files.latest()
            with self._stale_on_error(base):
                staged, replaced = stage(base)
            return self.write_staged(staged, commit_id, kind=kind, replaced=replaced, spec=spec, all_rows=all_rows)

        return self.meter.made(kind, lambda: until_fresh(self._table.path, attempt))

    def checked(self, check: Callable[[], T]) -> Callable[[], T]:
        """Check a statement against the table's columns, and again in an attempt for which others have changed them.

        Returns:
            A function that returns the statement as checked against the definition of the attempt.
        """
        held = check(), self._table.spec.since

        def current() -> T:
            nonlocal held
            if held[1] != self._table.spec.since:
                held = check(), self._table.spec.since
            return held[0]

        return current

    @contextmanager
    def _stale_on_error(self, base: int | None) -> Iterator[None]:
        """Convert an error of staging, if others have changed the table so that it may be the reason.

        Raises:
            StaleError: the table's columns were changed, or snapshot ``base`` has expired, or is read from other files
                since a compaction, since the attempt began.
        """
        try:
            yield
        except Exception as error:
            files, since = self._table.files, self._table.spec.since
            root = files.base_table
            is_compacted = isinstance(error, DataLostError) and root.version(fresh=False) != root.version()
            is_expired = base is not None and base < files.oldest()
            if files.spec_of(files.latest()).since == since and not is_expired and not is_compacted:
                raise
            raise StaleError(str(error)) from error

    def write_staged(
        self,
        staged: Sequence[StagedFile],
        commit_id: CommitId | None = None,
        base: int | None = None,
        *,
        kind: str | None = None,
        replaced: Replaced | None = None,
        spec: TableSpec | None = None,
        all_rows: bool = False,
    ) -> Snapshot | None:
        """Commit staged files and publish the snapshot (steps 3 and 4 of ``write``).

        Args:
            staged: the files.
            commit_id: as for ``write``.
            base: the snapshot that the changes were computed from or resolved against; None if they depend on none.
            kind: the snapshot's kind; None for that of a write.
            replaced: files of an append table that the staged files replace.
            spec: the table definition that the files were staged for; None for this writer's current one.
            all_rows: replace all existing rows with the staged ones.

        Returns:
            The snapshot; None if there are neither staged nor replaced files.

        Raises:
            ConflictError: the table's columns, or rows that were looked up, have changed since staging. The staged
                files are removed, as after every error that says that nothing was committed.
            OutcomeUnknownError: the commit may still land, so the files stay.
            PublishPendingError: committed, but not yet in the log.
            DataLostError: another Delta writer has replaced this commit, or the one before it.
        """
        if not staged and not (replaced and replaced.files):
            return None
        log = self._table.files.log
        truncates = all_rows and self._truncates
        then: Callable[[int], None] | None = None
        if replaced is not None:
            then = partial(check_same if truncates else check_files, log, replaced.base)
        elif base is not None:
            then = partial(check_rows, log, base)
        replacement = None if replaced is None else replaced.replacement(staged)
        if truncates:
            before = replacement or Replacement((), {})
            truncation = truncating(staged, has_key=self._table.spec.has_key)
            replacement = replace(before, facts={**before.facts, **truncation})
        # Step 3.
        try:
            with self.meter.measured("commit") as tell:
                made = commit(
                    log,
                    [each for each in staged if each.role is not Role.CHANGES],
                    commit_id or self._next_id(),
                    operation=kind or _kind(staged, has_key=self._table.spec.has_key),
                    by_snapshot=self._table.spec.has_key,
                    replacement=replacement,
                    check=partial(check_columns_of, self._table.files, (spec or self._table.spec).since, then),
                    sleep=self._wait_to_commit,
                )
                tell(made.id, made.rows)
        except NOT_COMMITTED:
            # No attempt is in doubt. Staged files would keep a full disk full, and the folder of a dropped table.
            self.remove(staged)
            raise
        # Step 4.
        if self._publisher is not None:
            self._publisher.expect(made.id, _sent(staged, has_key=self._table.spec.has_key))
        self.publish(made.id)
        check_kept(log, made)
        return made

    def _wait_to_commit(self, seconds: float) -> None:
        self.meter.count("conflict")
        time.sleep(seconds)

    def remove(self, staged: Sequence[StagedFile]) -> None:
        """Remove staged files that no commit will use."""
        self.stager(whole_buckets=False).remove(staged)

    def discard(self) -> None:
        """Close the publisher's connections."""
        if self._publisher is not None:
            self._publisher.discard()

    @property
    def table(self) -> TableContext:
        """The table as of the last ``refresh``."""
        return self._table

    def refresh(self) -> TableContext:
        """Reload the table if its columns or options have changed, and return it."""
        self._table = self._table.refreshed()
        return self._table

    def publish(self, snapshot: int) -> None:
        """Publish a committed snapshot and all earlier ones that the log lacks; do nothing without a log.

        Raises:
            PublishPendingError: the snapshot is not in the log, for whatever reason.
            TableReplacedError: the table was dropped and created again; the committed snapshot is gone.
        """

        def publish(table: TableContext, publisher: LogPublisher, turns: TakeOverBackoff) -> list[IndexEntry]:
            with pending_on_error(table.files, snapshot, publisher.discard):
                return publish_through(table, publisher, snapshot, turns=turns)

        self._publish(publish)

    def _publish(self, publish: Callable[[TableContext, LogPublisher, TakeOverBackoff], list[IndexEntry]]) -> None:
        """Publish, with a new publisher if the log has moved to other brokers; do nothing without a log."""

        def publish_now() -> None:
            table, publisher = self._table, self._publisher
            if publisher is not None:
                self.measured_publish(lambda turns: publish(table, publisher, turns))

        try:
            publish_now()
        except LogMovedError:
            if self._reopen is None:
                raise
            self._publisher = self._reopen(self.refresh())
            publish_now()

    def publish_landed(self, commit_id: CommitId) -> Snapshot | None:
        """Return the snapshot of a write that an earlier process committed, and publish it if the log lacks it.

        Returns:
            The snapshot; None if the write has not landed.

        Raises:
            CorruptedError: the table was set back to before a batch of the streaming query that had landed.
            InvalidInputError: the streaming query has written another batch of this number.
            PublishPendingError: the write landed, but is not yet in the log.
        """
        log, path = self._table.files.log, self._table.path
        landed = find_commit(log, commit_id, log.version(), after=-1)
        if landed is not None:
            logger.warning(_LANDED, path, commit_id, log.transaction_version(commit_id.writer), landed.id)
            self.publish(landed.id)
        elif commit_id.checkpoint_id and log.transaction_version(commit_id.writer) is None:
            before = log.transaction_version(commit_id.checkpoint_id)
            if before is not None:
                logger.warning(_BEGUN_ANEW, path, commit_id, before)
        return landed

    def recover_once(self) -> None:
        """Publish what earlier writers left unpublished; does so once, before this writer's first write.

        Raises:
            UnavailableError: the broker does not answer; this writer has committed nothing.
            TableStoreError: see ``recover``; this writer has committed nothing.
        """
        if not self._recovered:
            try:
                self._recover()
            except PublishPendingError as error:
                msg = f"Nothing was written, because an earlier snapshot has to be published first. {error}"
                raise UnavailableError(msg) from error
            self._recovered = True

    def _recover(self) -> None:
        if self._publisher is not None:
            adopt(self._table)
            self._publish(lambda table, publisher, turns: recover(table, publisher, turns=turns))

    @property
    def fences(self) -> int:
        """How often another publisher has taken the log over from this writer."""
        return self._turns.fences

    def measured_publish(self, publish: Callable[[TakeOverBackoff], list[IndexEntry]]) -> list[IndexEntry]:
        """Publish with this writer's backoff, measure that, and return the entries of what was published."""
        with self.meter.measured("publish") as tell:
            done = publish(self._turns)
            if done:
                tell(done[-1].snapshot, sum(entry.rows for entry in done))
        return done

    def stager(self, *, whole_buckets: bool, pinned: bool = False, all_rows: bool = False) -> Stager:
        """Return a stager, which stages a task's rows; it looks existing rows up in the newest snapshot.

        Args:
            whole_buckets: all rows of a bucket go to the same task.
            pinned: the rows were computed from the newest snapshot and are stored unchanged.
            all_rows: the staged rows replace all existing rows.
        """
        files = self._table.files
        rule = self._table.rule.as_set() if pinned else self._table.rule
        looks_up = whole_buckets and (self._table.options.looks_up or rule.merges or bool(rule.buries))
        base = files.latest() if looks_up or pinned else None
        lookup = lookup_in(files, base) if looks_up and base is not None else None
        return Stager(
            storage=self._table.files.storage,
            spec=self._table.spec,
            target_bytes=self._table.options.write.target_file_size_bytes,
            whole_buckets=whole_buckets,
            buckets=self._table.options.buckets,
            tap=self._table.log.sink(),
            lookup=lookup,
            changelog=self._table.options.looks_up,
            keeps_same=all_rows and self._truncates,
            rule=rule,
            base=base,
            check=self._table.log.record_check(),
            first_bucket=random.randrange(self._table.options.buckets),
        )

    @property
    def _truncates(self) -> bool:
        """Whether the log has one truncate record in place of a delete for every row."""
        log = self._table.options.log
        return log is not None and log.truncate_record

    def _next_id(self) -> CommitId:
        self._batch += 1
        return CommitId(self._writer_id, self._batch)


def _sent(staged: Sequence[StagedFile], *, has_key: bool) -> dict[int, SentRange]:
    """Return where each bucket's changes are in an eventual log.

    Buckets of a key table that several tasks have sent are left out, because the order of their changes is not known.
    """
    found: dict[int, list[SentRange]] = {}
    for each in staged:
        if each.sent is not None:
            bucket = int(each.file.partition[BUCKET] or 0) if has_key else bucket_in(each.file.path) or 0
            found.setdefault(bucket, []).append(each.sent)
    return {
        bucket: SentRange(min(h.first for h in held), max(h.end for h in held), sum(h.records for h in held))
        for bucket, held in found.items()
        if len(held) == 1 or not has_key
    }


def _kind(staged: Sequence[StagedFile], *, has_key: bool) -> str:
    if not has_key:
        return "append"
    return "delete" if sum(s.deletes for s in staged) == sum(s.changes for s in staged) else "upsert"
