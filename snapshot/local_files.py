"""Changes of local files that happen at once or not at all."""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def draft_of(target: str, data: bytes, folder: int | None) -> Iterator[str]:
    """Write a local file's content under a name of its own, which is gone when the block ends."""
    above = posixpath.dirname(target)
    if folder is None:
        os.makedirs(above, exist_ok=True)  # noqa: PTH103 - as below, where pathlib has no open folders
    elif above:
        with suppress(FileExistsError):
            os.mkdir(above, dir_fd=folder)
    draft = f"{target}.{uuid.uuid4().hex}.tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(draft, flags, 0o666, dir_fd=folder), "wb") as file:
            file.write(data)
        yield draft
    finally:
        # The draft no longer matters for the outcome; ``remove_orphans`` removes one that stays behind.
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)


def read_in(folder: int, name: str) -> bytes:
    """Read a file of an opened local folder."""
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
        return file.read()


def link_new(target: str, data: bytes, folder: int | None) -> bool:
    """Create a local file with its whole content if it is absent; of several processes, exactly one succeeds.

    Unlike a rename, a hard link fails if the target exists. The error alone does not decide: a network file system
    retries a request whose response was lost, and then fails on the link it has created itself. So on an error, the
    target is compared with the draft.
    """
    with draft_of(target, data, folder) as draft:
        try:
            os.link(draft, target, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            if not _is_same(draft, target, folder):
                raise
    return True


def _is_same(one: str, other: str, folder: int | None) -> bool:
    try:
        return os.path.samestat(os.stat(one, dir_fd=folder), os.stat(other, dir_fd=folder))
    except OSError:
        return False


def move_aside(target: str) -> str:
    """Rename a local folder to a name of its own beside it, and return that; a file or nothing stays where it is."""
    folder = Path(target)
    return str(folder.rename(f"{target}.{uuid.uuid4().hex}.tmp")) if folder.is_dir() else target
