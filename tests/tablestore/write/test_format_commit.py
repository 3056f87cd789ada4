"""``format("tablestore")``: what is committed keeps its files, whatever fails afterwards and whoever clears up."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.delta.log import DeltaLog
from snapshot.errors import DataLostError, OutcomeUnknownError, UnavailableError
from snapshot.records import CommitId
from tablestore import PublishPendingError, TableStore, datasource
from tablestore.context import TableContext
from tablestore.datasource import TableStoreDataSource, TableWriter
from tests.harness.faults import failing
from tests.harness.local_writes import SCHEMA, make_table, recover_at
from tests.harness.spark_tables import AVAILABLE, assert_log_is_table, frame, make, rows

ROWS = pa.RecordBatch.from_pydict({"id": [1, 2], "v": ["a", "b"]})
REFUSED = DataLostError("the topic was recreated")


@pytest.fixture
def servers(kafka: Any) -> str:
    return kafka.bootstrap_servers


@pytest.fixture(params=[True, False], ids=["key", "append"])
def table(request: pytest.FixtureRequest, servers: str, tmp_path: Path, topic: Callable[[], str]) -> TableContext:
    return make_table(tmp_path / "t", servers, topic(), key=request.param)


def writer_of(table: TableContext) -> TableWriter:
    """Plan a write; Spark pickles it for the processes in which it stages, commits and aborts."""
    return TableStoreDataSource({"path": table.path}).writer(SCHEMA, overwrite=False)


def elsewhere(writer: TableWriter) -> TableWriter:
    """Give what another process of Spark's gets."""
    return pickle.loads(pickle.dumps(writer))


def parquet(table: TableContext) -> set[Path]:
    return {p for p in Path(table.path).rglob("*.parquet") if "_delta_log" not in p.parts}


def test_an_abort_after_the_commit_leaves_the_snapshot_its_files(table: TableContext) -> None:
    writer = writer_of(table)
    messages = [elsewhere(writer).write(iter([ROWS]))]
    staged = parquet(table)
    pending = r"snapshot 1 is committed but not yet in the log.*recreated.*Do not write the rows again"
    with failing(KafkaPublisher, "publish", REFUSED), pytest.raises(PublishPendingError, match=pending) as caught:
        elsewhere(writer).commit(messages)
    assert caught.value.snapshot == 1
    elsewhere(writer).abort(messages)
    assert parquet(table) == staged != set()
    recover_at(Path(table.path), table.options.buckets)
    assert table.newest_visible() == 1


def test_an_abort_leaves_files_that_a_commit_without_an_answer_may_yet_list(table: TableContext) -> None:
    writer = writer_of(table)
    messages = [elsewhere(writer).write(iter([ROWS]))]
    staged = parquet(table)
    lost = OutcomeUnknownError("no answer")
    with failing(DeltaLog, "commit", lost, hits=range(1, 9)), pytest.raises(OutcomeUnknownError):
        elsewhere(writer).commit(messages)
    elsewhere(writer).abort(messages)
    assert parquet(table) == staged


@pytest.mark.parametrize("step", ["task", "recover", "commit"])
def test_files_are_removed_where_nothing_was_committed(table: TableContext, step: str) -> None:
    writer = writer_of(table)
    message = elsewhere(writer).write(iter([ROWS]))
    down = UnavailableError("no room")
    if step == "task":
        elsewhere(writer).abort([message, None])
    else:
        owner, name = (KafkaPublisher, "take_over") if step == "recover" else (DeltaLog, "commit")
        with failing(owner, name, down, hits=range(1, 20)), pytest.raises(UnavailableError):
            elsewhere(writer).commit([message])
        elsewhere(writer).abort([message])
    assert parquet(table) == set()
    assert table.files.latest() == 0


def test_a_micro_batch_that_landed_keeps_its_files_when_it_is_committed_again(table: TableContext) -> None:
    sink = writer_of(table)._sink
    batch = CommitId("query", 0, durable=True)
    first, second = (sink.stage(iter([ROWS])) for _ in range(2))
    with failing(KafkaPublisher, "publish", REFUSED), pytest.raises(PublishPendingError):
        sink.commit([first], batch)
    sink.abort([first])
    kept = parquet(table)
    sink.commit([second], batch)
    sink.commit([first], batch)
    of_second = {str(row["path"]).rpartition("/")[2] for row in second.rows}
    assert parquet(table) == {path for path in kept if path.name not in of_second} != kept
    assert (table.files.latest(), table.newest_visible()) == (1, 1)


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError("gone"), DataLostError("gone")])
def test_an_expiry_that_fails_after_the_write_is_a_warning(
    table: TableContext, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_of(table)
    message = elsewhere(writer).write(iter([ROWS]))
    with failing(datasource, "expire_if_due", error):
        elsewhere(writer).commit([message])
    assert "the write is done; expiring after it failed" in caplog.text
    assert table.newest_visible() == 1


def limit_records(servers: str, topic: str, size: int) -> None:
    """Set the largest batch of records that the topic takes."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


@pytest.fixture
def refused(spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]) -> TableStore:
    """A table whose topic takes the markers of transactions and no record."""
    made = make(spark, tmp_path / "t", servers, topic())
    assert made.options.log is not None
    limit_records(servers, made.options.log.kafka.topic, 110)
    return made


def test_spark_keeps_what_is_committed_and_says_so(spark: SparkSession, servers: str, refused: TableStore) -> None:
    name = refused.options.log.kafka.topic
    source = frame(spark, [(1, "a")])
    with pytest.raises(PySparkException, match="snapshot 1 is committed but not yet in the log"):
        source.write.format("tablestore").mode("append").save(refused.path)
    assert rows(refused.read()) == {1: "a"}
    limit_records(servers, name, 1_048_588)
    assert [entry.snapshot for entry in refused.recover()] == [1]
    assert_log_is_table(refused, servers, name)


def test_spark_repeats_a_micro_batch_that_landed(
    spark: SparkSession, servers: str, refused: TableStore, tmp_path: Path
) -> None:
    name = refused.options.log.kafka.topic
    source = make(spark, tmp_path / "source", key=False)
    source.write(frame(spark, [(1, "a")]))

    def run(stream: DataFrame) -> None:
        writer = stream.select("id", "v").writeStream.format("tablestore").option("path", refused.path)
        writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(**AVAILABLE).start().awaitTermination()

    with pytest.raises(PySparkException, match="snapshot 1 is committed but not yet in the log"):
        run(source.read_stream())
    limit_records(servers, name, 1_048_588)
    run(source.read_stream())
    assert rows(refused.read()) == {1: "a"}
    assert refused.snapshots()[0].id == 1
    assert_log_is_table(refused, servers, name)
