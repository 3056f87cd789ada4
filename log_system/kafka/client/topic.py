"""The topic of a table: created with the table, checked before use, deleted with the table.

Lookups use only the admin API, which creates no topic. Each function raises ``UnavailableError`` if the broker does not
respond, and those that return offsets raise ``NotFoundError`` if the topic does not exist.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, not in its __all__

from log_system.kafka.client.admin_requests import (
    SETTLE_SECONDS_MAX,
    SETTLE_STEP_SECONDS,
    TopicShape,
    answer,
    describe_topic,
    expected,
    id_of,
    look_up,
    missing,
    partitions_led,
)
from log_system.kafka.client.cluster import Cluster, Offsets, Partition
from log_system.kafka.client.connect import KafkaClient
from snapshot.errors import AlreadyExistsError, DataLostError, InvalidInputError, NotFoundError, UnavailableError
from snapshot.messages import counted
from snapshot.records import LogEnd

logger: Final = logging.getLogger("tablestore")
LOOK_SECONDS: Final = 2.0
"""How often, in seconds, a reader that receives nothing checks whether its topic still exists."""
LOOK_SECONDS_MAX: Final = 2.0
"""How long such a check may take, in which the reader can do nothing else."""
_CHECK_SECONDS_MAX: Final = 5.0
"""Maximum time to look for a topic after a failure."""


@dataclass(frozen=True)
class TopicIds:
    """The identity of a topic beyond its name: a topic that was deleted and created again has another id.

    Attributes:
        topic_id: the id that the cluster gave the topic when it was created (KIP-516).
        cluster_id: the id of the cluster.
    """

    topic_id: str
    cluster_id: str


@dataclass(frozen=True)
class _Wanted:
    """A table's requirements for its topic; see :func:`check_topic`."""

    partitions: int
    compacted: bool
    retention_ms: int | None

    def settings(self) -> dict[str, str]:
        keeps_by_age = self.retention_ms is not None and self.retention_ms >= 0
        policy = ("compact,delete" if keeps_by_age else "compact") if self.compacted else "delete"
        retention = {} if self.retention_ms is None else {"retention.ms": str(self.retention_ms)}
        # The broker's clock dates records: by those of writers, which may be wrong, retention would remove records too
        # early, and the broker would reject records that seem to be more than an hour ahead.
        return {"cleanup.policy": policy, "message.timestamp.type": "LogAppendTime", **retention}


def ensure_topic(
    client: KafkaClient,
    name: str,
    *,
    partitions: int,
    retention_ms: int | None,
    compacted: bool,
    replication_factor: int = -1,
) -> bool:
    """Create the topic if it does not exist, else check it. Concurrent calls both succeed.

    1. Look up the topic. A crash here leaves nothing.
    2. Create it. A crash here leaves an empty topic of the right shape, which the next call accepts.
    3. Wait until each partition has a leader, or check a topic that another caller created.

    Args:
        client: the cluster.
        name: the topic.
        partitions: the table's bucket count.
        retention_ms: how long the topic keeps records; ``None`` uses the broker's default, -1 means forever.
        compacted: whether the broker may drop all but the last record of a key.
        replication_factor: number of replicas of each partition; -1 uses the broker's default.

    Returns:
        Whether this call created the topic. If an earlier call got no response, the next one may find the topic that it
        created and return False.

    Raises:
        InvalidInputError: an option is invalid, or the existing topic has another shape.
        AlreadyExistsError: the existing topic has or had records.
    """
    wanted = _Wanted(partitions, compacted, retention_ms)
    client.check()
    # Step 1.
    if describe_topic(client, name) is not None:
        _accept(client, name, wanted)
        return False
    # Step 2.
    made = _create(client, NewTopic(name, partitions, replication_factor, config=wanted.settings()))
    # Step 3.
    _settle(client, name, partitions if made else None)
    if not made:
        _accept(client, name, wanted)
    return made


def ensure_topic_of_broker(client: KafkaClient, name: str, *, compacted: bool) -> bool:
    """Create the topic with the broker's defaults, compacted or not; accept an existing topic unchecked.

    Returns:
        Whether this call created the topic.

    Raises:
        InvalidInputError: the name is not a valid topic name.
    """
    if partitions_led(client, name) is not None:
        return False
    made = _create(client, NewTopic(name, -1, -1, config={"cleanup.policy": "compact"} if compacted else {}))
    if made:
        _settle(client, name, None)
    return made


def _create(client: KafkaClient, topic: NewTopic) -> bool:
    """Create a topic; return False if it exists, perhaps since this call was sent twice."""
    try:
        # Not shorter, since a topic that is created by a repeated request is not known to be the caller's.
        answer(
            client,
            f"make topic '{topic.topic}'",
            lambda admin, _: admin.create_topics([topic], request_timeout=client.request_seconds),
        )
    except AlreadyExistsError:
        return False
    return True


