"""An exactly-once sink whose transaction the broker aborts, since it took too long or the machine slept."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from log_system.kafka.client.connect import KafkaClient, discarding, take_over
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import InvalidInputError
from tablestore.connectors.kafka import transactional_sink
from tablestore.connectors.kafka.message_codec import EncodedMessages
from tablestore.connectors.kafka.transactional_sink import Batch, TransactionalWriter
from tests.connectors.harness.crash_worker import BATCHES, ROWS, run
from tests.connectors.harness.wire import Wire
from tests.connectors.test_crash import start, written
from tests.harness.forked import CONTEXT
from tests.harness.suspend import wait_until_suspended
from tests.harness.waiting import PATIENCE_SECONDS

Topics = Callable[..., str]
TIMEOUT_MS = 1_000
LATE_SECONDS = 2.0
"""After this time, the broker has aborted a transaction."""
MESSAGE = EncodedMessages(None, pa.array([b"1"], pa.large_binary()), None, None)


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """A broker that looks for transactions beyond their timeout often; by default, each ten seconds."""
    with LocalKafka(properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}) as kafka:
        yield Wire(kafka.bootstrap_servers)


@pytest.fixture
def writer(wire: Wire, made: Topics) -> TransactionalWriter:
    client = KafkaClient({"bootstrap.servers": wire.servers}, "properties.")
    return TransactionalWriter(client, made(), "p", TIMEOUT_MS)


def late(times: int) -> Callable[[], Iterator[EncodedMessages]]:
    """Return messages that come too late for the transaction so many times."""
    left = [LATE_SECONDS] * times

    def messages() -> Iterator[EncodedMessages]:
        yield MESSAGE
        if left:
            time.sleep(left.pop())
        yield MESSAGE

    return messages


def test_a_transaction_that_runs_out_of_time_says_so(wire: Wire, writer: TransactionalWriter) -> None:
    """It is begun once more, since the machine may have slept."""
    with pytest.raises(InvalidInputError, match=r"'properties.transaction.timeout.ms' = 1000.*maxRowsPerTrigger"):
        writer.write(Batch("q", 0), late(2))
    assert wire.values(writer.topic) == []
    assert writer.write(Batch("q", 0), late(1))
    assert wire.values(writer.topic) == [b"1", b"1"]
    assert not writer.write(Batch("q", 0), late(0), again=True)


def test_a_machine_that_slept_writes_on(
    wire: Wire, writer: TransactionalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its monotonic clock does not count the time asleep."""
    clock = SimpleNamespace(monotonic=lambda: 0.0, clock_gettime=time.clock_gettime)
    monkeypatch.setattr(transactional_sink, "time", clock)
    assert writer.write(Batch("q", 0), late(1))
    assert wire.values(writer.topic) == [b"1", b"1"]


def asleep(wire: Wire, topic: str, folder: Path, point: str) -> BaseProcess:
    """Start a query that falls asleep in its second micro-batch, and wait until the broker has given it up."""
    hit = {"produce": ROWS + 7}.get(point.partition(":")[0], 2)
    arguments = (wire.servers, topic, str(folder), "first", "exactly-once", point, hit, True, TIMEOUT_MS)
    process = CONTEXT.Process(target=run, args=arguments)
    process.start()
    wait_until_suspended(process.pid)
    assert len(written(wire, topic)) == ROWS
    time.sleep(LATE_SECONDS)
    return process


def wake(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGCONT)
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0


@pytest.mark.crash
@pytest.mark.parametrize("point", ["begin:after", "produce:after", "flush:after", "offsets:after", "end:before"])
def test_a_query_that_slept_within_its_transaction_writes_each_row_once(
    wire: Wire, made: Topics, tmp_path: Path, point: str
) -> None:
    topic = made(2)
    wake(asleep(wire, topic, tmp_path, point))
    assert Counter(number for number, _ in written(wire, topic)) == Counter(range(BATCHES * ROWS))


@pytest.mark.crash
@pytest.mark.parametrize("point", ["produce:after", "end:before"])
def test_a_query_that_wakes_up_does_not_fence_the_run_that_has_taken_its_place(
    wire: Wire, made: Topics, tmp_path: Path, point: str
) -> None:
    topic = made(2)
    sleeper = asleep(wire, topic, tmp_path, point)
    assert start(wire, topic, tmp_path, "second", "exactly-once") == 0
    name = f"crash-{topic}-11111111-2222-3333-4444-555555555555"
    with discarding(KafkaClient({"bootstrap.servers": wire.servers}).producer(name)) as running:
        take_over(running, PATIENCE_SECONDS)
        running.begin_transaction()
        running.produce(topic, b'{"id":1000,"attempt":"third"}', partition=0)
        running.flush(PATIENCE_SECONDS)
        wake(sleeper)
        running.commit_transaction(PATIENCE_SECONDS)
    found = written(wire, topic)
    assert Counter(number for number, _ in found) == Counter([*range(BATCHES * ROWS), 1000])
    assert {attempt for number, attempt in found if number >= ROWS} == {"second", "third"}
