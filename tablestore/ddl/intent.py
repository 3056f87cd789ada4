"""The intent of a ``create`` or ``drop``: a record of the operation that the next process completes after a crash."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from log_system.base import LogIdentity, LogStorage
from log_system.index import INDEX
from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import ClientValue
from snapshot.schema.spec import TableSpec
from snapshot.storage import Storage
from tablestore.log_systems import log_storage
from tablestore.options.table_options import parse_options, without_removed

logger = logging.getLogger("tablestore")

INTENT = f"{INDEX}/_intent"


@dataclass(frozen=True)
class Intent:
    """The record of a ``create`` or ``drop`` in progress, written first so that it can be cleaned up after a crash.

    Attributes:
        verb: ``create`` or ``drop``.
        topic: the log's topic; empty without one.
        owns_topic: whether this ``create`` created the topic, or the table being dropped owns it.
        table_id: the table that is created or dropped; its consumer groups are named after it.
        topic_id: Kafka's id of the topic; empty until known. A topic with another id is never deleted.
        cluster_id: the id of the topic's Kafka cluster.
        properties: the table's stored ``kafka.*`` options, for connecting to the cluster again.
    """

    verb: str
    topic: str = ""
    owns_topic: bool = False
    table_id: str = ""
    topic_id: str = ""
    cluster_id: str = ""
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> LogIdentity:
        """The identity of the log."""
        return LogIdentity(self.owns_topic, self.topic_id, self.cluster_id)

    def of(self, identity: LogIdentity) -> Intent:
        """Return the intent with the identity of the log."""
        return replace(self, owns_topic=identity.owned, topic_id=identity.topic_id, cluster_id=identity.cluster_id)


def read_intent(storage: Storage) -> Intent | None:
    """Return the intent in a table's folder; None if there is none."""
    text = storage.read(INTENT)
    return None if text is None else Intent(**json.loads(text))


def put_intent(storage: Storage, intent: Intent) -> None:
    """Write the intent into a table's folder."""
    storage.put(INTENT, json.dumps(asdict(intent)).encode())


def kafka_properties(spec: TableSpec) -> dict[str, str]:
    """Return a table's stored ``kafka.*`` options."""
    return {name: value for name, value in spec.properties.items() if name.startswith("kafka.")}


def storage_of(intent: Intent, runtime: Mapping[str, ClientValue], allowed: Allowed) -> LogStorage | None:
    """Return where the intent's log is stored; None for an intent without stored options (older versions).

    Such an intent proves nothing, so the topic is not touched.
    """
    if not intent.properties:
        logger.warning(
            "topic %r is kept: an interrupted %s names no brokers (an older version began it), so nothing proves whose "
            "topic it is. If nothing else uses it, delete it with Kafka's tools.",
            intent.topic,
            intent.verb,
        )
        return None
    options = parse_options(without_removed(intent.properties), log_system="kafka", primary_key=())
    return log_storage(options, runtime, allowed)
