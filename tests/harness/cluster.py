"""Three real brokers on loopback that replicate everything, and that can be killed and started again one by one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from log_system.local_kafka.owned import LocalKafka
from log_system.local_kafka.server import LOOPBACK, Broker, free_port, new_cluster_id
from tests.harness.reassign import reassign
from tests.harness.started import Started

BROKERS = 3
HEAP = "256m"
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 0.1
TRANSACTIONS, OFFSETS = "__transaction_state", "__consumer_offsets"
"""Kafka's own topics; who leads a partition of them coordinates the ids, or groups, that belong there."""

# Every partition has a copy on each broker, and a record counts as written when two of them have it.
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # A broker that was killed is replaced as leader after so long, and not before.
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "5000",
    # How often the broker looks for transactions that have timed out.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


class Node(LocalKafka):
    """One broker of a cluster, which is also one of its controllers."""

    def __init__(
        self, number: int, ports: tuple[int, int], voters: str, cluster_id: str, properties: Mapping[str, str]
    ) -> None:
        """Take the place of the broker with this number; ``ports`` are for clients and for controllers."""
        own = {"node.id": str(number), "controller.quorum.voters": voters}
        super().__init__(heap=HEAP, startup_timeout_s=90, properties={**REPLICATED, **properties, **own})
        self.number = number
        self.client_port = ports[0]
        self._ports = ports
        self._cluster_id = cluster_id

    def _broker_in(self, data_dir: Path) -> Broker:
        return Broker(data_dir, *self._ports, self._properties, self._cluster_id)


class LocalCluster(Started):
    """A cluster of real brokers on loopback; it ends with the process that started it.

    Args:
        brokers: how many.
        properties: more properties of each broker.
    """

    def __init__(self, brokers: int = BROKERS, properties: Mapping[str, str] | None = None) -> None:
        """Choose the ports; nothing is started."""
        ports: list[int] = []
        while len(ports) < 2 * brokers:
            port = free_port()
            if port not in ports:
                ports.append(port)
        pairs = list(zip(ports[::2], ports[1::2], strict=True))
        voters = ",".join(f"{n}@{LOOPBACK}:{controller}" for n, (_, controller) in enumerate(pairs, 1))
        cluster_id = new_cluster_id()
        self.nodes = [Node(n, pair, voters, cluster_id, properties or {}) for n, pair in enumerate(pairs, 1)]
        self.bootstrap_servers = ",".join(f"{LOOPBACK}:{port}" for port, _ in pairs)
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """A client that asks whichever broker answers."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        return self._admin

    def start(self) -> Self:
        """Start all brokers at once: none answers before most of them are there."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            try:
                list(pool.map(lambda node: node.start(), self.nodes))
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """End all brokers and remove their data. There is nothing to close in order, so they are killed."""
        self._admin = None
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.stop()

    def leader(self, topic: str, partition: int) -> Node | None:
        """Return the broker that leads a partition; None where nobody does, or nobody answers."""
        found = self._partitions([topic]).get((topic, partition))
        return None if found is None or found.leader < 1 else self.nodes[found.leader - 1]

    def coordinator(self, name: str, of: str = TRANSACTIONS) -> Node | None:
        """Return the broker that coordinates a transactional id, or of ``OFFSETS`` a consumer group."""
        partition = self.coordinating(name, of)
        return None if partition is None else self.leader(of, partition)

    def coordinating(self, name: str, of: str = TRANSACTIONS) -> int | None:
        """Return the partition whose leader coordinates a transactional id, or of ``OFFSETS`` a consumer group."""
        partitions = sum(topic == of for topic, _ in self._partitions([of]))
        return java_hash(name) % partitions if partitions else None

    def move(self, topic: str, partition: int, seconds: float) -> bool:
        """Let a partition be copied anew by its last replica, and led by another broker; no broker is killed.

        Returns:
            Whether the partition has moved within the time.
        """
        until = time.monotonic() + seconds
        there = self._partitions([topic]).get((topic, partition))
        if there is None or len(there.replicas) < 2:
            return False
        first, *others = there.replicas
        for replicas in ([*others], [*others, first]):
            node = self.leader(topic, partition)
            if node is None:
                return False
            reassign((LOOPBACK, node.client_port), topic, partition, replicas)
            while (now := self._partitions([topic]).get((topic, partition))) is None or (
                list(now.replicas) != replicas or sorted(now.isrs) != sorted(replicas)
            ):
                if time.monotonic() > until:
                    return False
                time.sleep(LOOK_SECONDS)
        return self._partitions([topic])[topic, partition].leader != first

    def wait_until_replicated(self, topics: Iterable[str], seconds: float) -> bool:
        """Wait until each partition of these topics and of Kafka's own has a leader and all its copies."""
        wanted = [*topics, OFFSETS, TRANSACTIONS]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = self._partitions(wanted)
            if found and all(p.leader > 0 and len(p.isrs) == len(p.replicas) for p in found.values()):
                return True
            time.sleep(LOOK_SECONDS)
        return False

    def _partitions(self, topics: Iterable[str]) -> dict[tuple[str, int], Any]:
        try:
            known = self.admin.list_topics(timeout=ANSWER_SECONDS).topics
        except KafkaException:
            return {}
        return {(name, n): p for name in topics if name in known for n, p in known[name].partitions.items()}


def java_hash(text: str) -> int:
    """Return the absolute value of Java's ``String.hashCode`` of an ASCII text, as Kafka's ``Utils.abs`` does."""
    code = 0
    for letter in text:
        code = (31 * code + ord(letter)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return abs(signed) if signed > -(1 << 31) else 0