def is_gone(client: KafkaClient, name: str) -> bool:
    """Return whether a topic that could not be written does not exist: the producer reports only a timeout for it.

    False if the broker does not respond within a few seconds, which the failure then says already.
    """
    try:
        return describe_topic(client.within(_CHECK_SECONDS_MAX), name) is None
    except UnavailableError:
        return False


def topic_ids(client: KafkaClient, name: str) -> TopicIds | None:
    """Return the ids of a topic and its cluster, or ``None`` if the topic does not exist."""
    found = look_up(client, name)
    if found is None:
        return None
    cluster = answer(
        client, "look up the cluster id", lambda admin, seconds: {"": admin.describe_cluster(request_timeout=seconds)}
    )
    return TopicIds(id_of(found), str(cluster.cluster_id or ""))


def existing_ids(client: KafkaClient, name: str) -> TopicIds:
    """Return the ids of a topic and its cluster.

    Raises:
        NotFoundError: the topic does not exist.
    """
    return expected(client, name, topic_ids)


def check_identity(client: KafkaClient, name: str, topic_id: str) -> str:
    """Check that a topic exists and still has the expected id; an empty one accepts any. Return its id.

    Raises:
        NotFoundError: the topic does not exist.
        DataLostError: the topic was deleted and created again.
    """
    now = id_of(expected(client, name, look_up))
    if topic_id and now and now != topic_id:
        msg = (
            f"topic '{name}' at {client.prefix}bootstrap.servers='{client.bootstrap_servers}' was deleted and created "
            f"again: expected the topic with id {topic_id}, got id {now}. Its records are gone. For the log of a "
            f"table, log.repair() publishes the table's snapshots again; then start a new reader."
        )
        raise DataLostError(msg)
    return now


class TopicWatch:
    """Checks periodically, for a waiting reader, whether its topic still exists and is the same one."""

    def __init__(self, client: KafkaClient, name: str, topic_id: str = "") -> None:
        """Create the watch of a topic; without an id, ``look`` adopts the first one found. Nothing connects yet."""
        self._client = client.within(LOOK_SECONDS_MAX)
        self._name = name
        self._id = topic_id
        self._looked = time.monotonic()

    def look(self) -> None:
        """Check the topic unless it was checked within the last ``LOOK_SECONDS``; ignore an unresponsive broker."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        try:
            self._id = check_identity(self._client, self._name, self._id)
        except UnavailableError as error:
            logger.debug("look at topic %r: %s", self._name, error)
        self._looked = time.monotonic()


def delete_topic(client: KafkaClient, name: str, topic_id: str = "") -> bool:
    """Delete a topic, wait until it is gone, and return whether it existed.

    The client can delete topics only by name. If the topic is replaced by another one of the same name between the
    check of the id and the deletion, which are two consecutive requests, the new topic is deleted. Without
    ``topic_id``, any topic of the name is deleted.

    Raises:
        UnavailableError: the broker does not respond, or the topic still exists after ``SETTLE_SECONDS_MAX``.
    """
    attempts = 0

    def delete(admin: AdminClient, _: float) -> Mapping[str, Future[None]]:
        nonlocal attempts
        attempts += 1
        if topic_id and ((found := look_up(client, name)) is None or id_of(found) != topic_id):
            raise missing(client, name)
        return admin.delete_topics([name], request_timeout=client.request_seconds)

    try:
        answer(client, f"delete topic '{name}'", delete)
    except NotFoundError:
        # An earlier attempt that got no response has deleted it.
        return attempts > 1
    until = time.monotonic() + SETTLE_SECONDS_MAX
    while (found := look_up(client, name)) is not None:
        if topic_id and id_of(found) != topic_id:
            # Another topic of this name has been created since.
            return True
        if time.monotonic() > until:
            msg = f"topic '{name}' is still there {SETTLE_SECONDS_MAX:.0f} s after its deletion began. Retry later."
            raise UnavailableError(msg)
        time.sleep(SETTLE_STEP_SECONDS)
    return True


@dataclass(frozen=True)
class TopicOffsets:
    """Offsets of a topic, with the topic's id.

    Attributes:
        topic_id: Kafka's id, which changes if the topic is deleted and created again; see ``id_of``.
        offsets: an offset for each partition.
    """

    topic_id: str
    offsets: dict[int, int]


def earliest_of(client: KafkaClient, topic: str) -> TopicOffsets:
    """Return the first available offset of each partition, with the topic's id."""
    cluster, asked, topic_id = _asked(client, topic)
    return TopicOffsets(topic_id, _PartitionOffsets(topic, cluster.earliest(asked)))


def latest_of(client: KafkaClient, topic: str, *, read_committed: bool) -> TopicOffsets:
    """Return the offsets of ``latest_offsets``, with the topic's id."""
    cluster, asked, topic_id = _asked(client, topic)
    isolation = "read_committed" if read_committed else "read_uncommitted"
    return TopicOffsets(topic_id, _PartitionOffsets(topic, cluster.latest(asked, isolation)))


