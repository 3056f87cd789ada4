"""Query a cluster about topics, offsets, leader epochs and consumer groups, and delete consumer groups.

Each function raises ``UnavailableError`` if the broker does not respond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import closing
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public, not in its __all__

from log_system.kafka.client.admin_requests import (
    ATTEMPT_GROWTH,
    ATTEMPT_SECONDS,
    EARLIEST,
    LATEST,
    SETTLE_STEP_SECONDS,
    answered,
    expected,
    id_of,
    look_up,
)
from log_system.kafka.client.connect import Handle, KafkaClient, Setting, kafka_errors
from log_system.kafka.client.consumers import READER
from log_system.kafka.client.errors import NOTHING_THERE, codes, is_unavailable
from log_system.kafka.client.shared_admin import forget
from snapshot.errors import NotFoundError, UnavailableError
from snapshot.records import LogEnd

T = TypeVar("T")
_GONE: Final = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.NON_EMPTY_GROUP)
_NEVER_SECONDS: Final = 600.0
"""The time limit of a request that is given up before."""
(_NO_ANSWER,) = codes("_TIMED_OUT")


def delete_groups(client: KafkaClient, groups: Sequence[str]) -> None:
    """Delete consumer groups; skip groups that do not exist or are still in use."""

    def delete(seconds: float) -> None:
        # A client keeps to a coordinator that has died or moved, and its request, once timed out, aborts the process
        # when a coordinator answers (librdkafka 2.16). So each attempt has a client of its own, which ends before that.
        admin = client.admin(shared=False)
        futures = admin.delete_consumer_groups(list(groups), request_timeout=_NEVER_SECONDS)
        late = wait(futures.values(), seconds).not_done
        del admin
        if late:
            raise KafkaException(KafkaError(_NO_ANSWER))
        for error in [future.exception() for future in futures.values()]:
            if error is not None and not (isinstance(error, KafkaException) and error.args[0].code() in _GONE):
                raise error

    ask_coordinator("remove consumer groups", client, delete)


Partition = tuple[str, int]
Offsets = dict[Partition, int]
_LOOK_SECONDS: Final = 2.0
"""If a partition has no leader for this many seconds, its topic may be deleted rather than new, so look it up."""
_NO_SUCH: Final = codes("UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID _UNKNOWN_TOPIC _UNKNOWN_PARTITION")
_POLL_SECONDS: Final = 0.5
_TRUNCATED: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001 - the client has no public name for it
_LEVELS: Final = {"read_committed": IsolationLevel.READ_COMMITTED, "read_uncommitted": IsolationLevel.READ_UNCOMMITTED}


class Cluster:
    """Queries a cluster, each query bounded in time. No query creates a topic."""

    def __init__(self, client: KafkaClient) -> None:
        """Create the object for the cluster of ``client``; nothing connects before the first query."""
        self._client = client

    def topics(self, wanted: Callable[[str], bool]) -> list[str]:
        """Return the sorted names of topics for which ``wanted`` is true, without Kafka's internal topics."""
        admin = self._client.admin()
        with kafka_errors("list topics", self._client, handle=admin):
            found = admin.list_topics(timeout=self._client.request_seconds).topics
        return sorted(name for name in found if not name.startswith("__") and wanted(name))

    def partitions(self, topics: Sequence[str]) -> list[Partition]:
        """Return the partitions of topics, in order.

        Raises:
            NotFoundError: a topic does not exist.
        """
        return [each for each, _ in self.described(topics)]

    def described(self, topics: Sequence[str], *, skips_missing: bool = False) -> list[tuple[Partition, str]]:
        """Return the partitions of topics, in order, each with the id of its topic (empty if it has none).

        Raises:
            NotFoundError: a topic does not exist, unless ``skips_missing``.
        """
        if not topics:
            return []
        found: list[tuple[Partition, str]] = []
        doing, wanted = f"look up topics {', '.join(topics)}", TopicCollection(list(topics))
        asked = answered(
            self._client, doing, lambda admin, seconds: admin.describe_topics(wanted, request_timeout=seconds)
        )
        for name in topics:
            try:
                with kafka_errors(doing, self._client):
                    answers = asked[name].result()
            except NotFoundError:
                if skips_missing:
                    continue
                answers = expected(self._client, name, look_up)
            found += [((name, number), id_of(answers)) for number in sorted(part.id for part in answers.partitions)]
        return found

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the first available offset of each partition."""
        return self._list(partitions, EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def latest(self, partitions: Iterable[Partition], isolation: str) -> Offsets:
        """Return the end offset of each partition for readers of an isolation level."""
        return self._list(partitions, LATEST, _LEVELS[isolation])

    def ends(self, partitions: Iterable[Partition], isolation: str) -> dict[Partition, LogEnd]:
        """Return what ``latest`` does, each with the partition's leader epoch."""
        found = self._ask(partitions, LATEST, _LEVELS[isolation])
        return {
            each: LogEnd(at.offset, -1 if at.leader_epoch is None else at.leader_epoch) for each, at in found.items()
        }

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int, isolation: str) -> Offsets:
        """Return the first offset of each partition whose timestamp is at least this; its end if there is none."""
        asked = list(partitions)
        found = self._list(asked, OffsetSpec.for_timestamp(timestamp_ms), IsolationLevel.READ_UNCOMMITTED)
        beyond = [each for each in asked if found[each] < 0]
        return found | (self.latest(beyond, isolation) if beyond else {})

    def _list(self, partitions: Iterable[Partition], spec: Any, isolation: IsolationLevel) -> Offsets:
        return {each: int(at.offset) for each, at in self._ask(partitions, spec, isolation).items()}

    def _ask(self, partitions: Iterable[Partition], spec: Any, isolation: IsolationLevel) -> dict[Partition, Any]:
        asked = {TopicPartition(topic, number): spec for topic, number in partitions}
        if not asked:
            return {}
        names = ", ".join(sorted({each.topic for each in asked}))
        doing = f"look up the offsets of {names}"
        begun, looks, attempt_seconds = time.monotonic(), 1, ATTEMPT_SECONDS
        while True:
            admin = self._client.admin()
            with kafka_errors(doing, self._client, handle=admin):
                try:
                    # Short at first: the client waits for a leader that has died until the time is over.
                    answers = admin.list_offsets(
                        asked,
                        isolation_level=isolation,
                        request_timeout=min(attempt_seconds, self._client.request_seconds),
                    )
                    attempt_seconds *= ATTEMPT_GROWTH
                    found = {(at.topic, at.partition): future.result() for at, future in answers.items()}
                    if any(at.offset == OFFSET_INVALID for at in found.values()):
                        # librdkafka 2.16 reports no error for a partition whose leader does not respond.
                        raise KafkaException(KafkaError(_NO_ANSWER, "the leader of a partition does not respond"))
                    return found
                except KafkaException as error:
                    # A broker that has just learned of a topic, or is taking over a partition, does not serve it yet.
                    seconds = time.monotonic() - begun
                    may_pass = is_unavailable(error) or error.args[0].code() in _NO_SUCH
                    if not may_pass or seconds > self._client.wait_seconds:
                        raise
                    if error.args[0].code() != _NO_ANSWER and seconds > looks * _LOOK_SECONDS:
                        looks += 1
                        self.described(sorted({each.topic for each in asked}))
                    # A client keeps using stale leaders for minutes (seen with librdkafka 2.16).
                    forget(admin)
            time.sleep(SETTLE_STEP_SECONDS)


