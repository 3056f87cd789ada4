"""The connectors asked by Spark itself: reads, writes, streams, session time zone, secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from tablestore.connectors import read as read_table
from tablestore.connectors import write, write_stream
from tests.connectors.harness.wire import Record, Wire
from tests.harness.spark_tables import shuffle_partitions
from tests.harness.waiting import PATIENCE_SECONDS

Topics = Callable[..., str]


def given(wire: Wire, topic: str, **more: str) -> dict[str, str]:
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    return {"properties.bootstrap.servers": wire.servers, "topic": topic, "format": "json", **named}


EARLIEST = {"scan__startup__mode": "earliest-offset"}


def read(spark: SparkSession, options: dict[str, str], schema: str, name: str = "kafka-table") -> DataFrame:
    return spark.read.format(name).schema(schema).options(**options).load()


def test_b56_b57_rows_go_from_spark_to_kafka_and_back(spark: SparkSession, wire: Wire, made: Topics) -> None:
    """Both connectors work from the DataFrame API with nothing but this package: a topic is written and read back."""
    topic = made(2)
    options = given(wire, topic, **EARLIEST)
    assert read(spark, options, "id BIGINT, v STRING").collect() == []
    frame = spark.range(100).select("id", F.concat(F.lit("v"), "id").alias("v"))
    frame.write.format("kafka-table").options(**options).mode("append").save()
    found = read(spark, options, "id BIGINT, v STRING")
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, frame.collect()))
    frame.write.format("kafka-table").options(**options).mode("append").save()
    assert found.count() == 200, "each query of a frame reads what is there"
    upserts = made(2, cleanup_policy="compact")
    keyed = {"properties.bootstrap.servers": wire.servers, "topic": upserts, "primary-key": "id",
             "key.format": "json", "value.format": "json"}  # fmt: skip
    for suffix in ("a", "b"):
        spark.range(10).withColumn("v", F.lit(suffix)).write.format("upsert-kafka").options(**keyed).mode(
            "append"
        ).save()
    rows = read(spark, keyed, "id BIGINT, v STRING", "upsert-kafka").collect()
    assert sorted(map(tuple, rows)) == [(n, "b") for n in range(10)]


def test_a_stream_runs_from_topic_to_topic_and_commits_its_group(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path
) -> None:
    source, target = made(2), made(2)
    wire.send(source, [Record(json.dumps({"n": n}).encode(), partition=n % 2) for n in range(10)])
    options = given(wire, source, **EARLIEST, properties__group__id=f"g-{source}", maxRowsPerTrigger="4")
    frame = spark.readStream.format("kafka-table").schema("n INT").options(**options).load()
    checkpoint = str(tmp_path / "checkpoint")
    exactly = given(wire, target, sink__delivery_guarantee="exactly-once", sink__transactional_id_prefix=f"t-{target}")

    def run() -> None:
        writer = frame.where("n <> 5").writeStream.format("kafka-table").options(**exactly)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE_SECONDS)

    run()
    assert sorted(json.loads(v or b"")["n"] for v in wire.values(target)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert wire.committed(f"g-{source}", source, [0, 1]) == [5, 5]
    wire.send(source, [Record(b'{"n":10}')])
    run()
    assert len(wire.values(target)) == 10


def test_m08_a_timestamp_without_zone_is_in_the_sessions_time_zone(
    spark: SparkSession, wire: Wire, made: Topics
) -> None:
    """`event_ts TIMESTAMP(3) METADATA FROM 'timestamp'`: the record's instant in the session's time zone."""
    topic = made()
    wire.send(topic, [Record(b'{"n":1}', timestamp=1_700_000_000_123)])
    options = given(wire, topic, **EARLIEST) | {"metadata.event_ts": "timestamp"}
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone, text in [("Asia/Tokyo", "2023-11-15 07:13:20.123"), ("America/New_York", "2023-11-14 17:13:20.123")]:
            spark.conf.set("spark.sql.session.timeZone", zone)
            frame = read(spark, options, "n INT, event_ts TIMESTAMP_NTZ")
            assert frame.select(F.col("event_ts").cast("string")).collect()[0][0] == text
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def test_a_secret_is_in_no_plan_and_no_error(spark: SparkSession, wire: Wire, made: Topics, capfd: Any) -> None:
    topic = made()
    password = "tr0ub4dor-and-3"
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{password}";'
    options = given(wire, topic, **EARLIEST) | {
        "properties.security.protocol": "SASL_PLAINTEXT",
        "properties.sasl.mechanism": "PLAIN",
        "properties.sasl.jaas.config": jaas,
    }
    frame = read(spark, options, "n INT")
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert password not in str(caught.value)
    frame.explain(extended=True)
    out, err = capfd.readouterr()
    assert password not in out + err


def test_c19_updates_into_a_standard_table_are_refused(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path
) -> None:
    """A sink that only appends rejects an updating aggregation; windows with a watermark work."""
    source, target = made(), made()
    frame = spark.readStream.format("kafka-table").schema("n INT").options(**given(wire, source, **EARLIEST)).load()
    wire.send(source, [b'{"n":1}'])
    for mode in ("update", "complete"):
        counted = frame.groupBy("n").count().writeStream.outputMode(mode).format("kafka-table")
        where = {"checkpointLocation": str(tmp_path / mode), **given(wire, target)}
        with pytest.raises(Exception, match=r"(?i)update"):
            counted.options(**where).trigger(availableNow=True).start().awaitTermination(PATIENCE_SECONDS)
    assert wire.values(target) == []


def keyed(wire: Wire, topic: str, **more: str) -> dict[str, str]:
    return {
        "properties.bootstrap.servers": wire.servers, "topic": topic, "primary-key": "k",
        "key.format": "json", "value.format": "json",
        **{name.replace("__", ".").replace("_", "-"): value for name, value in more.items()},
    }  # fmt: skip


def test_o09_o20_sink_parallelism_is_the_number_of_tasks(spark: SparkSession, wire: Wire, made: Topics) -> None:
    """`sink.parallelism` = 2: two tasks write, and each key stays in order; the data source alone rejects more."""
    topic = made(4)
    frame = spark.range(0, 60, 1, 6).withColumn("v", F.lit("x"))
    options = given(wire, topic, sink__parallelism="2", sink__partitioner="fixed")
    write(frame, "kafka", options)
    assert {record.partition for record in wire.read(topic)} == {0, 1}
    with pytest.raises(PySparkException, match=r"sink\.parallelism"):
        frame.write.format("kafka-table").options(**options).mode("append").save()
    upserts = made(8, cleanup_policy="compact")
    changes = spark.range(0, 20, 1, 3).select(
        F.col("id").alias("k"), F.explode(F.array(*[F.lit(n) for n in range(5)])).alias("v")
    )
    write(changes, "upsert-kafka", keyed(wire, upserts, sink__parallelism="2"))
    by_key: dict[bytes | None, list[int]] = {}
    for record in wire.read(upserts):
        by_key.setdefault(record.key, []).append(json.loads(record.value or b"")["v"])
    assert by_key == {f'{{"k":{k}}}'.encode(): [0, 1, 2, 3, 4] for k in range(20)}


def test_scan_parallelism_is_the_most_tasks_that_read(spark: SparkSession, wire: Wire, made: Topics) -> None:
    topic = made(4)
    wire.send(topic, [Record(b'{"id":1}', partition=number) for number in range(4)])
    for tasks in (1, 3):
        frame = read_table(spark, "kafka", "id INT", given(wire, topic, **EARLIEST, scan__parallelism=str(tasks)))
        assert frame.rdd.getNumPartitions() == tasks
        assert frame.count() == 4
    with pytest.raises(InvalidInputError, match=r"scan\.parallelism"):
        read_table(spark, "kafka", "id INT", given(wire, topic, scan__parallelism="0"))


def test_b14_updating_results_go_to_an_upsert_table_once(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path
) -> None:
    """An updating aggregation of two sources writes one row for each identifier into an upsert table."""
    one, two, target = made(), made(), made(2, cleanup_policy="compact")
    options = given(wire, f"{one};{two}", **EARLIEST)
    frame = spark.readStream.format("kafka-table").schema("k INT, a INT, b INT").options(**options).load()
    joined = frame.where("k < 100").groupBy("k").agg(F.max("a").alias("a"), F.max("b").alias("b"))
    exactly = {"sink__delivery_guarantee": "exactly-once", "sink__transactional_id_prefix": f"t-{target}"}
    where = keyed(wire, target, **exactly) | {"checkpointLocation": str(tmp_path / "checkpoint")}

    def run() -> None:
        query = write_stream(joined, "upsert-kafka", where, output_mode="update").trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE_SECONDS)

    wire.send(one, [b'{"k":1,"a":10}', b'{"k":2,"a":20}', b'{"k":100,"a":1}'])
    run()
    wire.send(two, [b'{"k":1,"b":11}'])
    run()
    found = read_table(spark, "upsert-kafka", "k INT, a INT, b INT", keyed(wire, target)).collect()
    assert sorted(map(tuple, found)) == [(1, 10, 11), (2, 20, None)]
    assert len(wire.read(target)) == 3
    with pytest.raises(InvalidInputError, match="doesn't support consuming update changes"):
        write_stream(joined, "kafka", given(wire, target), output_mode="update")


def test_b16_filters_and_windows_go_to_a_standard_table(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path
) -> None:
    """Filters, projections and an append-only aggregation (a tumbling window with a watermark) need no upserts."""
    source, target = made(), made()
    options = given(wire, source, **EARLIEST)
    frame = spark.readStream.format("kafka-table").schema("ts TIMESTAMP, n INT").options(**options).load()
    counted = frame.where("n > 0").withWatermark("ts", "2 seconds").groupBy(F.window("ts", "10 seconds")).count()
    shown = counted.select(F.unix_timestamp("window.start").alias("start"), "count")
    where = given(wire, target) | {"checkpointLocation": str(tmp_path / "checkpoint")}
    wire.send(
        source,
        [
            f'{{"ts":"2024-01-02 00:00:{second:02}Z","n":{n}}}'.encode()
            for second, n in [(1, 1), (2, 0), (3, 5), (30, 1)]
        ],
    )
    with shuffle_partitions(spark, 1):
        write_stream(shown, "kafka", where).trigger(availableNow=True).start().awaitTermination(PATIENCE_SECONDS)
    assert wire.values(target) == [b'{"start":1704153600,"count":2}']
