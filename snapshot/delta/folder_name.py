"""Names of folders that delta-rs opens as another folder, or not at all."""

from __future__ import annotations

import re

from snapshot.errors import InvalidInputError

_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\x00-\x1f\x7f]")


def check_folder(root: str) -> None:
    """Check the path of a table.

    delta-rs reads ``a%20b`` as ``a b``, where another table may be, and a backslash as a slash.

    Raises:
        InvalidInputError: delta-rs would read another path.
    """
    found = _MISREAD.search(root)
    if found is not None:
        msg = (
            f"path {root!r}: expected a path without {found[0]!r}, which delta-rs reads as another character, so that "
            "it would open another folder. Rename the folder; write a path or URL as it is, not percent-encoded."
        )
        raise InvalidInputError(msg)
