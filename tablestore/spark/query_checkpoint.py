"""What a streaming query's checkpoint tells about the query."""

from __future__ import annotations

import hashlib
import json

from snapshot.errors import InvalidInputError
from snapshot.storage import Storage
from snapshot.store.commit import CommitId


def query_id(checkpoint: str) -> str:
    """Read the id that Spark gave a streaming query when its checkpoint was made.

    Raises:
        InvalidInputError: there is no such checkpoint.
    """
    text = Storage.at(checkpoint).read("metadata")
    if text is None:
        msg = f"checkpoint {checkpoint!r}: Spark has not made it yet ('metadata' is missing); give the query's own."
        raise InvalidInputError(msg)
    return str(json.loads(text)["id"])


def commit_id_of(checkpoint: str, batch: int) -> CommitId:
    """Name the write of a query's micro-batch: by the query's id and, so that a new id there is noticed, the folder.

    Raises:
        InvalidInputError: there is no such checkpoint.
    """
    # A digest, because a URL may hold a credential.
    place = hashlib.sha256(Storage.at(checkpoint).root.encode()).hexdigest()[:32]
    return CommitId(query_id(checkpoint), batch, durable=True, checkpoint_id=f"checkpoint-{place}")
