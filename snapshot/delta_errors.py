"""What delta-rs says of a file system that refuses; its errors hold a tree of causes as text, in colours."""

from __future__ import annotations

import errno
import re

_NO_ROOM = tuple(f"os error {number}" for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def has_no_room(error: Exception) -> bool:
    """Tell whether a disk is full, a quota is used up or a file may grow no more; delta-rs keeps no number of it."""
    return any(words in str(error) for words in _NO_ROOM)


def plain(error: Exception) -> str:
    """Put the tree of causes into one line."""
    return ": ".join(line.strip(" ↳") for line in _COLOURS.sub("", str(error)).splitlines() if line.strip())
