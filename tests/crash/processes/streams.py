"""The process that dies while a query writes into a table: by ``write_stream``, or by ``format("tablestore")``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pyarrow import RecordBatch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tablestore.datasource import TableStoreDataSource
from tablestore.session import session
from tablestore.table.store import TableStore
from tests.conftest import QUICK
from tests.crash.kill_points import KillPoint, set_trap
from tests.crash.processes.batches import BATCHES, FOREACH_BATCH, NOBODY, Job, changes_of

ARMED = 1
"""The micro-batch in which a committing process of the sink dies; each has processes of its own."""


def lay_out(job: Job) -> None:
    """Make the query's input: a file a micro-batch."""
    folder = _beside(job, "input")
    folder.mkdir(parents=True)
    for batch in range(BATCHES):
        kinds = {} if job.key else None
        lines = []
        for key, value in changes_of(job, batch):
            row: dict[str, object] = {"id": key, "v": value}
            if kinds is not None:
                row["_change_type"] = "delete" if value is None else "update_postimage"
            lines.append(json.dumps(row))
        file = folder / f"{batch}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (batch + 1, batch + 1))


def run_query(job: Job, kill: Callable[[int], None]) -> None:
    """Run the query from its checkpoint to the end of its input; ``kill`` is called at the point, with the driver."""
    spark = session(master="local[2]", config={**QUICK, "spark.driver.memory": "512m"})
    ddl = "id bigint, v string" + (", _change_type string" if job.key else "")
    reader = spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1)
    frame = reader.json(str(_beside(job, "input")))
    start = _by_function if job.verb == FOREACH_BATCH else _by_sink
    start(spark, frame, job, kill)
    spark.stop()


def _by_function(spark: SparkSession, frame: DataFrame, job: Job, kill: Callable[[int], None]) -> None:
    driver = os.getpid()
    if job.who != NOBODY:
        set_trap(KillPoint(job.point, job.hit, lambda: kill(driver)))
    table = TableStore.open(spark, job.path)
    checkpoint = str(_beside(job, "checkpoint"))
    table.write_stream(frame, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()


def _by_sink(spark: SparkSession, frame: DataFrame, job: Job, kill: Callable[[int], None]) -> None:
    spark.dataSource.register(_trapped(job, os.getpid(), kill))
    writer = frame.writeStream.format("trapped").option("path", job.path).trigger(availableNow=True)
    writer.option("checkpointLocation", str(_beside(job, "checkpoint"))).start().awaitTermination()


def _trapped(job: Job, driver: int, kill: Callable[[int], None]) -> type[DataSource]:
    """Make the store's data source with a trap in the process that commits a micro-batch."""

    class Sink(DataSourceStreamArrowWriter):
        def __init__(self, real: DataSourceStreamArrowWriter) -> None:
            self._real = real

        def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
            return self._real.write(iterator)

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
            if job.who != NOBODY and batchId == ARMED:
                set_trap(KillPoint(job.point, job.hit, lambda: kill(driver)))
            self._real.commit(messages, batchId)

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - likewise
            self._real.abort(messages, batchId)

    class Trapped(TableStoreDataSource):
        @classmethod
        def name(cls) -> str:
            return "trapped"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            return Sink(super().streamWriter(schema, overwrite))

    return Trapped


def _beside(job: Job, name: str) -> Path:
    return Path(job.path).with_name(name)
