"""A Spark application that writes from topic to topic, exactly once; it exists to be killed with all its processes."""

from __future__ import annotations

import sys
from pathlib import Path

from tablestore import session
from tests.conftest import QUICK


def main(servers: str, source: str, target: str, folder: str) -> None:
    """Run until everything that is in the source is in the target, in micro-batches of a few rows."""
    # A task that fails is tried again, as on a cluster; with so few rows in a batch it has written some before that.
    spark = session("exactly-once", master="local[2, 4]", warehouse=Path(folder) / "warehouse", config=QUICK)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    base = {"properties.bootstrap.servers": servers, "format": "json"}
    reading = {"topic": source, "scan.startup.mode": "earliest-offset", "maxRowsPerTrigger": "40"}
    rows = spark.readStream.format("kafka-table").schema("n INT").options(**base, **reading).load()
    writing = {
        "topic": target,
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": f"app-{target}",
        "sink.partitioner": "tests.connectors.harness.tasks.DiesOnce",
        "checkpointLocation": str(Path(folder) / "checkpoint"),
    }
    # A shuffle, and a value that differs each time, as real queries have.
    moved = rows.repartition(2).selectExpr("n", "uuid() AS attempt")
    query = moved.writeStream.format("kafka-table").options(**base, **writing).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
