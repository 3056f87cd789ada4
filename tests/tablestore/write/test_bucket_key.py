"""``bucket-key`` of a table without a primary key: a log partition holds all rows of a bucket, in order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from tablestore import TableStore, create_local, open_local
from tablestore.context import TableContext
from tablestore.sql import Catalog
from tests.harness.local_writes import drain_raw
from tests.harness.waiting import PATIENCE_SECONDS

BUCKETS = 3
SCHEMA = "room string, n long, note string"


def records(servers: str, topic: str) -> list[list[dict[str, Any]]]:
    """The rows in each partition of a topic of JSON records, or of Arrow records with their kind."""
    return [
        [row for message in messages for row in _rows(message.value())]
        for messages in drain_raw(servers, topic, BUCKETS)
    ]


def _rows(value: bytes) -> list[dict[str, Any]]:
    try:
        return [json.loads(value)]
    except ValueError:
        return pa.ipc.open_stream(value).read_all().to_pylist()  # type: ignore[no-any-return]


def buckets_of(spark: SparkSession, rooms: list[str | None]) -> dict[str | None, int]:
    """The buckets as any Spark user computes them."""
    frame = spark.createDataFrame([(room,) for room in rooms], "room string")
    return {row[0]: row[1] for row in frame.select("room", F.expr(f"pmod(hash(room), {BUCKETS})")).collect()}


def options_of(kafka: Any, topic: str, **more: object) -> dict[str, Any]:
    named = {name.replace("__", "."): value for name, value in more.items()}
    server = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic}
    return {**server, "bucket": BUCKETS, "bucket-key": "room", **named}


ROOMS: list[str | None] = [*(f"room {number}" for number in range(20)), None]


def rows_of(first: int, count: int) -> list[dict[str, Any]]:
    return [{"room": ROOMS[n % len(ROOMS)], "n": n, "note": "x"} for n in range(first, first + count)]


def assert_by_bucket(spark: SparkSession, found: list[list[dict[str, Any]]], *, in_order: bool = True) -> None:
    bucket = buckets_of(spark, ROOMS)
    for partition, rows in enumerate(found):
        assert {bucket[row["room"]] for row in rows} <= {partition}
        for room in ROOMS:
            numbers = [row["n"] for row in rows if row["room"] == room]
            assert not in_order or numbers == sorted(numbers)


@pytest.mark.parametrize("consistency", ["transactional", "eventual"])
def test_rows_of_local_writes_go_to_the_partition_of_their_key(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str], consistency: str
) -> None:
    name = topic()
    options = options_of(kafka, name, log__consistency=consistency)
    with create_local(str(tmp_path / "t"), SCHEMA, log_system="kafka", options=options) as table:
        for first in range(0, 300, 100):
            table.write(rows_of(first, 100))
        # Several threads stage these.
        table.write(rows_of(300, 150_000))
        assert TableContext.open(str(tmp_path / "t")).verify().ok
        assert table.count() == 150_300
    found = records(kafka.bootstrap_servers, name)
    assert all(found)
    assert sum(map(len, found)) == 150_300
    assert_by_bucket(spark, found, in_order=consistency == "transactional")


def test_rows_of_frames_streams_and_data_source_writes_too(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    name, path = topic(), str(tmp_path / "t")
    table = TableStore.create(spark, path, SCHEMA, log_system="kafka", options=options_of(kafka, name))
    rooms = F.when(F.col("id") % 21 == 20, F.lit(None)).otherwise(F.concat(F.lit("room "), (F.col("id") % 21)))

    def frame(first: int, tasks: int) -> Any:
        return spark.range(first, first + 500, 1, tasks).select(
            rooms.cast("string").alias("room"), F.col("id").alias("n"), F.lit("x").alias("note")
        )

    table.write(frame(0, 4))
    frame(500, 3).write.format("tablestore").option("path", path).mode("append").save()
    folder = str(tmp_path / "in")
    frame(1000, 2).write.parquet(folder)
    stream = spark.readStream.schema(SCHEMA).parquet(folder)
    query = table.write_stream(stream, checkpoint=str(tmp_path / "c"), trigger={"availableNow": True})
    query.awaitTermination()
    found = records(kafka.bootstrap_servers, name)
    assert_by_bucket(spark, found, in_order=False)
    bucket = buckets_of(spark, ROOMS)
    assert all(bucket[row["room"]] == p for p, rows in enumerate(found) for row in rows)
    # Rows of one frame are in the frame's order.
    for rows in found:
        numbers = [row["n"] for row in rows if row["n"] < 500]
        assert numbers == sorted(numbers)
    assert Counter(row["n"] for rows in found for row in rows) == Counter(range(1500))
    assert Counter(row.n for row in table.changes(0).collect()) == Counter(range(1500))
    assert table.verify().ok


def test_statements_compaction_and_other_writers_keep_to_the_buckets(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    name, path = topic(), str(tmp_path / "t")
    options = options_of(kafka, name, log__format="arrow", compaction__auto=False)
    table = TableStore.create(spark, path, SCHEMA, log_system="kafka", options=options)
    for first in range(0, 120, 40):
        table.write(rows_of(first, 40))
    table.update("n % 3 = 0", {"note": "'changed'"})
    table.delete("n % 5 = 0")
    table.compact()
    # The other writer knows of no buckets: its one file holds rows of all of them.
    more = pa.Table.from_pylist(rows_of(120, 40), schema=table.read().toArrow().schema)
    write_deltalake(DeltaTable(path), more, mode="append")
    table.recover()
    table.delete("room IS NULL")
    table.overwrite(rows_of(200, 60), where="n >= 120")
    report = table.verify()
    assert report.ok, report
    found = records(kafka.bootstrap_servers, name)
    bucket = buckets_of(spark, ROOMS)
    folded: Counter[tuple[Any, ...]] = Counter()
    for partition, rows in enumerate(found):
        for row in rows:
            assert bucket[row["room"]] == partition
            folded[row["room"], row["n"], row["note"]] += -1 if row["_kind"] in (1, 3) else 1
    assert +folded == Counter(tuple(row) for row in table.read().collect())
    assert not -folded
    with open_local(path) as local:
        streamed = [row for batch in local.changes(0) for row in batch.to_pylist()]
    assert len(streamed) == sum(map(len, found))


def test_what_a_bucket_key_may_be(spark: SparkSession, tmp_path: Path) -> None:
    for key, message in (("nowhere", "no column 'nowhere'"), ("d", "type double"), ("room, room", "twice")):
        with pytest.raises(InvalidInputError, match=message):
            create_local(str(tmp_path / "bad"), "room string, d double", options={"bucket-key": key})
    with create_local(str(tmp_path / "t"), SCHEMA, options={"bucket": 2, "bucket-key": "room,n"}) as table:
        table.write(rows_of(0, 10))
        assert sorted(row["n"] for batch in table.changes(0) for row in batch.to_pylist()) == list(range(10))
    store = TableStore.open(spark, str(tmp_path / "t"))
    with pytest.raises(InvalidInputError, match="option 'bucket-key' names it"):
        store.alter.rename_column("room", "hall")
    with pytest.raises(InvalidInputError, match="'bucket-key' cannot change"):
        store.alter.set_options({"bucket-key": "note"})


def test_a_table_of_sql_with_an_eventual_log(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """As the tests of Paimon's Kafka log have it: append-only, with a bucket key, written and read as a stream."""
    catalog = Catalog(spark, tmp_path / "warehouse")
    catalog.sql(
        "CREATE TABLE t (i INT, j INT) WITH ('log.system' = 'kafka', 'bucket' = '2', 'bucket-key' = 'i', "
        f"'log.consistency' = 'eventual', 'kafka.bootstrap.servers' = '{kafka.bootstrap_servers}', "
        f"'kafka.topic' = '{topic()}')"
    )
    catalog.sql("INSERT INTO t VALUES (1, 2), (3, 4), (5, 6)")
    catalog.sql("SET 'tablestore.trigger' = 'available-now'")
    found: list[tuple[int, int]] = []
    query = catalog.follow(
        catalog.sql("SELECT * FROM t"), lambda batch, _: found.extend(tuple(row) for row in batch.collect())
    )
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert sorted(found) == [(1, 2), (3, 4), (5, 6)]
    assert "'bucket-key' = 'i'" in str(catalog.sql("SHOW CREATE TABLE t").rows)


