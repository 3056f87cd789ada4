"""A credential that a program gives is in nothing that Spark shows or writes down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from log_system.local_kafka.owned import LocalKafka
from tablestore import TableStore
from tests.harness.spark_tables import frame, log_options
from tests.harness.waiting import PATIENCE_SECONDS

PASSWORD = "tr0ub4dor-and-3"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: Names that Spark's own redaction knows, and some that it does not.
GIVEN = ("sasl.password", "ssl.key.password", "sasl.oauthbearer.config")
AVAILABLE: dict[str, Any] = {"availableNow": True}


@contextmanager
def event_log(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Write Spark's event log, which is what its UI and history server show, into a folder for a while."""
    jvm, context = spark.sparkContext._jvm, spark.sparkContext._jsc.sc()
    conf = jvm.org.apache.spark.SparkConf().set("spark.eventLog.compress", "false")
    conf = conf.set("spark.eventLog.rolling.enabled", "false")
    writer = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "app",
        jvm.scala.Option.empty(),
        jvm.java.net.URI(folder.as_uri()),
        conf.set("spark.eventLog.rolling.enabled", "false"),
    )
    writer.start()
    context.addSparkListener(writer)
    try:
        yield
    finally:
        context.listenerBus().waitUntilEmpty()
        context.removeSparkListener(writer)
        writer.stop()


def finished(changes: DataFrame, format_: str, checkpoint: Path, **options: str) -> None:
    """Run a stream until it has read what is there."""
    writer = changes.writeStream.format(format_).options(**options).option("checkpointLocation", str(checkpoint))
    writer.trigger(**AVAILABLE).start().awaitTermination(PATIENCE_SECONDS)


def test_a_given_credential_is_in_no_event_plan_checkpoint_table_or_log(
    spark: SparkSession,
    kafka: LocalKafka,
    topic: Callable[[], str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folders = [tmp_path / name for name in ("events", "t", "of_table", "of_source", "of_sink")]
    folders[0].mkdir()
    servers, secrets = kafka.bootstrap_servers, {f"kafka.{name}": PASSWORD for name in GIVEN}
    connector = {f"properties.{name}": PASSWORD for name in GIVEN} | {
        "properties.bootstrap.servers": servers,
        "properties.sasl.jaas.config": f'{PLAIN} required username="u" password="{PASSWORD}";',
        "format": "json",
        "topic": topic(),
        "scan.startup.mode": "earliest-offset",
    }
    with caplog.at_level(logging.DEBUG, logger="tablestore"), event_log(spark, folders[0]):
        options = log_options(servers, topic())
        store = TableStore.create(
            spark, folders[1], "id bigint, v string", primary_key=["id"], log_system="kafka", options=options,
            client_options=secrets,
        )  # fmt: skip
        store.write(frame(spark, [(1, "a")]))
        finished(store.read_stream(), "noop", folders[2])
        by_format = spark.read.format("tablestore").options(**secrets).load(store.path)
        assert by_format.count() == 1
        frame(spark, [(2, "b")]).write.format("tablestore").options(**secrets).mode("append").save(store.path)
        spark.range(2).write.format("kafka-table").options(**connector).mode("append").save()
        source = spark.readStream.format("kafka-table").schema("id bigint").options(**connector).load()
        finished(source, "noop", folders[3])
        finished(source, "kafka-table", folders[4], **connector)
        for plan in (store.read(), by_format, source):
            plan.explain(extended=True)
        assert store.read().count() == 2
    written = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert len(written) > 20
    assert any(b"kafka-table" in file.read_bytes() for file in folders[0].iterdir())
    assert [file for file in written if PASSWORD.encode() in file.read_bytes()] == []
    out, err = capfd.readouterr()
    assert "Physical Plan" in out
    assert PASSWORD not in out + err + caplog.text
    assert PASSWORD not in repr(store) + repr(vars(store))
