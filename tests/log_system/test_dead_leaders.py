"""Partitions whose leader has died, and is replaced a moment later or not at all, in librdkafka's own mock cluster."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from threading import Timer
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from log_system.kafka.client.admin_requests import answer
from log_system.kafka.client.cluster import Cluster, GroupOffsets, delete_groups, has_offsets
from log_system.kafka.client.connect import KafkaClient, discarding, send_offsets, take_over
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import followed
from log_system.kafka.register import RegisterPosition
from snapshot.errors import UnavailableError
from snapshot.schema.system_columns import with_kind
from tests.harness.mock_cluster import MockCluster, mock_cluster

RECORDS = 3
WAIT_SECONDS = 2.0
DOWN_SECONDS = 1.5
BUSY_SECONDS = 15.0
"""How long a request may take on a busy machine that is to end after ``WAIT_SECONDS``."""
COORDINATED = ["transaction", "group"]
NOTHING = RegisterPosition(0, 0, 0, done=True, end=0)
PARTITIONS = [("rooms", 0), ("rooms", 1)]
ENDS = dict.fromkeys(PARTITIONS, RECORDS)
ASKED: dict[str, tuple[Callable[[Cluster], object], object]] = {
    "earliest": (lambda cluster: cluster.earliest(PARTITIONS), dict.fromkeys(PARTITIONS, 0)),
    "latest": (lambda cluster: cluster.latest(PARTITIONS, "read_committed"), ENDS),
    "ends": (
        lambda cluster: {at: end.offset for at, end in cluster.ends(PARTITIONS, "read_uncommitted").items()},
        ENDS,
    ),
    "at a time": (lambda cluster: cluster.at_time(PARTITIONS, 2**41, "read_committed"), ENDS),
}


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    """Yield two brokers, each of which leads a partition with three records."""
    with mock_cluster(2) as made:
        made.make_topic("rooms", [1, 2])
        producer = Producer({"bootstrap.servers": made.servers})
        for n in range(2 * RECORDS):
            producer.produce("rooms", b"x", partition=n % 2)
        assert producer.flush(10) == 0
        for kind in COORDINATED:
            made.coordinate(kind, "t", 2)
        yield made


@contextmanager
def replaced(cluster: MockCluster) -> Iterator[Callable[[], float]]:
    """Let broker 2 die; a moment later broker 1 takes its place. Yield a clock that tells the seconds since."""

    def replace() -> None:
        cluster.lead("rooms", 1, 1)
        for kind in COORDINATED:
            cluster.coordinate(kind, "t", 1)

    cluster.stop(2)
    timer, begun = Timer(DOWN_SECONDS, replace), time.monotonic()
    timer.start()
    try:
        yield lambda: time.monotonic() - begun
    finally:
        timer.join()


@pytest.mark.parametrize("asked", ASKED)
def test_offsets_are_those_of_the_leader_once_it_is_back(cluster: MockCluster, asked: str) -> None:
    """The client reports no error for a partition whose leader does not answer, and an offset below 0."""
    ask, expected = ASKED[asked]
    offsets = Cluster(KafkaClient({"bootstrap.servers": cluster.servers}, wait_seconds=20))
    assert ask(offsets) == expected
    cluster.stop(2)
    timer = Timer(DOWN_SECONDS, cluster.start, [2])
    timer.start()
    try:
        assert ask(offsets) == expected
    finally:
        timer.join()


@pytest.mark.parametrize("asked", ASKED)
def test_offsets_are_those_of_another_leader_as_soon_as_there_is_one(cluster: MockCluster, asked: str) -> None:
    """The client waits for the leader that has died until the time of its request is over."""
    ask, expected = ASKED[asked]
    client = KafkaClient({"bootstrap.servers": cluster.servers})
    offsets = Cluster(client)
    assert ask(offsets) == expected
    with replaced(cluster) as seconds:
        assert ask(offsets) == expected
        assert seconds() < client.request_seconds


def test_what_follows_the_register_is_read_as_soon_as_there_is_another_leader(cluster: MockCluster) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    log = KafkaLog(
        "t", KafkaClient({"bootstrap.servers": cluster.servers}), "rooms", 2, "json", changelog=False,
        schema=with_kind(columns), primary_key=("id",), headers="last", transaction_timeout_ms=60_000,
        driver_rows_max=1, transaction_rows_max=1,
    )  # fmt: skip
    consumer = log.client.consumer(log.group, **{"enable.partition.eof": True})
    with closing(consumer), replaced(cluster) as seconds:
        assert followed(log, consumer, [NOTHING, NOTHING], {0: RECORDS, 1: RECORDS}) == {0, 1}
        assert seconds() < log.client.request_seconds


def test_a_producer_gives_up_a_coordinator_of_the_group_that_has_died(cluster: MockCluster) -> None:
    """It may wait for that broker forever; the next producer looks the coordinator up, and is given more time."""
    client = KafkaClient({"bootstrap.servers": cluster.servers})
    cluster.coordinate("transaction", "t", 1)
    with closing(GroupOffsets(client, "t")) as group:
        member = group.metadata()
        for seconds in (1, 3):
            cluster.start(2)
            with discarding(client.producer("t")) as producer:
                take_over(producer, client.wait_seconds)
                producer.begin_transaction()
                producer.produce("rooms", b"x", partition=0)
                cluster.stop(2)
                client._watch.error(KafkaError(KafkaError._TRANSPORT))
                begun = time.monotonic()
                with pytest.raises(TimeoutError, match=f"did not take the offsets within {seconds} s"):
                    send_offsets(client, producer, [TopicPartition("rooms", 0, 7)], member)
                assert time.monotonic() - begun < client.request_seconds


def test_no_client_whose_coordinator_does_not_answer_outlives_the_attempt_to_delete_groups(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka ends the process when a coordinator answers a client whose request has timed out."""
    made, real = list[weakref.ref[Any]](), KafkaClient.admin

    def admin(self: KafkaClient, **options: Any) -> Any:
        client = real(self, **options)
        made.append(weakref.ref(client))
        return client

    monkeypatch.setattr(KafkaClient, "admin", admin)
    cluster.stop(2)
    gc.disable()
    try:
        with pytest.raises(UnavailableError, match="remove consumer groups"):
            delete_groups(KafkaClient({"bootstrap.servers": cluster.servers}, wait_seconds=WAIT_SECONDS), ["t"])
        assert len(made) > 1
        assert [each() for each in made] == [None] * len(made)
    finally:
        gc.enable()
    cluster.start(2)
    time.sleep(1)


