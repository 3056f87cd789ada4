"""Every error the store raises on purpose, sorted by what the caller does about it.

::

    TableStoreError
    ├── InvalidInputError     (ValueError)   fix the input: an option, a schema, a frame
    ├── NotFoundError         (KeyError)     look elsewhere: no such table, snapshot or topic
    ├── TableReplacedError                   open the table again: it was dropped and recreated
    ├── AlreadyExistsError    (ValueError)   choose another name or path
    ├── ConflictError                        retry: somebody else was faster
    ├── UnavailableError                     retry later: a broker or file system does not answer
    │   └── PublishPendingError              do not retry: committed, and published later
    (``tablestore/write/recovery.py``) ├── OutcomeUnknownError                  recover: it may or may not have landed
    ├── FencedError                          replace: another owner has taken over ├── DataLostError
    decide: something a reader needs is gone └── CorruptedError                       repair: what is stored contradicts
    itself
        └── BadRecordError                   skip or mend: one Kafka record is not what the format says

Messages name who, what was required, what came, and what to do. They never hold a credential.
"""

from __future__ import annotations


class TableStoreError(Exception):
    """Base of all errors raised on purpose by this program."""

    kind = "error"


class InvalidInputError(TableStoreError, ValueError):
    """The caller gave something that cannot work; nothing was changed."""

    kind = "invalid-input"


class NotFoundError(TableStoreError, KeyError):
    """The thing named does not exist."""

    kind = "not-found"

    def __str__(self) -> str:
        """Show the message as it is; ``KeyError`` would quote it."""
        return str(self.args[0]) if self.args else ""


class TableReplacedError(TableStoreError):
    """The table at this path is not the one that was opened: it was dropped and created again."""

    kind = "table-replaced"


class AlreadyExistsError(TableStoreError, ValueError):
    """The thing to be made is already there; nothing was changed."""

    kind = "already-exists"


class ConflictError(TableStoreError):
    """Another writer committed first, more often than the retry budget allows; nothing was committed."""

    kind = "conflict"


class UnavailableError(TableStoreError):
    """An outside system did not answer; nothing is known to have been changed."""

    kind = "unavailable"


class OutcomeUnknownError(TableStoreError):
    """A step may have landed although no answer came; recovery finds out."""

    kind = "outcome-unknown"


class FencedError(TableStoreError):
    """Another publisher has taken over the log; this one must not write again."""

    kind = "fenced"


class DataLostError(TableStoreError):
    """Changes that a reader or the publisher needs are gone and nothing can fill the gap."""

    kind = "data-lost"


class CorruptedError(TableStoreError):
    """Stored data contradicts itself or cannot be decoded."""

    kind = "corrupted"


class BadRecordError(CorruptedError):
    """One payload of a list is not a row of the format.

    Attributes:
        position: of the payload in the list it came in.
        field: the column at fault, where it is known.
        reason: what was expected and what came, the value cut to a readable length.
    """

    kind = "bad-record"

    def __init__(self, position: int, reason: str, field: str | None = None) -> None:
        super().__init__(f"record {position}: {reason}")
        self.position, self.reason, self.field = position, reason, field

    def __reduce__(self) -> tuple[type[BadRecordError], tuple[int, str, str | None]]:
        """Pickle by what it was made from, so that it crosses from a worker whole."""
        return type(self), (self.position, self.reason, self.field)


GONE = (
    "A file of the snapshot is gone: somebody has removed it (bring it back from a copy), or the snapshot has expired "
    "since this read began (read a newer one)."
)
"""Said where a listed data file is missing."""


def error_of(kind: str, message: str) -> TableStoreError:
    """Make an error of its ``kind`` again, where it crossed from a task as data."""
    found = {each.kind: each for each in TableStoreError.__subclasses__()}
    return found.get(kind, TableStoreError)(message)
