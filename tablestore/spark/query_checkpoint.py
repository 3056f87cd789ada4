"""Identifies a streaming query and its writes by its checkpoint."""

from __future__ import annotations

import hashlib
import json

from snapshot.errors import InvalidInputError, TableReplacedError
from snapshot.records import CommitId
from snapshot.storage import Storage

SINK = "tablestore-sink"
"""The file in a checkpoint that holds the id of the table into which its query writes."""


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


def plan_of(checkpoint: str, batch: int) -> str:
    """Return a digest of the file in which Spark keeps what a micro-batch reads; empty if there is none.

    Spark writes the file, with the time, when it plans the micro-batch, and not again when it repeats it.
    """
    text = Storage.at(checkpoint).read(f"offsets/{batch}")
    return "" if text is None else hashlib.sha256(text).hexdigest()[:32]


def commit_id_of(checkpoint: str, batch: int) -> CommitId:
    """Return the commit id of a query's micro-batch.

    It contains the query's id and a digest of the checkpoint's folder, so that a new query id in the same folder is
    noticed, and the micro-batch's plan, so that another micro-batch of the same number is.

    Raises:
        InvalidInputError: there is no such checkpoint.
    """
    # A digest, because a URL may hold a credential.
    place = hashlib.sha256(Storage.at(checkpoint).root.encode()).hexdigest()[:32]
    writer, plan = query_id(checkpoint), plan_of(checkpoint, batch)
    return CommitId(writer, batch, durable=True, checkpoint_id=f"checkpoint-{place}", plan=plan)


def check_table(checkpoint: str, path: str, table_id: str) -> None:
    """Check that a query writes into the table into which it began to write; store the table's id on the first call.

    Raises:
        TableReplacedError: it began with another table.
    """
    folder = Storage.at(checkpoint)
    known = folder.read(SINK)
    if known is None:
        folder.put(SINK, table_id.encode())
    elif known.decode() != table_id:
        msg = (
            f"table {path!r}: the query of checkpoint {checkpoint!r} began to write into another table, so this one "
            "lacks what the query has read before. Was the table dropped and created again? Nothing was written. "
            f"Start the query with a new checkpoint to read everything again, or delete {folder.path(SINK)!r} to write "
            "only what follows."
        )
        raise TableReplacedError(msg)