class Stuck(AdminClient):
    """Gives no answer from the controller before it has looked the brokers up again; the look ends what was asked."""

    looks = 0

    def list_topics(self, *given: Any, **named: Any) -> Any:
        self.looks += 1
        for future in self.asked:
            future.set_exception(KafkaException(KafkaError(KafkaError._DESTROY_BROKER)))
        self.asked = []
        return super().list_topics(*given, **named)

    def ask(self, *_: Any) -> dict[str, Future[int]]:
        future = Future[int]()
        self.asked = [] if self.looks else [future]
        if self.looks:
            future.set_result(7)
        return {"": future}


def test_the_brokers_are_looked_up_again_while_the_controller_does_not_answer(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any broker is named as the controller, also one that has died, and is waited for until the time is over."""
    admin = Stuck({"bootstrap.servers": cluster.servers})
    monkeypatch.setattr(KafkaClient, "admin", lambda _: admin)
    assert answer(KafkaClient({"bootstrap.servers": cluster.servers}), "ask", admin.ask) == 7
    assert admin.looks == 1


LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH = 2, 8, 9
CUT_OFF: dict[str, tuple[int, Callable[[KafkaClient], object]]] = {
    "offsets": (LIST_OFFSETS, lambda client: Cluster(client).latest(PARTITIONS, "read_committed")),
    "a group's offsets": (OFFSET_FETCH, lambda client: has_offsets(client, "t", "rooms", 2)),
    "a commit": (OFFSET_COMMIT, lambda client: GroupOffsets(client, "t").commit({("rooms", 0): 1})),
}


@pytest.mark.parametrize("asked", CUT_OFF)
def test_a_question_is_asked_again_where_a_broker_dies_with_it(cluster: MockCluster, asked: str) -> None:
    request, ask = CUT_OFF[asked]
    client = KafkaClient({"bootstrap.servers": cluster.servers})
    expected = ask(client)
    cluster.answer(request, "_TRANSPORT", 3)
    assert ask(client) == expected


@pytest.mark.parametrize("asked", ASKED)
def test_offsets_that_nobody_knows_are_an_error(cluster: MockCluster, asked: str) -> None:
    ask, expected = ASKED[asked]
    assert ask(Cluster(KafkaClient({"bootstrap.servers": cluster.servers}))) == expected
    offsets = Cluster(KafkaClient({"bootstrap.servers": cluster.servers}, wait_seconds=WAIT_SECONDS))
    cluster.stop(2)
    begun = time.monotonic()
    with pytest.raises(UnavailableError, match="look up the offsets of rooms"):
        ask(offsets)
    assert time.monotonic() - begun < BUSY_SECONDS
