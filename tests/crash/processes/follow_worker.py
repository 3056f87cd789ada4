"""A process that follows a table's normalized stream and keeps on disk what that gives; it exists to be killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from snapshot.storage import Storage
from tablestore import TableStore, session
from tablestore.streaming import follow as following
from tests.crash.processes.ledger import Ledger

POINTS: dict[str, tuple[Any, str]] = {"trigger:before": (DataStreamWriter, "trigger"), "put:after": (Storage, "put")}
"""Stopped, perhaps in the midst of a micro-batch; the state of the next query saved, and nothing done with it."""


def main(path: str, folder: str, point: str) -> None:
    """Follow until a point is reached, at which all of Spark dies with this process; without one, to the log's end."""
    following._KEYS_MIN = 5
    config = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": 1}
    spark = session("follows", master="local[2]", config=config)
    ledger = Ledger(Path(folder) / "ledger")

    def write(changes: DataFrame, number: int) -> DataStreamWriter:
        def take(batch: DataFrame, batch_id: int) -> None:
            ledger.put(batch, number * 1000 + batch_id)

        writer = changes.writeStream.foreachBatch(take)
        return writer if point else writer.trigger(availableNow=True)

    if point:
        _die_at(*POINTS[point], after=point.endswith(":after"))
    TableStore.open(spark, path).follow(write, Path(folder) / "checkpoint", max_rows=80)


def _die_at(owner: Any, name: str, *, after: bool) -> None:
    real = getattr(owner, name)

    def guarded(*args: Any, **kwargs: Any) -> None:
        if after:
            real(*args, **kwargs)
        os.killpg(0, signal.SIGKILL)

    setattr(owner, name, guarded)


if __name__ == "__main__":
    main(*sys.argv[1:])
