"""A topic as a stranger sees it: made, written and read with nothing but the plain Kafka client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from log_system.kafka.client.cluster import GroupOffsets
from log_system.kafka.client.connect import KafkaClient
from tests.harness.plain_topics import make_topic
from tests.harness.waiting import PATIENCE_SECONDS, until


@dataclass(frozen=True)
class Record:
    """One message.

    Attributes:
        value: its value; None for a tombstone.
        key: its key.
        partition: where it is.
        timestamp: in milliseconds since the epoch; None leaves it to the client.
        headers: its headers.
        offset: where it is; not for sending.
    """

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = -1


class Wire:
    """A broker, asked plainly."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = AdminClient({"bootstrap.servers": servers})

    def make(self, topic: str, partitions: int = 1, **config: str) -> str:
        """Make a topic and wait until it is there. It keeps records of any time: tests send some of long ago."""
        settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
        make_topic(self.servers, topic, partitions, settings)
        return topic

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=10).topics)

    def partitions(self, topic: str) -> int:
        return len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, and wait until the broker knows them."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()
        until(lambda: self.partitions(topic) == partitions)

    def send(self, topic: str, records: Iterable[Record | bytes], **config: Any) -> None:
        """Send records, each to its own partition."""
        producer = Producer({"bootstrap.servers": self.servers, **config})
        for each in records:
            record = each if isinstance(each, Record) else Record(each)
            timestamp = {} if record.timestamp is None else {"timestamp": record.timestamp}
            producer.produce(
                topic, record.value, record.key, record.partition, headers=list(record.headers), **timestamp
            )
        assert producer.flush(PATIENCE_SECONDS) == 0

    def read(self, topic: str, isolation: str = "read_committed") -> list[Record]:
        """Read all records, partition after partition."""
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "wire", "isolation.level": isolation,
             "enable.auto.commit": False, "enable.partition.eof": True}
        )  # fmt: skip
        try:
            found: list[Record] = []
            left = set(range(self.partitions(topic)))
            consumer.assign([TopicPartition(topic, number, 0) for number in left])
            while left:
                message = consumer.poll(20)
                assert message is not None, f"{topic}: no answer for partitions {left}"
                if message.error() is None:
                    found.append(
                        Record(
                            message.value(), message.key(), message.partition(), message.timestamp()[1],
                            tuple(message.headers() or ()), message.offset(),
                        )
                    )  # fmt: skip
                else:
                    left.discard(message.partition())
            return sorted(found, key=lambda record: (record.partition, record.offset))
        finally:
            consumer.close()

    def values(self, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
        return [record.value for record in self.read(topic, isolation)]

    def pairs(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        return [(record.key, record.value) for record in self.read(topic)]

    def committed(self, group: str, topic: str, partitions: Sequence[int] = (0,)) -> list[int]:
        """Give a group's committed offsets; -1001 for none."""
        # A consumer asks: an admin client crashes the process if the coordinator is not ready.
        with closing(GroupOffsets(KafkaClient({"bootstrap.servers": self.servers}), group)) as offsets:
            found = offsets.committed([(topic, number) for number in partitions])
        return [found.get((topic, number), -1001) for number in partitions]

    def commit(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        """Commit an offset for a group."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
        consumer.close()

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Do what retention does."""
        asked = [TopicPartition(topic, partition, before)]
        for future in self.admin.delete_records(asked).values():
            future.result()

    def config(self, topic: str, name: str) -> str:
        from confluent_kafka.admin import ConfigResource, ResourceType  # noqa: PLC0415

        (future,) = self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return str(future.result()[name].value)