def shortened(
    client: KafkaClient, group: str, reached: Mapping[Partition, LogEnd], now: Mapping[Partition, LogEnd]
) -> set[Partition]:
    """Return the partitions that have lost what they had in a leader epoch that is over.

    A new leader of a partition begins a new epoch where its log ends, also if it is the same broker after a crash. If
    an earlier epoch ends before an offset that was reached in it, the log has lost what was there, whatever it has now.
    Without such an epoch, the broker is not asked.

    Args:
        client: the cluster.
        group: the consumer group of the request; nothing is committed for it.
        reached: an earlier end of each partition.
        now: the end of each partition, of which only the epoch is used.
    """
    over = {each: old for each, old in reached.items() if old.may_be_lost(now[each])}
    waiting, lost = set(over), set[Partition]()
    if not over:
        return lost
    doing = f"look up where earlier leader epochs of {', '.join(sorted({topic for topic, _ in over}))} have ended"
    until = time.monotonic() + client.wait_seconds
    # A new consumer, since the client asks the broker only when it learns of a leader of a partition that it is already
    # reading. The answer precedes any record.
    with kafka_errors(doing, client), closing(client.consumer(group, **READER)) as consumer:
        consumer.assign([TopicPartition(*each, old.offset, leader_epoch=old.epoch) for each, old in over.items()])
        while waiting and time.monotonic() < until:
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            error, each = message.error(), (str(message.topic()), int(message.partition() or 0))
            if error is not None and _TRUNCATED in error.str():
                lost.add(each)
            elif error is not None and error.code() not in NOTHING_THERE:
                raise KafkaException(error)
            waiting.discard(each)
    if waiting:
        msg = f"{doing}: no answer in {client.wait_seconds:g} s."
        raise UnavailableError(msg)
    return lost


