"""The errors that the store raises on purpose, by what the caller does about them.

::

    TableStoreError
    ├── InvalidInputError     (ValueError)   fix the input: an option, a schema, a data frame
    ├── NotFoundError         (KeyError)     look elsewhere: no such table, snapshot or topic
    ├── TableReplacedError                   open the table again: it was dropped and created again
    ├── AlreadyExistsError    (ValueError)   choose another name or path
    ├── ConflictError                        retry: another writer was faster
    ├── UnavailableError                     retry later: a broker or file system does not answer
    │   └── PublishPendingError              do not retry: committed, and published later (write/publish.py)
    ├── OutcomeUnknownError                  recover: the commit may or may not have landed
    ├── FencedError                          open again: another owner has taken over the log
    ├── DataLostError                        decide: changes that a reader needs no longer exist
    └── CorruptedError                       repair: stored data contradicts itself
        └── BadRecordError                   skip or repair: one Kafka record does not match the format

A message says which option, table or file it is about, what was expected, what was found, and how to fix it. It never
contains a credential.
"""

from __future__ import annotations


class TableStoreError(Exception):
    """Base class of all errors that the store raises on purpose."""

    kind = "error"


class InvalidInputError(TableStoreError, ValueError):
    """The input is invalid; nothing was changed."""

    kind = "invalid-input"


class NotFoundError(TableStoreError, KeyError):
    """A table, snapshot, topic or other object does not exist."""

    kind = "not-found"

    def __str__(self) -> str:
        """Return the message unquoted; ``KeyError`` would quote it."""
        return str(self.args[0]) if self.args else ""


class TableReplacedError(TableStoreError):
    """The table at this path is no longer the one that was opened: it was dropped and created again."""

    kind = "table-replaced"


class AlreadyExistsError(TableStoreError, ValueError):
    """The object to create exists already; nothing was changed."""

    kind = "already-exists"


class ConflictError(TableStoreError):
    """Other writers committed first until the retries were used up; nothing was committed."""

    kind = "conflict"


class UnavailableError(TableStoreError):
    """A broker or file system did not answer; nothing is known to have changed."""

    kind = "unavailable"


class OutcomeUnknownError(TableStoreError):
    """A step may have succeeded although no response arrived; recovery finds out."""

    kind = "outcome-unknown"


class FencedError(TableStoreError):
    """Another publisher has taken over the log; this one must not write any more."""

    kind = "fenced"


class DataLostError(TableStoreError):
    """Changes that a reader or the publisher needs no longer exist anywhere."""

    kind = "data-lost"


class CorruptedError(TableStoreError):
    """Stored data is inconsistent or cannot be decoded."""

    kind = "corrupted"


class BadRecordError(CorruptedError):
    """One record of a list does not match the format.

    Attributes:
        position: the position of the record in its list.
        field: the column at fault, if known.
        reason: what was expected and what was found; the value is shortened.
    """

    kind = "bad-record"

    def __init__(self, position: int, reason: str, field: str | None = None) -> None:
        super().__init__(f"record {position}: {reason}")
        self.position, self.reason, self.field = position, reason, field

    def __reduce__(self) -> tuple[type[BadRecordError], tuple[int, str, str | None]]:
        """Pickle by the constructor's arguments, so that the error survives the way from a Spark worker."""
        return type(self), (self.position, self.reason, self.field)


GONE = (
    "A file of the snapshot is missing: it was deleted (restore it from a backup), the snapshot has expired since this "
    "read started (read a newer one), or the table was dropped since (open it again)."
)
"""The advice in messages about a missing data file."""


def error_of(kind: str, message: str) -> TableStoreError:
    """Return the error of a ``kind``, which a Spark task returned as data."""
    found = {each.kind: each for each in TableStoreError.__subclasses__()}
    return found.get(kind, TableStoreError)(message)


NOT_COMMITTED = (
    ConflictError,
    DataLostError,
    InvalidInputError,
    NotFoundError,
    TableReplacedError,
    UnavailableError,
)
"""Errors of a commit that say that it has not landed and will not land: its files belong to nobody."""
