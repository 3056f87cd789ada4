"""Topics that strangers make, with the plain client."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.waiting import PATIENCE_SECONDS


def make_topic(servers: str, topic: str, partitions: int = 1) -> None:
    """Make a topic and wait until its partitions are led: the broker answers before it knows the topic itself."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_SECONDS)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        if found.error is None and [p.leader >= 0 for p in found.partitions.values()] == [True] * partitions:
            return
        time.sleep(0.02)
    msg = f"topic {topic!r} is not led"
    raise TimeoutError(msg)
