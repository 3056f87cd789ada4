"""Offsets of partitions whose leader has died and has not been replaced yet, in librdkafka's own mock cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Timer

import pytest
from confluent_kafka import Producer

from log_system.kafka.client.cluster import Cluster
from log_system.kafka.client.connect import KafkaClient
from snapshot.errors import UnavailableError
from tests.harness.mock_cluster import MockCluster, mock_cluster

RECORDS = 3
WAIT_SECONDS = 2.0
DOWN_SECONDS = 1.5
BUSY_SECONDS = 15.0
"""How long a request may take on a busy machine that is to end after ``WAIT_SECONDS``."""
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
        yield made


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
def test_offsets_that_nobody_knows_are_an_error(cluster: MockCluster, asked: str) -> None:
    ask, expected = ASKED[asked]
    offsets = Cluster(KafkaClient({"bootstrap.servers": cluster.servers}, wait_seconds=WAIT_SECONDS))
    assert ask(offsets) == expected
    cluster.stop(2)
    begun = time.monotonic()
    with pytest.raises(UnavailableError, match="look up the offsets of rooms"):
        ask(offsets)
    assert time.monotonic() - begun < BUSY_SECONDS
