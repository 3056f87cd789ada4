"""The remedy to suggest when a file system refuses a write, by error number."""

from __future__ import annotations

import errno
from typing import Final

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED: Final = (errno.EACCES, errno.EPERM)


def advice(error: OSError) -> str:
    """Return a sentence that says how to fix a refused write."""
    if error.errno in NO_ROOM:
        return "Make room, then try again."
    if error.errno == errno.EROFS:
        return "The file system is mounted read-only: remount it for writing, or use another location."
    if error.errno in _DENIED:
        return "This process may not write there: change the owner or the permissions of the folder."
    return "Check the file system, then try again."
