"""``format("tablestore")``: what is committed keeps its files, whatever fails afterwards and whoever clears up."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType

from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.delta.log import DeltaLog
from snapshot.errors import (
    ConflictError,
    DataLostError,
    NotFoundError,
    OutcomeUnknownError,
    TableReplacedError,
    UnavailableError,
)
from snapshot.records import CommitId
from snapshot.schema.evolution import AddColumn, DropColumn
from tablestore import PublishPendingError, TableStore, create_local, datasource, open_local
from tablestore.context import TableContext
from tablestore.datasource import TableStoreDataSource, TableWriter
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.write import publish
from tests.harness.faults import failing
from tests.harness.local_writes import SCHEMA, make_table, recover_at
from tests.harness.spark_tables import AVAILABLE, assert_log_is_table, frame, make, rows

ROWS = pa.RecordBatch.from_pydict({"id": [1, 2], "v": ["a", "b"]})
REFUSED = DataLostError("the topic was recreated")


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


@pytest.mark.parametrize("step", ["take_over", "publish"])
def test_a_micro_batch_waits_while_brokers_do_not_answer(
    table: TableContext, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "ATTEMPTS_MAX", 1)
    sink, down = writer_of(table)._sink, UnavailableError("the broker is away")
    for number in range(2):
        staged = [sink.stage(iter([ROWS]))]
        # What has never been answered fails at once.
        raised = nullcontext() if number else pytest.raises(UnavailableError, match="the broker is away")
        with failing(KafkaPublisher, step, down, hits=range(1, 4)) as calls, raised:
            sink.commit(staged, CommitId("query", number, durable=True))
        assert (calls() > 3) is (number > 0)
    written = [2, 1] if step == "publish" else [1]
    assert [s.id for s in table.files.snapshots() if s.rows] == written
    assert table.newest_visible() == table.files.latest()


def test_a_micro_batch_is_committed_for_the_columns_for_which_it_was_staged(
    table: TableContext, tmp_path: Path
) -> None:
    """Spark plans the write of a micro-batch again where it commits it."""
    (tmp_path / "metadata").write_text('{"id": "query"}')

    def planned() -> TableWriter:
        source = TableStoreDataSource({"path": table.path, "checkpointLocation": str(tmp_path)})
        return source.streamWriter(SCHEMA, overwrite=False)

    messages = [planned().write(iter([ROWS]))]
    with open_local(table.path) as other:
        other.alter(DropColumn("v"), AddColumn("v", StringType()))
    with pytest.raises(ConflictError, match="its columns were changed"):
        planned().commit(messages, 0)
    assert parquet(table) == set()
    planned().commit([planned().write(iter([ROWS]))], 0)
    assert open_local(table.path).to_arrow().sort_by("id").to_pydict() == {"id": [1, 2], "v": ["a", "b"]}


@pytest.mark.parametrize("is_there", [True, False], ids=["replaced", "dropped"])
def test_rows_that_were_staged_for_a_table_go_into_no_other_one(table: TableContext, is_there: bool) -> None:
    writer = writer_of(table)
    log = table.options.log
    assert log is not None
    create_drop.drop(table)
    if is_there:
        given = {"bucket": 2, "kafka.bootstrap.servers": log.kafka.bootstrap_servers, "kafka.topic": log.kafka.topic}
        create_drop.create(
            TableDefinition(table.path, SCHEMA, primary_key=table.spec.primary_key, log_system="kafka", options=given)
        )
    # The folder has the name that it had when the write was planned.
    message = elsewhere(writer).write(iter([ROWS]))
    for batch in (None, CommitId("query", 1, durable=True)):
        with pytest.raises(TableReplacedError if is_there else NotFoundError):
            elsewhere(writer)._sink.commit([message], batch)
    assert parquet(table) == set()
    if is_there:
        assert TableContext.open(table.path).files.latest() == 0
    else:
        make_table(Path(table.path), log.kafka.bootstrap_servers, f"{log.kafka.topic}-again")


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


def test_spark_says_that_the_table_of_a_micro_batch_was_replaced(spark: SparkSession, tmp_path: Path) -> None:
    source = make(spark, tmp_path / "source", key=False)
    source.write(frame(spark, [(1, "a")]))
    path = make(spark, tmp_path / "t", key=False).path

    def replacing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            create_drop.drop_at(path)
            create_local(path, "other date")
            yield batch

    stream = source.read_stream().select("id", "v").mapInArrow(replacing, SCHEMA)
    writer = stream.writeStream.format("tablestore").option("path", path)
    writer = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(**AVAILABLE)
    with pytest.raises(PySparkException, match=r"^table '.*' was dropped and created again"):
        writer.start().awaitTermination()
    assert open_local(path).count() == 0


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