def test_a_bucket_is_read_from_any_row_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So publishing goes on where it stopped, also within a file with rows of several buckets."""
    monkeypatch.setattr("snapshot.merge.duckdb_engine.BATCH_ROWS", 7)
    path = str(tmp_path / "t")
    with create_local(path, SCHEMA, options={"bucket": BUCKETS, "bucket-key": "room"}) as table:
        table.write(rows_of(0, 60))
        write_deltalake(path, pa.Table.from_pylist(rows_of(60, 60)), mode="append")
        files = TableContext.open(path).files
        for changes in (files.changes(snapshot, BUCKETS) for snapshot in (1, 2)):
            found = 0
            for bucket in range(BUCKETS):
                rows = [row for batch in changes.batches(bucket) for row in batch.to_pylist()]
                assert len(rows) == changes.rows(bucket) > 7
                for skip in range(len(rows) + 2):
                    assert [row for each in changes.batches(bucket, skip) for row in each.to_pylist()] == rows[skip:]
                found += len(rows)
            assert found == 60


def test_some_columns_of_a_primary_key_are_the_bucket_key(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """All writers and lookups agree on the bucket, which is the same for all keys with these columns."""
    name, path = topic(), str(tmp_path / "t")
    columns = "n long, room string, note string"
    table = TableStore.create(
        spark, path, columns, primary_key=["n", "room"], log_system="kafka", options=options_of(kafka, name)
    )
    rows = [{"n": n, "room": ROOMS[n % 20], "note": "old"} for n in range(200)]
    table.write(spark.createDataFrame([(row["n"], row["room"], "old") for row in rows], columns))
    with open_local(path) as local:
        local.write([row | {"note": "new"} for row in rows[::2]])
        local.delete("n >= 190")
        assert local.get((4, ROOMS[4])) == {"n": 4, "room": ROOMS[4], "note": "new"}
        assert local.get((191, ROOMS[11])) is None
    table.update("n = 1", {"note": "'updated'"})
    table.compact()
    left = {(n, ROOMS[n % 20], "updated" if n == 1 else "new" if n % 2 == 0 else "old") for n in range(190)}
    assert {tuple(row) for row in table.read().collect()} == left
    assert table.verify().ok
    bucket = buckets_of(spark, ROOMS)
    for partition, messages in enumerate(drain_raw(kafka.bootstrap_servers, name, BUCKETS)):
        assert {bucket[json.loads(message.key())["room"]] for message in messages} == {partition}
