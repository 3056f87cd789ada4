"""Points in a table's history as users give them: a snapshot's id, a tag, or a time."""

from __future__ import annotations

import re
from datetime import datetime
from operator import index
from typing import SupportsIndex

from snapshot.errors import DataLostError, InvalidInputError
from snapshot.records import Snapshot
from snapshot.store.table_files import TableFiles
from tablestore.options.read_options import timestamp_millis

Point = int | str | datetime
"""A snapshot's id as a number or text, a tag, or a time as a datetime or ISO-8601 text."""
Time = datetime | str | int
"""A time as a datetime, ISO-8601 text or epoch milliseconds."""


def snapshot_at(files: TableFiles, point: Point) -> Snapshot:
    """Return the snapshot at a point; for a time, the newest snapshot at that time.

    Raises:
        NotFoundError: there is no such snapshot or tag, or it has expired.
        InvalidInputError: the point is not an id, a tag or a time.
    """
    if isinstance(point, SupportsIndex) and not isinstance(point, bool):
        point = index(point)  # NumPy's whole numbers are not int
    if isinstance(point, bool) or not isinstance(point, int | str | datetime):
        msg = f"expected a snapshot's id, a tag's name or a time, got {point!r}."
        raise InvalidInputError(msg)
    if isinstance(point, int):
        return files.snapshot(point)
    if isinstance(point, datetime):
        return files.snapshot_as_of(timestamp_millis(point))
    if point.isdigit():
        return files.snapshot(int(point))
    if is_tag(point):
        return files.tags.get(point).snapshot
    return files.snapshot_as_of(timestamp_millis(point))


def chosen_snapshot(
    files: TableFiles, snapshot: Point | None, timestamp: Time | None, tag: str | None, *, fresh: bool = True
) -> int:
    """Return the id of the snapshot that a read's arguments choose; without any, of the newest.

    ``fresh`` is as in ``TableFiles.latest``.

    Raises:
        NotFoundError: there is no such snapshot or tag, or it has expired.
        InvalidInputError: more than one argument is given, or its value is not valid.
    """
    if (snapshot is not None) + (timestamp is not None) + (tag is not None) > 1:
        msg = "read: snapshot, timestamp and tag exclude each other; give one."
        raise InvalidInputError(msg)
    if timestamp is not None:
        return files.snapshot_as_of(timestamp_millis(timestamp)).id
    if tag is not None:
        return files.tags.get(tag).snapshot.id
    return files.latest(fresh=fresh) if snapshot is None else snapshot_at(files, snapshot).id


def between(files: TableFiles, from_: Point, to: Point | None) -> tuple[int, int]:
    """Return the snapshot before a range and the last one in it: after one point, up to another or the newest.

    Raises:
        NotFoundError: there is no such snapshot or tag.
        DataLostError: changes in between have expired.
        InvalidInputError: ``to`` is older than ``from_``.
    """
    after = snapshot_at(files, from_).id
    through = files.latest() if to is None else snapshot_at(files, to).id
    if through < after:
        msg = f"changes: from snapshot {after} to {through}: expected the older one first. Swap them."
        raise InvalidInputError(msg)
    oldest = files.oldest(fresh=False)
    if after + 1 < oldest and after < through:
        msg = (
            f"table {files.storage.root!r}: the changes of snapshots {after + 1} to {min(through, oldest - 1)} have "
            f"expired; those after snapshot {oldest - 1} are there."
        )
        raise DataLostError(msg)
    return after, through


def is_tag(text: str) -> bool:
    """Return whether a text is a tag, rather than a snapshot or a time, both of which start with a digit."""
    return re.match(r"[A-Za-z_]", text) is not None
