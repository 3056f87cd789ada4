"""Promise 7: a table is dropped, and groups are deleted, beside a broker that has died and whose place nobody takes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.client.cluster import GroupOffsets, delete_groups
from log_system.kafka.client.connect import KafkaClient
from snapshot.errors import UnavailableError
from tablestore.ddl.create_drop import drop
from tests.harness.cluster import OFFSETS, LocalCluster
from tests.harness.local_writes import make_table

pytestmark = [pytest.mark.crash, pytest.mark.slow]
NOBODY = {"broker.session.timeout.ms": "120000"}
"""The other brokers take a dead one for alive until the test is over."""


def test_a_drop_does_not_wait_for_groups_that_expire_with_their_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalCluster(properties=NOBODY) as cluster:
        table = make_table(tmp_path / "t", cluster.bootstrap_servers, "orders", log__replication_factor=3)
        client, group = table.log.settings.client, table.log.settings.group
        offsets = GroupOffsets(client, group)
        offsets.commit({("orders", 0): 0})
        offsets.close()
        assert cluster.wait_until_replicated(["orders"], 60)
        coordinator = cluster.coordinator(group, OFFSETS)
        assert coordinator is not None
        coordinator.kill()
        # The topic is still there, so its groups must go.
        hurried = KafkaClient(client.config, wait_seconds=2)
        with pytest.raises(UnavailableError, match="remove consumer groups"):
            delete_groups(hurried, [group])
        with caplog.at_level(logging.WARNING, "tablestore"):
            assert drop(table) == "orders"
        assert "its consumer groups could not be removed" in caplog.text
        assert describe_topic(client, "orders") is None
        assert not (tmp_path / "t").exists()
