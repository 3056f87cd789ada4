"""The one door to files: a folder on any fsspec file system."""

from __future__ import annotations

import fcntl
import os
import posixpath
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from snapshot.errors import InvalidInputError, UnavailableError

_CREATES_ATOMICALLY = frozenset(("memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"))
"""Protocols whose fsspec file system creates a file only if it is absent, in one request."""
_CLIENTS = frozenset(
    ("botocore", "aiobotocore", "aiohttp", "urllib3", "requests", "gcsfs", "google", "azure", "adlfs", "fsspec")
)
"""Libraries whose errors are those of a store."""
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
            # Other processes write here, too, so no listing may be answered from what was seen before.
            uncached = {} if "://" not in self.root else {"use_listings_cache": False}
            self._resolved.append(fsspec.core.url_to_fs(self.root, **uncached, **dict(self.options)))
        return self._resolved[0][0]

    @property
    def is_local(self) -> bool:
        """Whether the folder is on this machine's own file system."""
        return isinstance(self.filesystem, LocalFileSystem)

    def path(self, *names: str) -> str:
        """Return the file system's path of a file in this folder."""
        _ = self.filesystem
        return posixpath.join(self._resolved[0][1], *names)

    def child(self, name: str) -> Storage:
        """Return a subfolder."""
        return Storage(posixpath.join(self.root, name), self.options)

    def read(self, name: str) -> bytes | None:
        """Read a whole small file; None when it does not exist.

        Raises:
            UnavailableError: the file system does not answer, or refuses.
        """
        with _answering(self.path(name), "read"):
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
        with _answering(target, "written"):
            if not self.is_local:
                self.filesystem.pipe_file(target, data)
                return
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            draft = Path(f"{target}.{uuid.uuid4().hex}.tmp")
            try:
                draft.write_bytes(data)
                draft.replace(target)
            except OSError:
                with suppress(OSError):
                    draft.unlink(missing_ok=True)
                raise

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small file unless it is there, so that of several writers at once one wins.

        Returns:
            Whether this call made the file.

        Raises:
            UnavailableError: the file system refused.
        """
        target = self.path(name)
        with _answering(target, "written"):
            try:
                if not self.is_local:
                    self.filesystem.pipe_file(target, data, mode="create")
                    return True
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                return _link_new(Path(target), data)
            except FileExistsError:
                return False
            except OSError as error:
                if _is_precondition(error):
                    return False
                raise

    def check_put_new(self) -> None:
        """Check that ``put_new`` lets one of several writers win; every commit rests on it.

        Raises:
            InvalidInputError: the file system cannot create a file only if it is absent, or does not say so.
            UnavailableError: it does not answer.
        """
        scheme, is_url, _ = self.root.partition("://")
        if not is_url:
            return
        probe, why = f".put-if-absent-{uuid.uuid4().hex}", ""
        if scheme not in _CREATES_ATOMICALLY:
            why = f"that for {scheme}:// looks first and writes then, so two writers can both win"
        else:
            try:
                if not self.put_new(probe, b"1") or self.put_new(probe, b"2"):
                    why = "the store replaced a file that it was asked to create only if absent (If-None-Match)"
            except (TypeError, NotImplementedError) as error:
                why = f"its fsspec file system cannot do that ({error}); upgrade it"
            finally:
                self.delete(probe)
        if why:
            msg = (
                f"{self.root}: expected a file system that creates a file only if it is absent; {why}. Nothing was "
                "made. Use a local path, s3://, gs:// or abfs://, and a store that supports conditional writes."
            )
            raise InvalidInputError(msg)

    def exists(self, name: str) -> bool:
        """Return whether a file or folder is there."""
        with _answering(self.path(name), "looked up"):
            return bool(self.filesystem.exists(self.path(name)))

    def names(self, folder: str = "") -> list[str]:
        """List the names in a folder, in order; empty when it does not exist."""
        found = self._listed(folder, detail=False)
        return sorted(posixpath.basename(str(path).rstrip("/")) for path in found)

    def files(self, folder: str = "", skip: Callable[[str], bool] = lambda name: False) -> Iterator[StoredFile]:
        """List the files in a folder and in those within it, leaving out folders whose name ``skip`` refuses."""
        for info in self._listed(folder, detail=True):
            last = posixpath.basename(str(info["name"]).rstrip("/"))
            name = f"{folder}/{last}" if folder else last
            if info["type"] == "directory":
                if not skip(last):
                    yield from self.files(name, skip)
            else:
                yield StoredFile(name, int(info["size"] or 0), self._modified_ms(info))

    def _listed(self, folder: str, *, detail: bool) -> list[Any]:
        target = self.path(folder) if folder else self.path()
        with _answering(target, "listed"):
            try:
                return list(self.filesystem.ls(target, detail=detail, refresh=True))
            except FileNotFoundError:
                return []

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
            with _answering(self.path(name), "removed"):
                try:
                    self.filesystem.rm_file(self.path(name))
                except FileNotFoundError:
                    continue
            removed += 1
        return removed

    def copy(self, source: str, name: str) -> None:
        """Copy a file.

        Raises:
            UnavailableError: the file is missing, or the store does not answer or refuses.
        """
        with _answering(self.path(name), "written"):
            self.filesystem.cp_file(self.path(source), self.path(name))

    def remove_tree(self, name: str) -> None:
        """Remove a file or a folder in this folder, which may be gone already."""
        self._remove(self.path(name))

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
        self._remove(self.path())

    def _remove(self, target: str) -> None:
        with _answering(target, "removed"):
            if self.filesystem.exists(target):
                self.filesystem.rm(target, recursive=True)


@contextmanager
def storage_errors(target: str, doing: str) -> Iterator[None]:
    """Raise what the client of an object store raises as an error of this program.

    Such clients raise classes of their own (botocore's ``EndpointConnectionError``, for one), which no handler for
    ``OSError`` sees. Files that are missing stay ``FileNotFoundError``.

    Args:
        target: the file.
        doing: what was done with it, as a participle: ``read``, ``written``.

    Raises:
        UnavailableError: the store does not answer, or refuses.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        raise _unavailable(target, doing, error) from error


@contextmanager
def _answering(target: str, doing: str) -> Iterator[None]:
    """Raise what any file system raises as an error of this program: one door, one kind of failure."""
    try:
        with storage_errors(target, doing):
            yield
    except OSError as error:
        raise _unavailable(target, doing, error) from error


def _unavailable(target: str, doing: str, error: Exception) -> UnavailableError:
    return UnavailableError(f"{target}: cannot be {doing}: {error}. Check the file system.")


def _is_precondition(error: OSError) -> bool:
    """Return whether a store refused to replace a file; not every S3 server names the condition, as s3fs expects."""
    answer = getattr(error.__cause__, "response", None) or {}
    return answer.get("Error", {}).get("Code") in ("PreconditionFailed", "412")


def _link_new(target: Path, data: bytes) -> bool:
    """Make a local file unless it is there: whole from the start, and by one of several processes.

    Unlike a rename, a link fails where there is a file. Its answer alone is not the outcome: a network file system
    repeats a request whose answer was lost, and then finds what it has made. So the two names are compared.
    """
    draft = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        draft.write_bytes(data)
        try:
            os.link(draft, target)
        except OSError:
            if not _is_same(draft, target):
                raise
        return True
    finally:
        # The file is there or not, whatever becomes of its draft; ``remove_orphans`` removes one that stays.
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
