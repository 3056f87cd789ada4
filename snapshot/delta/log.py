"""A Delta table's log: the only module through which the store reads and commits Delta versions.

A commit puts ``_delta_log/<version>.json`` if it is absent (Delta protocol). delta-rs creates tables, reads their state
and writes checkpoints. This module itself writes entries and reads new ones, because delta-rs lists the whole log at
each refresh and commit: a commit takes 3 ms at first and 11 ms after 1,000 versions (measured).
"""

from __future__ import annotations

import logging
import time
import uuid
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError

from snapshot.column_json import Path, lacking
from snapshot.delta import entries
from snapshot.delta.checkpoint import checkpointed_transactions, write_checkpoint
from snapshot.delta.entries import Commit, DataFile, entry_of, files_after, fingerprint_of, parse_commit
from snapshot.delta.folder_name import check_folder
from snapshot.delta.forked import check_process
from snapshot.delta.land import land, put_first, was_created, withdraw
from snapshot.delta.native_errors import delta_errors, plain, unreadable
from snapshot.delta.own_commit import OwnCommit
from snapshot.delta.protocol import check_readable, check_writable, has_local_time, without_invariants
from snapshot.delta.state import DeltaBase, DeltaState
from snapshot.errors import (
    ConflictError,
    CorruptedError,
    DataLostError,
    NotFoundError,
    OutcomeUnknownError,
    TableReplacedError,
    TableStoreError,
    UnavailableError,
)
from snapshot.messages import counted
from snapshot.storage import Storage

__all__ = ["Commit", "DataFile", "DeltaLog"]

logger = logging.getLogger("tablestore")

_FOLLOWED_MAX = 50
"""Maximum number of entries kept on top of a state read by delta-rs; then delta-rs reads a newer state."""
_INTERVAL = 100
"""Versions between checkpoints if the table does not set ``delta.checkpointInterval``; the default of delta-rs."""


