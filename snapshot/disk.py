"""What to do when a file system refuses a write, by error number."""

from __future__ import annotations

import errno
from typing import Final, TypeGuard

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED: Final = (errno.EACCES, errno.EPERM)
_REFUSED: Final = (*NO_ROOM, errno.EROFS, *_DENIED)


def is_refused(error: BaseException | None) -> TypeGuard[OSError]:
    """Return whether a file system has said that it does not write: no room, read-only, or not permitted.

    What an object store refuses does not count: its client may have repeated a request that landed, unnoticed.
    """
    return isinstance(error, OSError) and error.errno in _REFUSED


def advice(error: OSError) -> str:
    """Return a sentence that says how to fix an operation that was refused."""
    if error.errno in NO_ROOM:
        return "Make room, then try again."
    if error.errno == errno.EROFS:
        return "The file system is mounted read-only: remount it for writing, or use another location."
    # An object store's refusal has no number.
    if error.errno in _DENIED or isinstance(error, PermissionError):
        return "This process may not do that: change the owner or the permissions of the folder, or the credentials."
    return "Check the file system, then try again."
