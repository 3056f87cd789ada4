"""Identifies a streaming query and its writes by its checkpoint."""

from __future__ import annotations

import hashlib
import json

from snapshot.errors import InvalidInputError
from snapshot.records import CommitId
from snapshot.storage import Storage


def query_id(checkpoint: str) -> str:
    """Return the id that Spark assigned to a streaming query when it created its checkpoint.

    Raises:
        InvalidInputError: there is no such checkpoint.
    """
    text = Storage.at(checkpoint).read("metadata")
    if text is None:
        msg = f"checkpoint {checkpoint!r}: Spark has not made it yet ('metadata' is missing); give the query's own."
        raise InvalidInputError(msg)
    return str(json.loads(text)["id"])


def commit_id_of(checkpoint: str, batch: int) -> CommitId:
    """Return the commit id of a query's micro-batch.

    It contains the query's id and a digest of the checkpoint's folder, so that a new query id in the same folder is
    noticed.

    Raises:
        InvalidInputError: there is no such checkpoint.
    """
    # A digest, because a URL may hold a credential.
    place = hashlib.sha256(Storage.at(checkpoint).root.encode()).hexdigest()[:32]
    return CommitId(query_id(checkpoint), batch, durable=True, checkpoint_id=f"checkpoint-{place}")
