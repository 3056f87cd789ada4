"""The write path: shape, stage, commit, publish, index."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame

from log_system.base import LogPublisher
from log_system.kafka.publisher.eager_producer import KafkaLogSinkFactory
from snapshot.errors import ConflictError, InvalidInputError, TableReplacedError, UnavailableError
from snapshot.records import SentRange, Snapshot
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET
from snapshot.staging.stage import Role, StagedFile, Stager, staged_to_arrow
from snapshot.store.commit import CommitId, Replacement, commit, find_commit
from snapshot.store.truncate_changes import truncating
from tablestore.context import TableContext
from tablestore.read.split_planner import lookup_in
from tablestore.write.arrow_input import prepare_batches
from tablestore.write.foreign_commits import adopt
from tablestore.write.metrics import Meter
from tablestore.write.optimistic_retry import (
    Replaced,
    check_columns_of,
    check_files,
    check_rows,
    check_same,
    until_fresh,
)
from tablestore.write.prepare_input import check_columns, prepare_changes, prepare_rows
from tablestore.write.recovery import LogMovedError, PublishPendingError, publish_pending, publish_through, recover
from tablestore.write.staging_job import accept_staged, run_staging
from tablestore.write.take_over_backoff import TakeOverBackoff

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


RETRIES_MAX = 50
"""How often a write is staged again because others have committed meanwhile."""


class Writer:
    """Writes to one table. Several writers, in any processes, may write to it at once."""

    def __init__(
        self,
        table: TableContext,
        publisher: LogPublisher | None,
        reopen: Callable[[TableContext], LogPublisher | None] | None = None,
    ) -> None:
        """Write to ``table`` and publish with ``publisher``.

        Args:
            table: the table.
            publisher: of its log; None without one.
            reopen: makes a publisher where the table's log has moved to other brokers; None leaves what is committed
                by then to others.
        """
        self._table = table
        self._publisher = publisher
        self._reopen = reopen
        self._writer_id = uuid.uuid4().hex
        self._batch = 0
        self._recovered = publisher is None
        self._turns = TakeOverBackoff()
        self.meter = Meter(table.path)

    def write(self, frame: DataFrame, commit_id: CommitId | None = None) -> Snapshot | None:
        """Write a frame's rows as one snapshot.

        Steps 1 to 3 are undone by nobody: what a crash leaves there is files that no snapshot points at.

        1. Shape: check the columns, give each row its kind, order and bucket.
        2. Stage: one Spark job writes files, with ``changelog-producer=lookup`` of changes that hold the rows they
           replace. With ``log.consistency=eventual`` it also puts the changes into the log;
           what a crash leaves there, the next writer or ``recover()`` repairs.
        3. Commit: one Delta version. From here on the rows are in the table.
        4. Publish and index: the log takes the snapshot, and any before it that it lacks. A crash before or within
           leaves a committed snapshot that the next writer or ``recover()`` publishes.

        Args:
            frame: the rows; see ``TableStore.write``.
            commit_id: names the write where the caller may repeat it after a crash; None for a write of its own.

        Returns:
            The snapshot; None when the frame has no rows.

        Raises:
            InvalidInputError: the rows do not fit the table; nothing was committed.
            ConflictError: other writers were faster too often; nothing was committed.
            PublishPendingError: committed, and not yet in the log.
        """
        if commit_id is not None and (landed := self.publish_landed(commit_id)) is not None:
            return landed
        self.recover_once()
        return self.write_by(partial(self._stage, frame), commit_id)

    def write_by(
        self,
        stage: Callable[[Stager], Sequence[StagedFile]],
        commit_id: CommitId | None = None,
        *,
        kind: str | None = None,
        all_rows: bool = False,
    ) -> Snapshot | None:
        """Stage, commit and publish (steps 1 to 4 of ``write``).

        Changes that depend on what the table holds (those of a verb, of a merge engine, and all with
        ``changelog-producer=lookup``) are staged again when somebody else commits before they do; all are when
        somebody changes the table's columns.

        Args:
            stage: stages the rows, as often as it is called; those of a verb are made from snapshot ``base`` of what
                it is given.
            commit_id: as for ``write``.
            kind: the snapshot's kind, for a verb; None for a write.
            all_rows: of the rows that there are none stays but for those that are staged.

        Raises:
            ConflictError: others committed in between ``RETRIES_MAX`` times in a row; nothing was committed.
        """
        tries = itertools.count()

        def attempt() -> Snapshot | None:
            before = next(tries)
            self.refresh()
            stager = self.stager(whole_buckets=True, pinned=kind is not None, all_rows=all_rows)
            staged = stage(stager)
            made = self.write_staged(staged, commit_id, stager.base, kind=kind, spec=stager.spec, all_rows=all_rows)
            if made is None and before and self._table.is_eventual:
                # What the attempts before have sent is true no more, and no commit of ours follows to mend it.
                self._recover()
            return made

        return self.meter.made(kind or "write", lambda: until_fresh(self._table.path, attempt, tries_max=RETRIES_MAX))

    def replace_by(
        self,
        stage: Callable[[int], tuple[Sequence[StagedFile], Replaced]],
        commit_id: CommitId | None = None,
        *,
        kind: str,
        all_rows: bool = False,
    ) -> Snapshot | None:
        """Put files of an append table in the place of others, and publish what that changes.

        An append that commits in between comes after it, as in Delta's ``WriteSerializable``: its rows were not seen
        and stay. Whoever takes files out in between makes it begin again. So does an append where the log is to say by
        one record that all rows are gone, since there the append comes first.

        Args:
            stage: given a snapshot, stages what replaces files of it and names those, as often as it is called.
            commit_id: as for ``write``.
            kind: the snapshot's kind.
            all_rows: all files are replaced.

        Raises:
            ConflictError: others took files out in between ``RETRIES_MAX`` times in a row; nothing was committed.
        """

        def attempt() -> Snapshot | None:
            self.refresh()
            spec = self._table.spec
            staged, replaced = stage(self._table.files.latest())
            return self.write_staged(staged, commit_id, kind=kind, replaced=replaced, spec=spec, all_rows=all_rows)

        return self.meter.made(kind, lambda: until_fresh(self._table.path, attempt, tries_max=RETRIES_MAX))

    def _stage(self, frame: DataFrame, stager: Stager) -> list[StagedFile]:
        """Shape and stage: in a Spark job, or right here where the rows are in this process anyway."""
        spec, buckets = stager.spec, stager.buckets
        preimages = stager.rule.takes_preimages
        if frame.isLocal():
            check_columns(frame.schema, spec)
            batches = prepare_batches(iter(frame.toArrow().to_batches()), spec, task=0, preimages=preimages)
            return accept_staged(stager, staged_to_arrow(stager, batches, 0).to_pylist())
        if not spec.has_key:
            return run_staging(prepare_rows(frame, spec), stager)
        return run_staging(prepare_changes(frame, spec, buckets, preimages=preimages), stager)

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
            base: the snapshot that their changes were made from or resolved against; None where they were not.
            kind: the snapshot's kind; None for that of a write.
            replaced: files of an append table in whose place they come.
            spec: the table as they were staged for; None for as this writer knows it.
            all_rows: no other rows stay.

        Raises:
            ConflictError: the table's columns were changed since, or its rows, where they were looked up; the files are
                removed, as after every error that says that nothing was committed.
            OutcomeUnknownError: the commit may yet land, so the files stay.
            PublishPendingError: committed, and not yet in the log.
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
            told = truncating(staged, has_key=self._table.spec.has_key)
            replacement = replace(before, facts={**before.facts, **told})
        # Step 3.
        try:
            made = commit(
                log,
                [each for each in staged if each.role is not Role.CHANGES],
                commit_id or self._next_id(),
                operation=kind or _kind(staged, has_key=self._table.spec.has_key),
                by_snapshot=self._table.spec.has_key,
                replacement=replacement,
                check=partial(check_columns_of, self._table.files, (spec or self._table.spec).since, then),
            )
        except (ConflictError, InvalidInputError, UnavailableError):
            # Nothing was committed, and no try is under way. On a full disk, what is staged would only keep it so.
            self.remove(staged)
            raise
        # Step 4.
        if self._publisher is not None:
            self._publisher.expect(made.id, _sent(staged))
        self.publish(made.id)
        return made

    def remove(self, staged: Sequence[StagedFile]) -> None:
        """Remove staged files that no commit will use."""
        self.stager(whole_buckets=False).remove(staged)

    def discard(self) -> None:
        """Close the publisher's connections."""
        if self._publisher is not None:
            self._publisher.discard()

    @property
    def table(self) -> TableContext:
        """The table as this writer knows it."""
        return self._table

    def refresh(self) -> TableContext:
        """Learn what the table is by now: somebody may have changed its columns or options."""
        self._table = self._table.refreshed()
        return self._table

    def publish(self, snapshot: int) -> None:
        """See that a committed snapshot, and all before it, are in the log; does nothing without a log.

        Raises:
            PublishPendingError: it is not, whatever the reason.
            TableReplacedError: the table was dropped and created again; what was committed to it is gone.
        """
        try:
            self._publish(snapshot)
        except LogMovedError:
            if self._reopen is None:
                raise
            self._publisher = self._reopen(self.refresh())
            self._publish(snapshot)

    def _publish(self, snapshot: int) -> None:
        if self._publisher is not None:
            table = self._table
            buckets = table.options.buckets
            with self.meter.measured("publish") as tell:
                try:
                    done = publish_through(
                        table.files, self._publisher, table.index, snapshot, buckets=buckets, turns=self._turns
                    )
                except (PublishPendingError, TableReplacedError):
                    raise
                except Exception as error:
                    self._publisher.discard()
                    raise publish_pending(table.files, snapshot, error) from error
                if done:
                    tell(snapshot, sum(entry.rows for entry in done))

    def publish_landed(self, commit_id: CommitId) -> Snapshot | None:
        """Find the snapshot of a write that an earlier process made, and see that it is published.

        Raises:
            PublishPendingError: it landed, and is not yet in the log.
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
        """Publish what an earlier writer left, before this writer's first batch.

        Raises:
            UnavailableError: the broker does not answer; nothing of this writer was committed.
            TableStoreError: see ``recover``; likewise.
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
            table = self._table
            adopt(table)
            try:
                recover(table.files, self._publisher, table.index, buckets=table.options.buckets, turns=self._turns)
            except LogMovedError:
                if self._reopen is None:
                    raise
                self._publisher, table = self._reopen(self.refresh()), self._table
                if self._publisher is not None:
                    recover(table.files, self._publisher, table.index, buckets=table.options.buckets)

    def stager(self, *, whole_buckets: bool, pinned: bool = False, all_rows: bool = False) -> Stager:
        """Make what stages the rows of a task; where rows are looked up, in the newest snapshot.

        Args:
            whole_buckets: every row of a bucket reaches the same task.
            pinned: the rows are made from the newest snapshot, and are stored as they are.
            all_rows: no other rows stay.
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
            tap=KafkaLogSinkFactory(self._table.log) if self._table.log and self._table.is_eventual else None,
            lookup=lookup,
            changelog=self._table.options.looks_up,
            keeps_same=all_rows and self._truncates,
            rule=rule,
            base=base,
            check=self._table.record_check,
        )

    @property
    def _truncates(self) -> bool:
        """Whether the log says by one record that all rows are gone."""
        log = self._table.options.log
        return log is not None and log.truncate_record

    def _next_id(self) -> CommitId:
        self._batch += 1
        return CommitId(self._writer_id, self._batch)


def _sent(staged: Sequence[StagedFile]) -> dict[int, SentRange]:
    """Say where each bucket's changes are in an eventual log; a bucket that several tasks have sent is left out."""
    found: dict[int, list[SentRange]] = {}
    for each in staged:
        if each.sent is not None:
            found.setdefault(int(each.file.partition[BUCKET] or 0), []).append(each.sent)
    return {bucket: held[0] for bucket, held in found.items() if len(held) == 1}


def _kind(staged: Sequence[StagedFile], *, has_key: bool) -> str:
    if not has_key:
        return "append"
    return "delete" if sum(s.deletes for s in staged) == sum(s.changes for s in staged) else "upsert"
