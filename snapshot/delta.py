"""The one door to Delta Lake: a Delta table's log, read and committed to with delta-rs.

Rules come from the Delta protocol: a version is made by putting ``_delta_log/<version>.json`` if it is absent;
paths in the log are URI-encoded; partition values are strings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from snapshot import delta_actions as actions_of
from snapshot.delta_errors import has_no_room, plain
from snapshot.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptedError,
    DataLostError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from snapshot.storage import Storage

INFO_KEY = "tablestore"
"""Key of our own facts in a commit's ``commitInfo``."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a Delta table.

    Attributes:
        path: relative to the table's folder, not encoded.
        size: bytes.
        rows: number of rows; -1 when the writer kept no statistics.
        partition: partition values as Delta stores them (strings, None for NULL).
        stats: Delta statistics JSON, empty when there are none.
    """

    path: str
    size: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = ""


@dataclass(frozen=True)
class Commit:
    """What one version of a Delta table's log says.

    Attributes:
        version: the Delta version.
        timestamp_ms: the commit's own time.
        info: our facts about the commit; empty when another writer made it.
        added: files added as new data.
        removed: paths of files whose data was removed (not merely rewritten).
        rewritten: paths of files whose rows are in other files now.
        copied: files added that hold no new data (those a compaction wrote).
    """

    version: int
    timestamp_ms: int
    info: dict[str, Any]
    added: tuple[DataFile, ...]
    removed: tuple[str, ...]
    rewritten: tuple[str, ...] = ()
    copied: tuple[DataFile, ...] = ()


class DeltaLog:
    """One Delta table. Cheap to make; keeps the last state it has seen and refreshes it incrementally."""

    def __init__(self, storage: Storage) -> None:
        """Name the table in ``storage``; nothing is read yet."""
        self.storage = storage
        self._table: DeltaTable | None = None

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
        """
        return int(self._fresh().version())

    def configuration(self) -> dict[str, str]:
        """Give the table's Delta properties."""
        return dict(self._fresh().metadata().configuration)

    def seen(self, least: int) -> tuple[int, dict[str, str]]:
        """Give a version from ``least`` on, and the properties as of it; asks for newer ones only if it has to."""
        table = self._table
        if table is None or table.version() < least:
            table = self._fresh()
        return int(table.version()), dict(table.metadata().configuration)

    def has_schema(self, schema: pa.Schema) -> bool:
        """Tell whether the newest version's columns are these."""
        return bool(self._fresh().schema() == Schema.from_arrow(_without_invariants(schema)))

    def transaction_version(self, app_id: str, *, fresh: bool = True) -> int | None:
        """Give the last version an application has recorded with its commits (Delta's ``txn`` action).

        Args:
            app_id: names the application.
            fresh: look for newer commits first; without it, the state last seen will do.
        """
        table = self._table if self._table is not None and not fresh else self._fresh()
        try:
            found = table.transaction_version(app_id)
        except DeltaError:
            # It is looked for in the entries that were there when the state was read; some may have expired since.
            self._table = None
            try:
                found = self._fresh().transaction_version(app_id)
            except DeltaError as error:
                raise self._unreadable(error) from error
        return None if found is None else int(found)

    def files(self, version: int | None = None) -> list[DataFile]:
        """List the active files, as of the newest version or of ``version``.

        Raises:
            NotFoundError: there is no such version any more.
        """
        newest = self._fresh()
        if version is None or version == newest.version():
            return _active_files(newest)
        try:
            return _active_files(DeltaTable(self.storage.root, version=version))
        except (DeltaError, TableNotFoundError, OSError) as error:
            msg = f"{self.storage.root}: version {version} cannot be read: {error}"
            raise NotFoundError(msg) from error

    def commit_at(self, version: int) -> Commit:
        """Read one version's own actions; the cost does not depend on the size of the table.

        Raises:
            DataLostError: Delta's log retention has removed the version's file.
        """
        text = self.storage.read(f"_delta_log/{version:020d}.json")
        if text is None:
            msg = (
                f"{self.storage.root}: the log entry of version {version} is gone (delta.logRetentionDuration); "
                "its changes can no longer be read one snapshot at a time."
            )
            raise DataLostError(msg)
        return _parse_commit(version, text)

    def commits(self, newest: int, oldest: int = 0) -> Iterator[Commit]:
        """Read versions from ``newest`` down to ``oldest``, stopping where Delta's log retention has cut the log."""
        for version in range(newest, oldest - 1, -1):
            text = self.storage.read(f"_delta_log/{version:020d}.json")
            if text is None:
                return
            yield _parse_commit(version, text)

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
            UnavailableError: the file system has no room; the version was not made.
            OutcomeUnknownError: the file system failed; the version may exist or not.
        """
        table = self._at(version - 1)
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.size, dict(f.partition), now_ms, data_change, f.stats or _rows(f)) for f in add
        ]
        actions += [RemoveAction(f.path, data_change, now_ms, f.size, dict(f.partition)) for f in remove]
        properties = CommitProperties(
            custom_metadata={INFO_KEY: json.dumps(dict(info))},
            max_commit_retries=0,
            app_transactions=[Transaction(name, number, now_ms) for name, number in transactions] or None,
        )
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=properties,
                # What Delta's log keeps is for expiry to say: it knows of tags, consumers and what is not published.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        except CommitFailedError as error:
            msg = f"{self.storage.root}: version {version} was made by another commit."
            raise ConflictError(msg) from error
        except (DeltaError, OSError) as error:
            # The version's file is written under another name before it gets its own, so what did not fit is not there.
            if has_no_room(error):
                msg = (
                    f"{self.storage.root}: version {version} cannot be committed: {plain(error)}. Nothing was "
                    "committed. Make room, then try again."
                )
                raise UnavailableError(msg) from error
            msg = f"{self.storage.root}: commit of version {version} gave no answer: {plain(error)}"
            raise OutcomeUnknownError(msg) from error

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
        """Make ``version`` with other columns or properties, and files with them; delta-rs has no way to do it in one.

        Args:
            version: the version.
            schema: all columns, those of partitions too, which stay what they are.
            configuration: properties to set; others stay.
            info: our facts about the commit.
            add: files of new data.
            remove: files whose data is removed.

        Raises:
            ConflictError: the version exists. It may be this very commit, whose first answer was lost.
            UnavailableError: the file system refused.
        """
        table = self._at(version - 1)
        before, now_ms = table.metadata(), int(time.time() * 1000)
        lines = [actions_of.commit_info(now_ms, "CHANGE COLUMNS", {INFO_KEY: json.dumps(dict(info))})]
        features = table.protocol().reader_features or []
        if any(map(_has_local_time, schema.types)) and actions_of.NTZ_FEATURE not in features:
            lines.append(actions_of.ntz_protocol())
        lines.append(
            actions_of.metadata(
                table_id=str(before.id),
                schema_json=Schema.from_arrow(_without_invariants(schema)).to_json(),
                partition_by=before.partition_columns,
                configuration={**before.configuration, **configuration},
                created_ms=before.created_time,
            )
        )
        lines += [actions_of.remove(f, now_ms) for f in remove]
        lines += [actions_of.add(f, now_ms, f.stats or _rows(f)) for f in add]
        if not self.storage.put_new(f"_delta_log/{version:020d}.json", actions_of.entry(lines)):
            msg = f"{self.storage.root}: version {version} was made by another commit."
            raise ConflictError(msg)

    def _at(self, version: int) -> DeltaTable:
        """Give the newest state, which has to be this version.

        Raises:
            ConflictError: it is another.
        """
        # The state last seen is enough where it is the one before: if it is old by now, putting the version fails.
        table = self._table
        if table is None or table.version() != version:
            table = self._fresh()
        if table.version() != version:
            msg = f"{self.storage.root}: version {version + 1} was made by another commit."
            raise ConflictError(msg)
        return table

    def _fresh(self) -> DeltaTable:
        try:
            if self._table is not None:
                try:
                    self._table.update_incremental()
                except TableNotFoundError:
                    raise
                except DeltaError:
                    # Entries between the state last seen and the newest may have expired.
                    self._table = None
            if self._table is None:
                self._table = DeltaTable(self.storage.root)
        except TableNotFoundError as error:
            msg = f"{self.storage.root}: there is no Delta table. Create it first."
            raise NotFoundError(msg) from error
        except DeltaError as error:
            raise self._unreadable(error) from error
        return self._table

    def _unreadable(self, error: DeltaError) -> CorruptedError:
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


def _rows(file: DataFile) -> str:
    return json.dumps({"numRecords": file.rows})


def _active_files(table: DeltaTable) -> list[DataFile]:
    found = pa.table(table.get_add_actions(flatten=False))
    if found.num_rows == 0:
        return []
    columns = {name: found.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")}
    has_partition = "partition" in found.column_names
    partitions = found.column("partition").to_pylist() if has_partition else [{}] * found.num_rows
    return [
        DataFile(unquote(path), size, -1 if rows is None else rows, {k: _text(v) for k, v in (partition or {}).items()})
        for path, size, rows, partition in zip(
            columns["path"], columns["size_bytes"], columns["num_records"], partitions, strict=True
        )
    ]


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_commit(version: int, text: bytes) -> Commit:
    info: dict[str, Any] = {}
    timestamp_ms = 0
    added: list[DataFile] = []
    removed: list[str] = []
    rewritten: list[str] = []
    copied: list[DataFile] = []
    for line in text.splitlines():
        action = json.loads(line) if line.strip() else {}
        if "commitInfo" in action:
            timestamp_ms = int(action["commitInfo"].get("timestamp") or 0)
            info = json.loads(action["commitInfo"].get(INFO_KEY) or "{}")
        elif "add" in action:
            add = action["add"]
            rows = json.loads(add.get("stats") or "{}").get("numRecords", -1)
            (added if add["dataChange"] else copied).append(
                DataFile(unquote(add["path"]), add["size"], rows, add["partitionValues"], add.get("stats") or "")
            )
        elif "remove" in action:
            taken = removed if action["remove"]["dataChange"] else rewritten
            taken.append(unquote(action["remove"]["path"]))
    return Commit(version, timestamp_ms, info, tuple(added), tuple(removed), tuple(rewritten), tuple(copied))
