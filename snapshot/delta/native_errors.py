"""What delta-rs says of a file system that refuses; its errors hold a tree of causes as text, in colours."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def plain(error: Exception) -> str:
    """Put the tree of causes into one line."""
    return ": ".join(line.strip(" ↳") for line in _COLOURS.sub("", str(error)).splitlines() if line.strip())
