"""The one door to Delta Lake: a Delta table's log.

A version is made by putting ``_delta_log/<version>.json`` if it is absent (Delta protocol). delta-rs makes tables,
reads their state and writes checkpoints. Entries are written and followed here: delta-rs lists the whole log with each
refresh and each commit, so what these cost would grow with the number of versions (measured: a commit 3 ms at first,
11 ms after 1,000 versions, and as little as at first once the log was cut).
"""

from __future__ import annotations

import errno
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from snapshot import delta_entry as entries
from snapshot.delta_entry import INFO_KEY, Commit, DataFile, entry_of, files_after, files_of, parse_commit
from snapshot.delta_errors import plain
from snapshot.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptedError,
    DataLostError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from snapshot.protocol import Protocol, check_readable, check_writable, refused, unknown_to_delta_rs
from snapshot.storage import Storage

__all__ = ["Commit", "DataFile", "DeltaLog"]

logger = logging.getLogger("tablestore")

_FOLLOWED_MAX = 50
"""Entries that are kept on top of a state of delta-rs; with more of them, a newer state is read."""
_INTERVAL = 100
"""Versions between checkpoints where the table does not say (``delta.checkpointInterval``), as with delta-rs."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class _Base:
    """A state that delta-rs has read."""

    table: DeltaTable
    transactions: dict[str, int | None] = field(default_factory=dict)

    @cached_property
    def version(self) -> int:
        return int(self.table.version())

    @cached_property
    def configuration(self) -> dict[str, str]:
        return dict(self.table.metadata().configuration)

    @cached_property
    def files(self) -> list[DataFile]:
        return files_of(pa.table(self.table.get_add_actions(flatten=False)))

    @cached_property
    def protocol(self) -> Protocol:
        """What the table asks of its readers and writers."""
        asked = self.table.protocol()
        return Protocol(
            asked.min_reader_version,
            asked.min_writer_version,
            frozenset(asked.reader_features or ()),
            frozenset(asked.writer_features or ()),
            self.configuration,
            self.table.schema().to_json(),
        )


@dataclass(frozen=True)
class _State:
    """A table's state: one that delta-rs has read, and the entries since, which only add and remove files."""

    base: _Base
    since: tuple[Commit, ...] = ()

    @property
    def version(self) -> int:
        return self.base.version + len(self.since)


