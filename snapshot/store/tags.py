"""Tags: names for snapshots. A tag keeps the files of its snapshot when the snapshot itself expires.

A tag is a file that lists its snapshot's files, so reading it needs nothing else of the table. Creating a tag and
expiring snapshots need no lock: the creator first writes a hold, which keeps the files as a tag does, and then checks
whether the snapshot has expired; expiry commits first and then lists holds and tags. So at least one of them sees the
other. The tag itself is written after the check, so a tag that exists has all its files.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from snapshot.delta.log import DataFile
from snapshot.errors import AlreadyExistsError, CorruptedError, InvalidInputError, NotFoundError
from snapshot.records import Snapshot
from snapshot.storage import Storage
from snapshot.store.snapshot_files import SnapshotFiles

TAGS = "_tags"
HOLD = ".hold"
"""Ends the name of a file that keeps a snapshot's files while a tag is created."""
# A name that starts with a letter is neither an id nor a timestamp; without a slash it is a valid file name.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Tag:
    """A name for a snapshot.

    Attributes:
        name: the name.
        snapshot: the snapshot.
        created_ms: when the tag was created, in milliseconds since the epoch.
        layout: the snapshot's files.
        table: the table's id; empty in files of versions that did not store it.
        retained_ms: after how long the tag expires, in milliseconds; None if it stays until it is deleted.
    """

    name: str
    snapshot: Snapshot
    created_ms: int
    layout: SnapshotFiles = field(repr=False)
    table: str = ""
    retained_ms: int | None = None

    @property
    def expires_ms(self) -> int | None:
        """When the tag expires, in milliseconds since the epoch; None if it stays until it is deleted."""
        return None if self.retained_ms is None else self.created_ms + self.retained_ms

    def to_json(self) -> bytes:
        """Return the tag as JSON, which ``from_json`` parses, without file statistics."""
        layout = replace(self.layout, base=_plain(self.layout.base), changes=_plain(self.layout.changes), tombstones=())
        facts = asdict(replace(self, layout=layout))
        for file in (*facts["layout"]["base"], *facts["layout"]["changes"]):
            # Versions before this field do not know it, and a tag's files are only read.
            del file["encoded"]
        facts["snapshot"]["kind"] = facts["snapshot"].pop("operation")
        return json.dumps(facts).encode()

    @classmethod
    def from_json(cls, text: bytes, path: str) -> Tag:
        """Parse a tag.

        Raises:
            CorruptedError: the text is not a tag.
        """
        try:
            raw = json.loads(text)
            raw_layout: Mapping[str, Any] = raw["layout"]
            facts = {"operation" if name == "kind" else name: value for name, value in raw["snapshot"].items()}
            layout = SnapshotFiles(
                int(raw_layout["snapshot"]),
                int(raw_layout["root_version"]),
                int(raw_layout["merged_through"]),
                tuple(DataFile(**file) for file in raw_layout["base"]),
                tuple(DataFile(**file) for file in raw_layout["changes"]),
            )
            named, created_ms = str(raw["name"]), int(raw["created_ms"])
            retained_ms = raw.get("retained_ms")
            table, retained_ms = str(raw.get("table", "")), None if retained_ms is None else int(retained_ms)
            return cls(named, Snapshot(**facts), created_ms, layout, table, retained_ms)
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path}: not a tag ({error}). Delete the file and create the tag again, or restore the file."
            raise CorruptedError(msg) from error


