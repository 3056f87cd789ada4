"""The writer of the demo, a process of its own: ``python _flights_writer.py PATH DAYS FIRST KILL_AT``.

It writes the batches from number FIRST on and tells of each on standard output. In batch KILL_AT (0 for none) it dies by
SIGKILL when the snapshot is committed and the first of its records is about to be published.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from _flights_data import batches, load

from log_system.kafka.publish import KafkaPublisher
from tablestore import TableStore, session


def die_instead_of_publishing() -> None:
    """Replace the one door to the log, in this process, by a kill -9. The store itself has no such hook."""

    def killed(self: KafkaPublisher, changes: Any) -> Any:  # noqa: ARG001 - the door's own signature
        tell(event="dies", snapshot=changes.snapshot.id)
        os.kill(os.getpid(), signal.SIGKILL)

    KafkaPublisher.publish = killed  # type: ignore[method-assign]


def tell(**event: object) -> None:
    print(json.dumps(event | {"at": time.time()}), flush=True)


def main(path: str, days: int, first: int, kill_at: int) -> None:
    spark = session("flights-writer", master="local[2]")
    flights = TableStore.open(spark, path)
    tell(event="ready")
    tell(event="recovered", snapshots=[entry.snapshot for entry in flights.recover()])
    for batch in batches(load(days)):
        if batch.number < first:
            continue
        if batch.number == kill_at:
            die_instead_of_publishing()
        write = flights.delete if batch.what == "cancelled" else flights.write
        made = write(spark.createDataFrame(batch.rows), batch=("flights-2013", batch.number))
        assert made is not None
        tell(event="written", batch=batch.number, snapshot=made.id, rows=made.rows)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
