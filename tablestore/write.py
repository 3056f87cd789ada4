"""The write path: shape, stage, commit, publish, index."""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from log_system.base import LogPublisher
from log_system.kafka.staged import KafkaTapFactory
from snapshot.changes import MAINTENANCE
from snapshot.commit import CommitId, commit, find_commit
from snapshot.delta import DataFile
from snapshot.errors import ConflictError, InvalidInputError, UnavailableError
from snapshot.records import SentRange, Snapshot
from snapshot.schema import BUCKET
from snapshot.spec import TableSpec
from snapshot.stage import STAGED, StagedFile, Stager, staged_to_arrow
from tablestore.opened import OpenedTable
from tablestore.plan import lookup_in
from tablestore.recover import publish_through, recover
from tablestore.shape import check_columns, shape_changes, shape_rows
from tablestore.shape_arrow import shape_batches
from tablestore.turns import Turns

logger = logging.getLogger("tablestore")

_LANDED = (
    "table %s: write %s landed before (the newest under that name is batch %s, the snapshot %d); it is not written "
    "again. That is right for the batch a query repeats after a crash. If the query has begun anew, its checkpoint "
    "deleted, its rows are skipped: give it a new name."
)
_BEGUN_ANEW = (
    "table %s: write %s is the first of a query that has begun anew: its checkpoint was deleted, and up to batch %d "
    "was written from there. What it reads again is written again: without a primary key, rows are doubled. If that is "
    "not wanted, stop it and let its source begin where the table ends."
)


RESTAGE_MAX = 50
"""How often a write is staged again because others have committed meanwhile."""
_WAIT_SECONDS = 0.05


class _StaleError(ConflictError):
    """Somebody changed the table's columns, or rows after the snapshot against which changes were resolved."""


class Writer:
    """Writes to one table. Several writers, in any processes, may write to it at once."""

    def __init__(self, table: OpenedTable, publisher: LogPublisher | None) -> None:
        """Write to ``table`` and publish with ``publisher`` (None without a log)."""
        self._table = table
        self._publisher = publisher
        self._writer_id = uuid.uuid4().hex
        self._batch = 0
        self._recovered = publisher is None
        self._turns = Turns()

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
        self.recover_once()
        if commit_id is not None and (landed := self.publish_landed(commit_id)) is not None:
            return landed
        return self.write_by(partial(self._stage, frame), commit_id)

    def write_by(
        self, stage: Callable[[Stager], Sequence[StagedFile]], commit_id: CommitId | None = None
    ) -> Snapshot | None:
        """Stage, commit and publish (steps 1 to 4 of ``write``).

        The rows are staged again when somebody changes the table's columns before they are committed; with
        ``changelog-producer=lookup`` the changes hold the rows they replace, so also when anybody commits.

        Args:
            stage: stages the rows, as often as it is called.
            commit_id: as for ``write``.

        Raises:
            ConflictError: others committed in between ``RESTAGE_MAX`` times in a row; nothing was committed.
        """
        for attempt in range(RESTAGE_MAX):
            self._table = self._table.refreshed()
            stager = self.stager(whole_buckets=True)
            staged = stage(stager)
            base = None if stager.lookup is None else stager.lookup.snapshot
            try:
                return self.write_staged(staged, commit_id, base, stager.spec)
            except _StaleError:
                stager.remove(staged)
                time.sleep(random.uniform(0, _WAIT_SECONDS * attempt))
        msg = (
            f"table {self._table.path!r}: others committed {RESTAGE_MAX} times while the rows were staged; nothing was "
            "written. Try again, or use changelog-producer='none' where many write at once."
        )
        raise ConflictError(msg)

    def _stage(self, frame: DataFrame, stager: Stager) -> list[StagedFile]:
        """Shape and stage: in a Spark job, or right here where the rows are in this process anyway."""
        spec, buckets = stager.spec, stager.buckets
        if frame.isLocal():
            check_columns(frame.schema, spec)
            batches = shape_batches(iter(frame.toArrow().to_batches()), spec, task=0)
            return accept_staged(stager, staged_to_arrow(stager, batches, 0).to_pylist())
        return run_staging(shape_changes(frame, spec, buckets) if spec.has_key else shape_rows(frame, spec), stager)

    def write_staged(
        self,
        staged: Sequence[StagedFile],
        commit_id: CommitId | None = None,
        base: int | None = None,
        spec: TableSpec | None = None,
    ) -> Snapshot | None:
        """Commit staged files and publish the snapshot (steps 3 and 4 of ``write``).

        Args:
            staged: the files.
            commit_id: as for ``write``.
            base: the snapshot that their changes were resolved against; None where they were not.
            spec: the table as they were staged for; None for as this writer knows it.

        Raises:
            ConflictError: the table's columns were changed since, or its rows, where they were looked up; the files are
                of no use.
        """
        if not staged:
            return None
        # Step 3.
        try:
            made = commit(
                self._table.files.log,
                staged,
                commit_id or self._next_id(),
                kind=_kind(staged, has_key=self._table.spec.has_key),
                by_snapshot=self._table.spec.has_key,
                check=partial(self._check_fits, spec or self._table.spec, base),
            )
        except UnavailableError:
            # The disk is full: what is staged would only keep it so.
            self.stager(whole_buckets=False).remove(staged)
            raise
        # Step 4.
        if self._publisher is not None:
            self._publisher.expect(made.id, _sent(staged))
        self._publish(made.id)
        return made

    def publish_landed(self, commit_id: CommitId) -> Snapshot | None:
        """Find the snapshot of a write that an earlier process made, and see that it is published."""
        log, path = self._table.files.log, self._table.path
        landed = find_commit(log, commit_id, log.version(), after=-1)
        if landed is not None:
            logger.warning(_LANDED, path, commit_id, log.transaction_version(commit_id.writer), landed.id)
            self._publish(landed.id)
        elif commit_id.place and log.transaction_version(commit_id.writer) is None:
            before = log.transaction_version(commit_id.place)
            if before is not None:
                logger.warning(_BEGUN_ANEW, path, commit_id, before)
        return landed

    def recover_once(self) -> None:
        """Publish what an earlier writer left, before this writer's first batch."""
        if not self._recovered and self._publisher is not None:
            table = self._table
            recover(table.files, self._publisher, table.index, buckets=table.options.buckets, turns=self._turns)
            self._recovered = True

    def stager(self, *, whole_buckets: bool) -> Stager:
        """Make what stages the rows of a task; where rows are looked up, in the newest snapshot."""
        files = self._table.files
        lookup = lookup_in(files, files.latest()) if whole_buckets and self._table.options.looks_up else None
        return Stager(
            storage=self._table.files.storage,
            spec=self._table.spec,
            target_bytes=self._table.options.write.target_file_size_bytes,
            whole_buckets=whole_buckets,
            buckets=self._table.options.buckets,
            tap=KafkaTapFactory(self._table.log) if self._table.log and self._table.is_eventual else None,
            lookup=lookup,
        )

    def _check_fits(self, spec: TableSpec, base: int | None, newest: int) -> None:
        """See that nobody has changed the columns, nor any row since the snapshot that ours were resolved against."""
        log, now = self._table.files.log, self._table.files.spec_of(newest)
        if now.since != spec.since:
            msg = (
                f"table {self._table.path!r}: its columns were changed, by snapshot {now.since}, while rows were "
                "staged; nothing was written. Write again."
            )
            raise _StaleError(msg)
        since = range(newest + 1 if base is None else base + 1, newest + 1)
        if any(log.commit_at(version).info.get("kind") not in MAINTENANCE for version in since):
            raise _StaleError

    def publish(self, snapshot: int) -> None:
        """See that a committed snapshot, and all before it, are in the log; does nothing without a log."""
        self._publish(snapshot)

    def _publish(self, snapshot: int) -> None:
        if self._publisher is not None:
            table = self._table
            buckets = table.options.buckets
            publish_through(table.files, self._publisher, table.index, snapshot, buckets=buckets, turns=self._turns)

    def _next_id(self) -> CommitId:
        self._batch += 1
        return CommitId(self._writer_id, self._batch)


