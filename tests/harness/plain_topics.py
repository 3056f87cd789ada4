"""Topics that strangers make, with the plain client."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.waiting import PATIENCE_SECONDS, until


def make_topic(servers: str, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
    """Make a topic and wait until its partitions are led: the broker answers before it knows the topic itself."""
    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(topic, partitions, 1, config=dict(settings or {}))])
    made[topic].result(PATIENCE_SECONDS)

    def is_led() -> bool:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        return found.error is None and [p.leader >= 0 for p in found.partitions.values()] == [True] * partitions

    until(is_led)
