"""A streaming query writes into a table whose columns and options others change at each step of its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType

from log_system.index import LogIndex
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.delta.log import DeltaLog
from snapshot.errors import InvalidInputError
from snapshot.schema.evolution import AddColumn, DropColumn, MoveColumn, RenameColumn, WidenColumn
from tablestore import LocalTable, TableStore, open_local
from tablestore.table.batch_writer import BatchWriter
from tablestore.write import frame_input
from tablestore.write import writer as writer_module
from tablestore.write.writer import Writer
from tests.harness.faults import preceded
from tests.harness.spark_tables import AVAILABLE, log_options

ROWS = 6
BEFORE_COMMIT: list[tuple[Any, str]] = [
    (Writer, "recover_once"),
    (frame_input, "run_staging"),
    (frame_input, "accept_staged"),
    (DeltaLog, "commit"),
]
AFTER_COMMIT: list[tuple[Any, str]] = [
    (writer_module, "publish_through"),
    (KafkaPublisher, "publish"),
    (LogIndex, "put"),
    (writer_module, "check_kept"),
]
STEPS = BEFORE_COMMIT + AFTER_COMMIT
"""Steps of a micro-batch: who has the method, and its name."""
TABLES: dict[str, dict[str, Any]] = {
    "key": {"publish__driver_rows_max": 2, "publish__transaction_rows_max": 2},
    "append": {},
    "lookup": {"changelog_producer": "lookup", "log__format": "arrow"},
    "eventual": {"log__consistency": "eventual"},
    "eventual-append": {"log__consistency": "eventual"},
}
WIDENED = [f"w{n}" for n in range(len(STEPS))]


class Ingest:
    """A query from a table, one snapshot per micro-batch, into the table under test."""

    def __init__(self, spark: SparkSession, folder: Path, servers: str, topic: str, kind: str) -> None:
        self.spark, self.checkpoint, self.batches = spark, folder / "checkpoint", 0
        self.is_eventual, has_key = kind.startswith("eventual"), not kind.endswith("append")
        self.source = TableStore.create(spark, folder / "source", "id bigint, b string, c string")
        columns = ", ".join(["id bigint", "b string", "c string", "d0 int", *(f"{name} int" for name in WIDENED)])
        self.sink = TableStore.create(
            spark, folder / "sink", columns, primary_key=["id"] if has_key else [], log_system="kafka",
            options=log_options(servers, topic, **{"compaction__auto": False} if has_key else {}, **TABLES[kind]),
        )  # fmt: skip

    def arrive(self) -> None:
        """Let the rows of a micro-batch arrive."""
        n, self.batches = ROWS * self.batches, self.batches + 1
        rows = [(each, f"b{each}", f"c{each}") for each in range(n, n + ROWS)]
        self.source.write(self.spark.createDataFrame(rows, "id bigint, b string, c string"))

    def run(self, own: str) -> None:
        """Run the query until it has caught up, with a column of its own."""
        numbers = [f"cast(id as int) {each}" for each in (own, *WIDENED)]
        # Tasks stage the rows of a frame that is not local.
        stream = (
            self.source.read_stream(scan_mode="earliest", max_snapshots=1)
            .selectExpr("id", "b", "c", *numbers)
            .repartition(2)
        )
        self.sink.write_stream(stream, checkpoint=self.checkpoint, trigger=AVAILABLE).awaitTermination()

    def alter(self, change: Callable[[LocalTable], object]) -> None:
        """Let another process change the table."""
        with open_local(self.sink.path) as other:
            change(other)

    def check(self) -> list[dict[str, Any]]:
        """Log, table and streams agree, and each micro-batch is one snapshot; gives the rows."""
        table = self.sink.refresh()
        report = table.verify()
        assert report.ok, str(report)
        assert not report.pending
        written = [s for s in table.snapshots() if s.operation in ("append", "upsert")]
        assert [s.rows for s in written] == [ROWS] * self.batches
        rows = [row.asDict() for row in table.read().collect()]
        assert sorted(row["id"] for row in rows) == list(range(ROWS * self.batches))
        if not self.is_eventual:
            seen = self._streamed(table)
            assert sorted(seen, key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"])
        return rows

    def _streamed(self, table: TableStore) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = []
        stream = table.read_stream(scan_mode="earliest").select(*table.schema.names)
        query = stream.writeStream.foreachBatch(lambda batch, _: seen.extend(row.asDict() for row in batch.collect()))
        started = query.option("checkpointLocation", f"{self.checkpoint}-read").trigger(**AVAILABLE).start()
        started.awaitTermination()
        return seen


@contextmanager
def one_per_batch(act: Callable[[int], None]) -> Iterator[list[str]]:
    """Do something just before a step of each micro-batch, in each at another step; gives the steps at which it was."""
    batch, done = -1, list[str]()
    write = BatchWriter.__call__

    def begin(writer: BatchWriter, rows: Any, number: int) -> None:
        nonlocal batch
        batch = number
        write(writer, rows, number)

    def guarded(number: int, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if batch == number == len(done):
                done.append(name)
                act(number)
            return real(*args, **kwargs)

        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchWriter, "__call__", begin)
        for number, (owner, name) in enumerate(STEPS):
            patch.setattr(owner, name, guarded(number, name, getattr(owner, name)))
        yield done


@pytest.fixture
def ingest(
    request: pytest.FixtureRequest, spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> Ingest:
    return Ingest(spark, tmp_path, kafka.bootstrap_servers, topic(), request.param)


@pytest.mark.parametrize("ingest", TABLES, indirect=True)
def test_a_query_goes_on_while_columns_move_and_widen_and_options_change(ingest: Ingest) -> None:
    for _ in STEPS:
        ingest.arrive()

    def act(n: int) -> None:
        def change(other: LocalTable) -> None:
            widened, moved = (
                WidenColumn(WIDENED[n], LongType()),
                MoveColumn("c", first=bool(n % 2), after=None if n % 2 else "b"),
            )
            other.alter(widened, moved, set_options={"write.target-file-size": f"{n + 1} mb"})
            for fixed in ({"merge-engine": "first-row"}, {"bucket": 3}, {"log.retention": "1 d"}):
                with pytest.raises(InvalidInputError, match="cannot change after create"):
                    other.alter.set_options(fixed)

        ingest.alter(change)

    with one_per_batch(act) as done:
        ingest.run("d0")
    assert done == [name for _, name in STEPS]
    for row in ingest.check():
        key = row["id"]
        assert row == {"id": key, "b": f"b{key}", "c": f"c{key}", **dict.fromkeys(("d0", *WIDENED), key)}


@pytest.mark.parametrize("ingest", ["key", "append", "eventual"], indirect=True)
def test_a_query_whose_columns_are_swapped_dropped_and_added_starts_again_and_loses_nothing(ingest: Ingest) -> None:
    """The query fails at the change: before the commit for the change's sake, after it because it dies."""
    swaps: list[set[int]] = []
    for n, (owner, name) in enumerate(STEPS):
        ingest.arrive()

        def change(other: LocalTable, n: int = n) -> None:
            swaps.append({row["id"] for row in other.to_arrow().to_pylist()})
            swap = [RenameColumn("b", "t"), RenameColumn("c", "b"), RenameColumn("t", "c")]
            # Records of an eventual log have the names of their time.
            more = [] if ingest.is_eventual else swap
            other.alter(*more, DropColumn(f"d{n}"), AddColumn(f"d{n + 1}", IntegerType()))

        def act(step: tuple[Any, str] = (owner, name), change: Callable[[LocalTable], None] = change) -> None:
            ingest.alter(change)
            if step in AFTER_COMMIT:
                msg = "the query dies"
                raise ValueError(msg)

        failure = "the query dies" if (owner, name) in AFTER_COMMIT else rf"unknown \['d{n}'\]"
        with preceded(owner, name, act), pytest.raises(PySparkException, match=failure):
            ingest.run(f"d{n}")
        ingest.run(f"d{n + 1}")
    for row in ingest.check():
        key = row["id"]
        is_swapped = not ingest.is_eventual and sum(key in held for held in swaps) % 2
        b, c = ("c", "b") if is_swapped else ("b", "c")
        assert (row["b"], row["c"]) == (f"{b}{key}", f"{c}{key}")
