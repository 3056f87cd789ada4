"""An eventual table and its writers, and any mix of what they may do."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from log_system.index import LogIndex
from log_system.kafka.publisher.eventual_publisher import EventualPublisher
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.delta.log import DeltaLog
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import make_table, publisher_of, run_here, write

PARTITIONS = 2
EVENTUAL = {"log__consistency": "eventual", "bucket": PARTITIONS}
_STEPS = 14


class EventualStory(ABC):
    """An eventual table and its writers."""

    def __init__(self, path: Path, servers: str, topic: str, *, key: bool = True, **options: Any) -> None:
        self.path, self.servers, self.topic = path, servers, topic
        make_table(path, servers, topic, key=key, **EVENTUAL, **options)
        self.publishers: list[KafkaPublisher] = []

    @property
    def table(self) -> TableContext:
        """The table, with nothing cached."""
        return TableContext.open(str(self.path))

    def writer(self) -> Writer:
        """Return another writer."""
        table = self.table
        self.publishers.append(publisher_of(table))
        return Writer(table, self.publishers[-1])

    def recover(self) -> None:
        """Recover the table as another process would."""
        table = self.table
        self.publishers.append(publisher_of(table))
        recover(table, self.publishers[-1])

    def discard(self) -> None:
        """Close the connections of all writers."""
        for publisher in self.publishers:
            publisher.discard()

    @abstractmethod
    def assert_right(self) -> None:
        """Check that the log is what it has to be once everything is settled."""

    def mix(self, dice: random.Random, rows_of: Callable[[int], Sequence[Any]], actions: Sequence[str]) -> None:
        """Do random actions with two writers: write, stage, commit or abort what is staged, crash, recover, compact.

        Args:
            dice: chooses.
            rows_of: returns the rows of a step.
            actions: what is chosen from.
        """
        writers = [self.writer() for _ in range(2)]
        held: list[tuple[Writer, list[Any]]] = []
        for step in range(_STEPS):
            rows = rows_of(step)
            writer = dice.choice(writers)
            action = dice.choice(actions)
            if action == "write":
                write(writer, rows)
            elif action == "stage":
                held.append((writer, stage(writer, rows)))
            elif action == "commit" and held:
                late, staged = held.pop(dice.randrange(len(held)))
                late.write_staged(staged)
            elif action == "abort" and held:
                held.pop()
            elif action == "crash":
                owner, name = dice.choice([(EventualPublisher, "_repair"), (LogIndex, "put"), (DeltaLog, "commit")])
                # A publisher that was replaced fails at its first call before it can crash there.
                with failing(owner, name, after=dice.random() < 0.5), suppress(Crash):
                    write(writer, rows)
                writers[writers.index(writer)] = self.writer()
            elif action == "compact":
                compact(self.table, run_here)
            elif action == "recover":
                self.recover()
                self.assert_right()
        self.recover()
        self.assert_right()
        self.discard()


def stage(writer: Writer, rows: Sequence[Any]) -> list[Any]:
    """Stage rows without committing them: their records are in the log."""
    held: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "write_staged", lambda _, staged, *__, **___: held.extend(staged))
        write(writer, list(rows))
    return held
