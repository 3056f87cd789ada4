"""The process that dies while it does verbs on frames: each by Spark, and each once however often it is started."""

from __future__ import annotations

import os
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from tablestore.session import session
from tablestore.store import TableStore
from tablestore.verbs.clauses import when_matched, when_not_matched
from tests.crash.batches import NOBODY, Job, frame_rows
from tests.doors import Trap, set_trap

CONFIG = {"spark.ui.enabled": False, "spark.driver.memory": "512m"}


def run_frames(job: Job, kill: Callable[[int], None]) -> None:
    """Write, delete, update, merge and overwrite; ``kill`` is called at the point, with the driver."""
    spark = session(master="local[2]", config=CONFIG)
    driver = os.getpid()
    if job.who != NOBODY:
        set_trap(Trap(job.point, job.hit, lambda: kill(driver)))
    table = TableStore.open(spark, job.path)
    table.write(_frame(spark, job, 0), batch=("job", 0))
    table.delete("id % 5 = 0", batch=("job", 1))
    table.update("id % 3 = 1", {"v": "concat('2.', id)"}, batch=("job", 2))
    clauses = [
        when_matched().update({"v": "source.v"}),
        when_not_matched().insert({"id": "source.id", "v": "source.v"}),
    ]
    table.merge(_frame(spark, job, 3), "id", clauses, batch=("job", 3))
    table.overwrite(_frame(spark, job, 4), batch=("job", 4))
    spark.stop()


def _frame(spark: SparkSession, job: Job, batch: int) -> DataFrame:
    return spark.createDataFrame(sorted(frame_rows(job, batch).items()), "id bigint, v string")
