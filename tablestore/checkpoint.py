"""What a streaming query's checkpoint tells about the query."""

from __future__ import annotations

import json

from snapshot.errors import InvalidInputError
from snapshot.storage import Storage


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
