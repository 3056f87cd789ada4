"""The result of a staging task, for the driver: rows that describe its files, or the reason why there are none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import pyarrow as pa

from snapshot.delta.log import DataFile
from snapshot.errors import InvalidInputError, UnavailableError
from snapshot.records import SentRange
from snapshot.staging.stage import Role, StagedFile, StagesRows

NOTHING_WRITTEN = "Nothing was written."
"""The end of an error's message, which may come from a place that says so already."""
STAGED = (
    "path string, size long, rows long, deletes long, partition string, stats string, role string, sent string, "
    "rejected string, failed string"
)
"""The columns, as Spark has them: one row per file, or one row with the reason why the input was rejected or why the
file system refused to write."""
_STAGED_ARROW = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("deletes", pa.int64()),
        ("partition", pa.string()),
        ("stats", pa.string()),
        ("role", pa.string()),
        ("sent", pa.string()),
        ("rejected", pa.string()),
        ("failed", pa.string()),
    ]
)


def staged_to_arrow(stager: StagesRows, batches: Iterable[pa.RecordBatch], task: int) -> pa.RecordBatch:
    """Stage a task's batches and return the files as one batch of ``STAGED`` rows."""
    try:
        staged = stager.stage(batches, task)
    except InvalidInputError as error:
        return pa.RecordBatch.from_pylist([{"rejected": str(error)}], schema=_STAGED_ARROW)
    except UnavailableError as error:
        return pa.RecordBatch.from_pylist([{"failed": str(error)}], schema=_STAGED_ARROW)
    rows = [
        {
            "path": s.file.path,
            "size": s.file.size,
            "rows": s.file.rows,
            "deletes": s.deletes,
            "partition": json.dumps(dict(s.file.partition)),
            "stats": s.file.stats,
            "role": s.role.value,
            "sent": None if s.sent is None else json.dumps(asdict(s.sent)),
        }
        for s in staged
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_STAGED_ARROW)


def accept_staged(stager: StagesRows, rows: Sequence[dict[str, object]]) -> list[StagedFile]:
    """Parse the rows that staging tasks returned; if a task rejected its input or failed, remove all files.

    Raises:
        InvalidInputError: rows were rejected; the staged files are removed.
        UnavailableError: the file system failed; the staged files are removed.
    """
    staged = [
        StagedFile(
            DataFile(
                str(row["path"]),
                int(str(row["size"])),
                int(str(row["rows"])),
                json.loads(str(row["partition"])),
                str(row["stats"]),
            ),
            int(str(row["deletes"])),
            None if row["sent"] is None else SentRange(**json.loads(str(row["sent"]))),
            Role(str(row["role"])),
        )
        for row in rows
        if row["rejected"] is None and row["failed"] is None
    ]
    failed = [str(row["failed"]) for row in rows if row["failed"] is not None]
    if failed:
        stager.remove(staged)
        raise UnavailableError(failed[0])
    rejected = [str(row["rejected"]) for row in rows if row["rejected"] is not None]
    if rejected:
        stager.remove(staged)
        msg = f"{rejected[0].removesuffix(NOTHING_WRITTEN).rstrip()} {NOTHING_WRITTEN}"
        raise InvalidInputError(msg)
    return staged
