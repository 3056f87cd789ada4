"""Makes and removes tags."""

from __future__ import annotations

import time

from snapshot.errors import NotFoundError
from snapshot.store.garbage import unneeded_of
from snapshot.store.tags import Tag, check_name
from tablestore.context import TableContext
from tablestore.maintenance.expire_snapshots import remove_garbage
from tablestore.read.time_travel import Point, snapshot_at


def make_tag(table: TableContext, name: str, point: Point | None) -> Tag:
    """Name a snapshot, by default the newest.

    1. Put the tag, with the list of its snapshot's files. From here on expiry leaves them alone.
    2. Look whether the snapshot has expired meanwhile: expiry may have begun before it could see the tag.

    Raises:
        InvalidInputError: the name is not one.
        AlreadyExistsError: it is taken.
        NotFoundError: there is no such snapshot, or it has expired.
    """
    check_name(name, "tag")
    files = table.files
    snapshot = files.snapshot(files.latest()) if point is None else snapshot_at(files, point)
    tag = Tag(name, snapshot, int(time.time() * 1000), files.layout(snapshot.id))
    # Step 1.
    files.tags.put(tag)
    # Step 2. A snapshot that has expired but has another tag is kept by that one, and from step 1 on by this one too.
    others = [other for other in files.tags.all() if other.snapshot.id == snapshot.id and other.name != name]
    if snapshot.id < files.oldest() and not others:
        files.tags.delete(name)
        msg = f"tag {name!r}: table {table.path!r}: snapshot {snapshot.id} has expired meanwhile; tag a newer one."
        raise NotFoundError(msg)
    return tag


def delete_tag(table: TableContext, name: str) -> Tag:
    """Remove a tag and, where its snapshot has expired, the files that only it kept.

    1. Remove the tag. A crash after it leaves files that ``remove_orphans()`` finds.
    2. Remove those files.

    Raises:
        NotFoundError: there is no such tag.
    """
    tag = table.files.tags.get(name)
    # Step 1.
    table.files.tags.delete(name)
    # Step 2.
    if tag.snapshot.id < table.files.oldest():
        remove_garbage(table.files, unneeded_of(table.files, tag), lambda _: None)
    return tag