class Tags:
    """The tags of one table, one file each.

    A tag of an earlier table at the path counts as none: in an object store, one that was put late can outlast its
    table.
    """

    def __init__(self, table: Storage, table_id: str) -> None:
        """Refer to the tags of the table with an id in the folder ``table``."""
        self._table = table
        self._table_id = table_id
        self._storage = table.child(TAGS)

    def new_hold(self) -> str:
        """Return a name for a hold."""
        return f"{uuid.uuid4().hex}{HOLD}"

    def hold(self, name: str, tag: Tag) -> None:
        """Keep the files of a tag that is not created yet, until ``release``.

        Raises:
            NotFoundError: the table was dropped.
        """
        with self._table.opened() as folder:
            self._table.put(f"{TAGS}/{name}", tag.to_json(), folder)

    def has_hold(self, hold: str) -> bool:
        """Return whether a hold is there still."""
        return self._storage.exists(hold)

    def release(self, hold: str) -> None:
        """Remove a hold."""
        self._storage.delete(hold)

    def put(self, tag: Tag) -> None:
        """Create a tag. Its files must be known to exist, and a hold must keep them meanwhile.

        Raises:
            AlreadyExistsError: the name is taken.
            NotFoundError: the table was dropped.
        """
        file = _file(tag.name)
        with self._table.opened() as folder:
            is_put = self._table.put_new(f"{TAGS}/{file}", tag.to_json(), folder)
            if not is_put and self._parsed(file) is None:
                self._table.put(f"{TAGS}/{file}", tag.to_json(), folder)
                is_put = True
        if not is_put:
            msg = f"tag {tag.name!r} exists already; delete it first, or choose another name."
            raise AlreadyExistsError(msg)

    def get(self, name: str) -> Tag:
        """Read a tag.

        Raises:
            NotFoundError: there is no tag of this name.
        """
        tag = self._parsed(_file(name))
        if tag is None:
            names = [tag.name for tag in self.all()]
            msg = f"tag {name!r} does not exist; the table has {', '.join(names) or 'no tags'}."
            raise NotFoundError(msg)
        return tag

    def all(self) -> list[Tag]:
        """Return all tags, sorted by snapshot and name."""
        return sorted(self._read(".json"), key=lambda tag: (tag.snapshot.id, tag.name))

    def keeping(self) -> list[Tag]:
        """Return the tags whose files must stay: those that exist and those that are being created."""
        # A hold is removed after its tag is written, so one that is gone by now has its tag in the second listing.
        return [*self._read(HOLD), *self._read(".json")]

    def written_ms(self) -> dict[str, int]:
        """Return when each tag's file was written, by the file system's clock, in milliseconds since the epoch."""
        return {file.name.removesuffix(".json"): file.modified_ms for file in self._storage.files()}

    def _read(self, ending: str) -> list[Tag]:
        files = (file for file in self._storage.names() if file.endswith(ending))
        return [tag for tag in map(self._parsed, files) if tag is not None]

    def _parsed(self, file: str) -> Tag | None:
        """Return the tag in a file; None if the file is gone, or is that of another table."""
        text = self._storage.read(file)
        tag = None if text is None else Tag.from_json(text, self._storage.path(file))
        return None if tag is None or tag.table not in ("", self._table_id) else tag

    def at(self, snapshot: int) -> Tag | None:
        """Return a tag of a snapshot, if it has one."""
        return next((tag for tag in self.all() if tag.snapshot.id == snapshot), None)

    def delete(self, name: str, folder: int | None = None) -> None:
        """Remove a tag if it exists; its files stay. ``folder`` is the table's, as for ``Storage.delete``."""
        self._table.delete(f"{TAGS}/{_file(name)}", folder=folder)


def check_name(name: str, what: str) -> None:
    """Check that a name is a valid file name and cannot be mistaken for a snapshot id or a timestamp.

    Raises:
        InvalidInputError: the name is not valid.
    """
    if not _NAME.fullmatch(name):
        why = " (a digit begins a snapshot's id or a time)" if name[:1].isdigit() else ""
        msg = (
            f"{what} {name!r}: expected a letter or '_'{why}, then up to 127 letters, digits, '.', '_' or '-'. "
            "Choose another name."
        )
        raise InvalidInputError(msg)


def _file(name: str) -> str:
    check_name(name, "tag")
    return f"{name}.json"


def _plain(files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
    return tuple(replace(file, partition=dict(file.partition), stats="") for file in files)
