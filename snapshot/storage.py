"""The one door to files: a folder on any fsspec file system."""

from __future__ import annotations

import fcntl
import os
import posixpath
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from snapshot.errors import UnavailableError

_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "modified")


@dataclass(frozen=True)
class StoredFile:
    """A file in a folder.

    Attributes:
        name: its path from the folder.
        size: bytes.
        modified_ms: when it was last written, milliseconds since the epoch.
    """

    name: str
    size: int
    modified_ms: int


@dataclass(frozen=True)
class Storage:
    """A folder and the file system it is on; picklable, so tasks can carry it.

    Attributes:
        root: path or URL of the folder, without a slash at its end.
        options: arguments for the fsspec file system.
    """

    root: str
    options: tuple[tuple[str, str], ...] = ()
    _resolved: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open file system behind."""
        return {"root": self.root, "options": self.options, "_resolved": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of ``__getstate__``."""
        for name, value in state.items():
            object.__setattr__(self, name, value)

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Storage:
        """Open the folder ``path`` (a local path, made absolute, or a URL)."""
        text = os.fspath(path)
        text = text.removeprefix("file://") if text.startswith("file:///") else text.removeprefix("file:")
        if "://" not in text:
            text = str(Path(text).expanduser().absolute())
        return cls(text.rstrip("/"))

    @property
    def filesystem(self) -> fsspec.AbstractFileSystem:
        """The fsspec file system of this folder."""
        if not self._resolved:
            self._resolved.append(fsspec.core.url_to_fs(self.root, **dict(self.options)))
        return self._resolved[0][0]

    @property
    def is_local(self) -> bool:
        """Whether the folder is on this machine's own file system."""
        return isinstance(self.filesystem, LocalFileSystem)

    def path(self, *names: str) -> str:
        """Give the file system's own path of a file in this folder."""
        _ = self.filesystem
        return posixpath.join(self._resolved[0][1], *names)

    def child(self, name: str) -> Storage:
        """Give a folder in this folder."""
        return Storage(posixpath.join(self.root, name), self.options)

    def read(self, name: str) -> bytes | None:
        """Read a whole small file; None when it does not exist."""
        try:
            return bytes(self.filesystem.cat_file(self.path(name)))
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        """Write a small file so that readers see all of it or nothing, replacing what is there.

        Raises:
            UnavailableError: the file system refused.
        """
        target = self.path(name)
        try:
            if not self.is_local:
                self.filesystem.pipe_file(target, data)
                return
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            draft = Path(f"{target}.{uuid.uuid4().hex}.tmp")
            try:
                draft.write_bytes(data)
                draft.replace(target)
            except OSError:
                draft.unlink(missing_ok=True)
                raise
        except OSError as error:
            msg = f"{target}: cannot be written: {error}. Check the file system."
            raise UnavailableError(msg) from error

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small file unless it is there, so that of several writers at once one wins.

        Returns:
            Whether this call made the file.

        Raises:
            UnavailableError: the file system refused.
        """
        target = self.path(name)
        try:
            if not self.is_local:
                self.filesystem.pipe_file(target, data, mode="create")
                return True
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            draft = Path(f"{target}.{uuid.uuid4().hex}.tmp")
            try:
                draft.write_bytes(data)
                # Unlike a rename, a link fails where there is a file, and the file is whole from the start.
                os.link(draft, target)
            finally:
                draft.unlink(missing_ok=True)
            return True
        except FileExistsError:
            return False
        except OSError as error:
            msg = f"{target}: cannot be written: {error}. Check the file system."
            raise UnavailableError(msg) from error

    def exists(self, name: str) -> bool:
        """Tell whether a file or folder is there."""
        return bool(self.filesystem.exists(self.path(name)))

    def names(self, folder: str = "") -> list[str]:
        """List the names in a folder, in order; empty when it does not exist."""
        try:
            found = self.filesystem.ls(self.path(folder) if folder else self.path(), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(str(path).rstrip("/")) for path in found)

    def files(self, folder: str = "", skip: Callable[[str], bool] = lambda name: False) -> Iterator[StoredFile]:
        """List the files in a folder and in those within it, leaving out folders whose name ``skip`` refuses."""
        try:
            found = self.filesystem.ls(self.path(folder) if folder else self.path(), detail=True, refresh=True)
        except FileNotFoundError:
            return
        for info in found:
            last = posixpath.basename(str(info["name"]).rstrip("/"))
            name = f"{folder}/{last}" if folder else last
            if info["type"] == "directory":
                if not skip(last):
                    yield from self.files(name, skip)
            else:
                yield StoredFile(name, int(info["size"] or 0), self._modified_ms(info))

    def _modified_ms(self, info: dict[str, Any]) -> int:
        """Read when a file was written; file systems name and count it differently."""
        told = next((info[name] for name in _MODIFIED if info.get(name) is not None), None)
        if told is None:
            told = self.filesystem.modified(info["name"])
        if isinstance(told, str):
            told = datetime.fromisoformat(told)
        return int((told.timestamp() if isinstance(told, datetime) else float(told)) * 1000)

    def delete(self, *names: str) -> int:
        """Remove files that may be gone already.

        Returns:
            How many were there.
        """
        removed = 0
        for name in names:
            try:
                self.filesystem.rm_file(self.path(name))
            except FileNotFoundError:
                continue
            removed += 1
        return removed

    def remove_tree(self, name: str) -> None:
        """Remove a file or a folder in this folder, which may be gone already."""
        target = self.path(name)
        if self.filesystem.exists(target):
            self.filesystem.rm(target, recursive=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others out who ask for the same, until the end or the death of this process.

        Object stores have no such lock; there it does nothing.
        """
        if not self.is_local:
            yield
            return
        # The lock is on the folder above: this one is made and removed under it.
        above = Path(self.path()).parent
        above.mkdir(parents=True, exist_ok=True)
        held = os.open(above, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def delete_tree(self) -> None:
        """Remove the folder and everything in it."""
        if self.filesystem.exists(self.path()):
            self.filesystem.rm(self.path(), recursive=True)
