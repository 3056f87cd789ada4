"""A query that dies: writes numbered micro-batches as Spark does, and remembers, as Spark does, which are complete."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from log_system.kafka.client.cluster import GroupOffsets
from tablestore.connectors.spark.sink import Sink
from tests.connectors.harness.lab import Lab, batch_of, schema_of
from tests.connectors.harness.tasks import as_task
from tests.connectors.harness.wire import Wire
from tests.crash.kill_points import KillPoint, fall_asleep, guarded, set_trap

COLUMNS = "id INT, attempt STRING"
BATCHES = 3
ROWS = 40
TASKS = 2


def run(
    servers: str,
    topic: str,
    folder: str,
    attempt: str,
    guarantee: str,
    point: str,
    hit: int,
    stop: bool = False,
    timeout_ms: int = 10_000,
) -> None:
    """Write the micro-batches that are not complete, until done or dead; with ``stop``, fall asleep at the point."""
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    trap = KillPoint(point, hit, fall_asleep if stop else None)
    set_trap(trap)
    for owner, name, call in ((GroupOffsets, "position", "register"), (Sink, "run", "task"), (Sink, "commit", "done")):
        setattr(owner, name, guarded(vars(owner)[name], call, trap))
    checkpoint = Path(folder) / "checkpoint"
    complete = checkpoint / "commits"
    complete.mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    options: dict[str, Any] = {
        "sink__delivery_guarantee": guarantee,
        "sink__transactional_id_prefix": f"crash-{topic}",
        "checkpointLocation": str(checkpoint),
        "properties__transaction__timeout__ms": timeout_ms,
    }
    source = Lab(Wire(servers)).source("kafka", topic, options)
    for number in range(BATCHES):
        if not (complete / str(number)).exists():
            writer = source.streamWriter(schema_of(COLUMNS), False)
            messages = []
            for task in range(TASKS):
                # What a repeated micro-batch holds need not be the same, nor be the same in each task.
                rows = [(number * ROWS + n, attempt) for n in range(ROWS) if n % TASKS == task]
                with as_task(task):
                    messages.append(writer.write(iter([batch_of(COLUMNS, rows)])))
            writer.commit(messages, number)
            (complete / str(number)).touch()
