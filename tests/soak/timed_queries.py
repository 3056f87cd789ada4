"""Random continuous queries of event time: their rows, each once, are those of batch mode.

Each round has two topics of its own and one query, in micro-batches of some rows each, one of which may fail and is
repeated. No row is late, so the rows do not depend on the micro-batches.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.soak.rounds import SHOWN, Round
from tests.sql.changes import PlannedFailureError, follow, in_batch_mode, texts
from tests.sql.random_timed_queries import random_timed_query

DELAY = 5
FAR, COMPARED = "2024-01-01 12:00:00", "2024-01-01 06:00:00"
"""The time of the last rows, which move the watermark past all others, and before which rows are compared."""


def run_timed_round(folder: Path, spark: SparkSession, wire: Wire, seed: int, number: int) -> Round:
    """Run the round of a seed and a number."""
    chance = random.Random(f"timed-{seed}-{number}")
    catalog = Catalog(spark, folder / "warehouse", settings={"tablestore.addresses": f"...={wire.servers}"})
    count, step = chance.choice([(24, 5), (16, 2), (40, 100)])
    for name in "ab":
        topic = wire.make(f"soak-{uuid.uuid4().hex}")
        wire.send(topic, [json.dumps(row).encode() for row in _rows(chance, count)])
        catalog.sql(
            f"CREATE TABLE {name} (k STRING, n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '{DELAY}' "
            f"SECOND) WITH ('connector' = 'kafka', 'topic' = '{topic}', 'format' = 'json', 'scan.startup.mode' = "
            f"'earliest-offset', 'properties.bootstrap.servers' = '...', 'maxRowsPerTrigger' = '{step}')"
        )
    text = random_timed_query(chance, chance.randint(1, 3))
    found = Round()
    try:
        frame = catalog.sql(text).frame
    except InvalidInputError as error:
        found.refuse(error)
        return found
    assert frame is not None
    found.queries.append(text)
    try:
        batches = _followed(frame, folder / "checkpoint", chance.choice([None, 0, 1, 2]))
        found.batches = len(batches)
        wanted, rows = _compared(in_batch_mode(catalog, text)), _compared(sum(batches, Counter()))
        assert rows == wanted, f"too many: {dict(rows - wanted)}, missing: {dict(wanted - rows)}"
    except Exception as error:  # noqa: BLE001 - what a query says is what the soak is after
        found.wrong = f"seed {seed}, timed round {number}, {text}: {str(error)[:SHOWN]}"
    return found


def _rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Return rows that are less out of order than the watermark allows, and after them some of a time far ahead."""
    made = [
        {
            "k": chance.choice(["a", "b", None]),
            "n": chance.choice([None, 1, 2, 3]),
            "ts": f"2024-01-01 00:{second // 60:02}:{second % 60:02}",
        }
        for second in (2 * number + chance.randrange(DELAY) for number in range(count))
    ]
    return made + 3 * [{"k": "far", "n": 0, "ts": FAR}]


def _followed(frame: DataFrame, checkpoint: Path, fail_at: int | None) -> list[Counter[tuple[str, ...]]]:
    """Return the rows of each micro-batch, one of which fails the first time."""
    found: dict[int, Counter[tuple[str, ...]]] = {}
    failing = [fail_at]

    def take(batch: DataFrame, number: int) -> None:
        rows = texts(batch)
        if failing == [number]:
            failing.clear()
            raise PlannedFailureError
        found[number] = rows

    # Once more for the micro-batch that fails.
    for _ in range(2):
        follow(frame, "append", take, checkpoint, timed=True, may_fail=fail_at is not None)
    return list(found.values())


def _compared(rows: Counter[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    return Counter({row: count for row, count in rows.items() if row[2] < COMPARED})