class DeltaLog:
    """The log of one Delta table. Cheap to create; caches the last state read and follows the log from there."""

    def __init__(self, storage: Storage) -> None:
        """Refer to the table in the folder ``storage``; nothing is read yet.

        Raises:
            InvalidInputError: delta-rs would read another folder.
        """
        check_folder(storage.root)
        self.storage = storage
        self._state: DeltaState | None = None
        self._own = OwnCommit()

    @classmethod
    def create(
        cls,
        storage: Storage,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str],
        configuration: Mapping[str, str],
        info: Mapping[str, Any],
    ) -> DeltaLog:
        """Create an empty table as version 0.

        Raises:
            AlreadyExistsError: a Delta table exists already.
            UnavailableError: a file system operation failed; nothing was created.
            OutcomeUnknownError: the file system does not respond; the table may or may not exist.
        """
        check_process()
        commit_id, columns = uuid.uuid4().hex, without_invariants(schema)
        if any(has_local_time(each, in_map=True) for each in schema.types):
            put_first(storage, columns, partition_by=partition_by, configuration=configuration, info=info)
            return cls(storage)
        try:
            DeltaTable.create(
                storage.root,
                columns,
                mode="error",
                partition_by=list(partition_by),
                configuration=dict(configuration),
                raise_if_key_not_exists=False,
                # A retry after a lost response would commit the same again as version 1.
                commit_properties=CommitProperties(
                    custom_metadata=entries.facts({**info, "commit": commit_id}), max_commit_retries=0
                ),
            )
        except (DeltaError, OSError) as error:
            # delta-rs repeats a request whose response was lost, and may then find the entry that it created itself.
            if not was_created(storage, commit_id, error):
                msg = f"{storage.root}: the Delta table cannot be created: {plain(error)}. Check the file system."
                raise UnavailableError(msg) from error
        return cls(storage)

    def exists(self) -> bool:
        """Return whether the Delta table exists."""
        check_process()
        with delta_errors(self.storage.root):
            return self.storage.exists(entries.LOG) and DeltaTable.is_deltatable(self.storage.root)

    def version(self, *, fresh: bool = True) -> int:
        """Return the newest version; without ``fresh``, that of the last look.

        Raises:
            NotFoundError: there is no Delta table.
            InvalidInputError: the table requires a reader feature that this program does not support.
        """
        state = self._look(fresh=fresh)
        check_readable(self.storage.root, state.base.protocol)
        return state.version

    def configuration(self) -> dict[str, str]:
        """Return the table's Delta properties."""
        return dict(self._fresh().base.configuration)

    def seen(self, least: int) -> tuple[int, dict[str, str]]:
        """Return a version of at least ``least`` and its properties, refreshing only if the cached state is older."""
        state = self._state
        if state is None or state.version < least:
            state = self._fresh()
        return state.version, dict(state.base.configuration)

    def schema_json(self) -> str:
        """Return all columns as Delta's schema JSON, as of the last look."""
        return self._look(fresh=False).base.protocol.schema_json

    def has_schema(self, schema: pa.Schema) -> bool:
        """Return whether the newest version has this schema."""
        return bool(self._fresh().base.table.schema() == Schema.from_arrow(without_invariants(schema)))

    def lacks(self, schema: pa.Schema) -> list[str]:
        """Return the names of columns that the last version read lacks or has with another type (``lacking``)."""
        return lacking(self._look(fresh=False).base.table.schema().to_json(), Schema.from_arrow(schema).to_json())

    def transaction_version(self, app_id: str, *, fresh: bool = True) -> int | None:
        """Return the last version that an application has recorded with its commits (Delta's ``txn`` action).

        Without ``fresh``, that of the last look.
        """
        state = self._look(fresh=fresh)
        for commit in reversed(state.since):
            if app_id in commit.transactions:
                return commit.transactions[app_id]
        if app_id not in state.base.transactions:
            state.base.transactions[app_id] = self._recorded(state, app_id)
        return state.base.transactions[app_id]

    def _recorded(self, state: DeltaState, app_id: str) -> int | None:
        """Return the version that an application has recorded as of the state read by delta-rs."""
        try:
            number = state.base.table.transaction_version(app_id)
        except (DeltaError, OSError):
            # Search the entries that existed when the state was read; some may have expired since.
            state = self._load()
            with delta_errors(self.storage.root):
                try:
                    number = state.base.table.transaction_version(app_id)
                except DeltaError:
                    # An action of some application violates the protocol.
                    return self._transactions(state.base.version).get(app_id)
        return None if number is None else int(number)

    def _transactions(self, version: int) -> dict[str, int]:
        """Return the recorded version of every application as of a version, ignoring invalid actions."""
        first, transactions = checkpointed_transactions(self.storage, version)
        for each in range(first + 1, version + 1):
            transactions.update(self.commit_at(each).transactions)
        return transactions

    def files(self, version: int | None = None) -> list[DataFile]:
        """Return the active files of the newest version or of ``version``.

        Raises:
            NotFoundError: the version no longer exists.
            InvalidInputError: the table requires a reader feature that this program does not support.
        """
        state = self._state
        # What a version lists never changes.
        if state is None or version is None or version > state.version:
            state = self._fresh()
        check_readable(self.storage.root, state.base.protocol)
        first = state.base.version
        if version is None or first <= version <= state.version:
            with delta_errors(self.storage.root):
                base_files = state.base.files
            return files_after(base_files, state.since if version is None else state.since[: version - first])
        try:
            older = DeltaBase.read(self.storage, version)
            check_readable(self.storage.root, older.protocol)
            return older.files
        except CorruptedError as error:
            msg = f"{self.storage.root}: version {version} cannot be read: {error}"
            raise NotFoundError(msg) from error

    def commit_at(self, version: int, *, fresh: bool = True) -> Commit:
        """Return one version's actions; the cost does not depend on the size of the table.

        Without ``fresh``, return what this object has read or committed, if it has. That was in the log, unchanged,
        when the version after it was read or committed, and the newest version at the last look.

        Raises:
            DataLostError: Delta's log retention has removed the version's file.
            CorruptedError: the version's file is damaged.
        """
        commit = self.entry(version, fresh=fresh)
        if commit is None:
            msg = (
                f"{self.storage.root}: the log entry of version {version} is gone (delta.logRetentionDuration); "
                "its changes can no longer be read separately."
            )
            raise DataLostError(msg)
        return commit

    def entry(self, version: int, *, fresh: bool = True) -> Commit | None:
        """Return the actions of a version as ``commit_at`` does; None if its file is gone."""
        state = None if fresh else self._state
        if state is not None and (held := state.followed(version)) is not None:
            return held
        text = state.base.text if state is not None and state.base.version == version else None
        text = self.storage.read(entry_of(version)) if text is None else text
        return None if text is None else self._parsed(version, text)

    def fingerprint(self, version: int, *, fresh: bool = True) -> str:
        """Return the fingerprint of a version's entry; empty if the entry is gone. ``fresh`` as in ``commit_at``."""
        known = self._state.fingerprint(version) if self._state is not None and not fresh else ""
        return known or fingerprint_of(self.storage.read(entry_of(version)))

    def has_entry(self, version: int) -> bool:
        """Return whether the log still contains the entry of a version."""
        return self.entry(version) is not None

    def oldest_entry(self, oldest: int) -> int:
        """Return the oldest version from ``oldest`` on whose entry is still in the log; entries expire oldest first."""
        newest = self.version()
        return oldest + bisect_left(range(oldest, newest), x=True, key=self.has_entry)

    def commits(self, newest: int, oldest: int = 0, *, fresh: bool = True) -> Iterator[Commit]:
        """Yield commits from ``newest`` down to ``oldest``, until log retention has removed one; as ``commit_at``."""
        for version in range(newest, oldest - 1, -1):
            commit = self.entry(version, fresh=fresh)
            if commit is None:
                return
            yield commit

    def commit(
        self,
        version: int,
        *,
        add: Sequence[DataFile],
        remove: Sequence[DataFile] = (),
        info: Mapping[str, Any],
        transactions: Sequence[tuple[str, int]] = (),
        data_change: bool = True,
    ) -> Commit:
        """Commit ``version`` atomically, unless another commit has taken it; return the commit.

        Raises:
            ConflictError: another commit has taken the version; this one has not landed.
            DataLostError: another writer has replaced this object's last commit, or the files are gone; nothing was
                committed.
            TableReplacedError: the table was dropped and created again.
            InvalidInputError: the table requires a writer feature that this program does not support.
            UnavailableError: the file system is full or cannot be written; the version was not committed.
            OutcomeUnknownError: the file system does not respond; the version may exist, so its files must stay.
        """
        state, now_ms = self._at(version - 1), int(time.time() * 1000)
        actions = [entries.commit_info(now_ms, "WRITE", info)]
        actions += [entries.transaction(name, number, now_ms) for name, number in transactions]
        actions += [entries.remove(f, now_ms, data_change=data_change) for f in remove]
        actions += [entries.add(f, now_ms, data_change=data_change) for f in add]
        self._check_there({*(f.path for f in add), *(each["path"] for each in info.get("changes") or ())})
        return self._put(version, actions, state)

    def alter(
        self,
        version: int,
        schema: pa.Schema,
        *,
        own: Collection[Path] | None = None,
        configuration: Mapping[str, str],
        info: Mapping[str, Any],
        add: Sequence[DataFile] = (),
        remove: Sequence[DataFile] = (),
    ) -> Commit:
        """Commit ``version`` with other columns or properties, and optionally files; return the commit.

        Args:
            version: the version.
            schema: all columns, including partition columns, which cannot change.
            own: paths of all columns and fields that the store ever had in files; those of others stay. None: none.
            configuration: properties to set; others stay.
            info: facts about the commit to record.
            add: files with new data.
            remove: files whose data is removed.

        Raises:
            TableStoreError: as in ``commit``.
        """
        state, now_ms = self._at(version - 1), int(time.time() * 1000)
        before, columns = state.base.table.metadata(), Schema.from_arrow(without_invariants(schema)).to_json()
        actions = [entries.commit_info(now_ms, "CHANGE COLUMNS", info)]
        asked = state.base.protocol
        if any(map(has_local_time, schema.types)) and entries.NTZ_FEATURE not in asked.reader_features:
            features = asked.reader_features, asked.writer_features
            actions.append(entries.ntz_protocol(*features, append_only=asked.is_append_only))
        actions.append(
            entries.metadata(
                table_id=str(before.id),
                schema_json=entries.with_columns_of_others(columns, asked.schema_json, own),
                partition_by=before.partition_columns,
                configuration={**before.configuration, **configuration},
                created_ms=before.created_time,
            )
        )
        actions += [entries.remove(f, now_ms) for f in remove]
        actions += [entries.add(f, now_ms) for f in add]
        self._check_there({f.path for f in add})
        return self._put(version, actions, state)

    def _check_there(self, paths: set[str]) -> None:
        """Raise `DataLostError` if files of a commit have been removed as orphans, because it took so long to get here.

        Not on an object store, where each file would cost a request.
        """
        gone = sorted(path for path in paths if self.storage.is_local and not self.storage.exists(path))
        if gone:
            msg = (
                f"{self.storage.root}: {counted(len(gone), 'file')} of this commit, such as {gone[0]}, are gone: "
                "others removed them as orphans, since this took longer than the 'older_than' of remove_orphans(). "
                "Nothing was committed; do it again."
            )
            raise DataLostError(msg)

    def _put(self, version: int, actions: Sequence[Mapping[str, Any]], state: DeltaState) -> Commit:
        """Put the entry of a version, and a checkpoint after it if one is due.

        1. Put the entry unless the version exists, and find out whether it landed (``land.py``).
        2. Check that the previous version is still the one that this entry follows. If this process was suspended and
           another one truncated the log past the entry, no reader reads the entry, so remove it.
        3. Write a checkpoint if one is due. After a crash, a later commit writes it.
        """
        removes = any(action.get("remove", {}).get("dataChange") for action in actions)
        check_writable(self.storage.root, state.base.protocol, removes=removes)
        text = entries.entry(actions)
        with self._opened(state) as folder:
            # Step 1.
            is_first = land(self.storage, version, text, folder)
            # Step 2.
            self._check_next(version, text, state, folder, is_first=is_first)
        made = parse_commit(version, text)
        self._own.made(made)
        if made.only_files and len(state.since) < _FOLLOWED_MAX:
            self._state = DeltaState(state.base, (*state.since, made))
        # Step 3.
        if version % int(state.base.configuration.get("delta.checkpointInterval", _INTERVAL)) == 0:
            self._checkpoint()
        return made

    @contextmanager
    def _opened(self, state: DeltaState) -> Iterator[int | None]:
        """Open the folder of the table whose state was read, for `Storage.put_new`; it is that of no other table."""
        try:
            with self.storage.opened() as folder:
                if folder is not None and not self._is_there(state, folder):
                    self._load()
                yield folder
        except NotFoundError:
            self._load()
            raise

    def _check_next(self, version: int, text: bytes, state: DeltaState, folder: int | None, *, is_first: bool) -> None:
        """Check that a new entry follows the version at which its state was read.

        It does not if this process was suspended just before it put the entry, and the log was truncated or the table
        replaced in the meantime.

        Raises:
            ConflictError: it does not follow, and was removed.
            TableReplacedError: another table is at the path; the entry was removed.
            OutcomeUnknownError: an earlier request may have landed in time, or the file system does not respond.
        """
        known = state.fingerprint(state.version)
        if not known:
            return
        try:
            before = self.storage.read(entry_of(version - 1))
            if fingerprint_of(before) == known:
                return
            try:
                newest = self._load().version
            except (TableReplacedError, NotFoundError, CorruptedError) as error:
                if before is not None and isinstance(error, CorruptedError):
                    raise
                # In the log of a new table, an entry in an object store leaves a gap, with which no reader can read it.
                withdraw(self.storage, version, text, folder)
                self._load()
            else:
                if before is not None or newest <= version or self.storage.read(entry_of(version + 1)) is not None:
                    return
                withdraw(self.storage, version, text, folder)
        except UnavailableError as error:
            # The entry exists, so its files have to stay.
            msg = f"{self.storage.root}: commit of version {version} cannot be read back: {error}"
            raise OutcomeUnknownError(msg) from error
        if not is_first:
            msg = f"{self.storage.root}: commit of version {version} got no answer, and the version has expired since."
            raise OutcomeUnknownError(msg)
        msg = f"{self.storage.root}: version {version} was committed by another writer and has expired since."
        raise ConflictError(msg)

    def _checkpoint(self) -> None:
        """Write a checkpoint of the newest version; a commit is complete without, and a later one writes it."""
        try:
            write_checkpoint(self.storage, self._load().base)
        except (DeltaError, OSError, TableStoreError) as error:
            logger.warning("%s: a checkpoint cannot be written: %s", self.storage.root, plain(error))

    def _at(self, version: int) -> DeltaState:
        """Return the newest state; raise `ConflictError` if it is not of this version."""
        check_process()
        # The last state is sufficient if it is the previous version: if it is outdated, putting the version fails. It
        # must belong to this table; otherwise the entry would land in a table created at the path since.
        state = self._state
        if state is None or state.version != version or not self._is_there(state):
            state = self._fresh()
        self._own.check(self.storage.root)
        if state.version != version:
            msg = f"{self.storage.root}: version {version + 1} was committed by another writer."
            raise ConflictError(msg)
        return state

    def _look(self, *, fresh: bool) -> DeltaState:
        """Return the newest state; without ``fresh``, that of the last look, if there was one."""
        return self._fresh() if fresh or self._state is None else self._state

    def _fresh(self) -> DeltaState:
        """Follow the log to its end, one entry at a time; the cost does not depend on the length of the log."""
        check_process()
        state = self._state
        if state is None:
            return self._load()
        first = state
        while (text := self.storage.read(entry_of(state.version + 1))) is not None:
            commit = self._parsed(state.version + 1, text)
            self._own.compare(commit)
            is_next = state is not first or self._is_there(state)
            if not is_next or not commit.only_files or len(state.since) == _FOLLOWED_MAX:
                return self._load()
            state = self._state = DeltaState(state.base, (*state.since, commit))
        # Entries expire oldest first: there may be later ones if the last known is gone. Another one: table restored.
        return state if self._is_there(state) else self._load()

    def _is_there(self, state: DeltaState, folder: int | None = None) -> bool:
        """Return whether the newest entry of a state is still in the log, unchanged."""
        text = self.storage.read(entry_of(state.version), folder)
        return text is not None and fingerprint_of(text) == state.fingerprint(state.version)

    def _load(self) -> DeltaState:
        """Load the newest state with delta-rs.

        Raises:
            NotFoundError: there is no Delta table.
            TableReplacedError: it is not the table that this object read before.
        """
        base = DeltaBase.read(self.storage)
        if self._state is not None and self._state.base.id != base.id:
            msg = (
                f"{self.storage.root}: expected the table that was opened, with id {self._state.base.id}, got one with "
                f"id {base.id}: it was dropped and created again. Open it again; nothing was changed."
            )
            raise TableReplacedError(msg)
        base.text = self.storage.read(entry_of(base.version))
        self._own.look(self.entry, base.version)
        self._state = DeltaState(base)
        return self._state

    def _parsed(self, version: int, text: bytes) -> Commit:
        try:
            return parse_commit(version, text, partial(self.storage.modified_ms, entry_of(version)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(self.storage.root, error) from error
