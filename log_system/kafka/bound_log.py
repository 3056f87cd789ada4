"""A Kafka log together with the table whose changes it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from log_system.base import LoggedTable, RepairSource
from log_system.index import LogIndex
from log_system.kafka.log import KafkaLog
from log_system.kafka.topic_storage import TopicStorage
from snapshot.schema.spec import TableSpec


@dataclass(frozen=True)
class BoundLog:
    """The log of an open table.

    Attributes:
        settings: the log; splits and tasks take only this along.
        storage: the log's topic.
        files: the table.
        index: the table's log index.
        source: returns what compares an eventual log with the table.
    """

    settings: KafkaLog
    storage: TopicStorage
    files: LoggedTable
    index: LogIndex
    source: Callable[[KafkaLog], RepairSource]

    @property
    def path(self) -> str:
        """The table's folder."""
        return self.files.storage.root

    @property
    def spec(self) -> TableSpec:
        """The table's definition when it was opened."""
        return self.files.spec
