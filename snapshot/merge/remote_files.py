"""What DuckDB sees of the table's files in an object store: it looks each up several times, and they never change."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime
from glob import has_magic
from typing import IO, Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from snapshot.storage import read_together

_WHOLE_BYTES_MAX: Final = 1 << 20
"""A file up to this size is read whole, in one request."""
_HELD_BYTES_MAX: Final = 16 << 20
"""Size of all files together that are read whole and held."""
_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


class RemoteFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of one DuckDB session. Small ones are read side by side, in one request each, before DuckDB asks.

    Attributes:
        protocol: the schemes of their addresses.
    """

    cachable = False

    def __init__(self, filesystem: fsspec.AbstractFileSystem) -> None:
        """Show files of ``filesystem``; none is read yet."""
        super().__init__()
        self.protocol = filesystem.protocol
        self._filesystem = filesystem
        self._held: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}

    def fetch(self, sizes: Mapping[str, int]) -> None:
        """Read those files that are small.

        Args:
            sizes: the sizes of the files that DuckDB is going to read, by their paths; 0 if unknown.

        Raises:
            FileNotFoundError: a small file does not exist.
            UnavailableError: the store does not answer or refuses a request.
        """
        self._sizes |= {path: size for path, size in sizes.items() if size}
        room = _HELD_BYTES_MAX - sum(map(len, self._held.values()))
        small = list[str]()
        for path, size in sizes.items():
            # fsspec takes some characters for a pattern when it reads several files.
            if path not in self._held and 0 < size <= min(_WHOLE_BYTES_MAX, room) and not has_magic(path):
                small.append(path)
                room -= size
        self._held |= read_together(self._filesystem, small)

    def glob(self, path: str, **options: Any) -> list[str]:
        """Return the path: what DuckDB reads is listed by name."""
        return [path]

    def size(self, path: str) -> int:
        """Return the size of a file; the store is asked only for that of a file that is not known."""
        text, size = self._held.get(path), self._sizes.get(path)
        if text is not None:
            return len(text)
        return int(self._filesystem.size(path)) if size is None else size

    def modified(self, path: str) -> datetime:
        """Return one time for all files, which never change."""
        return _TIME

    def open(self, path: str, mode: str = "rb", **options: Any) -> IO[bytes]:
        """Open a file to read it."""
        text, size = self._held.get(path), self._sizes.get(path)
        if text is not None:
            return io.BytesIO(text)
        if size is None:
            opened: IO[bytes] = self._filesystem.open(path, mode, **options)
            return opened
        ahead = getattr(self._filesystem, "default_block_size", "default")
        ranges: IO[bytes] = _Ranges(self._filesystem, path, block_size=ahead, size=size)
        return ranges


class _Ranges(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A file of known size. Those of stores' file systems ask for the size all the same, each time they are opened."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        try:
            found: bytes = self.fs.cat_file(self.path, start=start, end=end)
        except FileNotFoundError as error:
            raise FileNotFoundError(self.path) from error
        except OSError:
            # Stores have errors of their own for a range beyond the end.
            if self.fs.size(self.path) == self.size:
                raise
            found = b""
        if len(found) < end - start:
            msg = f"{self.path}: expected {self.size} bytes, got fewer; restore the file from a backup"
            raise EOFError(msg)
        return found


def remote_files(filesystem: fsspec.AbstractFileSystem | None) -> RemoteFiles | None:
    """Return what DuckDB sees of a file system; None if it is the local one, which DuckDB reads by itself."""
    return None if filesystem is None or isinstance(filesystem, LocalFileSystem) else RemoteFiles(filesystem)
