"""The topics of a sink: which a row may name, and the partitioner of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from log_system.kafka.client.cluster import Cluster
from log_system.kafka.client.topic import ensure_topic_of_broker
from snapshot.errors import InvalidInputError
from tablestore.connectors.java_regex import compile_pattern
from tablestore.connectors.kafka.message_codec import EncodedMessages
from tablestore.connectors.kafka.partitioners import Choose, make_partitioner
from tablestore.connectors.options import ConnectorOptions


def partitions_of(options: ConnectorOptions, topics: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the partitions of a sink's topics, which are created if they do not exist.

    Raises:
        NotFoundError: a topic does not exist, and ``allow.auto.create.topics`` is ``false``.
        UnavailableError: the broker does not answer.
    """
    client = options.client()
    if options.properties.config.get("allow.auto.create.topics") != "false":
        for topic in topics:
            ensure_topic_of_broker(client, topic, compacted=options.is_upsert)
    found: dict[str, tuple[int, ...]] = {}
    for topic, number in Cluster(client).partitions(topics):
        found[topic] = (*found.get(topic, ()), number)
    return found


@dataclass
class TopicPartitioner:
    """Chooses partitions in one task, for each topic by a partitioner of its own. Not picklable.

    Attributes:
        options: the table's options.
        known: the partitions of the topics that are known; those of topics that match a pattern are asked for.
        task: the number of the writing task.
        keyed: whether messages have keys.
    """

    options: ConnectorOptions
    known: dict[str, tuple[int, ...]]
    task: int
    keyed: bool
    _made: dict[str, Choose | None] = field(default_factory=dict)

    def of(self, topic: str) -> Choose | None:
        """Return the partitioner of a topic; None leaves the choice to the client."""
        if topic not in self._made:
            options, there = self.options, self._partitions(topic)
            self._made[topic] = make_partitioner(
                options.partitioner, topic, there, self.task, options.parallelism, keyed=self.keyed
            )
        return self._made[topic]

    def choose(self, messages: EncodedMessages) -> np.ndarray:
        """Return the partitions of messages that name their topic."""
        chosen = self.of(messages.topic)
        return np.full(len(messages), -1, np.int32) if chosen is None else chosen(messages)

    def _partitions(self, topic: str) -> tuple[int, ...]:
        pattern = self.options.pattern
        if topic not in self.known:
            if pattern is None or compile_pattern(pattern, "topic-pattern").fullmatch(topic) is None:
                msg = f"metadata 'topic': expected one of {self.options.what}, got {topic!r}."
                raise InvalidInputError(msg)
            self.known |= partitions_of(self.options, [topic])
        return self.known[topic]
