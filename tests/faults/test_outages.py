"""A reader that is under way waits for a broker that is away; one that has never been answered says so at once."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable

from log_system import outages
from log_system.kafka.client import range_reader
from log_system.kafka.client.connect import KafkaClient
from log_system.local_kafka.owned import LocalKafka
from log_system.outages import Outages
from snapshot.errors import DataLostError, TableStoreError, UnavailableError
from tablestore import open_local
from tablestore.connectors.kafka.client_properties import PREFIX
from tablestore.connectors.options import ConnectorOptions
from tablestore.options.read_options import parse_read_options
from tablestore.streaming.eventual_stream import EventualStream
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tests.connectors.harness.lab import Lab, schema_of
from tests.connectors.harness.wire import Record, Wire
from tests.harness.suspend import PATIENT, suspend
from tests.harness.table_harness import TableHarness
from tests.harness.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.crash
ALL = ReadAllAvailable()
KINDS = ("transactional", "eventual", "kafka", "upsert-kafka")
ASKS_AGAIN, WAITS = "Asking again", "does not answer; waiting for it"


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    with LocalKafka(properties=PATIENT) as kafka:
        yield kafka


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each question wait for a second, where it waits for 20, and a read for five, where it waits for 30."""
    monkeypatch.setattr(ConnectorOptions, "client", lambda self: KafkaClient(self.properties.config, PREFIX, 1.0))
    monkeypatch.setattr(range_reader, "ANSWER_SECONDS", 5.0)


class Source:
    """A source of rows, as Spark asks it."""

    def __init__(self, kind: str, broker: LocalKafka, path: Path, topic: str) -> None:
        self.kind, self.wire, self.path, self.topic = kind, Wire(broker.bootstrap_servers), path, topic
        self.rig: TableHarness | None = None
        if kind in ("transactional", "eventual"):
            options = {"log__consistency": kind, "log__request-timeout": "5 s"}
            self.rig = TableHarness(path, self.wire.servers, topic, options)
        else:
            self.wire.make(topic)

    def write(self, number: int) -> None:
        if self.rig is not None:
            self.rig.write(number, rows=1)
            self.rig.close()
        else:
            self.wire.send(self.topic, [Record(b'{"id": 0, "v": "%d.0"}' % number, b'{"id": 0}')])

    def reader(self) -> DataSourceStreamReader:
        if self.rig is None:
            more = {"primary_key": "id"} if self.kind == "upsert-kafka" else {}
            columns = "id BIGINT, v STRING" + (", _change_type STRING" if more else "")
            return Lab(self.wire).source(self.kind, self.topic, more).streamReader(schema_of(columns))
        given = {"path": str(self.path), "readChangeFeed": "true", "scan-mode": "earliest"}
        kind = EventualStream if self.kind == "eventual" else SnapshotStream
        return kind(parse_read_options(given), feed_schema(self.rig.table.spec))


@pytest.fixture
def source(broker: LocalKafka, tmp_path: Path, topic: Callable[[], str], kind: str) -> Source:
    return Source(kind, broker, tmp_path / "t", topic())


@contextmanager
def away(broker: LocalKafka) -> Iterator[Callable[[], None]]:
    """Suspend the broker; yield what lets it go on."""
    suspend(broker.pid)
    try:
        yield lambda: os.kill(broker.pid, signal.SIGCONT)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def read(reader: Any, start: Any) -> tuple[Any, list[str]]:
    """Read a micro-batch; return where it ends and the values."""
    end = reader.latestOffset(start, ALL)
    rows = [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
    return end, [row["v"] for row in rows]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_waits_for_a_broker_that_is_away(
    broker: LocalKafka, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.write(1)
    reader: Any = source.reader()
    start, seen = read(reader, reader.initialOffset())
    assert seen == ["1.0"]
    source.write(2)
    with away(broker) as back, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(read, reader, start)
        until(lambda: ASKS_AGAIN in caplog.text or waiting.done())
        back()
        assert waiting.result(PATIENCE_SECONDS)[1] == ["2.0"]
    reader.stop()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_waits_for_a_broker_that_is_away(
    broker: LocalKafka, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.write(1)
    reader: Any = source.reader()
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ALL))
    with away(broker) as back, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(lambda: [batch.to_pylist() for part in parts for batch in reader.read(part)])
        until(lambda: WAITS in caplog.text or waiting.done())
        with pytest.raises(TimeoutError):
            # Longer than a reader that is not under way waits.
            waiting.result(2 * range_reader.ANSWER_SECONDS)
        back()
        assert [row["v"] for rows in waiting.result(PATIENCE_SECONDS) for row in rows] == ["1.0"]
    reader.stop()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_stream_that_begins_without_a_broker_says_so(broker: LocalKafka, source: Source) -> None:
    reader: Any = source.reader()
    with away(broker), pytest.raises(UnavailableError, match="is running and can be reached"):
        reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", KINDS[:1])
def test_a_tail_waits_for_a_broker_that_is_away(
    broker: LocalKafka, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.write(1)
    tail = iter(open_local(source.path).tail(scan_mode="earliest"))
    assert next(tail).column("v").to_pylist() == ["1.0"]
    source.write(2)
    with away(broker) as back, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, tail)
        until(lambda: ASKS_AGAIN in caplog.text or waiting.done())
        back()
        assert waiting.result(PATIENCE_SECONDS).column("v").to_pylist() == ["2.0"]


def test_an_outage_has_an_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(outages, "_REST_SECONDS", 0.01)
    monkeypatch.setattr(outages, "OUTAGE_SECONDS", 0.2)
    caplog.set_level(logging.WARNING)

    def raising(error: TableStoreError, cause: Exception | None = None) -> Callable[[], None]:
        def ask() -> None:
            raise error from cause

        return ask

    asked, away_now = Outages(), UnavailableError("no answer")
    with pytest.raises(UnavailableError):
        asked.outlast(raising(away_now))
    assert not caplog.records
    assert asked.outlast(lambda: 7) == 7
    with pytest.raises(UnavailableError):
        asked.outlast(raising(away_now))
    assert len(caplog.records) > 1
    assert asked.outlast(lambda: 8) == 8
    before = len(caplog.records)
    # These do not end by themselves.
    for cause in (DataLostError("gone"), OSError(28, "No space left on device")):
        with pytest.raises(UnavailableError):
            asked.outlast(raising(UnavailableError("pending"), cause))
    with pytest.raises(DataLostError):
        asked.outlast(raising(DataLostError("gone")))
    assert len(caplog.records) == before
