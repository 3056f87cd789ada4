"""Requests about consumer groups while their coordinator starts or moves, answered by librdkafka's own mock cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from log_system.kafka.client.cluster import GroupOffsets, group_offsets, has_offsets
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import TopicIds
from log_system.kafka.topic_claims import claim, claim_group
from snapshot.errors import InvalidInputError, UnavailableError
from tests.harness.mock_cluster import mock_cluster

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
IDS = TopicIds(topic_id="topic", cluster_id="cluster")
MOVES = ["COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"]


@dataclass
class Coordinator:
    """A mock cluster of one broker, which coordinates every group."""

    client: KafkaClient
    answer: Callable[[int, str, int], None]


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with mock_cluster(1) as cluster:
        cluster.make_topic("rooms", [1])
        yield Coordinator(KafkaClient({"bootstrap.servers": cluster.servers}, wait_seconds=5.0), cluster.answer)


@pytest.mark.parametrize("error", MOVES)
def test_a_claim_is_made_as_soon_as_the_coordinator_is_ready(coordinator: Coordinator, error: str) -> None:
    coordinator.answer(OFFSET_COMMIT, error, 4)
    claim(coordinator.client, "rooms", IDS, "table")
    with closing(coordinator.client.consumer(claim_group("rooms", IDS, "table"))) as consumer:
        found = group_offsets("read the claim", coordinator.client, consumer, [TopicPartition("rooms", 0)])
    assert [(at.offset, at.metadata) for at in found] == [(0, "table")]


@pytest.mark.parametrize("error", MOVES)
def test_offsets_are_read_as_soon_as_the_coordinator_is_ready(coordinator: Coordinator, error: str) -> None:
    with closing(GroupOffsets(coordinator.client, "readers")) as group:
        group.commit({("rooms", 0): 7})
        coordinator.answer(OFFSET_FETCH, error, 4)
        assert group.committed([("rooms", 0)]) == {("rooms", 0): 7}
        coordinator.answer(OFFSET_FETCH, error, 4)
        assert has_offsets(coordinator.client, "readers", "rooms", 1)
        assert not has_offsets(coordinator.client, "others", "rooms", 1)


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda client: claim(client, "rooms", IDS, "table"), id="claim"),
        pytest.param(lambda client: GroupOffsets(client, "readers").commit({("rooms", 0): 7}), id="commit"),
    ],
)
def test_a_coordinator_that_is_never_ready_is_unavailable(
    coordinator: Coordinator, ask: Callable[[KafkaClient], Any]
) -> None:
    coordinator.answer(OFFSET_COMMIT, "COORDINATOR_LOAD_IN_PROGRESS", 500)
    client = KafkaClient({"bootstrap.servers": coordinator.client.bootstrap_servers}, wait_seconds=0.5)
    with pytest.raises(UnavailableError, match="is running and can be reached"):
        ask(client)


def test_other_errors_are_not_retried(coordinator: Coordinator) -> None:
    coordinator.answer(OFFSET_COMMIT, "GROUP_AUTHORIZATION_FAILED", 1)
    with pytest.raises(InvalidInputError, match="claim topic 'rooms'"):
        claim(coordinator.client, "rooms", IDS, "table")
