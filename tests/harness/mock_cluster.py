"""librdkafka's own mock cluster, whose brokers can be made to answer with errors or not at all."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, Producer

from log_system.kafka.client import shared_admin
from log_system.kafka.client.librdkafka_ffi import handle, rdkafka

_INT, _POINTER, _TEXT = ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p


@dataclass
class MockCluster:
    """A mock cluster.

    Attributes:
        servers: the addresses of its brokers.
    """

    servers: str
    _pointer: int

    def answer(self, request: int, error: str, times: int) -> None:
        """Answer the next requests of a kind with an error."""
        errors = (_INT * times)(*[getattr(KafkaError, error)] * times)
        self._call("push_request_errors_array", (ctypes.c_int16, request), (ctypes.c_size_t, times), (_POINTER, errors))

    def make_topic(self, topic: str, leaders: list[int]) -> None:
        """Create a topic whose partitions are led by these brokers."""
        self._call("topic_create", (_TEXT, topic.encode()), (_INT, len(leaders)), (_INT, 1))
        for partition, leader in enumerate(leaders):
            self.lead(topic, partition, leader)

    def lead(self, topic: str, partition: int, leader: int) -> None:
        """Let a broker lead a partition, which has its records."""
        self._call("partition_set_leader", (_TEXT, topic.encode()), (_INT, partition), (_INT, leader))

    def coordinate(self, kind: str, name: str, broker: int) -> None:
        """Let a broker coordinate a ``group``, or a ``transaction`` by its transactional id."""
        self._call("coordinator_set", (_TEXT, kind.encode()), (_TEXT, name.encode()), (_INT, broker))

    def stop(self, broker: int) -> None:
        """Let a broker accept no connections."""
        self._call("broker_set_down", (_INT, broker))

    def start(self, broker: int) -> None:
        """Let a broker accept connections again."""
        self._call("broker_set_up", (_INT, broker))

    def _call(self, name: str, *given: tuple[Any, Any]) -> None:
        function = getattr(rdkafka, f"rd_kafka_mock_{name}")
        function.restype, function.argtypes = _INT, [_POINTER, *(kind for kind, _ in given)]
        function(self._pointer, *(value for _, value in given))


@contextmanager
def mock_cluster(brokers: int) -> Iterator[MockCluster]:
    """Yield a cluster; broker n has the id n, from 1 on.

    Nothing connects to its ports after that: another server may have them by then, such as one of Spark's.
    """
    owner = Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": brokers, "log_level": 0})
    of, address = rdkafka.rd_kafka_handle_mock_cluster, rdkafka.rd_kafka_mock_cluster_bootstraps
    of.restype, of.argtypes = _POINTER, [_POINTER]
    address.restype, address.argtypes = _TEXT, [_POINTER]
    pointer = of(handle(owner))
    try:
        yield MockCluster(address(pointer).decode(), pointer)
    finally:
        shared_admin._close()
        del owner
