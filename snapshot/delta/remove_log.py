"""Removes a Delta log so that a reader finds all of it, or finds out that it was removed."""

from __future__ import annotations

from contextlib import suppress

from snapshot.delta.entries import LOG
from snapshot.errors import NotFoundError
from snapshot.storage import Storage

_REMOVED = f"{LOG}/_removed"
"""An empty file beside the entries of a log that is being removed from an object store; Delta readers ignore it."""


def remove_log(storage: Storage) -> None:
    """Remove the Delta log of a folder, so that there is no Delta table. A crash leaves a rest; call this again.

    A local folder is renamed first, so that the log is there as a whole or not at all, and not while a checkpoint is
    being written, which would get into the log of the next table. An object store cannot do that:

    1. Put a mark. From now on, a reader that finds a part of the log knows that it is being removed.
    2. Remove all entries but the newest, in any order, and then that one: without it, what is left would seem to be an
       older version of the table. Do so again if another writer has added one in the meantime.
    3. Remove the mark.
    """
    if storage.is_local:
        with suppress(NotFoundError), storage.locked():
            storage.remove_tree(LOG)
        return
    if next(storage.files(LOG), None) is None:
        return
    # Step 1.
    storage.put(_REMOVED, b"")
    # Step 2.
    while names := [file.name for file in storage.files(LOG) if file.name != _REMOVED]:
        newest = max((name for name in names if name.endswith(".json") and name.count("/") == 1), default=None)
        storage.remove_files([name for name in names if name != newest])
        storage.delete(*([newest] if newest else []))
    # Step 3.
    storage.delete(_REMOVED)


def check_not_removed(storage: Storage) -> None:
    """Check that a Delta log that cannot be read was not removed.

    Raises:
        NotFoundError: it was, or is being removed, or is what an interrupted removal has left.
    """
    if storage.exists(_REMOVED) or not storage.exists(LOG):
        msg = f"{storage.root}: there is no Delta table: it is being dropped, or dropping it was interrupted."
        raise NotFoundError(msg)
