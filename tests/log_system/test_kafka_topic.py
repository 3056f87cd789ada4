"""A table's topic on a real broker: made once, checked, measured, removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from log_system.kafka.client.admin_requests import describe_topic, partitions_led
from log_system.kafka.client.cluster import Cluster
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.shared_admin import SharedAdmin
from log_system.kafka.client.topic import delete_topic, earliest_offsets, ensure_topic, latest_offsets, topic_ids
from snapshot.errors import AlreadyExistsError, DataLostError, InvalidInputError, NotFoundError, UnavailableError
from tablestore import create_local
from tests.harness.admin_clients import use_admin
from tests.harness.waiting import PATIENCE_SECONDS

WANTED: dict[str, Any] = {"partitions": 3, "retention_ms": None, "compacted": False}


@pytest.fixture
def name(client: KafkaClient) -> Iterator[str]:
    topic = f"topic-{time.time_ns()}"
    yield topic
    delete_topic(client, topic)


def write(client: KafkaClient, topic: str, count: int) -> None:
    producer = client.producer(None)
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def test_a_topic_is_made_once_and_is_ready_at_once(client: KafkaClient, name: str) -> None:
    assert ensure_topic(client, name, **WANTED)
    shape = describe_topic(client, name)

    assert shape is not None
    assert (shape.partitions, shape.compacted) == (3, False)
    assert partitions_led(client, name) == {0: True, 1: True, 2: True}
    assert not ensure_topic(client, name, **WANTED)


def test_of_several_creators_at_once_one_makes_the_topic_and_all_succeed(client: KafkaClient, name: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda _: ensure_topic(client, name, **WANTED), range(6)))

    assert sorted(made) == [False] * 5 + [True]


@pytest.mark.parametrize(("retention_ms", "kept_ms"), [(3_600_000, 3_600_000), (-1, -1)])
def test_retention_is_set_when_asked_for(client: KafkaClient, name: str, retention_ms: int, kept_ms: int) -> None:
    ensure_topic(client, name, partitions=1, retention_ms=retention_ms, compacted=False)
    shape = describe_topic(client, name)

    assert shape is not None
    assert shape.retention_ms == kept_ms


@pytest.mark.parametrize("retention_ms", [None, 3_600_000, -1])
def test_a_compacted_topic_is_compacted_whatever_its_retention(
    client: KafkaClient, name: str, retention_ms: int | None
) -> None:
    ensure_topic(client, name, partitions=1, retention_ms=retention_ms, compacted=True)

    shape = describe_topic(client, name)
    assert shape is not None
    assert shape.compacted
    assert not ensure_topic(client, name, partitions=1, retention_ms=retention_ms, compacted=True)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"partitions": 4}, ("'bucket'", "4 buckets", "it has 3", "bucket=3")),
        ({"compacted": True}, ("log.compacted", "cleanup.policy=compact", "it has delete")),
        ({"retention_ms": 5_000}, ("log.retention", "retention.ms=5000", "it has ")),
    ],
)
def test_a_topic_of_another_shape_is_refused(
    client: KafkaClient, name: str, other: dict[str, Any], words: tuple[str, ...]
) -> None:
    ensure_topic(client, name, **WANTED)

    with pytest.raises(InvalidInputError) as caught:
        ensure_topic(client, name, **{**WANTED, **other})
    assert all(word in str(caught.value) for word in (*words, name)), str(caught.value)


def test_a_topic_with_records_of_somebody_else_is_refused(client: KafkaClient, name: str) -> None:
    ensure_topic(client, name, **WANTED)
    write(client, name, 2)

    with pytest.raises(AlreadyExistsError, match=name):
        ensure_topic(client, name, **WANTED)


def test_more_copies_than_brokers_is_refused_and_makes_nothing(client: KafkaClient, name: str) -> None:
    with pytest.raises(InvalidInputError, match="replication"):
        ensure_topic(client, name, **WANTED, replication_factor=9)

    assert describe_topic(client, name) is None


def test_a_missing_topic_is_named_by_its_option_and_not_made_by_looking(client: KafkaClient, name: str) -> None:
    for look in (
        lambda: earliest_offsets(client, name),
        lambda: latest_offsets(client, name, read_committed=True),
    ):
        with pytest.raises(NotFoundError, match=rf"kafka\.topic.*{name}"):
            look()
    assert describe_topic(client, name) is None


def test_a_deleted_topic_is_gone_and_can_be_made_again(client: KafkaClient, name: str) -> None:
    ensure_topic(client, name, **WANTED)

    assert delete_topic(client, name)
    assert describe_topic(client, name) is None
    assert not delete_topic(client, name)
    assert ensure_topic(client, name, **WANTED)


def test_offsets_of_each_partition(client: KafkaClient, name: str) -> None:
    ensure_topic(client, name, **WANTED)
    write(client, name, 5)

    assert earliest_offsets(client, name) == {0: 0, 1: 0, 2: 0}
    assert latest_offsets(client, name, read_committed=False) == {0: 5, 1: 0, 2: 0}


def test_a_partition_that_a_topic_made_anew_lacks_is_named(client: KafkaClient, name: str) -> None:
    ensure_topic(client, name, **WANTED)
    with pytest.raises(DataLostError, match=rf"topic '{name}' has 3 partitions, not number 3: it was deleted"):
        earliest_offsets(client, name)[3]


def test_an_open_transaction_ends_what_is_committed(client: KafkaClient, name: str) -> None:
    ensure_topic(client, name, **WANTED)
    write(client, name, 2)
    producer = client.producer(f"tx-{name}")
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    producer.flush(PATIENCE_SECONDS)

    assert latest_offsets(client, name, read_committed=True)[0] == 2
    assert latest_offsets(client, name, read_committed=False)[0] == 3
    producer.commit_transaction(20)

    # The broker answers a commit once it is decided and writes the marker, which takes an offset, a moment later.
    until = time.monotonic() + PATIENCE_SECONDS
    while latest_offsets(client, name, read_committed=True)[0] != 4:
        assert time.monotonic() < until


def test_an_unreachable_broker_is_reported_within_ten_seconds() -> None:
    began = time.monotonic()

    with pytest.raises(UnavailableError, match=r"kafka\.bootstrap\.servers='127\.0\.0\.1:1'"):
        ensure_topic(KafkaClient({"bootstrap.servers": "127.0.0.1:1"}), "orders", **WANTED)

    assert time.monotonic() - began < 10


class DyingController(SharedAdmin):
    """An admin client whose first request of each kind is cut off, before or after it is carried out."""

    carries_out = False
    cut_off: ClassVar[set[str]] = set()

    def _ask(self, kind: str, *given: Any, **named: Any) -> Any:
        ask = getattr(super(), kind)
        if kind in self.cut_off:
            return ask(*given, **named)
        self.cut_off.add(kind)
        if self.carries_out:
            for future in ask(*given, **named).values():
                future.result()
        cut: Future[Any] = Future()
        cut.set_exception(KafkaException(KafkaError(KafkaError._TRANSPORT)))
        return {"": cut}

    def create_topics(self, *given: Any, **named: Any) -> Any:
        return self._ask("create_topics", *given, **named)

    def delete_topics(self, *given: Any, **named: Any) -> Any:
        return self._ask("delete_topics", *given, **named)

    def describe_topics(self, *given: Any, **named: Any) -> Any:
        return self._ask("describe_topics", *given, **named)

    def describe_configs(self, *given: Any, **named: Any) -> Any:
        return self._ask("describe_configs", *given, **named)


@pytest.mark.parametrize("carries_out", [False, True])
def test_a_request_is_repeated_where_the_controller_dies_with_it(
    client: KafkaClient, name: str, monkeypatch: pytest.MonkeyPatch, carries_out: bool
) -> None:
    """Who was cut off from an answer does not know whether the topic is the one it has asked for."""
    monkeypatch.setattr(DyingController, "carries_out", carries_out)
    monkeypatch.setattr(DyingController, "cut_off", set())
    use_admin(monkeypatch, DyingController)
    assert ensure_topic(client, name, **WANTED) is not carries_out
    found = topic_ids(client, name)
    assert found is not None
    assert describe_topic(client, name) is not None
    assert delete_topic(client, name, found.topic_id)
    assert topic_ids(client, name) is None
    assert DyingController.cut_off >= {"create_topics", "delete_topics", "describe_topics", "describe_configs"}


class LateBrokers(SharedAdmin):
    """An admin client of a cluster in which every other broker does not know a topic yet."""

    asked = 0

    def describe_topics(self, *given: Any, **named: Any) -> Any:
        LateBrokers.asked += 1
        if LateBrokers.asked % 2:
            return super().describe_topics(*given, **named)
        unknown: Future[Any] = Future()
        unknown.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return {"": unknown}


@pytest.mark.parametrize("first", [0, 1])
def test_a_table_is_made_while_brokers_do_not_know_its_topic_yet(
    client: KafkaClient, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    use_admin(monkeypatch, LateBrokers)
    monkeypatch.setattr(LateBrokers, "asked", first)
    options = {"kafka.bootstrap.servers": client.bootstrap_servers, "kafka.topic": name}
    with create_local(str(tmp_path / "t"), "id BIGINT", log_system="kafka", options=options) as table:
        table.write([{"id": 1}])
        assert table.verify().ok
    assert LateBrokers.asked > 4


def test_a_topic_that_others_are_making_is_waited_for(client: KafkaClient, name: str) -> None:
    maker = Timer(0.5, lambda: ensure_topic(client, name, **WANTED))
    maker.start()
    connector = KafkaClient(client.config, "properties.")

    assert Cluster(connector).partitions([name]) == [(name, 0), (name, 1), (name, 2)]
    maker.join()
    with pytest.raises(NotFoundError, match=r"there is no topic 'nowhere' at properties\.bootstrap\.servers"):
        Cluster(connector).partitions([name, "nowhere"])
