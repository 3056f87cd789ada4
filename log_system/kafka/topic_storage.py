"""Creates a log's topic with its table, and deletes it with the table if the topic is proven to be the table's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from log_system.base import LogIdentity
from log_system.index import IndexEntry, OffsetRange
from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.client.cluster import delete_groups, has_offsets
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import (
    TopicIds,
    check_identity,
    delete_topic,
    ensure_topic,
    existing_ids,
    latest_of,
    latest_offsets,
    topic_ids,
)
from log_system.kafka.topic_claims import claim, claim_group, claimed_by
from snapshot.errors import AlreadyExistsError, UnavailableError
from snapshot.schema.spec import TableSpec

logger = logging.getLogger("tablestore")
_UNPROVEN = (
    "topic %r stays: it cannot be proven to be the topic that was made with the table (Kafka's ids of topic and "
    "cluster are compared). If nobody else uses it, delete it with Kafka's tools."
)
_GROUPS_LEFT = (
    "topic %r is gone, but its consumer groups could not be removed, since their coordinator does not answer. They do "
    "no harm, and the brokers remove them when they expire (offsets.retention.minutes)."
)
_NEEDLESS_SECONDS = 3.0
"""How long the coordinators of groups that expire anyway are waited for."""
_TAKEN = (
    "option 'kafka.topic': topic {topic!r} is the log of another table (id {other}), and a new table needs a topic of "
    "its own. Choose another topic. If that table's folder was lost without a drop, delete its consumer group "
    "{group!r} (kafka-consumer-groups.sh --delete), then retry."
)


@dataclass(frozen=True)
class TopicStorage:
    """The topic of one table's log.

    Attributes:
        client: the cluster.
        name: the topic.
        partitions: its number of partitions.
        retention_ms: how long it keeps records; None for the broker's default, -1 for ever.
        compacted: whether Kafka compacts it.
        replication_factor: its replication factor.
    """

    client: KafkaClient
    name: str
    partitions: int
    retention_ms: int | None
    compacted: bool
    replication_factor: int

    def ensure(self) -> bool:
        """Create the topic, or check an existing one; return whether this call provably created it.

        Raises:
            AlreadyExistsError: the topic has records.
            InvalidInputError: the topic does not match the options.
            UnavailableError: the broker does not respond.
        """
        return ensure_topic(
            self.client,
            self.name,
            partitions=self.partitions,
            retention_ms=self.retention_ms,
            compacted=self.compacted,
            replication_factor=self.replication_factor,
        )

    def create(self, table_id: str, note: Callable[[LogIdentity], None]) -> LogIdentity:
        """Create or check the topic, and check that no other table uses it.

        The table owns the topic only if the broker confirms to this call that it created the topic. If that response is
        lost, a retry learns only that the topic exists, so the table does not own it: an empty topic may be left
        behind, but no topic of another owner is deleted.

        Raises:
            AlreadyExistsError: another table uses the topic, or it has records.
            InvalidInputError: the topic does not match the options.
            NotFoundError: the topic was deleted in the meantime.
            UnavailableError: the broker does not respond.
        """
        created = self.ensure()
        ids = existing_ids(self.client, self.name)
        identity = LogIdentity(created, ids.topic_id, ids.cluster_id)
        note(identity)
        claim(self.client, self.name, ids, table_id)
        others = self._others(ids, table_id)
        if others:
            group = claim_group(self.name, ids, others[0])
            raise AlreadyExistsError(_TAKEN.format(topic=self.name, other=others[0], group=group))
        if not created:
            # Whoever created the topic may have deleted it before our claim was visible to them.
            check_identity(self.client, self.name, ids.topic_id)
        return identity

    def first_entry(self, table_id: str) -> IndexEntry:
        """Return the index entry of the empty table: the ends of the partitions."""
        ends = latest_of(self.client, self.name, read_committed=True)
        ranges = tuple(OffsetRange(ends.offsets[p], ends.offsets[p], 0, 0) for p in range(self.partitions))
        return IndexEntry(0, 0, "create", ranges, table=table_id, topic=ends.topic_id)

    def identify(self, spec: TableSpec) -> LogIdentity | None:
        """Return the ids of the topic and whether the table provably owns it; None if there is no such topic.

        For a table that stores no topic id, the proof is the consumer group of its register, whose offsets are deleted
        with the topic.
        """
        ids = topic_ids(self.client, self.name)
        if ids is None:
            return None
        if spec.topic_id:
            is_same = ids == TopicIds(spec.topic_id, spec.cluster_id)
        else:
            group = f"tablestore-{spec.table_id}"
            is_same = spec.owns_topic and has_offsets(self.client, group, self.name, self.partitions)
        if spec.owns_topic and not is_same:
            logger.warning(_UNPROVEN, self.name)
        return LogIdentity(spec.owns_topic and is_same, ids.topic_id, ids.cluster_id)

    def remove(
        self, table_id: str, identity: LogIdentity, *, dropping: bool, deleted: Callable[[], None]
    ) -> str | None:
        """Delete the topic if it is proven to be the table's, then the consumer groups, which claim the topic.

        Returns:
            The topic if it was deleted.

        Raises:
            UnavailableError: the broker does not respond. Brokers delete groups with their topic, sooner or later, so
                groups of a topic that is gone are not waited for.
        """
        # Without the topic's ids, nothing in Kafka can be proven to belong to an interrupted ``create``.
        if not dropping and not identity.cluster_id:
            return None
        may_delete = identity.owned and self._may_delete(table_id, identity, dropping=dropping)
        gone = may_delete and delete_topic(self.client, self.name, identity.topic_id)
        if gone:
            deleted()
        groups = [f"tablestore-{table_id}", f"tablestore-{table_id}-tasks"]
        ids = TopicIds(identity.topic_id, identity.cluster_id)
        is_needless = gone or topic_ids(self.client, self.name) != ids
        try:
            client = self.client.within(_NEEDLESS_SECONDS) if is_needless else self.client
            delete_groups(client, [*groups, claim_group(self.name, ids, table_id)])
        except UnavailableError:
            if not is_needless:
                raise
            logger.warning(_GROUPS_LEFT, self.name)
        return self.name if gone else None

    def _may_delete(self, table_id: str, identity: LogIdentity, *, dropping: bool) -> bool:
        """Return whether the topic of this name is the one that the table owns, and no other table uses it."""
        now = topic_ids(self.client, self.name)
        if now is None:
            return False
        if now != TopicIds(identity.topic_id, identity.cluster_id) or not (identity.topic_id or dropping):
            logger.warning(_UNPROVEN, self.name)
            return False
        # Others may have started to use the topic of an interrupted ``create``.
        return dropping or not (self._others(now, table_id) or self._has_records())

    def _others(self, ids: TopicIds, table_id: str) -> list[str]:
        return [other for other in claimed_by(self.client, self.name, ids) if other != table_id]

    def _has_records(self) -> bool:
        if describe_topic(self.client, self.name) is None:
            return False
        return any(latest_offsets(self.client, self.name, read_committed=False).values())