def ask_coordinator(doing: str, client: KafkaClient, ask: Callable[[float], T], *, handle: Handle | None = None) -> T:
    """Send a request to the coordinators of consumer groups, retrying while one is starting, moving or dying.

    librdkafka retries such requests only in part. The first request for a group creates the topic of all groups on the
    broker, which then takes a moment to load it.

    Args:
        doing: what is attempted, for the message.
        client: the client.
        ask: sends the request, with a time limit in seconds, and returns its answer; idempotent.
        handle: the consumer or admin client in use.

    Raises:
        UnavailableError: a coordinator is not ready within the client's ``wait_seconds``.
    """
    until, seconds = time.monotonic() + client.wait_seconds, ATTEMPT_SECONDS
    with kafka_errors(doing, client, handle=handle):
        while True:
            try:
                return ask(min(seconds, client.request_seconds))
            except KafkaException as error:
                if not is_unavailable(error) or time.monotonic() > until:
                    raise
            seconds *= ATTEMPT_GROWTH
            time.sleep(SETTLE_STEP_SECONDS)


def group_offsets(doing: str, client: KafkaClient, consumer: Any, asked: list[TopicPartition]) -> list[TopicPartition]:
    """Return the offsets that the group of ``consumer`` has committed; below 0 where it has none.

    Raises:
        UnavailableError: see :func:`ask_coordinator`.
    """
    return ask_coordinator(
        doing, client, lambda _: _checked(consumer.committed(asked, timeout=client.wait_seconds)), handle=consumer
    )


def commit_offsets(doing: str, client: KafkaClient, consumer: Any, offsets: list[TopicPartition]) -> None:
    """Commit offsets of the group of ``consumer``, with their metadata.

    Raises:
        UnavailableError: see :func:`ask_coordinator`.
    """
    ask_coordinator(
        doing, client, lambda _: _checked(consumer.commit(offsets=offsets, asynchronous=False)), handle=consumer
    )


def _checked(answers: list[TopicPartition]) -> list[TopicPartition]:
    for at in answers:
        if at.error is not None and at.error.code() != KafkaError.NO_ERROR:
            raise KafkaException(at.error)
    return answers


def has_offsets(client: KafkaClient, group: str, topic: str, partitions: int) -> bool:
    """Return whether a group has committed an offset in a topic. Brokers delete such offsets with the topic.

    A consumer asks: an admin client of librdkafka 2.16 crashes the process if the coordinator has moved.
    """
    with closing(GroupOffsets(client, group)) as offsets:
        return bool(offsets.committed([(topic, number) for number in range(partitions)]))


class GroupOffsets:
    """The committed offsets of a consumer group, read and committed without joining the group."""

    def __init__(self, client: KafkaClient, group: str, **overrides: Setting) -> None:
        """Create the object for ``group``; nothing connects before the first call.

        ``overrides`` are options of the consumer by name. One that is not ``read_committed`` does not wait for open
        transactions that move the offsets.
        """
        self._client = client
        self._group = group
        self._overrides = overrides
        self._consumer: Any = None

    def committed(self, partitions: Sequence[Partition]) -> Offsets:
        """Return the group's committed offsets, for those partitions that have one."""
        return {(at.topic, at.partition): at.offset for at in self._positions(partitions)}

    def position(self, partition: Partition) -> TopicPartition | None:
        """Return the group's committed offset in a partition, with its metadata; None if it has none."""
        return next(iter(self._positions([partition])), None)

    def _positions(self, partitions: Sequence[Partition]) -> list[TopicPartition]:
        asked = [TopicPartition(topic, number) for topic, number in partitions]
        answers = group_offsets(f"read the offsets of group {self._group!r}", self._client, self._open(), asked)
        return [at for at in answers if at.offset >= 0]

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets; each is the next offset to read."""
        if offsets:
            moved = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
            commit_offsets(f"commit the offsets of group {self._group!r}", self._client, self._open(), moved)

    def metadata(self) -> Any:
        """Return the group metadata that a producer needs to move the group's offsets in a transaction."""
        with kafka_errors(f"join group {self._group!r}", self._client):
            return self._open().consumer_group_metadata()

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> Any:
        if self._consumer is None:
            self._consumer = self._client.consumer(self._group, **self._overrides)
        return self._consumer
