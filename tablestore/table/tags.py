"""``table.tags``: names for snapshots."""

from __future__ import annotations

import warnings

from snapshot.store.tags import Tag
from tablestore.maintenance import change_tags
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

    def create(self, name: str, snapshot: Point | None = None) -> Tag:
        """Tag a snapshot.

        Args:
            name: A letter or ``_``, then letters, digits, ``.``, ``_`` or ``-``.
            snapshot: A snapshot's id, another tag, or a time; by default the newest snapshot.

        Raises:
            InvalidInputError: The name is not valid.
            AlreadyExistsError: A tag of this name exists.
            NotFoundError: There is no such snapshot, or it has expired.
            ConflictError: It took so long that others removed files of the snapshot; there is no tag.
            OutcomeUnknownError: The file system does not respond, and the tag may exist; its files stay.
        """
        return change_tags.make_tag(self._handle.refresh(), name, snapshot)

    def delete(self, name: str) -> None:
        """Delete a tag and, if its snapshot has expired, the files that only the tag kept.

        Raises:
            NotFoundError: There is no such tag.
        """
        change_tags.delete_tag(self._handle.refresh(), name)
