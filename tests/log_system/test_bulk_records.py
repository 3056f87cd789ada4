"""Records in bulk: the same on the wire, and the same errors, as message by message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from ctypes import c_void_p
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, TopicPartition

from log_system.formats.duckdb_json import timestamp_text
from log_system.gate import slices
from log_system.kafka.client import bulk_consume, bulk_produce, librdkafka_ffi
from log_system.kafka.client.connect import KafkaClient, take_over
from log_system.kafka.client.consumers import CONSUMERS
from log_system.kafka.client.messages import Records, Wanted, joined, taking
from log_system.kafka.reader.snapshot_reader import read_slice
from log_system.local_kafka.owned import LocalKafka
from snapshot.row_kind import RowKind
from tablestore.write.writer import Writer
from tests.harness.local_writes import drain_raw, make_table, publisher_of, write
from tests.harness.plain_topics import make_topic
from tests.harness.table_audit import assert_index_is_true
from tests.harness.waiting import PATIENCE_SECONDS

READER = {"fetch.wait.max.ms": 10, "enable.partition.eof": True}
KEYS = pa.array([None if n % 7 == 0 else b"k%d" % n for n in range(50_000)], pa.large_binary())
VALUES = pa.array(
    [None if n % 11 == 0 else b"" if n % 13 == 0 else b"v%d" % n + b"x" * (n % 100) for n in range(50_000)],
    pa.large_binary(),
)


@pytest.fixture
def made(client: KafkaClient, topic: Callable[[], str]) -> str:
    name = topic()
    make_topic(str(client.config["bootstrap.servers"]), name, 2)
    return name


def read(client: KafkaClient, topic: str, count: int, *, in_bulk: bool) -> Records:
    """Read partition 1 from its start by one way or the other, and see that it ends there."""
    with pytest.MonkeyPatch.context() as patch, closing(client.consumer("reader", **READER)) as consumer:
        if not in_bulk:
            patch.setattr(librdkafka_ffi, "rdkafka", None)
        assert bulk_consume.can_take(consumer) is in_bulk
        found: list[Records] = []
        # Twice over one consumer, as readers do.
        for _ in range(2):
            found.clear()
            with taking(consumer, topic, 1, Wanted(all_keys=True, times=True)) as take:
                consumer.assign([TopicPartition(topic, 1, 0)])
                ends: list[int] = []
                while sum(map(len, found)) < count or not ends:
                    records, end = take(min(7_000, max(1, count - sum(map(len, found)))), 0.5)
                    found += [] if records is None else [records]
                    ends += [] if end < 0 else [end]
                consumer.unassign()
            assert ends[-1] > found[-1].offsets[-1]
        return joined(found)


class TestBothWays:
    def test_what_is_sent_is_what_anybody_reads(self, kafka: LocalKafka, client: KafkaClient, made: str) -> None:
        """Three transactions, the second one aborted, through a queue that is far smaller than they are."""
        producer = client.producer("bulk", **{"queue.buffering.max.messages": 3_000})
        take_over(producer, 30)
        landed: list[int] = []
        for number in range(3):
            producer.begin_transaction()
            bulk_produce.send(producer, made, 1, KEYS.slice(number), VALUES.slice(number))
            producer.flush(PATIENCE_SECONDS)
            producer.produce(
                made, b"last", None, 1, headers=[("h", b"1")], on_delivery=lambda _, m: landed.append(m.offset())
            )
            producer.flush(PATIENCE_SECONDS)
            if number == 1:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
        keys = [*KEYS.to_pylist(), None, *KEYS.slice(2).to_pylist(), None]
        values = [*VALUES.to_pylist(), b"last", *VALUES.slice(2).to_pylist(), b"last"]
        messages = drain_raw(kafka.bootstrap_servers, made, 2)
        assert messages[0] == []
        assert [m.key() for m in messages[1]] == keys
        assert [m.value() for m in messages[1]] == values
        offsets = [m.offset() for m in messages[1]]
        assert (offsets[50_000], offsets[-1]) == (landed[0], landed[2])
        for in_bulk in (True, False):
            records = read(client, made, len(values), in_bulk=in_bulk)
            assert records.keys.to_pylist() == keys
            assert records.values.to_pylist() == values
            assert records.offsets.tolist() == offsets
            assert records.times is not None
            assert records.times.tolist() == [m.timestamp()[1] for m in messages[1]]
            assert records.before(offsets[10]).values.to_pylist() == values[:10]

    def test_errors_are_those_of_the_client(self, client: KafkaClient, made: str) -> None:
        few, large = KEYS.slice(0, 3), pa.array([b"x", b"y" * 3_000_000, b"z"], pa.large_binary())

        def raised(action: Callable[[], Any]) -> tuple[int, str]:
            with pytest.raises(KafkaException) as told:
                action()
            return told.value.args[0].code(), str(told.value.args[0])

        limit: dict[str, Any] = {"message.max.bytes": 1_000_000}
        fenced, owner = client.producer("errors", **limit), client.producer("errors", **limit)
        take_over(fenced, 30)
        fenced.begin_transaction()
        take_over(owner, 30)
        owner.begin_transaction()
        assert raised(lambda: bulk_produce.send(owner, made, 1, few, large)) == raised(
            lambda: owner.produce(made, large[1].as_py(), None, 1)
        )
        bulk_produce.send(fenced, made, 1, few, few)
        with pytest.raises(KafkaException, match="fenced"):
            fenced.commit_transaction(30)
        assert raised(lambda: bulk_produce.send(fenced, made, 1, few, few)) == raised(
            lambda: fenced.produce(made, b"x", None, 1)
        )

        def beyond(consumer: Any) -> None:
            with taking(consumer, made, 1, Wanted(all_keys=True)) as take:
                consumer.assign([TopicPartition(made, 1, 1_000_000)])
                for _ in range(60):
                    take(10, 0.5)

        told = []
        for library in (librdkafka_ffi.rdkafka, None):
            with pytest.MonkeyPatch.context() as patch, closing(client.consumer("beyond", **READER)) as consumer:
                patch.setattr(librdkafka_ffi, "rdkafka", library)
                told.append(raised(lambda consumer=consumer: beyond(consumer))[0])
        assert told[0] == told[1]

    def test_few_records_are_there_at_once(self, client: KafkaClient, made: str) -> None:
        producer = client.producer(None)
        bulk_produce.send(producer, made, 1, KEYS.slice(0, 3), VALUES.slice(0, 3))
        producer.flush(PATIENCE_SECONDS)
        for library in (librdkafka_ffi.rdkafka, None):
            with pytest.MonkeyPatch.context() as patch, closing(client.consumer("few", **READER)) as consumer:
                patch.setattr(librdkafka_ffi, "rdkafka", library)
                with taking(consumer, made, 1, Wanted()) as take:
                    consumer.assign([TopicPartition(made, 1, 0)])
                    began, found, reached = time.monotonic(), 0, -1
                    while reached < 0:
                        records, reached = take(1_000, 60)
                        found += 0 if records is None else len(records)
                    assert (found, reached) == (3, 3)
                    assert time.monotonic() - began < 30
                    consumer.unassign()

    def test_little_is_fetched_beyond_the_end_of_a_short_range(self, client: KafkaClient, made: str) -> None:
        producer = client.producer(None, **{"compression.type": "none"})
        for _ in range(3):
            bulk_produce.send(producer, made, 1, KEYS, VALUES)
        producer.flush(PATIENCE_SECONDS)
        own = KafkaClient(client.config | {"queued.min.messages": "90000"})

        def fetched(client: KafkaClient, count: int) -> int:
            with (
                CONSUMERS.lend(client, "ahead", in_bulk=True, count=count) as consumer,
                bulk_consume.PartitionQueue(consumer, made, 1) as queue,
            ):
                consumer.assign([TopicPartition(made, 1, 0)])
                time.sleep(2)
                length: int = librdkafka_ffi.rdkafka.rd_kafka_queue_length(c_void_p(queue._queue))
                consumer.unassign()
                return length

        assert 0 < fetched(client, 1_000) < 30_000
        assert fetched(client, 100_000) >= 50_000
        assert fetched(own, 1_000) >= 90_000

    def test_a_closed_client_is_not_borrowed_from(self, client: KafkaClient) -> None:
        consumer = client.consumer("closed")
        assert bulk_consume.can_take(consumer)
        consumer.close()
        assert not bulk_consume.can_take(consumer)
        assert bulk_produce.can_send(client.producer(None))
        assert not bulk_produce.can_send(object())


class TestPublishing:
    """Snapshots large enough for what small ones do without: threads, several transactions a task, full batches."""

    @pytest.mark.parametrize("in_bulk", [True, False])
    @pytest.mark.parametrize("log_format", ["json", "arrow"])
    def test_large_snapshots_are_in_the_log_once_and_come_back(
        self,
        kafka: LocalKafka,
        tmp_path: Path,
        topic: Callable[[], str],
        monkeypatch: pytest.MonkeyPatch,
        *,
        in_bulk: bool,
        log_format: str,
    ) -> None:
        if not in_bulk:
            monkeypatch.setattr(librdkafka_ffi, "rdkafka", None)
        name, path = topic(), tmp_path / "t"
        table = make_table(
            path,
            kafka.bootstrap_servers,
            name,
            log__format=log_format,
            publish__driver_rows_max=40_000,
            publish__transaction_rows_max=7_000,
        )
        publisher = publisher_of(table)
        writer = Writer(table, publisher)
        # The first by threads, the second by tasks of several transactions.
        write(writer, [(n, None if n % 10 == 0 else f"first {n}") for n in range(30_000)])
        write(writer, [(n, None if n % 9 == 0 else f"second {n}" * 3) for n in range(45_000)])
        publisher.discard()
        assert_index_is_true(path, 2)
        entries = [entry for entry in map(table.index.get, table.index.snapshots()) if entry is not None]
        assert [entry.rows for entry in entries if entry.rows] == [30_000, 45_000]
        found: dict[int, str | None] = {}
        for part in slices(table.index.entries(0, 2)):
            for batch in read_slice(table.log.settings, part):
                kinds = batch["_kind"].to_pylist()
                gone = int(RowKind.DELETE)
                rows = zip(batch["id"].to_pylist(), batch["v"].to_pylist(), kinds, strict=True)
                found.update({key: None if kind == gone else value for key, value, kind in rows})
        assert found == {n: None if n % 9 == 0 else f"second {n}" * 3 for n in range(45_000)}


def batches() -> Iterator[pa.Array]:
    made = np.random.default_rng(1)
    bounds = [
        (1.7e15, 1.71e15),
        (-2e15, 2e15),
        (-62_135_596_800e6, -62_135_000_000e6),
        (253_402_000e9, 253_402_300_8e8),
    ]
    for low, high in bounds:
        micros = made.integers(int(low), int(high), 60_000)
        micros[:2] = int(low), int(high) - 1
        for zone in ("UTC", None):
            column = pa.array(micros, pa.timestamp("us", zone), mask=made.random(len(micros)) < 0.1)
            yield from (column, column.slice(17, 50_000), column.fill_null(0))


def test_timestamps_are_written_as_duckdb_writes_them() -> None:
    written = 0
    with duckdb.connect(config={"threads": 1}) as duck:
        for column in batches():
            found = timestamp_text(column)
            zone = "Z" if column.type.tz else ""
            duck.register("t", pa.table({"c": column.cast(pa.timestamp("us"))}))
            wanted = duck.sql(f"SELECT strftime(c, '%Y-%m-%dT%H:%M:%S.%f{zone}') c FROM t").to_arrow_table()["c"]
            if found is not None:
                written += 1
                found.validate(full=True)
                assert found.to_pylist() == wanted.to_pylist()
    assert written >= 18
    assert timestamp_text(pa.array([253_402_300_800_000_000], pa.timestamp("us"))) is None
    assert timestamp_text(pa.array([-62_135_596_800_000_001], pa.timestamp("us"))) is None
    assert timestamp_text(pa.array([None], pa.timestamp("us"))).to_pylist() == [None]