def topic_id(client: KafkaClient, topic: str) -> str:
    """Return Kafka's id of a topic; see ``id_of``.

    Raises:
        NotFoundError: the topic does not exist.
    """
    return id_of(expected(client, topic, look_up))


def earliest_offsets(client: KafkaClient, topic: str) -> dict[int, int]:
    """Return the first available offset of each partition."""
    return earliest_of(client, topic).offsets


def latest_offsets(client: KafkaClient, topic: str, *, read_committed: bool) -> dict[int, int]:
    """Return the end offset of each partition; if ``read_committed``, that before its first open transaction.

    The broker acknowledges a commit once it is decided, and writes the commit marker to each partition shortly
    afterwards. Directly after a commit, the read-committed end may therefore still be before the transaction.
    """
    return latest_of(client, topic, read_committed=read_committed).offsets


def stable_ends(client: KafkaClient, topic: str) -> list[LogEnd]:
    """Return the last stable offset of each partition, with its leader epoch."""
    cluster, asked, _ = _asked(client, topic)
    found = cluster.ends(asked, "read_committed")
    return [found[each] for each in asked]


def _asked(client: KafkaClient, topic: str) -> tuple[Cluster, list[Partition], str]:
    found = expected(client, topic, look_up)
    numbers = sorted(part.id for part in found.partitions)
    return Cluster(client), [(topic, number) for number in numbers], id_of(found)


class _PartitionOffsets(dict[int, int]):
    """Offsets by partition, of a topic that may have been created again with fewer of them."""

    def __init__(self, topic: str, found: Offsets) -> None:
        super().__init__({number: offset for (_, number), offset in found.items()})
        self._topic = topic

    def __missing__(self, partition: int) -> int:
        msg = (
            f"topic '{self._topic}' has {counted(len(self), 'partition')}, not number {partition}: it was deleted "
            "and created again, and its records are gone. For the log of a table, log.repair() says what to do."
        )
        raise DataLostError(msg)


def _accept(client: KafkaClient, name: str, wanted: _Wanted) -> None:
    """Check that a topic that this call did not create is acceptable.

    Raises:
        NotFoundError: the topic does not exist.
        InvalidInputError: the topic has another shape.
        AlreadyExistsError: the topic has or had records.
    """
    _compare(name, expected(client, name, describe_topic), wanted)
    ends = latest_offsets(client, name, read_committed=False)
    if any(ends.values()):
        msg = (
            f"option 'kafka.topic': topic '{name}' already has or had {sum(ends.values())} records of somebody else, "
            f"and a new table needs an empty topic of its own. Choose another topic, or delete this one."
        )
        raise AlreadyExistsError(msg)


def _compare(name: str, shape: TopicShape, wanted: _Wanted) -> None:
    if shape.partitions != wanted.partitions:
        msg = (
            f"option 'bucket': topic '{name}' needs one partition for each of the {wanted.partitions} buckets of the "
            f"table; it has {shape.partitions}. Set bucket={shape.partitions}, or choose another kafka.topic."
        )
        raise InvalidInputError(msg)
    if shape.compacted != wanted.compacted:
        policy, actual = ("compact", "delete") if wanted.compacted else ("delete", "compact")
        asked, other = str(wanted.compacted).lower(), str(shape.compacted).lower()
        msg = (
            f"option 'log.compacted'={asked}: topic '{name}' needs cleanup.policy={policy}; it has {actual}. "
            f"Set log.compacted={other}, change the topic, or choose another kafka.topic."
        )
        raise InvalidInputError(msg)
    if wanted.retention_ms is not None and shape.retention_ms != wanted.retention_ms:
        msg = (
            f"option 'log.retention': topic '{name}' needs retention.ms={wanted.retention_ms}; it has "
            f"{shape.retention_ms}. Leave log.retention out to take the topic as it is, change the topic, or choose "
            f"another kafka.topic."
        )
        raise InvalidInputError(msg)


def _settle(client: KafkaClient, name: str, partitions: int | None) -> None:
    """Wait until a topic that was just created has a leader for each of its partitions and serves requests.

    Raises:
        UnavailableError: some partition has no leader after ``SETTLE_SECONDS_MAX``.
    """
    until = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        parts = partitions_led(client, name) or {}
        if parts and all(parts.values()) and len(parts) == (partitions or len(parts)):
            # A broker may know that it leads a partition before it can serve requests for it.
            Cluster(client).earliest((name, number) for number in parts)
            return
        if time.monotonic() > until:
            msg = (
                f"topic '{name}' was made, but {SETTLE_SECONDS_MAX:.0f} s later only {sum(parts.values())} of its "
                f"partitions have a leader. Check the brokers at '{client.bootstrap_servers}', then retry."
            )
            raise UnavailableError(msg)
        time.sleep(SETTLE_STEP_SECONDS)