def run_staging(shaped: DataFrame, stager: Stager) -> list[StagedFile]:
    """Stage a shaped frame by one Spark job and collect the descriptions of its files.

    Raises:
        InvalidInputError: rows were rejected; the files staged by then are removed.
    """
    names = shaped.columns

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        named = (batch.rename_columns(names) for batch in batches)
        yield staged_to_arrow(stager, named, context.partitionId() if context else 0)

    # mapInArrow looks its columns up by name, and takes a dot in one for the field of a struct.
    rows = shaped.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(stage, STAGED).collect()
    return accept_staged(stager, [row.asDict() for row in rows])


def accept_staged(stager: Stager, rows: Sequence[dict[str, object]]) -> list[StagedFile]:
    """Read the descriptions that staging tasks gave; none of them counts when one was rejected or has failed.

    Raises:
        InvalidInputError: rows were rejected; the files staged by then are removed.
        UnavailableError: the file system refused; likewise.
    """
    staged = [
        StagedFile(
            DataFile(
                str(row["path"]),
                int(str(row["size"])),
                int(str(row["rows"])),
                json.loads(str(row["partition"])),
                str(row["stats"]),
            ),
            int(str(row["deletes"])),
            None if row["sent"] is None else SentRange(**json.loads(str(row["sent"]))),
        )
        for row in rows
        if row["rejected"] is None and row["failed"] is None
    ]
    failed = [str(row["failed"]) for row in rows if row["failed"] is not None]
    if failed:
        stager.remove(staged)
        raise UnavailableError(failed[0])
    rejected = [str(row["rejected"]) for row in rows if row["rejected"] is not None]
    if rejected:
        stager.remove(staged)
        msg = f"{rejected[0]} Nothing was written."
        raise InvalidInputError(msg)
    return staged


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
    return "delete" if sum(s.deletes for s in staged) == sum(s.file.rows for s in staged) else "upsert"
