"""Identifies a streaming query and its writes by its checkpoint."""

from __future__ import annotations

import hashlib
import json

from snapshot.errors import InvalidInputError, TableReplacedError
from snapshot.records import CommitId
from snapshot.storage import Storage

SINK = "tablestore-sink"
"""The file in a checkpoint that holds the id of the table into which its query writes.

A second file, with that id at the end of its name, holds the number of the newest micro-batch that has landed there.
"""


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


def commit_id_of(checkpoint: str, batch: int, table_id: str) -> CommitId:
    """Return the commit id of a query's micro-batch.

    It contains the query's id and a digest of the checkpoint's folder, so that a new query id in the same folder is
    noticed, the micro-batch's plan, so that another micro-batch of the same number is, and the newest micro-batch that
    has landed, so that an older copy of the table is.

    Raises:
        InvalidInputError: there is no such checkpoint.
    """
    # A digest, because a URL may hold a credential.
    place = hashlib.sha256(Storage.at(checkpoint).root.encode()).hexdigest()[:32]
    writer, plan = query_id(checkpoint), plan_of(checkpoint, batch)
    text = Storage.at(checkpoint).read(f"{SINK}-{table_id}") or b""
    landed = int(text) if text.isdigit() else -1
    return CommitId(writer, batch, durable=True, checkpoint_id=f"checkpoint-{place}", plan=plan, landed=landed)


def note_landed(checkpoint: str, batch: int, table_id: str) -> None:
    """Store in the checkpoint that a micro-batch has landed in the table.

    Spark's own files do not tell: a micro-batch without rows makes no snapshot.

    Raises:
        UnavailableError: the file system refused; the query ends, and repeats the micro-batch when it is started again.
    """
    Storage.at(checkpoint).put(f"{SINK}-{table_id}", str(batch).encode())


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
