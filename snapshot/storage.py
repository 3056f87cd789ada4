"""All access to files: a folder on any fsspec file system."""

from __future__ import annotations

import errno
import fcntl
import os
import posixpath
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from snapshot.disk import advice, is_refused
from snapshot.errors import InvalidInputError, NotFoundError, UnavailableError
from snapshot.local_files import draft_of, link_new, move_aside, read_in
from snapshot.quoting import check_text

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
"""By scheme, packages of fsspec file systems that can create a file only if it is absent, in one atomic request."""
_CLIENTS = frozenset(
    ("botocore", "aiobotocore", "aiohttp", "urllib3", "requests", "gcsfs", "google", "azure", "adlfs", "fsspec")
)
"""Packages whose exceptions are errors of an object store."""
_REMOVALS_MAX = 20
"""Number of attempts to remove a tree in which others work."""
_NO_LOCKS = frozenset((errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP))
"""Errors of network file systems that cannot lock a folder."""
PROBE = ".clock-"
"""How the names of the files begin that ``now_ms`` makes and removes."""
_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "modified")


@dataclass(frozen=True)
class StoredFile:
    """A file in a folder.

    Attributes:
        name: its path relative to the folder.
        size: size in bytes.
        modified_ms: when it was last written, in milliseconds since the epoch.
    """

    name: str
    size: int
    modified_ms: int


def read_together(filesystem: fsspec.AbstractFileSystem, paths: Sequence[str]) -> dict[str, bytes]:
    """Read whole small files, side by side.

    Raises:
        FileNotFoundError: a file does not exist.
        UnavailableError: the file system does not answer or refuses a request.
    """
    found = filesystem.cat(list(paths), on_error="return", **_in_one_request(filesystem)) if paths else {}
    # The keys of what is found lack the scheme.
    texts = {path: found[filesystem._strip_protocol(path)] for path in paths}  # noqa: SLF001
    for path, text in texts.items():
        if isinstance(text, FileNotFoundError):
            raise text
        if isinstance(text, Exception):
            with _answering(path, "read"):
                raise text
    return texts


def _in_one_request(filesystem: fsspec.AbstractFileSystem) -> dict[str, int]:
    """Return the options with which a file system reads a whole file in one request."""
    # s3fs would ask for the size first, to read the parts of a large file at once.
    return {"max_concurrency": 1} if "s3" in filesystem.protocol else {}


