"""Creates and deletes tags."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta

from snapshot.disk import is_refused
from snapshot.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    TableStoreError,
    UnavailableError,
)
from snapshot.store.tags import Tag, check_name
from tablestore.after_write import after_write
from tablestore.context import TableContext
from tablestore.maintenance.expire_snapshots import remove_files_of_tag
from tablestore.options.declaration import OptionSpec
from tablestore.options.value_types import duration
from tablestore.read.time_travel import Point, snapshot_at


def make_tag(table: TableContext, name: str, point: Point | None, retained: timedelta | str | None = None) -> Tag:
    """Tag a snapshot, by default the newest; for a time, or until the tag is deleted.

    1. Write a hold with the list of the snapshot's files. From now on, expiry does not remove them. A crash after this
       step leaves the hold, which ``remove_orphans()`` removes; Ctrl-C leaves neither hold nor tag.
    2. Check whether the snapshot has expired in the meantime: an expiry may have started before the hold was visible.
    3. Write the tag, check that neither table nor hold has gone meanwhile, and remove the hold.

    Raises:
        InvalidInputError: the name or the time is invalid.
        AlreadyExistsError: a tag with this name exists.
        NotFoundError: there is no such snapshot, or it has expired.
        TableReplacedError: the table was dropped and created again; the new table has no such tag.
        UnavailableError: a file system operation failed; there is no tag.
        ConflictError: others removed the hold as an orphan, since it took so long; there is no tag.
        OutcomeUnknownError: the file system does not respond; the tag may exist, so the hold stays.
    """
    check_name(name, "tag")
    retained_ms = None if retained is None else _milliseconds(retained)
    files = table.files
    snapshot = files.snapshot(files.latest()) if point is None else snapshot_at(files, point)
    tag = Tag(name, snapshot, int(time.time() * 1000), files.layout(snapshot.id), table.spec.table_id, retained_ms)
    # Step 1.
    hold = files.tags.new_hold()
    try:
        files.tags.hold(hold, tag)
        # Step 2. If an expired snapshot has another tag, that tag keeps its files, and since step 1 the hold does too.
        if snapshot.id < files.oldest() and files.tags.at(snapshot.id) is None:
            msg = f"tag {name!r}: table {table.path!r}: snapshot {snapshot.id} has just expired; tag a newer one."
            raise NotFoundError(msg)
        # Step 3.
        _put(table, tag, hold)
    except OutcomeUnknownError:
        raise
    except BaseException as error:
        # Ctrl-C does not take a request to an object store back.
        if isinstance(error, Exception) or files.storage.is_local:
            with suppress(TableStoreError):
                files.tags.release(hold)
        raise
    after_write(f"tag {name!r}", "removing the hold", lambda: files.tags.release(hold))
    return tag


def _milliseconds(retained: timedelta | str) -> int:
    if isinstance(retained, timedelta):
        retained = f"{retained // timedelta(milliseconds=1)} ms"
    return OptionSpec("retained", duration(1)).parse(str(retained))


def _put(table: TableContext, tag: Tag, hold: str) -> None:
    """Write a tag, but not into a table that replaced this one, nor without its hold; errors as for ``make_tag``."""
    try:
        table.files.tags.put(tag)
        table.check_same()
        if not table.files.tags.has_hold(hold):
            msg = (
                f"tag {tag.name!r} was not made: this process was suspended until others had removed its hold as an "
                f"orphan, and files of snapshot {tag.snapshot.id} with it. Tag a newer one."
            )
            raise ConflictError(msg)
    except AlreadyExistsError:
        raise
    except UnavailableError as error:
        if is_refused(error.__cause__) and tag not in table.files.tags.all():
            raise
        msg = f"tag {tag.name!r} may or may not exist: {error} List the tags of {table.path!r} before you try again."
        raise OutcomeUnknownError(msg) from error
    except BaseException:
        # A table that was created again may have a tag of the same name, which is another one.
        if tag in table.files.tags.all():
            table.files.tags.delete(tag.name)
        raise


def delete_tag(table: TableContext, name: str) -> Tag:
    """Delete a tag and, if its snapshot has expired, the files that only the tag kept.

    1. Delete the tag. A crash after this step leaves files, which the next expiry or ``remove_orphans()`` removes.
    2. Delete those files. If that fails, the tag is gone all the same, so it is a warning.

    Raises:
        NotFoundError: there is no such tag.
        TableReplacedError: the table was dropped and created again; a tag of the new table stays.
    """
    # Step 1.
    with table.own_folder() as folder:
        tag = table.files.tags.get(name)
        table.files.tags.delete(name, folder)

    # Step 2.
    later = "removing its files, which expiry or remove_orphans() does later,"
    after_write(f"tag {name!r}", later, lambda: remove_files_of_tag(table, tag))
    return tag
