"""What to do about a file system that refused a write, by its error number."""

from __future__ import annotations

import errno
from typing import Final

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED: Final = (errno.EACCES, errno.EPERM)


def advice(error: OSError) -> str:
    """Return the remedy for a refused write, as a sentence."""
    if error.errno in NO_ROOM:
        return "Make room, then try again."
    if error.errno == errno.EROFS:
        return "The file system is mounted read-only: remount it for writing, or use a table elsewhere."
    if error.errno in _DENIED:
        return "This process may not write there: change the owner or the permissions of the folder."
    return "Check the file system, then try again."
