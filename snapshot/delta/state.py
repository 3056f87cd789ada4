"""The state of a Delta table as of a version."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import pyarrow as pa
from deltalake import DeltaTable

from snapshot.delta.entries import (
    CHECKPOINT,
    LOG,
    NEWEST_CHECKPOINT,
    Commit,
    DataFile,
    entry_of,
    files_of,
    fingerprint_of,
)
from snapshot.delta.native_errors import delta_errors
from snapshot.delta.protocol import Protocol
from snapshot.delta.remove_log import check_not_removed
from snapshot.errors import CorruptedError
from snapshot.storage import Storage

_ENTRY = re.compile(r"([0-9]{20})\.json")
_WAIT_SECONDS = 0.1
_WITHDRAWN_SECONDS = 2.0
"""How long a reader of an object store waits for another writer to remove an entry with which the log has a gap."""


@dataclass
class DeltaBase:
    """A table state read by delta-rs.

    Attributes:
        table: the state.
        transactions: the versions that applications have recorded, as far as they were asked for.
        text: the version's entry; None if expiry removed it before it was read.
    """

    table: DeltaTable
    transactions: dict[str, int | None] = field(default_factory=dict)
    text: bytes | None = None

    @classmethod
    def read(cls, storage: Storage, version: int | None = None) -> DeltaBase:
        """Read a version, or the newest one.

        What a newer checkpoint replaces, or the whole log, may be removed while it is read; then it is read again. So
        it is if a writer has put an entry into an object store after the table was dropped: the writer removes it.

        Raises:
            NotFoundError: there is no Delta table.
            CorruptedError: the log cannot be read.
        """
        now: tuple[bytes | None, ...] = ()
        until = time.monotonic() + (0 if storage.is_local else _WITHDRAWN_SECONDS)
        while True:
            try:
                with delta_errors(storage.root):
                    return cls(DeltaTable(storage.root, version=version))
            except CorruptedError:
                check_not_removed(storage)
                # A table that was created again has another first entry.
                before, now = now, (storage.read(NEWEST_CHECKPOINT), storage.read(entry_of(0)))
                if now != before:
                    continue
                if version is not None:
                    raise
                if time.monotonic() >= until:
                    _check_no_gap(storage)
                    raise
                time.sleep(_WAIT_SECONDS)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the version's entry; empty if it was not read."""
        return fingerprint_of(self.text)

    @cached_property
    def version(self) -> int:
        """The version that delta-rs has read."""
        return int(self.table.version())

    @cached_property
    def id(self) -> str:
        """The id that Delta assigned to the table when it was created."""
        return str(self.table.metadata().id)

    @cached_property
    def configuration(self) -> dict[str, str]:
        """The table's Delta properties."""
        return dict(self.table.metadata().configuration)

    @cached_property
    def files(self) -> list[DataFile]:
        """The active files."""
        return files_of(pa.table(self.table.get_add_actions(flatten=False)))

    @cached_property
    def protocol(self) -> Protocol:
        """The protocol versions and features that the table requires of readers and writers."""
        asked = self.table.protocol()
        return Protocol(
            asked.min_reader_version,
            asked.min_writer_version,
            frozenset(asked.reader_features or ()),
            frozenset(asked.writer_features or ()),
            self.configuration,
            self.table.schema().to_json(),
        )


def _check_no_gap(storage: Storage) -> None:
    """Check that no version is missing in a log that cannot be read.

    Raises:
        CorruptedError: one is, and a later one is there.
    """
    names = storage.names(LOG)
    # A reader needs the entries after the newest checkpoint.
    begin = max((int(found[1]) for name in names if (found := CHECKPOINT.fullmatch(name))), default=-1)
    there = sorted(int(found[1]) for name in names if (found := _ENTRY.fullmatch(name)) and int(found[1]) > begin)
    gap = next(((before + 1, after) for before, after in pairwise([begin, *there]) if after != before + 1), None)
    if gap is None:
        return
    missing, after = gap
    msg = (
        f"{storage.root}: the Delta log cannot be read: it lacks version {missing}, but has version {after}. Restore "
        "what is missing. If a writer was killed when the table was dropped, delete "
        f"{storage.path(entry_of(after))} instead: it is of the dropped table."
    )
    raise CorruptedError(msg)


@dataclass(frozen=True)
class DeltaState:
    """A table's state: a version that delta-rs has read, and the later entries, which only add and remove files.

    Attributes:
        base: the version that delta-rs has read.
        since: the entries after it.
    """

    base: DeltaBase
    since: tuple[Commit, ...] = ()

    @property
    def version(self) -> int:
        """The newest version."""
        return self.base.version + len(self.since)

    def followed(self, version: int) -> Commit | None:
        """Return the entry of a version after ``base``; None for any other version."""
        number = version - self.base.version - 1
        return self.since[number] if 0 <= number < len(self.since) else None

    def fingerprint(self, version: int) -> str:
        """Return the fingerprint of a version from ``base`` on; empty if unknown."""
        if version == self.base.version:
            return self.base.fingerprint
        held = self.followed(version)
        return "" if held is None else held.fingerprint
