"""A topic that is deleted, or deleted and created again, under a reader that waits: an error within seconds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.messages import Wanted
from log_system.kafka.client.range_reader import read_records
from log_system.kafka.client.topic import delete_topic
from log_system.kafka.publisher.eager_producer import KafkaLogSink
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import DataLostError, NotFoundError, TableStoreError
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.local.table import LocalTable
from tablestore.options.read_options import parse_read_options
from tablestore.streaming.change_feed import Feed
from tablestore.streaming.eventual_stream import EventualStream
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tests.connectors.harness.lab import Lab
from tests.connectors.harness.wire import Record, Wire
from tests.harness.damage import Damaged
from tests.harness.faults import preceded
from tests.harness.local_writes import make_table
from tests.harness.plain_topics import make_topic
from tests.harness.table_harness import TableHarness
from tests.harness.waiting import PATIENCE_SECONDS

SECONDS_MAX = 10.0
ALL = ReadAllAvailable()
GONE = [pytest.param(NotFoundError, "no topic", id="deleted"), pytest.param(DataLostError, "created again", id="anew")]
gone = pytest.mark.parametrize(("error", "word"), GONE)


@pytest.fixture
def damaged(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Damaged:
    return Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t")


def take_away(damaged: Damaged, error: type[TableStoreError]) -> None:
    if error is NotFoundError:
        damaged.drop_topic()
    else:
        damaged.recreate_topic()


def fails_soon(step: Callable[[], Any], error: type[TableStoreError], word: str) -> None:
    """Repeat a step, which a reader does while it waits, until it fails."""
    begun = time.monotonic()

    def steps() -> None:
        while time.monotonic() - begun < SECONDS_MAX:
            step()
            time.sleep(0.1)

    with pytest.raises(error, match=word):
        steps()


@gone
def test_a_tail_that_waits_for_a_topic_that_is_gone_fails(
    damaged: Damaged, error: type[TableStoreError], word: str
) -> None:
    tail = LocalTable(TableContext.open(str(damaged.path))).tail(poll_seconds=0.1)
    take_away(damaged, error)
    begun = time.monotonic()
    with pytest.raises(error, match=word):
        next(tail)
    assert time.monotonic() - begun < SECONDS_MAX


@gone
def test_a_query_that_waits_for_a_topic_that_is_gone_fails(
    damaged: Damaged, error: type[TableStoreError], word: str
) -> None:
    table = damaged.open()
    options = parse_read_options({"path": table.path, "readChangeFeed": "true", "scan-mode": "latest"})
    stream = SnapshotStream(options, feed_schema(table.spec))
    start = stream.initialOffset()
    take_away(damaged, error)
    fails_soon(lambda: stream.latestOffset(start, ALL), error, word)


@gone
def test_a_query_on_an_eventual_log_that_is_gone_fails(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], error: type[TableStoreError], word: str
) -> None:
    name, path = topic(), tmp_path / "t"
    table = make_table(path, kafka.bootstrap_servers, name, log__consistency="eventual")
    options = parse_read_options({"path": table.path, "readChangeFeed": "true", "scan-mode": "latest"})
    stream = EventualStream(options, feed_schema(table.spec))
    start = stream.initialOffset()
    delete_topic(table.log.settings.client, name)
    if error is DataLostError:
        make_topic(kafka.bootstrap_servers, name, 2)
    begun = time.monotonic()
    fails_soon(lambda: stream.latestOffset(start, ALL), error, word)
    assert time.monotonic() - begun < SECONDS_MAX


def test_a_plan_of_a_topic_that_was_deleted_fails(damaged: Damaged) -> None:
    damaged.drop_topic()
    with pytest.raises(NotFoundError, match="no topic"):
        Feed(damaged.open()).parts(0, 4)


def test_a_plan_of_a_topic_that_was_created_again_reads_the_tables_files(damaged: Damaged) -> None:
    expected = sum(batch.num_rows for part in Feed(damaged.open()).parts(0, 4) for batch in part.read())
    damaged.recreate_topic()
    found = sum(batch.num_rows for part in Feed(damaged.open()).parts(0, 4) for batch in part.read())
    assert found == expected > 0


def test_a_task_that_waits_for_records_of_a_topic_that_is_gone_fails(damaged: Damaged) -> None:
    (part, *_) = Feed(damaged.open()).parts(0, 4)
    damaged.drop_topic()
    begun = time.monotonic()
    with pytest.raises(NotFoundError, match="no topic"):
        list(part.read())
    assert time.monotonic() - begun < SECONDS_MAX


@gone
def test_after_a_repair_readers_go_on_with_the_topic_that_was_made_anew(
    damaged: Damaged, error: type[TableStoreError], word: str
) -> None:
    before = damaged.open().spec.topic_id
    take_away(damaged, error)
    assert damaged.repair().ok
    spec = damaged.open().spec
    assert spec.topic_id not in ("", before)
    # A topic that somebody else has made is not the table's to delete.
    assert spec.owns_topic is (error is NotFoundError)
    damaged.write(5)
    found = LocalTable(damaged.open()).tail(scan_mode="earliest", follow=False)
    assert sum(batch.num_rows for batch in found) == 4 * 12 + 2


@gone
@pytest.mark.parametrize("kind", ["kafka", "upsert-kafka"])
def test_a_connectors_query_on_a_topic_that_is_gone_fails(
    kafka: LocalKafka, topic: Callable[[], str], kind: str, error: type[TableStoreError], word: str
) -> None:
    wire, name = Wire(kafka.bootstrap_servers), topic()
    wire.make(name)
    wire.send(name, [Record(b'{"k": 1}', b'{"k": 1}')])
    columns = "k INT, _change_type STRING" if kind == "upsert-kafka" else "k INT"
    options = {"primary_key": "k"} if kind == "upsert-kafka" else {"scan__topic_partition_discovery__interval": "0 ms"}
    stream = Lab(wire).stream(name, columns, kind, **options)
    assert len(stream.run()) == 1
    wire.admin.delete_topics([name])[name].result()
    if error is DataLostError:
        time.sleep(0.5)
        wire.make(name)
        # As many records as before: by its offsets alone it could be the old topic.
        wire.send(name, [Record(b'{"k": 2}', b'{"k": 2}')] * 3)
    fails_soon(stream.run, error, word)


def test_a_connectors_query_goes_on_with_a_topic_made_anew_where_its_options_say_so(
    kafka: LocalKafka, topic: Callable[[], str]
) -> None:
    wire, name = Wire(kafka.bootstrap_servers), topic()
    wire.make(name)
    wire.send(name, [b'{"k": 1}'])
    stream = Lab(wire).stream(name, "k INT", properties__auto__offset__reset="earliest")
    assert stream.run() == [{"k": 1}]
    wire.admin.delete_topics([name])[name].result()
    time.sleep(0.5)
    wire.make(name)
    wire.send(name, [b'{"k": 2}', b'{"k": 3}'])
    found: list[dict[str, Any]] = []
    until = time.monotonic() + SECONDS_MAX
    while not found and time.monotonic() < until:
        found = stream.run()
        time.sleep(0.1)
    assert found == [{"k": 2}, {"k": 3}]


LEFT_HALFWAY = """
import sys
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.messages import Wanted
from log_system.kafka.client.range_reader import read_records
from log_system.kafka.client import range_reader as ranges
ranges.BATCH = ranges.BatchSize(records=1_000)
client = KafkaClient({"bootstrap.servers": sys.argv[1]})
def read():
    part = FetchRange(sys.argv[2], 0, 0, 10_000)
    return read_records(client, "g", part, Wanted())
