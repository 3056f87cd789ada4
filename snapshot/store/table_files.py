"""Access to the files of one table: its Delta tables, definition, snapshots and changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

import pyarrow as pa

from snapshot.delta.log import Commit, DataFile, DeltaLog
from snapshot.delta.protocol import CLEANUP
from snapshot.errors import ConflictError, CorruptedError, DataLostError, NotFoundError, TableReplacedError
from snapshot.merge.merge_reader import ChangeFile
from snapshot.records import OLDEST, ChangeSet, Snapshot
from snapshot.schema.spec import SPEC_PROPERTY, TableSpec
from snapshot.schema.system_columns import BUCKET, SNAPSHOT, with_kind
from snapshot.side_by_side import side_by_side
from snapshot.staging.parquet_writer import is_tombstones
from snapshot.staging.stage import CHANGES
from snapshot.storage import Storage
from snapshot.store.changes import LISTED, MAINTENANCE, SnapshotChanges, is_foreign
from snapshot.store.commit import ATTEMPTS_MAX, as_snapshot
from snapshot.store.snapshot_files import (
    MERGED_THROUGH,
    SnapshotFiles,
    base_schema,
    log_schema,
    merged_info,
    snapshots_of,
)
from snapshot.store.tags import Tags
from snapshot.store.truncate_changes import TRUNCATES, TruncatedChanges

__all__ = ["MERGED_THROUGH", "SnapshotFiles", "TableFiles"]

TABLE = "table"
"""Key in the first commit of a Delta table: the id of the table that it belongs to."""

ADOPTED = "tablestore-adopted"
"""Delta ``txn`` id that records up to which version commits of other Delta writers are adopted: their changes are in a
later snapshot, or were skipped on request (``tablestore/write/foreign_commits.py``)."""


class BaseVersion(NamedTuple):
    """A version of a key table's base table.

    Attributes:
        version: the version.
        compaction: the version of its compaction; an earlier one if another Delta tool has committed since.
        merged_through: the last snapshot whose changes are in it.
    """

    version: int
    compaction: int
    merged_through: int


class TableFiles:
    """The files of an existing table."""

    def __init__(self, storage: Storage, spec: TableSpec) -> None:
        """Refer to a table; callers use ``open`` or ``create``."""
        self.storage = storage
        self.spec = spec
        self.base_table = DeltaLog(storage)
        self.log = DeltaLog(storage.child(CHANGES)) if spec.has_key else self.base_table
        self.tags = Tags(storage, spec.table_id)
        # Threads share a handle, so the definition and the version it belongs to are replaced together.
        self._known = (-1, spec)
        self._own_gaps: set[int] = set()
        self._base_is_own = False

    @classmethod
    def open(cls, storage: Storage) -> TableFiles:
        """Open the table in a folder.

        Raises:
            NotFoundError: there is no table.
            CorruptedError: the table's definition is missing or cannot be parsed.
        """
        _ = storage.filesystem  # names a package that is missing
        logs = (DeltaLog(storage.child(CHANGES)), DeltaLog(storage))
        found = list(zip(logs, side_by_side(storage, *(partial(_definition, each) for each in logs)), strict=True))
        for log, text in found:
            if text:
                table = cls(storage, TableSpec.from_json(text, storage.root))
                table.log, table.base_table = log, logs[1]
                return table
        for log in (log for log, text in found if text is not None and _was_commit_table(log)):
            raise _replaced(log)
        msg = f"{storage.root}: there is no table of the store. Create one with create_local or TableStore.create."
        raise NotFoundError(msg)

    @classmethod
    def create(cls, storage: Storage, spec: TableSpec) -> TableFiles:
        """Create an empty table. The commit table is created last; until then the table does not exist.

        Raises:
            AlreadyExistsError: a table exists already.
        """
        # Delta's own log cleanup ignores tags and consumers, so expiry cleans up instead.
        keeping = {"delta.checkpointInterval": "20", CLEANUP: "false"}
        properties = {SPEC_PROPERTY: spec.to_json(), **keeping}
        if spec.has_key:
            info = {**merged_info("create", 0), TABLE: spec.table_id}
            # If two processes create a table here at once, this commit decides.
            columns, partitions = base_schema(spec), (*spec.partition_by, BUCKET)
            DeltaLog.create(storage, columns, partition_by=partitions, configuration=keeping, info=info)
            DeltaLog.create(
                storage.child(CHANGES),
                log_schema(spec),
                partition_by=(SNAPSHOT, BUCKET),
                # Keep other Delta writers from removing changes; a compaction removes no rows.
                configuration=properties | {"delta.appendOnly": "true"},
                info={"kind": "create", TABLE: spec.table_id},
            )
        else:
            DeltaLog.create(
                storage,
                base_schema(spec),
                partition_by=spec.partition_by,
                configuration=properties,
                info={"kind": "create", TABLE: spec.table_id},
            )
        return cls(storage, spec)

    def refreshed(self) -> TableFiles:
        """Return the table with its current definition; this object itself if the definition is unchanged."""
        newest = self.spec_at_least(self.latest())
        if newest == self.spec:
            return self
        table = TableFiles(self.storage, newest)
        table.base_table, table.log, table._known = self.base_table, self.log, self._known
        return table

    def spec_of(self, snapshot_id: int) -> TableSpec:
        """Return the definition with the columns as of a snapshot, which may be newer than ``spec``."""
        return self.spec_at_least(snapshot_id).at(snapshot_id)

    def spec_at_least(self, snapshot_id: int) -> TableSpec:
        """Return the definition as of a snapshot or a later one."""
        version, spec = self._known
        if version < snapshot_id:
            version, properties = self.log.seen(snapshot_id)
            text = properties.get(SPEC_PROPERTY)
            if text is None:
                raise _replaced(self.log)
            if text != spec.to_json():
                spec = TableSpec.from_json(text, self.storage.root)
                if spec.table_id != self.spec.table_id:
                    msg = (
                        f"{self.storage.root}: expected table {self.spec.table_id}, got table {spec.table_id}: it was "
                        "dropped and created again. Open it again; nothing was changed."
                    )
                    raise TableReplacedError(msg)
            if lacking := self.log.lacks(log_schema(spec)):
                raise _replaced(self.log, f"columns {lacking} are missing or have another type")
            self._known = (version, spec)
        return spec

    def alter(self, spec: TableSpec, snapshot_id: int, commit_id: str) -> Snapshot:
        """Commit a snapshot that changes the table's definition and no rows; its id is that of the newest one plus one.

        Raises:
            ConflictError: another commit has taken that id.
            UnavailableError: a file system operation failed.
        """
        info, properties = {"kind": "alter", "rows": 0, "commit": commit_id}, {SPEC_PROPERTY: spec.to_json()}
        own = spec.stored_paths
        return as_snapshot(self.log.alter(snapshot_id, log_schema(spec), own=own, configuration=properties, info=info))

    def latest(self, *, fresh: bool = True) -> int:
        """Return the id of the newest snapshot; without ``fresh``, that of the last look."""
        return self.log.version(fresh=fresh)

    def oldest(self, *, fresh: bool = True) -> int:
        """Return the oldest snapshot that has not expired, 0 if none has; without ``fresh``, as of the last look."""
        return self.log.transaction_version(OLDEST, fresh=fresh) or 0

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Return one snapshot.

        Raises:
            NotFoundError: it does not exist, or has expired and has no tag.
        """
        newest, oldest = self.latest(), self.oldest(fresh=False)
        if not 0 <= snapshot_id <= newest:
            msg = f"{self.storage.root}: there is no snapshot {snapshot_id}; the newest is {newest}."
            raise NotFoundError(msg)
        if snapshot_id < oldest:
            tag = self.tags.at(snapshot_id)
            if tag is not None:
                return tag.snapshot
            raise NotFoundError(self._has_expired(snapshot_id, oldest))
        try:
            return as_snapshot(self.log.commit_at(snapshot_id))
        except DataLostError as error:
            msg = f"{self.storage.root}: snapshot {snapshot_id} has expired: {error}"
            raise NotFoundError(msg) from error

    def snapshots(self, newest: int | None = None) -> Iterator[Snapshot]:
        """Yield the snapshots that have not expired, from ``newest`` or the newest one to the oldest."""
        for commit in self.log.commits(self.latest() if newest is None else newest, self.oldest(fresh=False)):
            yield as_snapshot(commit)

    def snapshot_as_of(self, timestamp_ms: int) -> Snapshot:
        """Return the newest snapshot committed at or before a time.

        Raises:
            NotFoundError: all remaining snapshots are newer.
        """
        for snapshot in self.snapshots():
            if snapshot.timestamp_ms <= timestamp_ms:
                return snapshot
        msg = f"{self.storage.root}: no snapshot at that time; the oldest is {snapshot.id}, of {snapshot.time}."
        raise NotFoundError(msg)

    def changes(self, snapshot_id: int, buckets: int) -> SnapshotChanges:
        """Return the changes of one snapshot.

        Raises:
            DataLostError: it has expired, or its log entry is gone.
            CorruptedError: another Delta writer removed rows, and its commit has not been adopted.
        """
        return self._changes_of(self._commit_of(snapshot_id), buckets)

    def _commit_of(self, snapshot_id: int, *, fresh: bool = True) -> Commit:
        """Return the log entry of a snapshot that has not expired; raises the same errors as ``changes``."""
        try:
            commit = self.log.commit_at(snapshot_id, fresh=fresh)
        except DataLostError as error:
            # A log with a missing entry cannot be searched any further.
            with suppress(CorruptedError):
                self._check_not_expired(snapshot_id, error)
            raise
        self._check_not_expired(snapshot_id)
        return commit

    def _changes_of(self, commit: Commit, buckets: int) -> SnapshotChanges:
        snapshot_id = commit.version
        if self.needs_adoption(commit):
            if not self.is_adopted(snapshot_id):
                raise self._not_adopted(commit)
            nothing = replace(as_snapshot(commit), rows=0)
            return SnapshotChanges(nothing, self.log.storage, self.spec_of(snapshot_id).change_columns)
        return SnapshotChanges.of(commit, self.log.storage, self.spec_of(snapshot_id), buckets)

    def needs_adoption(self, found: Commit) -> bool:
        """Return whether a commit does not record its changes, because another Delta writer removed rows.

        In a key table this is any change of rows by another writer: only the store's commits to ``_changes`` are valid.
        """
        if self.spec.has_key:
            return is_foreign(found)
        return bool(found.removed) and found.info.get("kind") not in MAINTENANCE and LISTED not in found.info

    def is_adopted(self, version: int) -> bool:
        """Return whether commits of other Delta writers up to a version are adopted, so that they have no changes."""
        through = self.log.transaction_version(ADOPTED, fresh=False)
        if through is None or through < version:
            through = self.log.transaction_version(ADOPTED)
        return through is not None and version <= through

    def _not_adopted(self, commit: Commit) -> CorruptedError:
        reason = (
            f"{self.log.storage.root}: version {commit.version} ({commit.operation or 'no operation given'}) was made "
            f"by another Delta writer and adds {len(commit.added)} files and removes {len(commit.removed)}"
        )
        skip = f"recover(skip_foreign=[{commit.version}]), or 'tablestore recover --skip-version {commit.version}'"
        if self.spec.has_key:
            table = f"delta.`{self.log.storage.root}`"
            return CorruptedError(
                f"{reason}; nobody but the store may change the rows of this table. Undo it in Spark by ALTER TABLE "
                f"{table} SET TBLPROPERTIES ('delta.appendOnly' = 'false') and RESTORE TABLE {table} TO VERSION AS OF "
                f"{commit.version - 1}. Then skip both that version and the one that RESTORE commits: {skip}."
            )
        return CorruptedError(
            f"{reason}; its changes are not published yet. recover() publishes them; to leave them out of the log "
            f"permanently: {skip}."
        )

    def published(self, snapshot_id: int, buckets: int, *, fresh: bool = True) -> ChangeSet:
        """Return the changes of one snapshot as published (see ``DeltaLog.commit_at``); errors as for ``changes``."""
        commit = self._commit_of(snapshot_id, fresh=fresh)
        changes, deletes = self._changes_of(commit, buckets), commit.info.get(TRUNCATES)
        return changes if deletes is None else TruncatedChanges.of(changes, deletes)

    def fingerprint(self, snapshot_id: int, *, fresh: bool = True) -> str:
        """Return the fingerprint of a snapshot's commit (see ``DeltaLog.commit_at``); empty if its entry is gone."""
        return self.log.fingerprint(snapshot_id, fresh=fresh)

    def truncates(self, snapshot_id: int) -> bool:
        """Return whether a snapshot's deletes are published as one truncate record per log partition.

        Raises:
            DataLostError: the snapshot has expired.
        """
        return TRUNCATES in self.log.commit_at(snapshot_id).info

    def _check_not_expired(self, snapshot_id: int, cause: Exception | None = None) -> None:
        oldest = self.oldest(fresh=False)
        if snapshot_id < oldest:
            raise DataLostError(self._has_expired(snapshot_id, oldest)) from cause

    def layout(self, snapshot_id: int, *, fresh: bool = True) -> SnapshotFiles:
        """Return the files of a snapshot; ``fresh`` as in ``base_version``.

        Raises:
            NotFoundError: the snapshot has expired and has no tag, or its files are no longer known.
        """
        oldest = self.oldest(fresh=False)
        if snapshot_id < oldest:
            tag = self.tags.at(snapshot_id)
            if tag is not None:
                return tag.layout
            raise NotFoundError(self._has_expired(snapshot_id, oldest))
        if not self.spec.has_key:
            return SnapshotFiles(snapshot_id, snapshot_id, snapshot_id, tuple(self.base_table.files(snapshot_id)), ())
        version, _, merged = self.base_version(snapshot_id, fresh=fresh)
        base = self.base_table.files(version)
        listed = self.log.files(snapshot_id)
        listed = [*listed, *self._unlisted(listed, merged, snapshot_id)]
        return SnapshotFiles.of(snapshot_id, version, merged, base, listed)

    def base_version(self, snapshot_id: int, *, fresh: bool = True) -> BaseVersion:
        """Return the newest version of a key table's base table without rows newer than a snapshot.

        Versions that another Delta tool committed (vacuum, optimize) belong to the preceding compaction. Without
        ``fresh``, only the compactions of the last look are known.

        Raises:
            NotFoundError: the base table's log no longer goes back that far.
            CorruptedError: another writer has removed the entry of the last compaction.
            TableReplacedError: the table was dropped and created again.
        """
        candidate: int | None = None
        others: list[Commit] = []
        newest = self.base_table.version(fresh=fresh)
        if self.storage.is_local and not self._base_is_own:
            # Opening has read the commit table only, and another table may have been created at the path since.
            self.latest()
            self._base_is_own = True
        for commit in self.base_table.commits(newest, fresh=False):
            candidate = commit.version if candidate is None else candidate
            merged = commit.info.get(MERGED_THROUGH)
            if merged is None:
                others.append(commit)
                continue
            if merged <= snapshot_id:
                self._check_base(others)
                return BaseVersion(candidate, commit.version, int(merged))
            candidate, others = None, []
        root = self.storage.root
        if snapshot_id < self.latest():
            msg = f"{root}: snapshot {snapshot_id} is older than the log of the base table; read a newer one."
            raise NotFoundError(msg)
        msg = (
            f"{root}: entries are missing from its _delta_log, down to that of the last compaction. The store "
            f"keeps them: another Delta writer has removed them (property {CLEANUP}?). Bring them back from a backup."
        )
        raise CorruptedError(msg)

    def _check_base(self, others: Sequence[Commit]) -> None:
        """Check that no other writer has changed rows of the base table since a compaction.

        Changes that were undone are harmless: the files are again those of the compaction, or those that maintenance
        (``OPTIMIZE``) has made of them. Maintenance after a change of rows does not undo it.
        ``others`` are the commits of other writers since the compaction, newest first.

        Raises:
            CorruptedError: another writer has added or removed rows.
        """
        commit: Commit | None = None
        differs: dict[str, bool] = {}
        unchanged: set[frozenset[tuple[str, bool]]] = {frozenset()}
        for each in reversed(others):
            removed = ((path, False) for path in (*each.removed, *each.rewritten))
            added = ((file.path, True) for file in (*each.added, *each.copied))
            for path, adds in (*removed, *added):
                if differs.setdefault(path, adds) is not adds:
                    del differs[path]
            state = frozenset(differs.items())
            if state in unchanged or (commit is None and not (each.added or each.removed)):
                unchanged.add(state)
                commit = None
            else:
                commit = commit or each
        if commit is not None:
            root = self.base_table.storage.root
            msg = (
                f"{root}: version {commit.version} ({commit.operation or 'no operation given'}) was made by another "
                "Delta writer and changes rows, which the changes and the log of this table do not contain. Nothing "
                f"was read or changed. Undo it in Spark by RESTORE TABLE delta.`{root}` TO VERSION AS OF "
                f"{commit.version - 1}."
            )
            raise CorruptedError(msg)

    def _unlisted(self, listed: Sequence[DataFile], merged: int, snapshot_id: int) -> list[DataFile]:
        """Check that no other writer has changed rows of a key table, and return change files that are missing.

        A commit of the store that changes rows adds files of its own snapshot. So only the other versions are read:
        commits of maintenance, which are few, and those of other writers. A commit whose files are not listed, combined
        or merged is one that a compaction has merged whose own commit another writer has then replaced.

        Raises:
            CorruptedError: another writer has changed rows, and its commit is not adopted.
        """
        filled, unlisted = {number for file in listed for number in snapshots_of(file)}, list[DataFile]()
        for version in range(merged + 1, snapshot_id + 1):
            if version in filled or version in self._own_gaps:
                continue
            try:
                commit = self.log.commit_at(version)
            except DataLostError:
                # It has expired. Until then, no reader could pass a change of another writer.
                continue
            if self.needs_adoption(commit) and not self.is_adopted(version):
                raise self._not_adopted(commit)
            missing = () if is_foreign(commit) else [file for file in commit.added if not is_tombstones(file.path)]
            if not missing:
                self._own_gaps.add(version)
            unlisted += missing
        return unlisted

    def trim(self, *, add: Sequence[DataFile], remove: Sequence[DataFile]) -> int | None:
        """Remove change files merged into the base table from the newest state; older snapshots still list them.

        Args:
            add: files that replace others.
            remove: the replaced files. If one is no longer listed, another writer has replaced it; nothing is done.

        Returns:
            The committed version; None if there was nothing to remove.
        """
        for _ in range(ATTEMPTS_MAX):
            newest = self.log.version()
            merged = self.base_version(newest).merged_through
            listed = self.log.files()
            folded = [f for f in listed if int(f.partition[SNAPSHOT] or 0) <= merged and not is_tombstones(f.path)]
            if not {f.path for f in remove} <= {f.path for f in listed}:
                self.log.storage.delete(*[f.path for f in add])
                add, remove = (), ()
            if not folded and not remove:
                return None
            try:
                info = {"kind": "compact", "rows": 0}
                self.log.commit(newest + 1, add=add, remove=[*folded, *remove], info=info, data_change=False)
            except ConflictError:
                continue
            return newest + 1
        # The files stay listed and are ignored; the next compaction removes them.
        self.log.storage.delete(*[f.path for f in add])
        return None

    def _has_expired(self, snapshot_id: int, oldest: int) -> str:
        return (
            f"{self.storage.root}: snapshot {snapshot_id} has expired; the oldest is {oldest}. Read a newer one. To "
            "keep a snapshot, tag it; to keep the changes that a reader still needs, register a consumer."
        )

    def change_file(self, file: DataFile) -> ChangeFile:
        """Return a change file in the form that ``MergeReader`` reads."""
        return ChangeFile(self.log.storage.path(file.path), int(file.partition[SNAPSHOT] or 0), file.size, file.rows)

    @cached_property
    def change_schema(self) -> pa.Schema:
        """The schema of published changes and of streams: the table's columns, then ``_kind``."""
        return with_kind(self.spec.change_columns.named)


def _definition(log: DeltaLog) -> str | None:
    """Return the definition of a table in a Delta log; empty if there is none, None if there is no Delta table."""
    # Whether the Delta table exists would be three more requests to an object store.
    with suppress(NotFoundError):
        return log.seen(0)[1].get(SPEC_PROPERTY, "")
    return None


def _was_commit_table(log: DeltaLog) -> bool:
    """Return whether the versions of a Delta table were a table's snapshots: its first entry or an expiry says so."""
    with suppress(DataLostError):
        info = log.commit_at(0).info
        return TABLE in info and MERGED_THROUGH not in info
    return log.transaction_version(OLDEST) is not None


def _replaced(log: DeltaLog, what: str = f"its definition, property {SPEC_PROPERTY!r}, is missing") -> CorruptedError:
    root = log.storage.root
    return CorruptedError(
        f"{root}: another Delta writer has replaced the table: {what}. Nothing was read or changed. Undo that in Spark "
        f"by RESTORE TABLE delta.`{root}` TO VERSION AS OF <the version before>; DESCRIBE HISTORY lists the versions."
    )
