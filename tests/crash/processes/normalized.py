"""The process that dies while a query reads an eventual log through normalize; the query goes on in another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from snapshot.errors import TableStoreError
from tablestore.datasource import NormalizedDataSource
from tablestore.normalize.keyed_state import KeyedState
from tablestore.session import session
from tablestore.streaming.normalized_stream import NormalizedStream
from tablestore.table.store import TableStore
from tests.conftest import QUICK
from tests.crash.kill_points import KillPoint, guarded
from tests.crash.matrix.cases import Case
from tests.crash.matrix.runner import SPARK_SECONDS, Result
from tests.crash.processes.batches import BATCHES, EVENTUAL, NOBODY, NORMALIZE, Job
from tests.crash.processes.eventual import Table, finished
from tests.crash.processes.ledger import Ledger

ROWS = 12
_DRIVER_POINTS = ("emit", "given")


def run_normalized(job: Job, kill: Callable[[int], None]) -> None:
    """Run the query from its checkpoint to the log's end; ``kill`` is called at the point, with the driver."""
    spark = session(master="local[2]", config={**QUICK, "spark.driver.memory": "512m"})
    driver = os.getpid()
    trap = KillPoint(job.point, job.hit, lambda: kill(driver))
    if job.who != NOBODY and not job.point.startswith(_DRIVER_POINTS):
        spark.dataSource.register(_trapped(trap))
    path = Path(job.path)
    ledger = Ledger(path.with_name("ledger"))

    def take(batch: DataFrame, number: int) -> None:
        trap.pass_by("emit:before")
        rows = ledger.rows(batch)
        trap.pass_by("emit:after")
        trap.pass_by("given:before")
        ledger.write(rows, number)
        trap.pass_by("given:after")

    # A few rows a micro-batch, so that there are several.
    frame = TableStore.open(spark, job.path).read_stream(max_rows=ROWS)
    writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
    writer.option("checkpointLocation", str(path.with_name("checkpoint"))).start().awaitTermination()
    spark.stop()


def _trapped(trap: KillPoint) -> type[DataSource]:
    """Make the store's data source with a trap in the processes that plan and read."""

    class Stream(NormalizedStream):
        def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802 - Spark's name
            trap.pass_by("latest:before")
            found = super().latestOffset(start, limit)
            trap.pass_by("latest:after")
            return found

        def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
            trap.pass_by("plan:before")
            found = super().partitions(start, end)
            trap.pass_by("plan:after")
            return found

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            trap.pass_by("read:before")
            _guard_state(trap)
            yield from super().read(partition)
            trap.pass_by("read:after")

    class Trapped(NormalizedDataSource):
        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return Stream(self._options(), schema)

    return Trapped


def _guard_state(trap: KillPoint) -> None:
    """Put doors that kill into this task's process, unless they are there."""
    for name, call in (("_write", "segment"), ("save", "state")):
        method = getattr(KeyedState, name)
        if not hasattr(method, "trap"):
            door = guarded(method, call, trap)
            door.trap = trap
            setattr(KeyedState, name, door)


def run_query(case: Case, seed: int, folder: Path, servers: str) -> Result:
    """Run a combination in which the query dies."""
    began, dice = time.monotonic(), case.dice(seed)
    result = Result(case, case.hit(dice))
    try:
        _run_query(case, result, dice.getrandbits(32), folder, servers)
    except (TableStoreError, AssertionError, OSError) as error:
        result.trouble += f" {type(error).__name__}: {error}"
    result.seconds = time.monotonic() - began
    return result


def _run_query(case: Case, result: Result, seed: int, folder: Path, servers: str) -> None:
    made = Job("", EVENTUAL, case.kind, ROWS, seed, options={"log__format": case.log_format})
    table = Table(folder, servers, made)
    writing = table.job
    assert finished(writing) == 0, "the table could not be written"
    # There are records that nobody commits when the query dies, and they are undone before it is back.
    table.leave_work(writing, BATCHES)
    query = replace(writing, verb=NORMALIZE, who=case.who, point=case.point, hit=result.hit)
    result.trouble = table.die(query)
    table.recover()
    assert finished(replace(writing, first=3 * BATCHES)) == 0, "the rest could not be written"
    code = finished(replace(query, who=NOBODY, point=""), SPARK_SECONDS)
    if code != 0:
        result.trouble += f" the query that came back ended with {code}"
    result.verdict += table.verdict()
