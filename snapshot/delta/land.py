"""Puts an entry into a Delta log and finds out whether it was committed when the response does not say."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import Schema

from snapshot.delta import entries
from snapshot.delta.entries import entry_of, parse_commit
from snapshot.delta.native_errors import plain
from snapshot.disk import advice, is_refused
from snapshot.errors import AlreadyExistsError, ConflictError, OutcomeUnknownError, UnavailableError
from snapshot.storage import Storage

_PUTS_MAX = 6
"""Number of attempts to put an entry while its outcome is unknown."""
_WAIT_SECONDS_MAX = 0.5


def land(storage: Storage, version: int, text: bytes, folder: int | None = None) -> bool:
    """Put an entry if its version is absent, and find out whether it was committed.

    A client that repeats a request whose response was lost gets "the file exists", although it created the file itself.
    So the existing entry decides: no two commits write the same text. If there is no entry, put the same one again
    under the same name, where only one can land.

    Args:
        storage: folder of the Delta table.
        version: the version.
        text: the entry, which is unique.
        folder: the folder as ``Storage.opened`` returned it; None for the one that is at its path now.

    Returns:
        Whether the first request created the entry. Otherwise an earlier request may have created it, and an expiry may
        have removed it since.

    Raises:
        ConflictError: another commit has taken the version.
        NotFoundError: the opened ``folder`` was removed; nothing was committed.
        UnavailableError: the file system is full or cannot be written; nothing was committed.
        OutcomeUnknownError: the file system does not respond.
    """
    name = entry_of(version)
    cause: Exception | None = None
    for attempt in range(_PUTS_MAX):
        if attempt:
            time.sleep(random.uniform(0, min(_WAIT_SECONDS_MAX, 0.02 * 2**attempt)))
        try:
            if storage.put_new(name, text, folder):
                return not attempt
        except UnavailableError as error:
            # Entries appear complete or not at all, so one that was refused does not exist. An earlier try may still
            # land.
            refusal = error.__cause__
            if not attempt and is_refused(refusal):
                msg = (
                    f"{storage.root}: version {version} cannot be committed: {refusal}. Nothing was committed. "
                    f"{advice(refusal)}"
                )
                raise UnavailableError(msg) from error
            cause = error
        try:
            there = storage.read(name, folder)
        except UnavailableError as error:
            cause = error
            continue
        if there == text:
            return not attempt
        if there is not None:
            msg = f"{storage.root}: version {version} was committed by another writer."
            raise ConflictError(msg) from cause
    msg = (
        f"{storage.root}: the commit of version {version} was not confirmed, and may have been made: {cause} Then look "
        "whether the rows are there before you write them again, or repeat the write with the same batch=(name, "
        "number), which is committed once."
    )
    raise OutcomeUnknownError(msg) from cause


def put_first(
    storage: Storage,
    schema: pa.Schema,
    *,
    partition_by: Sequence[str],
    configuration: Mapping[str, str],
    info: Mapping[str, Any],
) -> None:
    """Create a table with timestamps without a zone in a map, whose feature delta-rs would not list.

    Raises:
        AlreadyExistsError: a Delta table exists already.
        TableStoreError: as in ``land``.
    """
    now_ms = int(time.time() * 1000)
    protocol = entries.ntz_protocol((), (), append_only=configuration.get("delta.appendOnly") == "true")
    made = entries.metadata(
        table_id=str(uuid.uuid4()),
        schema_json=Schema.from_arrow(schema).to_json(),
        partition_by=partition_by,
        configuration=configuration,
        created_ms=now_ms,
    )
    text = entries.entry([entries.commit_info(now_ms, "CREATE TABLE", info), protocol, made])
    try:
        land(storage, 0, text)
    except ConflictError as error:
        msg = f"{storage.root}: a Delta table exists already; nothing was changed."
        raise AlreadyExistsError(msg) from error


def withdraw(storage: Storage, version: int, text: bytes, folder: int | None = None) -> None:
    """Remove an entry that must not be part of the log, unless it is not there; ``folder`` is as for ``land``.

    Raises:
        OutcomeUnknownError: another commit follows it already, so the entry and its files have to stay.
    """
    if storage.read(entry_of(version), folder) != text:
        # It went with its table, and this may be a commit of the next one.
        return
    if storage.read(entry_of(version + 1), folder) is None:
        storage.delete(entry_of(version), folder=folder)
        if storage.read(entry_of(version + 1), folder) is None:
            return
        # Another commit has followed in the meantime and could not be read without this entry.
        storage.put_new(entry_of(version), text, folder)
    msg = f"{storage.root}: version {version} was committed to a log that was replaced or cut, and others followed it."
    raise OutcomeUnknownError(msg)


def was_created(storage: Storage, commit_id: str, cause: Exception) -> bool:
    """Return whether the commit with this id created the table, although ``create`` raised an error.

    Raises:
        AlreadyExistsError: another commit has created a table.
        OutcomeUnknownError: the file system does not respond.
    """
    try:
        text = storage.read(entry_of(0))
    except UnavailableError as error:
        msg = f"{storage.root}: the Delta table may or may not have been created; there was no answer: {plain(cause)}"
        raise OutcomeUnknownError(msg) from error
    if text is not None and parse_commit(0, text).info.get("commit") == commit_id:
        return True
    if text is not None or "already exists" in str(cause):
        msg = f"{storage.root}: a Delta table exists already; nothing was changed."
        raise AlreadyExistsError(msg) from cause
    return False
