"""The Spark job that stages a frame's rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from snapshot.staging.stage import StagedFile, Stager, StagesRows
from snapshot.staging.task_results import STAGED, accept_staged, staged_to_arrow
from tablestore.spark.python_worker import begin_task
from tablestore.write.arrow_input import prepare_batches
from tablestore.write.prepare_input import check_columns, prepare_changes, prepare_rows


def stage_frame(frame: DataFrame, stager: Stager) -> list[StagedFile]:
    """Prepare and stage a frame's rows: in a Spark job, or in this process if the frame is local.

    Raises:
        InvalidInputError: the columns are not the table's, or rows were rejected; the staged files are removed.
        UnavailableError: the file system failed; the staged files are removed.
    """
    spec, preimages = stager.spec, stager.rule.takes_preimages
    if frame.isLocal():
        check_columns(frame.schema, spec)
        batches = prepare_batches(iter(frame.toArrow().to_batches()), spec, task=0, preimages=preimages)
        return accept_staged(stager, staged_to_arrow(stager, batches, 0).to_pylist())
    if not spec.has_key:
        return run_staging(prepare_rows(frame, spec), stager)
    return run_staging(prepare_changes(frame, spec, stager.buckets, preimages=preimages), stager)


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