left, whole = read(), read()
next(left)
found = len(next(whole))
left.close()
found += sum(map(len, whole))
print(found)
"""


@pytest.fixture
def ten_thousand(kafka: LocalKafka, topic: Callable[[], str]) -> str:
    name = topic()
    make_topic(kafka.bootstrap_servers, name)
    producer = KafkaClient({"bootstrap.servers": kafka.bootstrap_servers}).producer(None)
    for _ in range(10_000):
        producer.produce(name, b"x", partition=0)
    producer.flush(PATIENCE_SECONDS)
    return name


def test_a_reader_that_was_left_halfway_harms_no_other(kafka: LocalKafka, ten_thousand: str) -> None:
    name = ten_thousand
    # A failed reader is collected at any time, such as while the next attempt of its task is reading. Before readers
    # had consumers of their own, that closed the other's: the process was aborted, or records came twice or never.
    found = subprocess.run(
        [sys.executable, "-c", LEFT_HALFWAY, kafka.bootstrap_servers, name],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout.strip()) == (0, "10000"), found.stderr


def test_two_readers_of_one_partition_at_once_each_get_every_record(kafka: LocalKafka, ten_thousand: str) -> None:
    name, client = ten_thousand, KafkaClient({"bootstrap.servers": kafka.bootstrap_servers})

    def read(start: int) -> Iterator[int]:
        part = FetchRange(name, 0, start, 10_000)
        for records in read_records(client, "g", part, Wanted()):
            yield len(records)

    assert sum(a + b for a, b in zip(read(0), read(0), strict=True)) == 20_000


@pytest.mark.parametrize("consistency", ["transactional", "eventual"])
def test_a_writer_beside_a_drop_does_not_create_the_topic_again(
    tmp_path: Path, topic: Callable[[], str], consistency: str
) -> None:
    """By default, brokers create the topic of a record that has none."""
    step = (KafkaPublisher, "_produce") if consistency == "transactional" else (KafkaLogSink, "send")
    with LocalKafka(properties={"auto.create.topics.enable": "true"}) as kafka:
        options = {"log__consistency": consistency, "log__request-timeout": "2 s"}
        rig = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), options)
        client = rig.log.client
        with preceded(*step, lambda: create_drop.drop(rig.table)), pytest.raises(TableStoreError):
            rig.write(1)
        rig.close()
        assert describe_topic(client, rig.topic) is None
