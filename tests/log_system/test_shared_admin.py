"""Admin clients are shared in a process, and replaced where they would be slower than a new one or wrong."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from log_system.kafka.client import shared_admin
from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.client.cluster import Cluster
from log_system.kafka.client.connect import KafkaClient, kafka_errors
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import UnavailableError
from tests.harness.mock_cluster import MockCluster, mock_cluster

SOON_SECONDS = 6.0
"""Less than the time limit of a request, after which a client that waits for a dead broker gives up."""


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    """Yield two brokers."""
    with mock_cluster(2) as made:
        made.make_topic("rooms", [1, 2])
        yield made


def _client(servers: str, **options: str) -> KafkaClient:
    return KafkaClient({"bootstrap.servers": servers, **options})


def test_callers_with_the_same_options_share_a_client(cluster: MockCluster) -> None:
    """Also after requests, and of another table; other options need another client."""
    # A client is replaced if the broker answers late, as it may on a busy machine.
    for _ in range(5):
        admin = _client(cluster.servers).admin()
        assert Cluster(_client(cluster.servers)).earliest([("rooms", 0), ("rooms", 1)])
        if _client(cluster.servers).admin() is admin:
            break
    else:
        pytest.fail("every request has replaced the client")
    assert _client(cluster.servers, **{"client.id": "another"}).admin() is not admin
    assert _client(cluster.servers).admin(shared=False) is not admin


def test_a_changed_password_makes_another_client(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """References are resolved each time."""
    client = _client(cluster.servers, **{"sasl.password": "env:PASSWORD_OF_TEST"})
    monkeypatch.setenv("PASSWORD_OF_TEST", "old")
    old = client.admin()
    assert client.admin() is old
    monkeypatch.setenv("PASSWORD_OF_TEST", "new")
    assert client.admin() is not old


def test_a_client_that_lost_a_broker_is_replaced(cluster: MockCluster) -> None:
    """A new client finds the new leader at once; the old one waits for the dead broker until the request times out."""
    client = _client(cluster.servers)
    offsets = Cluster(client)
    assert offsets.earliest([("rooms", 0), ("rooms", 1)])
    admin = client.admin()
    cluster.lead("rooms", 1, 1)
    cluster.stop(2)
    begun = time.monotonic()
    while client.admin() is admin and time.monotonic() - begun < SOON_SECONDS:
        time.sleep(0.01)
    assert offsets.earliest([("rooms", 0), ("rooms", 1)])
    assert time.monotonic() - begun < SOON_SECONDS
    assert client.admin() is not admin


def test_a_client_whose_request_failed_is_replaced(kafka: LocalKafka) -> None:
    """But not one whose broker has said that a topic is missing."""
    client = _client(kafka.bootstrap_servers)
    admin = client.admin()
    assert describe_topic(client, "no-such-topic") is None
    assert client.admin() is admin
    with pytest.raises(UnavailableError), kafka_errors("list topics", client, handle=admin):
        raise TimeoutError
    assert client.admin() is not admin


def test_a_client_that_was_idle_is_replaced_and_few_are_kept(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was idle for long may have been lost without a report."""
    client = _client(cluster.servers)
    admin = client.admin()
    for number in range(10):
        _client(cluster.servers, **{"client.id": f"c{number}"}).admin()
    assert len(shared_admin._open) <= shared_admin._OPEN_MAX
    admin = client.admin()
    assert client.admin() is admin
    monkeypatch.setattr(shared_admin, "_IDLE_SECONDS_MAX", -1.0)
    assert client.admin() is not admin


def _admin_in_child(client: KafkaClient, of_parent: int, answer: Connection) -> None:
    answer.send(id(client.admin()) == of_parent or list(shared_admin._open)[-1][0])


def test_a_forked_process_makes_its_own(cluster: MockCluster) -> None:
    """The threads of a client do not survive a fork; and the child ends without waiting for them."""
    client = _client(cluster.servers)
    admin: Any = client.admin()
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=_admin_in_child, args=(client, id(admin), there))
    child.start()
    assert here.poll(20)
    assert here.recv() == child.pid
    child.join(20)
    assert child.exitcode == 0
    assert client.admin() is admin
