"""Doors that kill: wrap the store's doors to the outside so that a process dies, by SIGKILL, at a named point.

A point is ``<call>:before`` or ``<call>:after``. Production code has no hooks; these replace methods in a process that
exists only to be killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from log_system.index import LogIndex
from log_system.kafka import topic_storage
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.publisher import partition_tasks as publishing_tasks
from log_system.kafka.publisher import transactional_publisher as publishing
from log_system.kafka.publisher.eager_producer import KafkaLogSink
from log_system.kafka.publisher.eventual_publisher import EventualPublisher
from snapshot.delta.log import DeltaLog
from snapshot.staging.file_rewriter import FileRewriter
from snapshot.staging.parquet_writer import ParquetFiles
from snapshot.staging.stage import Stager
from snapshot.storage import Storage
from snapshot.store.changes import SnapshotChanges
from snapshot.store.table_files import TableFiles
from tablestore import reconcile as mending
from tablestore.ddl import create_drop
from tablestore.maintenance import compact as compacting
from tablestore.maintenance import minor_compaction

PRODUCER_CALLS = {
    "init": "init_transactions",
    "begin": "begin_transaction",
    "produce": "produce",
    "flush": "flush",
    "offsets": "send_offsets_to_transaction",
    "end": "commit_transaction",
}
CALLS = ("stage", "commit", *PRODUCER_CALLS, "index")
POINTS = tuple(f"{call}:{side}" for call in CALLS for side in ("before", "after"))
"""The points of a write at which CI kills a writer; the matrix knows more."""


class KillPoint:
    """Acts when a point is reached for the ``hit``-th time; by default it kills this process."""

    def __init__(self, point: str, hit: int, act: Callable[[], None] | None = None) -> None:
        """Wait for ``point``."""
        self._point = point
        self._left = hit
        self._act = act or _die

    def pass_by(self, point: str) -> None:
        """Say that a point is reached."""
        if point != self._point:
            return
        self._left -= 1
        if self._left == 0:
            self._act()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fall_asleep() -> None:
    """Suspend this process, until another one wakes it (SIGCONT)."""
    os.kill(os.getpid(), signal.SIGSTOP)


class _Producer:
    """A real producer behind doors that kill."""

    def __init__(self, producer: Any, trap: KillPoint) -> None:
        self._producer = producer
        self._trap = trap
        self._asked = False

    def init_transactions(self, *given: Any) -> None:
        """Count as one call, though it is repeated until the broker has answered."""
        if not self._asked:
            self._trap.pass_by("init:before")
        self._asked = True
        self._producer.init_transactions(*given)
        self._trap.pass_by("init:after")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._producer, name)
        for call, real in PRODUCER_CALLS.items():
            if real == name:
                return guarded(method, call, self._trap)
        return method

    def __len__(self) -> int:
        return len(self._producer)


def set_trap(trap: KillPoint) -> None:
    """Put doors that kill into this process."""
    for owner, name, call in (
        # Write.
        (Stager, "stage", "stage"),
        (FileRewriter, "stage", "stage"),
        (ParquetFiles, "_finish_file", "file"),
        (DeltaLog, "transaction_version", "find"),
        (DeltaLog, "commit_at", "read-commit"),
        (SnapshotChanges, "_read", "read-file"),
        (LogIndex, "put", "index"),
        # ``Storage.put`` makes a file whole by renaming it.
        (os, "replace", "rename"),
        # Publish.
        (publishing, "register", "register"),
        (publishing, "tasks_token", "token"),
        (publishing_tasks, "group_positions", "register"),
        (publishing_tasks, "tasks_token", "token"),
        # Eventual: staging tasks send, and the owner settles.
        (KafkaLogSink, "close", "sent"),
        (EventualPublisher, "_repair", "repair"),
        (EventualPublisher, "mend", "mend"),
        (mending, "_look_up", "look-up"),
        # Compact.
        (compacting, "_merge_bucket", "merge"),
        (minor_compaction, "_combine_bucket", "combine"),
        (TableFiles, "trim", "trim"),
        # Alter and expire.
        (DeltaLog, "alter", "alter"),
        (LogIndex, "delete", "index-delete"),
        # Create and drop.
        (create_drop, "put_intent", "intent"),
        (topic_storage, "ensure_topic", "topic"),
        (topic_storage, "delete_topic", "delete-topic"),
        (topic_storage, "delete_groups", "delete-groups"),
        (create_drop, "remove_log", "remove-log"),
        (create_drop, "_remove_files", "remove-files"),
        (Storage, "delete_tree", "delete-tree"),
        (Storage, "delete", "delete-file"),
    ):
        setattr(owner, name, guarded(vars(owner)[name], call, trap))
    DeltaLog.create = staticmethod(guarded(DeltaLog.create, "make-delta", trap))  # type: ignore[method-assign,assignment]
    commit = DeltaLog.commit
    DeltaLog.commit = lambda *args, **kwargs: guarded(commit, _kind(kwargs), trap)(*args, **kwargs)  # type: ignore[method-assign]
    make = KafkaClient.producer
    KafkaClient.producer = lambda *args, **kwargs: _Producer(make(*args, **kwargs), trap)  # type: ignore[method-assign,assignment,return-value]


def _kind(named: dict[str, Any]) -> str:
    """Name a Delta commit: a snapshot's, a compaction's into the root, or the one that drops folded changes."""
    if named.get("info", {}).get("kind") != "compact":
        return "commit"
    return "fold" if named.get("data_change", True) else "drop-folded"


def guarded(method: Any, call: str, trap: KillPoint) -> Any:
    """Return a method behind a door that kills before and after it."""

    def behind_door(*args: Any, **kwargs: Any) -> Any:
        trap.pass_by(f"{call}:before")
        result = method(*args, **kwargs)
        trap.pass_by(f"{call}:after")
        return result

    return behind_door
