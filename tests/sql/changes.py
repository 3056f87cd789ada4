"""Continuous queries over changelogs, judged at the end of every micro-batch: DuckDB answers over the folded tables."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tablestore.sql import Catalog
from tablestore.sql.queries.continuous_query import allowed
from tests.connectors.harness.wire import Record
from tests.harness.waiting import PATIENCE_SECONDS

Row = dict[str, Any]
QUICK_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
}
"""Micro-batches of a few rows spend their time in state stores made for many, otherwise."""
SIGNS = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}


@contextmanager
def quick(spark: SparkSession) -> Iterator[None]:
    """Let Spark be quick with little, and as it was afterwards."""
    before = {key: spark.conf.get(key) for key in QUICK_STATE}
    for key, value in QUICK_STATE.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, value or "")


class PlannedFailureError(Exception):
    """Ends a query in the middle of a micro-batch."""


@dataclass
class Side:
    """A table of rows that change, as messages: values by key, None for a delete.

    Attributes:
        name: of the table.
        messages: pairs of a key and the other columns.
    """

    name: str
    messages: list[tuple[int, Row | None]] = field(default_factory=list)

    def records(self) -> list[Record]:
        """Say the messages as the topic has them."""
        return [
            Record(None if row is None else json.dumps({"k": key, **row}).encode(), key=json.dumps({"k": key}).encode())
            for key, row in self.messages
        ]

    def folded(self, count: int) -> list[Row]:
        """Give the rows after so many messages."""
        rows: dict[int, Row | None] = {}
        rows.update(self.messages[:count])
        return [{"k": key, **row} for key, row in rows.items() if row is not None]


def random_side(name: str, seed: int, count: int, keys: int = 6) -> Side:
    """Make upserts and deletes of few keys, with NULLs, so that each is changed often."""
    chance = random.Random(seed)

    def row() -> Row | None:
        if chance.random() < 0.25:
            return None
        return {
            "g": chance.choice(["a", "b", "c", None]),
            "n": chance.choice([0, 1, 2, 3, -4, None]),
            "m": chance.choice([1.5, 0.25, -2.0, None]),
            "j": chance.randrange(keys),
        }

    return Side(name, [(chance.randrange(keys), row()) for _ in range(count)])


def answer(sides: Sequence[Side], count: int, text: str) -> tuple[Counter[tuple[Any, ...]], int]:
    """Let DuckDB answer a query over what so many messages of each table make; and say how many columns it has."""
    with duckdb.connect(config={"default_null_order": "nulls_first_on_asc_last_on_desc"}) as db:
        for side in sides:
            db.execute(f"CREATE TABLE {side.name} (k INT, g VARCHAR, n BIGINT, m DECIMAL(6, 2), j INT)")
            for row in side.folded(count):
                db.execute(f"INSERT INTO {side.name} VALUES (?, ?, ?, ?, ?)", [row[c] for c in "kgnmj"])
        found = db.sql(text)
        return Counter(tuple(map(plain, row)) for row in found.fetchall()), len(found.columns)


def plain(value: Any) -> Any:
    """Make values of both engines alike: all as text in Spark, averages of decimals as doubles in DuckDB."""
    try:
        return None if value is None else round(float(value), 4)
    except ValueError:
        return value


@dataclass
class Follower:
    """Adds up the changes of several queries that run as one, and compares each after each micro-batch.

    Attributes:
        step: messages of each table in a micro-batch.
        queries: the queries.
        sides: the tables.
        fail_at: the micro-batch in which the query fails, once.
    """

    step: int
    queries: Sequence[str]
    sides: Sequence[Side]
    fail_at: int | None = None
    state: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    batches: int = 0

    def take(self, frame: DataFrame, number: int) -> None:
        """Take a micro-batch."""
        rows = frame.collect()
        if self.fail_at == number:
            self.fail_at = None
            raise PlannedFailureError
        for query, whole, kind in rows:
            values = (None if value == "NULL" else value for value in whole.split("|"))
            self.state[query, *map(plain, values)] += SIGNS[kind]
        self.state = Counter({row: count for row, count in self.state.items() if count})
        self.batches = number + 1
        wrong = []
        for query, text in enumerate(self.queries):
            wanted, _ = answer(self.sides, self.step * self.batches, text)
            found = Counter({row[1:]: count for row, count in self.state.items() if row[0] == query})
            if found != wanted:
                wrong.append((text, "too many", dict(found - wanted), "missing", dict(wanted - found)))
        assert not wrong, (f"after micro-batch {number}", wrong)


def as_one(sides: Sequence[Side], queries: Sequence[str]) -> str:
    """Say queries as one, so that each table is read once: the number of each, and its row as text."""
    parts = []
    for number, text in enumerate(queries):
        names = [f"c{n}" for n in range(answer(sides, 0, text)[1])]
        row = " || '|' || ".join(f"COALESCE(CAST({name} AS STRING), 'NULL')" for name in names)
        parts.append(f"SELECT {number} AS query, {row} AS whole FROM ({text}) AS q{number} ({', '.join(names)})")
    return " UNION ALL ".join(parts)


def run(catalog: Catalog, follower: Follower, checkpoint: Path) -> None:
    """Follow the queries to the end of what is there; a failure, if planned, is let pass."""
    frame = catalog.sql(as_one(follower.sides, follower.queries)).frame
    assert frame is not None
    follow(frame, "update", follower.take, checkpoint, timed=False, may_fail=follower.fail_at is not None)


def follow(
    frame: DataFrame,
    mode: str,
    take: Callable[[DataFrame, int], None],
    checkpoint: Path,
    *,
    timed: bool,
    may_fail: bool,
) -> None:
    """Let a function take the micro-batches of what is there; a failure, if planned, is let pass."""
    writer = frame.writeStream.outputMode(mode).foreachBatch(take).option("checkpointLocation", str(checkpoint))
    with allowed(frame.sparkSession, chained=True, timed=timed):
        query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(PATIENCE_SECONDS)
    except StreamingQueryException as error:
        if not may_fail or "PlannedFailureError" not in str(error):
            raise


def texts(frame: DataFrame) -> Counter[tuple[str, ...]]:
    """Give the rows as text."""
    return Counter(tuple(map(str, row)) for row in frame.collect())


def in_batch_mode(catalog: Catalog, text: str) -> Counter[tuple[str, ...]]:
    """Run a query in batch mode; give its rows as text."""
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    frame = catalog.sql(text).frame
    assert frame is not None
    found = texts(frame)
    catalog.sql("RESET 'execution.runtime-mode'")
    return found


def ddl(sides: Mapping[str, str], step: int) -> str:
    """Declare the tables over their topics."""
    return "; ".join(
        f"CREATE TABLE {name} (k INT, g STRING, n BIGINT, m DECIMAL(6, 2), j INT, PRIMARY KEY (k) NOT ENFORCED) WITH ("
        f"'connector' = 'upsert-kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '...', "
        f"'key.format' = 'json', 'value.format' = 'json', 'maxRowsPerTrigger' = '{step}')"
        for name, topic in sides.items()
    )
