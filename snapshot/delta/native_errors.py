"""Converts errors of delta-rs, whose text is a coloured tree of causes, into errors of this program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError, TableNotFoundError

from snapshot.delta.protocol import refused, unknown_to_delta_rs
from snapshot.errors import CorruptedError, NotFoundError, UnavailableError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NO_FOLDER = re.compile("Invalid table location|Failed to canonicalize path .*No such file")
"""The folder is a file, or is being dropped."""


def plain(error: Exception) -> str:
    """Return the tree of causes in an error's text as one line."""
    return ": ".join(line.strip(" ↳") for line in _COLOURS.sub("", str(error)).splitlines() if line.strip())


@contextmanager
def delta_errors(root: str) -> Iterator[None]:
    """Convert the errors that delta-rs raises when it reads a table.

    Raises:
        NotFoundError: there is no Delta table.
        CorruptedError: the log cannot be parsed, or one of its files is missing.
        UnavailableError: the file system does not answer.
    """
    try:
        yield
    except (DeltaError, FileNotFoundError) as error:
        if isinstance(error, TableNotFoundError) or _NO_FOLDER.search(str(error)):
            msg = f"{root}: there is no Delta table: it was dropped or moved, or never created."
            raise NotFoundError(msg) from error
        if features := unknown_to_delta_rs(error):
            raise refused(root, features, "readers") from error
        raise unreadable(root, error) from error
    except OSError as error:
        msg = f"{root}: the Delta log cannot be read: {plain(error)}. Check the file system, then try again."
        raise UnavailableError(msg) from error


def unreadable(root: str, error: Exception) -> CorruptedError:
    """Return the error for a Delta log that cannot be read."""
    return CorruptedError(f"{root}: the Delta log cannot be read: {plain(error)}. Restore it, or choose another path.")
