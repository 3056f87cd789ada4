"""Writes a table's rows to its topic, either directly from the tasks or staged and then written in one transaction."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.client.cluster import Cluster, delete_groups
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import ensure_topic_of_broker
from log_system.outages import Outages
from snapshot.errors import InvalidInputError
from snapshot.storage import Storage
from tablestore.after_write import after_write
from tablestore.connectors.java_regex import compile_pattern
from tablestore.connectors.kafka.message_codec import EncodedMessages, MessageEncoder
from tablestore.connectors.kafka.message_sender import KeyBuffer, MessageSender, Receiver, send_all
from tablestore.connectors.kafka.partitioners import OWN_PARTITIONERS, Choose, load_class, make_partitioner
from tablestore.connectors.kafka.transactional_sink import Batch, TransactionalWriter
from tablestore.connectors.option_names import Connector, Side
from tablestore.connectors.options import ConnectorOptions, Guarantee
from tablestore.connectors.spark.message_staging import StagingFile, staged
from tablestore.connectors.spark.session_zone import session_zone
from tablestore.connectors.table import KafkaTable
from tablestore.spark.python_worker import begin_task
from tablestore.spark.query_checkpoint import plan_of, query_id

logger = logging.getLogger("tablestore")
_STAGED = "kafka-staged"
_asked: set[tuple[str, str]] = set()
"""Brokers and topics of upsert tables that this process has looked at."""


@dataclass(frozen=True)
class Written:
    """The result of one write task: its number, its message count, and the name of its staging file, if any."""

    task: int
    messages: int
    staged: str | None = None


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


@dataclass(frozen=True)
class Sink:
    """A table's topic, opened for writing. Cheap to pickle.

    Attributes:
        table: the table.
        partitions: the partitions of the topics; of a pattern none.
        write_id: the unique id of this write, part of the names of its staging files.
        is_stream: whether this is a streaming write.
    """

    table: KafkaTable
    partitions: dict[str, tuple[int, ...]]
    write_id: str
    is_stream: bool

    @classmethod
    def open(cls, connector: Connector, options: Mapping[str, object], schema: StructType, *, is_stream: bool) -> Sink:
        """Validate options and columns, create the topic if it does not exist, and return the sink.

        A topic created for an upsert table is compacted, because only the last message of each key matters.

        Raises:
            InvalidInputError: options or columns are invalid, or exactly-once delivery has no checkpoint location.
            NotFoundError: the topic does not exist, and ``allow.auto.create.topics`` is ``false``.
            UnavailableError: the broker does not answer.
        """
        table = KafkaTable.of(connector, options, schema, Side.SINK)
        parsed = table.options
        if parsed.guarantee is Guarantee.EXACTLY_ONCE and not parsed.checkpoint:
            msg = (
                "'sink.delivery-guarantee' = 'exactly-once' needs checkpointing: set option 'checkpointLocation', a "
                "folder that the driver and the executors share. A write is staged there before its transaction."
            )
            raise InvalidInputError(msg)
        if parsed.partitioner not in OWN_PARTITIONERS:
            load_class(parsed.partitioner)
        partitions = partitions_of(parsed, parsed.topics)
        if parsed.is_upsert:
            for topic in parsed.topics:
                _warn_of_history(parsed.client(), topic)
        return cls(table, partitions, uuid.uuid4().hex, is_stream)

    @property
    def once(self) -> bool:
        """Whether rows are staged and then written in a transaction (exactly-once delivery)."""
        return self.table.options.guarantee is Guarantee.EXACTLY_ONCE

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Write or stage a task's rows.

        Raises:
            InvalidInputError: a row cannot be encoded, or there are more tasks than ``sink.parallelism`` allows.
            UnavailableError: the broker does not answer.
        """
        begin_task()
        options = self.table.options
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        if options.parallelism is not None and task >= options.parallelism:
            msg = (
                f"option 'sink.parallelism'={options.parallelism}: the frame has more partitions than that. Write it "
                f"with tablestore.connectors.write(), which combines them, or use df.coalesce({options.parallelism})."
            )
            raise InvalidInputError(msg)
        keyed = self.table.coding.key_format is not None
        partitioner = TopicPartitioner(options, dict(self.partitions), task, keyed)
        choose = partitioner.choose if options.has_topics else partitioner.of(options.topic)
        messages = self._encoded(batches)
        if self.once:
            attempt = context.taskAttemptId() if context is not None else 0
            name = f"{self.write_id}-{task}-{attempt}"
            file = StagingFile(self._storage, name, choose)
            send_all(self._buffered(file), messages)
            return Written(task, file.rows, name if file.rows else None)
        sender = MessageSender(options.client(), next(iter(options.topics), ""), choose, None)
        return Written(task, send_all(self._buffered(sender), messages))

    def commit(self, written: Sequence[Written], batch_number: int | None) -> None:
        """Commit a write after all its tasks have finished.

        With exactly-once delivery, this writes the staged rows and then deletes the staging files. Otherwise it does
        nothing.

        Args:
            written: the results of the tasks.
            batch_number: the number of the micro-batch; None for a batch write.

        Raises:
            TableStoreError: see `TransactionalWriter.write`.
        """
        if not self.once:
            return
        options = self.table.options
        assert options.checkpoint is not None
        assert options.transactional_prefix is not None
        if batch_number is None:
            batch = Batch(f"batch-{self.write_id}", 0)
        else:
            plan = plan_of(options.checkpoint, batch_number)
            batch = Batch(query_id(options.checkpoint), batch_number, plan)
        names = [each.staged for each in sorted(written, key=lambda each: each.task) if each.staged is not None]
        client = options.client()
        writer = TransactionalWriter(
            client, options.topic, options.transactional_prefix, options.properties.transaction_timeout_ms
        )
        write = partial(writer.write, batch, partial(self._staged, names))
        # The query has been answered before, when it opened the sink.
        Outages(was_answered=self.is_stream).outlast(write, partial(write, again=True))

        def clear_up() -> None:
            if batch_number is None:
                # A finished batch write is never repeated, so its register is no longer needed.
                delete_groups(client, [writer.name(batch)])
                self._storage.delete(*names)
            else:
                # Also delete what earlier attempts have staged; nothing reads it any more.
                self._storage.delete_tree()

        after_write(options.what, "clearing up", clear_up)

    def abort(self, written: Sequence[Written]) -> None:
        """Delete the staging files."""
        if self.once:
            self._storage.delete(*(each.staged for each in written if each.staged is not None))

    def _encoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[EncodedMessages]:
        encoder = MessageEncoder(self.table.coding, session_zone())
        if self.table.options.has_topics:
            return chain.from_iterable(encoder.by_topic(batch) for batch in batches if batch.num_rows)
        return (encoder.encode(batch) for batch in batches if batch.num_rows)

    def _buffered(self, receiver: Receiver) -> Receiver:
        options = self.table.options
        if options.buffer_rows and options.buffer_ms:
            return KeyBuffer(receiver, options.buffer_rows, options.buffer_ms / 1000)
        return receiver

    def _staged(self, names: Sequence[str]) -> Iterator[EncodedMessages]:
        return chain.from_iterable(staged(self._storage, name) for name in names)

    @property
    def _storage(self) -> Storage:
        assert self.table.options.checkpoint is not None
        # Streaming and batch writes use separate folders, because a micro-batch deletes its whole folder.
        place = Storage.at(self.table.options.checkpoint).child(_STAGED)
        return place.child("stream" if self.is_stream else "batch")


def _warn_of_history(client: KafkaClient, topic: str) -> None:
    """Log a warning if the topic of an upsert table is not compacted; not again for each micro-batch."""
    asked = client.bootstrap_servers, topic
    if asked in _asked:
        return
    shape = describe_topic(client, topic)
    if shape is not None and not shape.compacted:
        logger.warning("topic %r is not compacted (cleanup.policy), so it keeps every change of every key.", topic)
    _asked.add(asked)


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
