"""The intent of a ``create`` or ``drop``: what a process that crashed has begun, for the next one to complete."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from log_system.index import INDEX
from log_system.kafka.client.access_policy import Allowed, merge_runtime
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.secrets import ClientValue
from log_system.kafka.client.topic import TopicIds
from snapshot.schema.spec import TableSpec
from snapshot.storage import Storage
from tablestore.options.table_options import parse_options, without_removed

logger = logging.getLogger("tablestore")

INTENT = f"{INDEX}/_intent"
UNPROVEN = (
    "topic %r stays: it cannot be proven to be the topic that was made with the table (Kafka's ids of topic and "
    "cluster are compared). If nobody else uses it, delete it with Kafka's tools."
)


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
    def ids(self) -> TopicIds:
        """The topic's ids."""
        return TopicIds(self.topic_id, self.cluster_id)


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


def client_of(intent: Intent, runtime: Mapping[str, ClientValue], allowed: Allowed) -> KafkaClient | None:
    """Return a client of the cluster that has the topic; None for an intent without stored options (older versions).

    Such an intent proves nothing, so the topic is not touched.
    """
    if not intent.properties:
        logger.warning(UNPROVEN, intent.topic)
        return None
    log = parse_options(without_removed(intent.properties), log_system="kafka", primary_key=()).log
    assert log is not None
    merged = merge_runtime(log.kafka.client, runtime, allowed)
    return KafkaClient(merged, wait_seconds=log.request_timeout_ms / 1000)
