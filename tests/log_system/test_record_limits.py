"""A row that the log would not take is refused before it is committed; the limits are the topic's and the client's."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from log_system.formats import open_format
from log_system.formats.record_sizes import field_count, largest_row, row_sizes
from log_system.kafka.client.connect import KafkaClient, discarding, flush, kafka_errors, take_over
from log_system.kafka.record_limits import record_limit
from snapshot.errors import InvalidInputError
from snapshot.row_kind import RowKind
from tablestore import PublishPendingError, TableStore
from tablestore.context import TableContext
from tablestore.write.writer import Writer
from tests.harness import schema_strategies as tables
from tests.harness.local_writes import drain_raw, make_table, publisher_of, rows_of, write
from tests.harness.plain_topics import make_topic
from tests.harness.spark_tables import frame, make, rows
from tests.tablestore.write.test_format_commit import limit_records

FORMATS = ["json", "arrow", "debezium-json"]
DEFAULT = 1_048_588


def text(size: int) -> str:
    """Make a text that does not compress to less than three quarters."""
    return "".join(random.Random(size).choices(string.ascii_letters, k=size))


def writer_of(path: Path) -> Writer:
    table = TableContext.open(str(path))
    return Writer(table, publisher_of(table))


def files(path: Path) -> set[Path]:
    return {p for p in path.rglob("*.parquet") if "_delta_log" not in p.parts}


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_row_that_the_topic_does_not_take_is_refused_and_nothing_is_committed(
    servers: str, tmp_path: Path, topic: Callable[[], str], form: str, key: bool
) -> None:
    name, path = topic(), tmp_path / "t"
    make_table(path, servers, name, key=key, log__format=form)
    writer = writer_of(path)
    write(writer, [(1, "small")])
    before = files(path)
    refused = (
        rf"row with id=7.*would have 2,\d{{3}},\d{{3}} bytes.*at most 1,048,076.*message\.max\.bytes=1048588 of the "
        rf"broker.*'{name}'.*kafka-configs\.sh"
    )
    with pytest.raises(InvalidInputError, match=refused):
        write(writer, [(6, "small"), (7, text(2_000_000)), (8, "small")])
    assert files(path) == before
    assert writer.table.files.latest() == 1
    # More than a client takes by default, and less than the topic does.
    write(writer, [(9, text(1_030_000))])
    limit_records(servers, name, 3_000_000)
    write(writer, [(7, text(2_000_000))])
    assert TableContext.open(str(path)).newest_visible() == 3
    sizes = [len(m.value()) for part in drain_raw(servers, name, 2) for m in part]
    assert sum(size > 1_000_000 for size in sizes) == 2


@pytest.mark.parametrize("form", FORMATS)
def test_a_topic_that_takes_little_is_given_small_batches(
    servers: str, tmp_path: Path, topic: Callable[[], str], form: str
) -> None:
    name, path = topic(), tmp_path / "t"
    make_table(path, servers, name, log__format=form)
    limit_records(servers, name, 30_000)
    writer = writer_of(path)
    write(writer, [(n, text(100 + n)) for n in range(2_000)])
    with pytest.raises(InvalidInputError, match=rf"row with id=1:.*at most 29,488.*=30000 of topic '{name}'"):
        write(writer, [(1, text(29_500))])
    write(writer, [(1, text(28_000))])
    assert TableContext.open(str(path)).newest_visible() == 2


def test_a_key_counts_twice(servers: str, tmp_path: Path, spark: SparkSession, topic: Callable[[], str]) -> None:
    options = {"kafka.bootstrap.servers": servers, "kafka.topic": topic(), "bucket": 1}
    table = TableStore.create(spark, tmp_path / "t", "k string", primary_key=["k"], log_system="kafka", options=options)
    with pytest.raises(InvalidInputError, match=r"row with k='[a-zA-Z]{100,120}\.\.\.: its log record would have 1,2"):
        table.write(frame(spark, [(text(600_000),)], "k string"))
    assert table.snapshots()[0].id == 0


def test_an_eventual_log_gets_no_record_of_a_batch_with_a_row_too_large(
    servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    name, path = topic(), tmp_path / "t"
    make_table(path, servers, name, log__consistency="eventual", bucket=1)
    writer = writer_of(path)
    with pytest.raises(InvalidInputError, match="row with id=7"):
        write(writer, [(7, text(2_000_000))])
    assert drain_raw(servers, name, 1) == [[]]
    write(writer, [(7, text(1_030_000))])
    assert TableContext.open(str(path)).newest_visible() == 1


def test_a_limit_lowered_later_leaves_a_snapshot_pending_until_it_is_raised(
    servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    name, path = topic(), tmp_path / "t"
    make_table(path, servers, name)
    writer = writer_of(path)
    write(writer, [(1, text(500_000))])
    limit_records(servers, name, 200_000)
    for number in (2, 3):
        with pytest.raises(PublishPendingError, match=f"snapshot {number} is committed.*max.message.bytes") as caught:
            write(writer, [(number, text(500_000))])
        assert caught.value.snapshot == number
        assert isinstance(caught.value.__cause__, InvalidInputError)
    limit_records(servers, name, DEFAULT)
    write(writer, [(4, "small")])
    assert TableContext.open(str(path)).newest_visible() == 4
    assert sorted(rows_of(writer.table)) == [1, 2, 3, 4]


def test_a_record_after_one_that_was_refused_names_the_reason(servers: str, topic: Callable[[], str]) -> None:
    """Also where a later snapshot of the same transaction, or another partition, has the second record."""
    name, client = topic(), KafkaClient({"bootstrap.servers": servers})
    make_topic(servers, name)
    limit_records(servers, name, 200_000)
    with discarding(client.producer(name)) as producer:
        take_over(producer, client.wait_seconds)
        producer.begin_transaction()
        producer.produce(name, text(500_000))
        flush(producer, client.wait_seconds)
        refused = pytest.raises(InvalidInputError, match=r"max\.message\.bytes of the topic")
        with refused, kafka_errors("publish", client, handle=producer):
            producer.produce(name, b"small")


def test_the_clients_own_limit_is_named_and_raised_in_the_same_handle(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    table = make(spark, tmp_path / "t", servers, topic(), kafka__message__max__bytes=100_000)
    large = frame(spark, [(7, text(300_000))])
    with pytest.raises(InvalidInputError, match=r"id=7.*option 'kafka.message.max.bytes'=100000.*set_options"):
        table.write(large)
    assert table.alter.set_options({"kafka.message.max.bytes": 1_000_000}) is not None
    made = table.write(large)
    assert made is not None
    assert made.id == 2
    assert rows(table.read()) == {7: text(300_000)}


def test_options_that_let_a_pending_snapshot_be_published_are_set_without_an_error(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    table = make(spark, tmp_path / "t", servers, name)
    limit_records(servers, name, 110)
    with pytest.raises(PublishPendingError):
        table.write(frame(spark, [(1, "a")]))
    made = table.alter.set_options({"kafka.message.max.bytes": 1_000_000})
    assert made is not None
    assert "the write is done; publishing after it failed" in caplog.text
    assert table.options.log.kafka.client["message.max.bytes"] == "1000000"
    limit_records(servers, name, DEFAULT)
    assert [entry.snapshot for entry in table.recover()] == [1, 2]


@given(st.data())
def test_no_record_is_larger_than_its_row_is_taken_to_be(data: st.DataObject) -> None:
    schema, key = data.draw(tables.tables())
    batch = data.draw(tables.changes(schema, key, [RowKind.INSERT]))
    plain = batch.select(schema.names)
    if not plain.num_rows:
        return
    sizes = row_sizes(plain)
    assert largest_row(plain) >= 0
    for form in ("json", "debezium-json"):
        records = open_format(form, schema, key).encode(batch)
        lengths = pc.fill_null(pc.binary_length(records.value_column), 0).to_numpy(zero_copy_only=False)
        assert (lengths <= sizes + 512).all()
        assert lengths.max() <= largest_row(plain) + 512
    for number in range(plain.num_rows):
        records = open_format("arrow", schema, key).encode(batch.slice(number, 1))
        largest = row_sizes(plain, 1)[number] * 1.02 + 512 * (field_count(schema) + 2)
        assert len(records.value_column[0].as_py()) <= largest


def test_of_small_rows_nobody_is_asked(servers: str) -> None:
    assert record_limit(KafkaClient({"bootstrap.servers": servers}), "no-such-topic") is None
