"""Tables driven through Spark, as a user drives them, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore import TableStore
from tests.harness.local_writes import drain

DDL = "id bigint, v string"
AVAILABLE = {"availableNow": True}


def log_options(servers: str, topic: str, **more: object) -> dict[str, object]:
    """Give a table's options for a log; ``a__b_c=1`` stands for ``a.b-c``."""
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    return {"kafka.bootstrap.servers": servers, "kafka.topic": topic, "bucket": 2, **named}


def make(
    spark: SparkSession, path: Path, servers: str = "", topic: str = "", *, key: bool = True, **options: object
) -> TableStore:
    """Create a table of ``(id, v)``, with a log where a topic is named."""
    given = log_options(servers, topic, **options) if topic else {"bucket": 2, **log_options("", "", **options)}
    if not topic:
        given = {name: value for name, value in given.items() if not name.startswith("kafka.")}
    return TableStore.create(
        spark, path, DDL, primary_key=["id"] if key else [], log_system="kafka" if topic else None, options=given
    )


def frame(spark: SparkSession, rows: Iterable[tuple[Any, ...]], ddl: str = DDL) -> DataFrame:
    """Make a frame of one Spark partition, so that its rows have an order."""
    return spark.createDataFrame(list(rows), ddl).coalesce(1)


def changes(spark: SparkSession, rows: Iterable[tuple[Any, ...]]) -> DataFrame:
    """Make a frame of ``(id, v, change type)``."""
    return frame(spark, rows, f"{DDL}, {CHANGE_TYPE} string")


def rows(read: DataFrame) -> dict[Any, Any]:
    """Give a frame of ``(id, v)`` as a dict; a key that is there twice fails."""
    found = [tuple(row) for row in read.collect()]
    assert len({key for key, _ in found}) == len(found), f"a key is there twice: {found}"
    return dict(found)


@contextmanager
def shuffle_partitions(spark: SparkSession, number: int) -> Iterator[None]:
    """Keep the state of queries that begin in it in so many pieces: each micro-batch pays for every one."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, str(number))
    try:
        yield
    finally:
        spark.conf.set(name, before)


def state(table: TableStore) -> tuple[int, frozenset[str]]:
    """Give what a refused write must leave alone: the newest snapshot and every file of the table."""
    files = frozenset(str(p) for p in Path(table.path).rglob("*") if p.is_file() and not p.name.startswith("."))
    return table.snapshots()[0].id, files


class Follower:
    """A streaming reader with a checkpoint: each ``follow`` reads what is new and gives it batch by batch."""

    def __init__(self, checkpoint: Path, source: Callable[[], DataFrame]) -> None:
        """Read ``source()``, recreated at each restart."""
        self._checkpoint = checkpoint
        self._source = source

    def follow(self) -> list[list[tuple[Any, ...]]]:
        """Run the query until it has caught up."""
        batches: list[list[tuple[Any, ...]]] = []
        query = (
            self._source()
            .writeStream.foreachBatch(lambda batch, _: batches.append([tuple(row) for row in batch.collect()]))
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**AVAILABLE)
            .start()
        )
        query.awaitTermination()
        return [batch for batch in batches if batch]

    def rows(self) -> list[tuple[Any, ...]]:
        """Run the query until it has caught up and give all it read."""
        return [row for batch in self.follow() for row in batch]


def fold(feed: Iterable[tuple[Any, ...]]) -> dict[Any, Any]:
    """Fold a change feed of ``(id, v, change type, version, time)`` by key, snapshot by snapshot."""
    table: dict[Any, Any] = {}
    for key, value, kind, *_ in sorted(feed, key=lambda row: row[3]):
        if kind == "delete":
            table.pop(key, None)
        elif kind != "update_preimage":
            table[key] = value
    return table


def versions(feed: Iterable[tuple[Any, ...]]) -> list[int]:
    """Give the snapshots of a change feed's rows, each once, in order."""
    return sorted({row[3] for row in feed})


def assert_log_is_table(table: TableStore, servers: str, topic: str) -> None:
    """The log, read by a plain consumer and folded, is the table."""
    log = drain(servers, topic, table.options.buckets)
    folded = {key: value for partition in log for key, value in partition}
    assert {k: v for k, v in folded.items() if v is not None} == rows(table.read())


def delete_records(servers: str, topic: str, ends: Mapping[int, int]) -> None:
    """Let the log's retention pass: remove the records of each partition below an offset."""
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.delete_records([TopicPartition(topic, p, end) for p, end in ends.items()]).values():
        future.result()


__all__ = [
    "AVAILABLE", "CHANGE_TYPE", "COMMIT_VERSION", "DDL", "Follower", "assert_log_is_table", "changes", "delete_records",
    "fold", "frame", "log_options", "make", "rows", "state", "versions",
]  # fmt: skip


def forget_last_commit(checkpoint: Path) -> None:
    """Leave the checkpoint as a crash does between the sink's commit and Spark's own commit log."""
    last = max((p for p in (checkpoint / "commits").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