@dataclass(frozen=True)
class Storage:
    """A folder and its file system. Picklable, so that Spark tasks can use it.

    Attributes:
        root: path or URL of the folder, without a trailing slash.
        options: arguments for the fsspec file system.
    """

    root: str
    options: tuple[tuple[str, str], ...] = ()
    _resolved: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the open file system."""
        return {"root": self.root, "options": self.options, "_resolved": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state of ``__getstate__``."""
        for name, value in state.items():
            object.__setattr__(self, name, value)

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Storage:
        """Open the folder ``path`` (a local path, made absolute, or a URL)."""
        text = os.fspath(path)
        text = text.removeprefix("file://") if text.startswith("file:///") else text.removeprefix("file:")
        if "://" not in text:
            text = str(Path(text).expanduser().absolute())
        check_text(text, "path")
        return cls(text.rstrip("/"))

    @property
    def filesystem(self) -> fsspec.AbstractFileSystem:
        """The fsspec file system of this folder.

        Raises:
            InvalidInputError: no Python package for it is installed.
        """
        if not self._resolved:
            # Other processes write here too, so a listing must never come from a cache.
            uncached = {} if "://" not in self.root else {"use_listings_cache": False}
            scheme, is_url, _ = self.root.partition("://")
            try:
                # fsspec knows some protocols only where their package is installed.
                fsspec.get_filesystem_class(scheme if is_url else "file")
            except (ImportError, ValueError) as error:
                advice = f" Run `pip install {_PACKAGES[scheme]}`." if scheme in _PACKAGES else ""
                msg = f"{self.root}: expected an installed Python package for {scheme}://, got none: {error}.{advice}"
                raise InvalidInputError(msg) from error
            self._resolved.append(fsspec.core.url_to_fs(self.root, **uncached, **dict(self.options)))
        return self._resolved[0][0]

    @property
    def is_local(self) -> bool:
        """Whether the folder is on this machine's own file system."""
        return isinstance(self.filesystem, LocalFileSystem)

    def path(self, *names: str) -> str:
        """Return the path of a file in this folder as the file system expects it."""
        _ = self.filesystem
        return posixpath.join(self._resolved[0][1], *names)

    def child(self, name: str) -> Storage:
        """Return a subfolder."""
        return Storage(posixpath.join(self.root, name), self.options)

    def read(self, name: str, folder: int | None = None) -> bytes | None:
        """Read a whole small file; return None if it does not exist. ``folder`` is as for ``delete``.

        Raises:
            UnavailableError: the file system does not answer or refuses the request.
        """
        with _answering(self.path(name), "read"):
            try:
                if folder is not None:
                    return read_in(folder, name)
                return bytes(self.filesystem.cat_file(self.path(name), **_in_one_request(self.filesystem)))
            except FileNotFoundError:
                return None

    def put(self, name: str, data: bytes, folder: int | None = None) -> None:
        """Write a small file atomically, replacing an existing one; ``folder`` is as for ``delete``.

        Raises:
            NotFoundError: the opened ``folder`` was removed.
            UnavailableError: the file system refused.
        """
        with self._writing(name, folder):
            if not self.is_local:
                self.filesystem.pipe_file(self.path(name), data)
                return
            target = self._within(name, folder)
            with draft_of(target, data, folder) as draft:
                os.replace(draft, target, src_dir_fd=folder, dst_dir_fd=folder)

    def put_new(self, name: str, data: bytes, folder: int | None = None) -> bool:
        """Write a small file if it is absent; of several concurrent writers, exactly one succeeds.

        A client that repeats a request whose response was lost gets "the file exists", although it created the file
        itself. So a file with the same content counts as created by this call: include an id in the content. ``folder``
        is as for ``delete``.

        Returns:
            Whether this call created the file.

        Raises:
            NotFoundError: the opened ``folder`` was removed.
            UnavailableError: the file system refused.
        """
        with self._writing(name, folder):
            try:
                if not self.is_local:
                    self.filesystem.pipe_file(self.path(name), data, mode="create")
                    return True
                return link_new(self._within(name, folder), data, folder)
            except FileExistsError:
                pass
            except OSError as error:
                if not _is_precondition(error):
                    raise
        return self.read(name, folder) == data

    def check_put_new(self) -> None:
        """Check that ``put_new`` is atomic on this file system; every commit depends on it.

        Raises:
            InvalidInputError: the file system cannot create a file only if it is absent, or is not known to.
            UnavailableError: the file system does not answer.
        """
        scheme, is_url, _ = self.root.partition("://")
        if not is_url:
            return
        probe, why = f".put-if-absent-{uuid.uuid4().hex}", ""
        if scheme == "gcs":
            why = "delta-rs and fsspec take different settings for gcs://; write gs:// instead"
        elif scheme not in {*_PACKAGES, "memory"}:
            why = f"fsspec checks and then writes for {scheme}://, so two writers can both succeed"
        else:
            try:
                if not self.put_new(probe, b"1") or self.put_new(probe, b"2"):
                    why = "the store ignored the condition of the request and replaced an existing file"
            except (TypeError, NotImplementedError) as error:
                why = f"its fsspec file system does not support that ({error}); upgrade it"
            finally:
                self.delete(probe)
        if why:
            msg = (
                f"{self.root}: expected a file system that creates a file only if it is absent; {why}. Nothing was "
                "created. Use a local path, s3://, gs:// or abfs://, and a store that supports conditional writes."
            )
            raise InvalidInputError(msg)

    def exists(self, name: str) -> bool:
        """Return whether a file or folder exists."""
        return self._exists(self.path(name))

    def _exists(self, target: str) -> bool:
        # For fsspec's own ``exists``, any failure of a local file system, even Ctrl-C, says that nothing is there.
        with _answering(target, "looked up"):
            try:
                self.filesystem.info(target)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names in a folder; empty if it does not exist."""
        found = self._listed(folder, detail=False)
        return sorted(posixpath.basename(str(path).rstrip("/")) for path in found)

    def files(self, folder: str = "", skip: Callable[[str], bool] = lambda name: False) -> Iterator[StoredFile]:
        """Yield the files in a folder, recursively, except in folders for whose name ``skip`` returns true."""
        for info in self._listed(folder, detail=True):
            last = posixpath.basename(str(info["name"]).rstrip("/"))
            name = f"{folder}/{last}" if folder else last
            if info["type"] == "directory":
                if not skip(last):
                    yield from self.files(name, skip)
            else:
                yield StoredFile(name, int(info["size"] or 0), self._modified_ms(info))

    def modified_ms(self, name: str) -> int:
        """Return when a file was last written, in milliseconds since the epoch.

        Raises:
            UnavailableError: the file system does not answer.
        """
        with _answering(self.path(name), "looked up"):
            return self._modified_ms(self.filesystem.info(self.path(name)))

    def _listed(self, folder: str, *, detail: bool) -> list[Any]:
        target = self.path(folder) if folder else self.path()
        with _answering(target, "listed"):
            try:
                return list(self.filesystem.ls(target, detail=detail, refresh=True))
            except FileNotFoundError:
                return []

    def _modified_ms(self, info: dict[str, Any]) -> int:
        """Return when a file was written; file systems differ in the key and the unit."""
        modified = next((info[name] for name in _MODIFIED if info.get(name) is not None), None)
        if modified is None:
            modified = self.filesystem.modified(info["name"])
        if isinstance(modified, str):
            modified = datetime.fromisoformat(modified)
        return int((modified.timestamp() if isinstance(modified, datetime) else float(modified)) * 1000)

    def now_ms(self, *, dry_run: bool = False) -> int:
        """Return the earlier time of ``clocks_ms``.

        What is removed by its age goes by this time: a machine whose clock is ahead would remove what is still needed.
        """
        return min(self.clocks_ms(dry_run=dry_run))

    def clocks_ms(self, *, dry_run: bool = False) -> tuple[int, int]:
        """Return the times of the file system's clock and of this machine's, in milliseconds since the epoch.

        Args:
            dry_run: nothing is removed, so where this folder cannot be written, this machine's clock is good enough.

        Raises:
            NotFoundError: there is no folder.
            UnavailableError: the file system failed.
        """
        probe = f"{PROBE}{uuid.uuid4().hex}"
        with self.opened() as folder:
            try:
                self.put(probe, b"", folder)
            except UnavailableError as error:
                if dry_run and is_refused(error.__cause__):
                    return int(time.time() * 1000), int(time.time() * 1000)
                raise
            with _answering(self.path(probe), "looked up"):
                try:
                    made_ms = self.modified_ms(probe)
                finally:
                    self.filesystem.rm_file(self.path(probe))
        return made_ms, int(time.time() * 1000)

    @contextmanager
    def opened(self) -> Iterator[int | None]:
        """Open this folder for ``read``, ``put`` and the like, which then touch no folder that has replaced it.

        Object stores have no folders; there, this returns None.

        Raises:
            NotFoundError: there is no folder.
            UnavailableError: the file system refused.
        """
        if not self.is_local:
            yield None
            return
        with _answering(self.path(), "opened"):
            try:
                descriptor = os.open(self.path(), os.O_RDONLY)
            except FileNotFoundError as error:
                raise _dropped(self.root) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def delete(self, *names: str, folder: int | None = None) -> int:
        """Remove files, ignoring those that do not exist, and return how many were removed.

        ``folder`` is this folder, as ``opened`` returned it; None for the one that is at its path now.
        """
        removed = 0
        for name in names:
            with _answering(self.path(name), "removed"):
                try:
                    if folder is None:
                        self.filesystem.rm_file(self.path(name))
                    else:
                        os.unlink(name, dir_fd=folder)
                except FileNotFoundError:
                    continue
            removed += 1
        return removed

    def _within(self, name: str, folder: int | None) -> str:
        """Return the path of a file of a local folder; relative to the opened ``folder`` if there is one."""
        return self.path(name) if folder is None else name

    @contextmanager
    def _writing(self, name: str, folder: int | None) -> Iterator[None]:
        with _answering(self.path(name), "written"):
            try:
                yield
            except FileNotFoundError as error:
                if folder is None:
                    raise
                raise _dropped(self.root) from error

    def copy(self, source: str, name: str) -> None:
        """Copy a file.

        Raises:
            UnavailableError: the file is missing, or the store does not answer or refuses.
        """
        with _answering(self.path(name), "written"):
            self.filesystem.cp_file(self.path(source), self.path(name))

    def remove_tree(self, name: str) -> None:
        """Remove a file or a folder tree in this folder, if it exists.

        A local folder is renamed first, so that nobody finds a part of what was in it under its name.
        """
        target = self.path(name)
        if self.is_local:
            with _answering(target, "removed"):
                target = move_aside(target)
        self._remove(target)

    def remove_files(self, names: Sequence[str]) -> None:
        """Remove files in no particular order, of an object store many at once; ignore those that do not exist."""
        with _answering(self.path(), "removed"), suppress(FileNotFoundError):
            self.filesystem.rm([self.path(name) for name in names])

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold an advisory lock on creating and removing this folder, as ``locked`` does on what is in it."""
        if not self.is_local:
            yield
            return
        above = Path(self.path()).parent
        above.mkdir(parents=True, exist_ok=True)
        with Storage.at(above).locked():
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold an advisory lock on what is in this folder until the block ends or this process exits.

        Object stores and some network file systems have no such lock; there, this does nothing.

        Raises:
            NotFoundError: there is no folder.
            UnavailableError: the file system refused.
        """
        with self.opened() as folder:
            if folder is not None:
                with _answering(self.path(), "locked"):
                    try:
                        fcntl.flock(folder, fcntl.LOCK_EX)
                    except OSError as error:
                        if error.errno not in _NO_LOCKS:
                            raise
            yield

    def delete_tree(self) -> None:
        """Remove the folder and everything in it."""
        self._remove(self.path())

    def _remove(self, target: str) -> None:
        for tries_left in reversed(range(_REMOVALS_MAX)):
            if not self._exists(target):
                return
            with _answering(target, "removed"):
                try:
                    self.filesystem.rm(target, recursive=True)
                except OSError as error:
                    # Others write into the tree or remove its files: writers that do not know yet that it is dropped.
                    if error.errno not in (errno.ENOENT, errno.ENOTEMPTY) or not tries_left:
                        raise


@contextmanager
def storage_errors(target: str, doing: str) -> Iterator[None]:
    """Convert exceptions of an object store's client library into errors of this program.

    Such clients raise classes of their own, such as botocore's ``EndpointConnectionError``, which a handler for
    ``OSError`` does not catch. A missing file stays a ``FileNotFoundError``. ``doing`` is the operation, as a
    participle for the message: ``read``, ``written``.

    Raises:
        UnavailableError: the store does not answer or refuses the request.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        raise _unavailable(target, doing, error) from error


@contextmanager
def _answering(target: str, doing: str) -> Iterator[None]:
    """Convert the exceptions of any file system, local or remote, into ``UnavailableError``."""
    try:
        with storage_errors(target, doing):
            yield
    except OSError as error:
        raise _unavailable(target, doing, error) from error


def _unavailable(target: str, doing: str, error: Exception) -> UnavailableError:
    remedy = advice(error) if isinstance(error, OSError) else "Check the file system."
    return UnavailableError(f"{target}: cannot be {doing}: {error}. {remedy}")


def _is_precondition(error: OSError) -> bool:
    """Return whether a store refused to replace a file; s3fs does not recognize the answer of every S3 server."""
    answer = getattr(error.__cause__, "response", None) or {}
    return answer.get("Error", {}).get("Code") in ("PreconditionFailed", "412")


def _dropped(root: str) -> NotFoundError:
    return NotFoundError(f"{root}: there is no such folder: what was in it was dropped or moved.")
