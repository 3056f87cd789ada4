"""The demo's writer, which runs in its own process: ``python _flights_writer.py DAYS``.

After starting Spark, the writer reads one line of JSON from standard input: the table's path, ``first`` and
``kill_at``. It writes the batches from number ``first`` on and reports each on standard output. In batch ``kill_at`` (0
for none) it kills itself with SIGKILL after the snapshot is committed and before its first record is published.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from _flights_data import SPARK, batches, load

from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from tablestore import TableStore, session


def die_instead_of_publishing() -> None:
    """Make this process kill itself with SIGKILL instead of publishing. The store itself has no such hook."""

    def killed(self: KafkaPublisher, snapshots: Any) -> Any:
        tell(event="dies", snapshot=snapshots[-1].snapshot.id)
        os.kill(os.getpid(), signal.SIGKILL)

    KafkaPublisher.publish = killed  # type: ignore[method-assign]


def tell(**event: object) -> None:
    print(json.dumps(event | {"at": time.time()}), flush=True)


def main(days: int) -> None:
    spark, plan = session("flights-writer", master="local[2]", config=SPARK), batches(load(days))
    order = json.loads(sys.stdin.readline())
    flights = TableStore.open(spark, order["path"])
    tell(event="recovered", snapshots=[entry.snapshot for entry in flights.recover()])
    for batch in plan:
        if batch.number < order["first"]:
            continue
        if batch.number == order["kill_at"]:
            die_instead_of_publishing()
        write = flights.delete if batch.what == "cancelled" else flights.write
        made = write(spark.createDataFrame(batch.rows), batch=("flights-2013", batch.number))
        assert made is not None
        tell(event="written", batch=batch.number, snapshot=made.id, rows=made.rows)
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]))
