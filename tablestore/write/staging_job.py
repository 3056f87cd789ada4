"""The Spark job that stages files, and the file descriptions that its tasks return."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from snapshot.delta.log import DataFile
from snapshot.errors import InvalidInputError, UnavailableError
from snapshot.records import SentRange
from snapshot.staging.stage import STAGED, Role, StagedFile, StagesRows, staged_to_arrow
from tablestore.spark.python_worker import begin_task


def run_staging(shaped: DataFrame, stager: StagesRows) -> list[StagedFile]:
    """Stage a shaped frame in one Spark job and return the descriptions of its files.

    Raises:
        InvalidInputError: rows were rejected; the staged files are removed.
        UnavailableError: the file system failed; the staged files are removed.
    """
    names = shaped.columns

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        context = TaskContext.get()
        named = (batch.rename_columns(names) for batch in batches)
        yield staged_to_arrow(stager, named, context.partitionId() if context else 0)

    if any("." in name for name in names):
        # mapInArrow looks up columns by name and takes a dot in a name for a struct field access.
        shaped = shaped.toDF(*(f"c{number}" for number in range(len(names))))
    rows = shaped.mapInArrow(stage, STAGED).collect()
    return accept_staged(stager, [row.asDict() for row in rows])


def accept_staged(stager: StagesRows, rows: Sequence[dict[str, object]]) -> list[StagedFile]:
    """Parse the descriptions that staging tasks returned; if a task rejected rows or failed, discard all files.

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
        msg = f"{rejected[0]} Nothing was written."
        raise InvalidInputError(msg)
    return staged
