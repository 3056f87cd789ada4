"""``table.tags``: names for snapshots."""

from __future__ import annotations

import warnings
from datetime import datetime, timedelta

from snapshot.store.tags import Tag
from tablestore.maintenance import change_tags
from tablestore.maintenance.expire_snapshots import expire_tags
from tablestore.options.read_options import timestamp_millis
from tablestore.read.time_travel import Point
from tablestore.table.handle import HasHandle


class TableTags(HasHandle):
    """The tags of one table. A tagged snapshot can be read by ``read(tag=...)`` after it has expired."""

    def __call__(self) -> list[Tag]:
        """Return the tags; deprecated."""
        warnings.warn("table.tags() is deprecated; use table.tags.all()", DeprecationWarning, stacklevel=2)
        return self.all()

    def all(self) -> list[Tag]:
        """Return the tags, ordered by snapshot."""
        return self._handle.refresh().files.tags.all()

    def create(self, name: str, snapshot: Point | None = None, *, retained: timedelta | str | None = None) -> Tag:
        """Tag a snapshot.

        Args:
            name: A letter or ``_``, then letters, digits, ``.``, ``_`` or ``-``.
            snapshot: A snapshot's id, another tag, or a time; by default the newest snapshot.
            retained: After how long the next expiry deletes the tag: a timedelta or text such as ``"7 d"``; by default
                never.

        Raises:
            InvalidInputError: The name or the time is not valid.
            AlreadyExistsError: A tag of this name exists.
            NotFoundError: There is no such snapshot, or it has expired.
            ConflictError: It took so long that others removed files of the snapshot; there is no tag.
            OutcomeUnknownError: The file system does not respond, and the tag may exist; its files stay.
        """
        return change_tags.make_tag(self._handle.refresh(), name, snapshot, retained)

    def delete(self, name: str) -> None:
        """Delete a tag and, if its snapshot has expired, the files that only the tag kept.

        Raises:
            NotFoundError: There is no such tag.
        """
        change_tags.delete_tag(self._handle.refresh(), name)

    def expire(self, created_before: datetime | None = None) -> list[str]:
        """Delete the tags whose time is over, and those created before a time; return their names."""
        before_ms = None if created_before is None else timestamp_millis(created_before)
        return list(expire_tags(self._handle.refresh(), before_ms))