class DeltaLog:
    """One Delta table. Cheap to make; keeps the last state it has seen, and follows the log from there."""

    def __init__(self, storage: Storage) -> None:
        """Name the table in ``storage``; nothing is read yet."""
        self.storage = storage
        self._state: _State | None = None

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
        """Make an empty table as version 0.

        Raises:
            AlreadyExistsError: there is a Delta table already.
            UnavailableError: the file system refused.
        """
        try:
            DeltaTable.create(
                storage.root,
                _without_invariants(schema),
                mode="error",
                partition_by=list(partition_by),
                configuration=dict(configuration),
                raise_if_key_not_exists=False,
                commit_properties=CommitProperties(custom_metadata={INFO_KEY: json.dumps(dict(info))}),
            )
        except (DeltaError, OSError) as error:
            if "already exists" in str(error):
                msg = f"{storage.root}: a Delta table is there already; nothing changed."
                raise AlreadyExistsError(msg) from error
            if isinstance(error, DeltaError):
                raise
            msg = f"{storage.root}: the Delta table cannot be made: {plain(error)}. Check the file system, then retry."
            raise UnavailableError(msg) from error
        return cls(storage)

    def exists(self) -> bool:
        """Tell whether there is a Delta table."""
        return self.storage.exists("_delta_log") and DeltaTable.is_deltatable(self.storage.root)

    def version(self) -> int:
        """Give the newest version.

        Raises:
            NotFoundError: there is no Delta table.
            InvalidInputError: it asks its readers for something that this program does not do.
        """
        return self._readable(self._fresh()).version

    def configuration(self) -> dict[str, str]:
        """Give the table's Delta properties."""
        return dict(self._fresh().base.configuration)

    def seen(self, least: int) -> tuple[int, dict[str, str]]:
        """Give a version from ``least`` on, and the properties as of it; asks for newer ones only if it has to."""
        state = self._state
        if state is None or state.version < least:
            state = self._fresh()
        return state.version, dict(state.base.configuration)

    def has_schema(self, schema: pa.Schema) -> bool:
        """Tell whether the newest version's columns are these."""
        return bool(self._fresh().base.table.schema() == Schema.from_arrow(_without_invariants(schema)))

    def lacks(self, schema: pa.Schema) -> list[str]:
        """Return the names of columns that the newest version seen does not have, or has with another type."""
        state = self._state or self._fresh()
        there = {each.name: each.type for each in state.base.table.schema().fields}
        return [each.name for each in Schema.from_arrow(schema).fields if there.get(each.name) != each.type]

    def transaction_version(self, app_id: str, *, fresh: bool = True) -> int | None:
        """Give the last version an application has recorded with its commits (Delta's ``txn`` action).

        Args:
            app_id: names the application.
            fresh: look for newer commits first; without it, the state last seen will do.
        """
        state = self._state if self._state is not None and not fresh else self._fresh()
        for found in reversed(state.since):
            if app_id in found.transactions:
                return found.transactions[app_id]
        if app_id not in state.base.transactions:
            try:
                number = state.base.table.transaction_version(app_id)
            except DeltaError:
                # It is looked for in the entries that were there when the state was read; some may have expired since.
                state = self._load()
                try:
                    number = state.base.table.transaction_version(app_id)
                except DeltaError as error:
                    raise self._unreadable(error) from error
            state.base.transactions[app_id] = None if number is None else int(number)
        return state.base.transactions[app_id]

    def files(self, version: int | None = None) -> list[DataFile]:
        """List the active files, as of the newest version or of ``version``.

        Raises:
            NotFoundError: there is no such version any more.
            InvalidInputError: it asks its readers for something that this program does not do.
        """
        state = self._readable(self._fresh())
        first = state.base.version
        if version is None or first <= version <= state.version:
            return files_after(state.base.files, state.since if version is None else state.since[: version - first])
        try:
            older = _Base(DeltaTable(self.storage.root, version=version))
            check_readable(self.storage.root, older.protocol)
            return older.files
        except (DeltaError, TableNotFoundError, OSError) as error:
            msg = f"{self.storage.root}: version {version} cannot be read: {error}"
            raise NotFoundError(msg) from error

    def commit_at(self, version: int) -> Commit:
        """Read one version's own actions; the cost does not depend on the size of the table.

        Raises:
            DataLostError: Delta's log retention has removed the version's file.
            CorruptedError: the version's file is damaged.
        """
        found = self._entry(version)
        if found is None:
            msg = (
                f"{self.storage.root}: the log entry of version {version} is gone (delta.logRetentionDuration); "
                "its changes can no longer be read one snapshot at a time."
            )
            raise DataLostError(msg)
        return found

    def commits(self, newest: int, oldest: int = 0) -> Iterator[Commit]:
        """Read versions from ``newest`` down to ``oldest``, stopping where Delta's log retention has cut the log."""
        for version in range(newest, oldest - 1, -1):
            found = self._entry(version)
            if found is None:
                return
            yield found

    def commit(
        self,
        version: int,
        *,
        add: Sequence[DataFile],
        remove: Sequence[DataFile] = (),
        info: Mapping[str, Any],
        transactions: Sequence[tuple[str, int]] = (),
        data_change: bool = True,
    ) -> None:
        """Make ``version``, all or nothing, or find that somebody else has.

        Raises:
            ConflictError: the version exists. It may be this very commit, whose first answer was lost.
            InvalidInputError: the table asks its writers for something that this program does not do.
            UnavailableError: the file system has no room; the version was not made.
            OutcomeUnknownError: the file system failed; the version may exist or not.
        """
        state, now_ms = self._at(version - 1), int(time.time() * 1000)
        actions = [entries.commit_info(now_ms, "WRITE", info)]
        actions += [entries.transaction(name, number, now_ms) for name, number in transactions]
        actions += [entries.remove(f, now_ms, data_change=data_change) for f in remove]
        actions += [entries.add(f, now_ms, data_change=data_change) for f in add]
        self._put(version, actions, state)

    def alter(
        self,
        version: int,
        *,
        schema: pa.Schema,
        configuration: Mapping[str, str],
        info: Mapping[str, Any],
        add: Sequence[DataFile] = (),
        remove: Sequence[DataFile] = (),
    ) -> None:
        """Make ``version`` with other columns or properties, and files with them.

        Args:
            version: the version.
            schema: all columns, those of partitions too, which stay what they are.
            configuration: properties to set; others stay.
            info: our facts about the commit.
            add: files of new data.
            remove: files whose data is removed.

        Raises:
            ConflictError: the version exists. It may be this very commit, whose first answer was lost.
            InvalidInputError: the table asks its writers for something that this program does not do.
            UnavailableError: the file system has no room; the version was not made.
            OutcomeUnknownError: the file system failed; the version may exist or not.
        """
        state, now_ms = self._at(version - 1), int(time.time() * 1000)
        before = state.base.table.metadata()
        actions = [entries.commit_info(now_ms, "CHANGE COLUMNS", info)]
        asked = state.base.protocol
        if any(map(_has_local_time, schema.types)) and entries.NTZ_FEATURE not in asked.reader_features:
            more = ("appendOnly",) if asked.is_append_only else ()
            actions.append(entries.ntz_protocol(asked.reader_features, {*asked.writer_features, *more}))
        actions.append(
            entries.metadata(
                table_id=str(before.id),
                schema_json=Schema.from_arrow(_without_invariants(schema)).to_json(),
                partition_by=before.partition_columns,
                configuration={**before.configuration, **configuration},
                created_ms=before.created_time,
            )
        )
        actions += [entries.remove(f, now_ms) for f in remove]
        actions += [entries.add(f, now_ms) for f in add]
        self._put(version, actions, state)

    def _put(self, version: int, actions: Sequence[Mapping[str, Any]], state: _State) -> None:
        """Put the entry of a version, and now and then a checkpoint after it."""
        removes = any(action.get("remove", {}).get("dataChange") for action in actions)
        check_writable(self.storage.root, state.base.protocol, removes=removes)
        try:
            made = self.storage.put_new(entry_of(version), entries.entry(actions))
        except UnavailableError as error:
            # The entry is written under another name before it gets its own, so what did not fit is not there.
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_ROOM:
                msg = (
                    f"{self.storage.root}: version {version} cannot be committed: {error} Nothing was committed. Make "
                    "room, then try again."
                )
                raise UnavailableError(msg) from error
            msg = f"{self.storage.root}: commit of version {version} gave no answer: {error}"
            raise OutcomeUnknownError(msg) from error
        if not made:
            msg = f"{self.storage.root}: version {version} was made by another commit."
            raise ConflictError(msg)
        if version % int(state.base.configuration.get("delta.checkpointInterval", _INTERVAL)) == 0:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Write a checkpoint of the newest version, so that a state is read without all entries before it."""
        try:
            self._load().base.table.create_checkpoint()
        except (DeltaError, OSError, CorruptedError, NotFoundError) as error:
            # The commit is done, and the log is whole without a checkpoint; the next one makes up for it.
            logger.warning("%s: a checkpoint cannot be written: %s", self.storage.root, plain(error))

    def _at(self, version: int) -> _State:
        """Give the newest state, which has to be this version.

        Raises:
            ConflictError: it is another.
        """
        # The state last seen is enough where it is the one before: if it is old by now, putting the version fails.
        state = self._state
        if state is None or state.version != version:
            state = self._fresh()
        if state.version != version:
            msg = f"{self.storage.root}: version {version + 1} was made by another commit."
            raise ConflictError(msg)
        return state

    def _fresh(self) -> _State:
        """Follow the log to its end, an entry at a time; what that costs does not depend on the log's length."""
        state = self._state
        if state is None:
            return self._load()
        while (found := self._entry(state.version + 1)) is not None:
            if not found.only_files or len(state.since) == _FOLLOWED_MAX:
                return self._load()
            state = self._state = replace(state, since=(*state.since, found))
        # Entries expire from the oldest on. So where the last one seen is there, the one that was looked for after it
        # was never made; where it is gone, there may be newer ones.
        if self.storage.read(entry_of(state.version)) is None:
            return self._load()
        return state

    def _readable(self, state: _State) -> _State:
        """Return a state, unless the table asks its readers for what this program does not do."""
        check_readable(self.storage.root, state.base.protocol)
        return state

    def _load(self) -> _State:
        """Read the newest state with delta-rs."""
        try:
            self._state = _State(_Base(DeltaTable(self.storage.root)))
        except TableNotFoundError as error:
            msg = f"{self.storage.root}: there is no Delta table. Create it first."
            raise NotFoundError(msg) from error
        except DeltaError as error:
            if features := unknown_to_delta_rs(error):
                raise refused(self.storage.root, features, "readers") from error
            raise self._unreadable(error) from error
        return self._state

    def _entry(self, version: int) -> Commit | None:
        text = self.storage.read(entry_of(version))
        try:
            return None if text is None else parse_commit(version, text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> CorruptedError:
        return CorruptedError(
            f"{self.storage.root}: the Delta log cannot be read: {error}. Restore it, or choose another path."
        )


def _without_invariants(schema: pa.Schema) -> pa.Schema:
    """Make columns nullable where the table would be one that Spark refuses to open.

    A column of timestamps without zone makes a table of writer version 7, whose protocol must list each feature used.
    delta-rs lists ``timestampNtz`` and leaves out ``invariants``, which NOT NULL is.
    """
    if not any(map(_has_local_time, schema.types)):
        return schema
    return pa.schema([field.with_nullable(True) for field in schema])


def _has_local_time(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_has_local_time(kind.field(number).type) for number in range(kind.num_fields))
