"""The commit: the atomic step that turns staged files into a snapshot."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from snapshot.delta.log import Commit, DataFile, DeltaLog
from snapshot.delta.own_commit import replaced
from snapshot.errors import (
    ConflictError,
    CorruptedError,
    DataLostError,
    InvalidInputError,
    OutcomeUnknownError,
    TableStoreError,
    UnavailableError,
)
from snapshot.records import CommitId, Snapshot
from snapshot.schema.system_columns import SNAPSHOT
from snapshot.staging.stage import StagedFile

ATTEMPTS_MAX = 200
_WAIT_SECONDS_MAX = 0.2
_UNKNOWN_MAX = 3
"""Number of attempts, conflicts included, after which an unknown outcome is raised and not tried again."""
EXPIRED = "expired"
"""Operation of a snapshot whose log entry has expired."""
_PLAN = "plan"
"""Key of ``CommitId.plan`` in the info of a commit."""


@dataclass(frozen=True)
class Replacement:
    """The files that a commit removes from an append table.

    Attributes:
        files: the files.
        facts: what the commit records about its changes: the files with them, and their number (``changes.listed``).
    """

    files: Sequence[DataFile]
    facts: Mapping[str, Any]


def commit(
    log: DeltaLog,
    staged: Sequence[StagedFile],
    commit_id: CommitId,
    *,
    operation: str,
    by_snapshot: bool,
    replacement: Replacement | None = None,
    check: Callable[[int], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Snapshot:
    """Commit staged files as the next snapshot.

    1. Check whether this write has already landed (a repeated batch, or a lost response). A crash here leaves only
       staged files.
    2. Put the next Delta version. A crash after it leaves a snapshot that recovery publishes.
    3. If another commit has taken the version, or the outcome is unknown, start again with the same files and the next
       version.

    Args:
        log: the commit table.
        staged: files of the write, all in the commit table's folder.
        commit_id: the id of the write.
        operation: the snapshot's kind.
        by_snapshot: the commit table is partitioned by ``_snapshot`` (a key table's changes).
        replacement: the files that the staged files replace; None if they replace none.
        check: called before each try with the newest snapshot; raises if the files are no longer correct after it.
        sleep: waits a number of seconds between tries.

    Raises:
        ConflictError: other writers won ``ATTEMPTS_MAX`` times in a row; nothing is committed.
        CorruptedError: the table lacks batches of the streaming query that had landed; nothing is committed.
        InvalidInputError: another batch of the streaming query has landed under this number; nothing is committed.
        UnavailableError: the file system is full or cannot be written; nothing is committed, and no try is in doubt.
        OutcomeUnknownError: the file system did not respond, so the commit may have landed; ``recover()`` finds out.
    """
    info: dict[str, Any] = {"kind": operation, "rows": sum(s.changes for s in staged), "commit": str(commit_id)}
    if commit_id.plan:
        info[_PLAN] = commit_id.plan
    remove: Sequence[DataFile] = ()
    if replacement is not None:
        info, remove = {**info, **replacement.facts}, replacement.files
    newest = log.version(fresh=commit_id.durable)  # The last look is enough: a later commit has taken the version.
    tried = newest + 1
    seen = -1 if commit_id.durable else newest
    unknown: OutcomeUnknownError | None = None
    lost: Exception | None = None
    for attempt in range(ATTEMPTS_MAX):
        # Step 1.
        with _keeping(unknown):
            landed = _landed(log, commit_id, staged, newest, seen, unknown)
        if landed is not None:
            return landed
        # A try that is still in doubt cannot land any more once another commit has taken its version.
        unknown = unknown if newest < tried else None
        seen = -1 if commit_id.durable else newest
        if check is not None:
            with _keeping(unknown):
                check(newest)
        # Step 2.
        files = _under(newest + 1, staged) if by_snapshot else [each.file for each in staged]
        try:
            with _keeping(unknown, ConflictError, OutcomeUnknownError):
                made = log.commit(newest + 1, add=files, remove=remove, info=info, transactions=commit_id.transactions)
            return as_snapshot(made)
        # Step 3.
        except ConflictError as error:
            lost = error
            sleep(random.uniform(0, min(_WAIT_SECONDS_MAX, 0.002 * 2**attempt)))
        except OutcomeUnknownError as error:
            if attempt >= _UNKNOWN_MAX:
                raise
            lost = unknown = error
            sleep(random.uniform(0, _WAIT_SECONDS_MAX))
        tried = newest + 1
        with _keeping(unknown):
            newest = log.version()
    msg = f"{log.storage.root}: other writers committed first {ATTEMPTS_MAX} times in a row; try the write again."
    raise ConflictError(msg) from lost


def _under(snapshot: int, staged: Sequence[StagedFile]) -> list[DataFile]:
    """Return staged change files with the partition value of the snapshot that they become."""
    return [replace(s.file, partition={**s.file.partition, SNAPSHOT: str(snapshot)}) for s in staged]


@contextmanager
def _keeping(unknown: OutcomeUnknownError | None, *others: type[TableStoreError]) -> Iterator[None]:
    """Raise the unknown outcome of an earlier try instead of an error: that try may still land, so its files must stay.

    Args:
        unknown: the earlier try's outcome; None if no earlier try is in doubt.
        others: errors that are raised unchanged.
    """
    try:
        yield
    except TableStoreError as error:
        if unknown is None or unknown is error or isinstance(error, others):
            raise
        raise unknown from error


def _landed(
    log: DeltaLog,
    commit_id: CommitId,
    staged: Sequence[StagedFile],
    newest: int,
    seen: int,
    unknown: OutcomeUnknownError | None,
) -> Snapshot | None:
    """Return the snapshot of a write that has landed; None if it certainly has not.

    Raises:
        OutcomeUnknownError: Delta log entries that could show it have expired.
    """
    found = find_commit(log, commit_id, newest, after=seen)
    # The oldest entries expire first, so if the first one exists, all of them were searched.
    if found is not None or unknown is None or commit_id.durable or newest <= seen or log.has_entry(seen + 1):
        return found
    held = {file.path for file in log.files()}
    if any(each.file.path in held for each in staged):
        return Snapshot(newest, EXPIRED, 0, 0, str(commit_id))
    raise unknown


def find_commit(log: DeltaLog, commit_id: CommitId, newest: int, *, after: int) -> Snapshot | None:
    """Return a write's snapshot, if any; searches versions above ``after`` (a durable id is recorded in ``txn``).

    Raises:
        CorruptedError: the table was set back to before a batch of the streaming query that had landed.
        InvalidInputError: a streaming query has planned another batch of the same number, and that one has landed.
    """
    recorded = None
    if commit_id.durable:
        recorded = log.transaction_version(commit_id.writer)
        _check_landed(log, commit_id, recorded)
        if recorded is None or recorded < commit_id.batch:
            return None
        # The write may have been committed after the caller read the newest version.
        newest = log.version()
    for entry in log.commits(newest, after + 1):
        if entry.info.get("commit") == str(commit_id):
            _check_plan(log, commit_id, entry.info.get(_PLAN), recorded)
            return as_snapshot(entry)
    if commit_id.durable:
        # The entry of the commit has expired, but the transaction version shows that it landed.
        _check_plan(log, commit_id, None, recorded)
        return Snapshot(newest, EXPIRED, 0, 0, str(commit_id))
    return None


def _check_landed(log: DeltaLog, commit_id: CommitId, recorded: int | None) -> None:
    """Check that the table still has the batches that have landed.

    Raises:
        CorruptedError: it does not.
    """
    if commit_id.landed > (-1 if recorded is None else recorded):
        newest = "none" if recorded is None else f"batch {recorded}"
        msg = (
            f"{log.storage.root}: this streaming query has written batch {commit_id.landed} before, and its newest "
            f"here is {newest}: the table was set back (an old copy was restored?). Nothing was written. Bring the "
            "newest commits of the table back, or an equally old copy of the checkpoint, or start a query with a new "
            "checkpoint whose source begins after the rows that are here."
        )
        raise CorruptedError(msg)


def _check_plan(log: DeltaLog, commit_id: CommitId, plan: str | None, recorded: int | None) -> None:
    """Check that a batch that has landed has the plan of the commit; if that is unknown, that it is the newest.

    Raises:
        InvalidInputError: it has another plan.
    """
    is_same = commit_id.batch == recorded if plan is None else commit_id.plan == plan
    if commit_id.plan and not is_same:
        msg = (
            f"{log.storage.root}: this streaming query has written another batch {commit_id.batch} before (its newest "
            f"here is {recorded}): its checkpoint was set back to an older copy, or two queries continue from copies "
            "of one checkpoint. Nothing was written. Bring the newest files of the checkpoint back, or start a query "
            "with a new checkpoint whose source begins after the rows that are here."
        )
        raise InvalidInputError(msg)


def check_kept(log: DeltaLog, made: Snapshot) -> None:
    """Read a commit back before it is acknowledged.

    Raises:
        DataLostError: another Delta writer, which checks and then writes, has replaced it.
        OutcomeUnknownError: it was committed, and the file system does not respond any more.
    """
    try:
        found = log.entry(made.id) if made.fingerprint else None
    except UnavailableError as error:
        # As it is, this error would say that nothing was committed, and the caller would write the rows again.
        msg = (
            f"{log.storage.root}: snapshot {made.id} was committed, but could not be read back: {error} Do not write "
            f"the rows again before you have looked whether snapshot {made.id} is there."
        )
        raise OutcomeUnknownError(msg) from error
    # An entry that is not there has expired.
    if found is not None and found.fingerprint != made.fingerprint:
        raise DataLostError(replaced(log.storage.root, found, made.operation))


def as_snapshot(found: Commit) -> Snapshot:
    """Return the snapshot of a log entry; a commit of another Delta writer has the operation ``foreign``."""
    rows = found.info.get("rows", sum(max(f.rows, 0) for f in found.added))
    return Snapshot(
        found.version,
        found.info.get("kind", "foreign"),
        rows,
        found.timestamp_ms,
        found.info.get("commit", ""),
        found.fingerprint,
    )
