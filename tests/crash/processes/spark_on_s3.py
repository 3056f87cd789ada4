"""Spark's own Delta commits beside writes of the store, on S3: ``python -m tests.crash.processes.spark_on_s3 BUCKET``.

Prints what a test compares, as JSON. A process of its own, since Spark takes ``AWS_*`` from the environment of its JVM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from threading import Thread
from typing import Any

from pyspark.sql import SparkSession

from tablestore import TableStore, open_local, session
from tablestore.context import TableContext
from tablestore.read import base_table_columns
from tablestore.write.writer import Writer
from tests.conftest import QUICK
from tests.harness.local_writes import write
from tests.harness.lossy_proxy import drop_next, hold_next
from tests.harness.spark_tables import DDL, frame, rows

SPARK_COMMITS = 3
WRITES_MIN = 30


def race(spark: SparkSession, path: str) -> dict[str, Any]:
    """Write one row at a time while Spark alters and optimizes the table.

    Each commit of Spark is held until another one has taken its version.
    """
    table, done, failed = TableStore.create(spark, path, DDL), list[str](), list[str]()

    def alter() -> None:
        try:
            for number in range(SPARK_COMMITS):
                optimize = f"OPTIMIZE delta.`{path}`"
                change = f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('test.number' = '{number}')"
                hold_next(os.environ["AWS_ENDPOINT_URL"], ".json")
                spark.sql(optimize if number % 3 == 2 else change)
                done.append(f"{number}")
        except Exception as error:  # noqa: BLE001 - whatever stops Spark is what the test prints
            failed.append(str(error)[:500])

    thread, writer, number = Thread(target=alter), Writer(TableContext.open(path), None), 0
    thread.start()
    while thread.is_alive() or number < WRITES_MIN:
        write(writer, [(number, "v")])
        number += 1
        # Each row is a file that is read at the end, with several requests.
        time.sleep(0.2)
    thread.join()
    found = sorted(row["id"] for row in table.read().collect())
    delta = spark.read.format("delta").load(path.replace("s3://", "s3a://")).count()
    local = sorted(open_local(path).to_arrow()["id"].to_pylist())
    return {"written": number, "lost": number - len(found), "same": found == local == list(range(delta)),
            "spark": len(done), "failed": failed}  # fmt: skip


def lost_answer(spark: SparkSession, path: str) -> int:
    """Return how many commits Spark makes of one change whose response is lost."""
    before = TableContext.open(path).files.latest()
    drop_next(os.environ["AWS_ENDPOINT_URL"], "_delta_log/")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('test.answer' = 'lost')")
    return TableContext.open(path).files.latest() - before


def compacted(spark: SparkSession, path: str) -> list[Any]:
    """Return the rows of a compacted table, read as it was named and by its other name."""
    table = TableStore.create(spark, path, DDL, primary_key=["id"], options={"bucket": 2})
    table.write(frame(spark, [(1, "a"), (2, "a")]))
    table.compact()
    table.write(frame(spark, [(2, "b"), (3, "b")]))
    other = TableStore.open(spark, path.replace("s3://", "s3a://"))
    return [sorted(rows(each.read()).items()) for each in (table, other)]


def main(bucket: str) -> None:
    """Run everything; Spark's Delta reader reads the tables as if they were large."""
    base_table_columns._BYTES_MIN = 0
    spark = session("s3", master="local[2]", storage="s3", config=QUICK)
    found = race(spark, f"s3://{bucket}/raced")
    found["versions of a change"] = lost_answer(spark, f"s3a://{bucket}/raced")
    found["compacted"] = compacted(spark, f"s3://{bucket}/compacted")
    print(json.dumps(found))  # noqa: T201 - the answer to the test
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
