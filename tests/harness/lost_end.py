"""A broker that loses the end of a partition, as an unclean leader election or a crash before the disk had it does."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import latest_offsets
from log_system.local_kafka.owned import LocalKafka
from tests.harness.waiting import until

_HEAD = struct.Struct(">qi")
"""A batch's first offset and the number of bytes that follow."""
_LAST = struct.Struct(">i")
_LAST_AT = 23
_OVER_SECONDS = 0.5
_DERIVED = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint")
"""What the broker makes again from the records."""


def ends_of(servers: str, topic: str) -> dict[int, int]:
    """Return the end of each partition with the markers of its transactions, which come after a commit is confirmed."""
    client = KafkaClient({"bootstrap.servers": servers})

    def over() -> dict[int, int] | None:
        ends = latest_offsets(client, topic, read_committed=False)
        return ends if latest_offsets(client, topic, read_committed=True) == ends else None

    found: dict[int, int] = until(over)
    return found


def lose_ends(kafka: LocalKafka, topic: str, offsets: Mapping[int, int]) -> None:
    """Lose the ends of the partitions of one topic; see ``lose_all``."""
    lose_all(kafka, {topic: offsets})


def lose_all(kafka: LocalKafka, topics: Mapping[str, Mapping[int, int]]) -> None:
    """Stop the broker, take away the batches that reach to these offsets or beyond, and start it as after a crash."""
    # Until the coordinator has written that a transaction is over, it writes its markers again when it starts.
    time.sleep(_OVER_SECONDS)
    # A broker that was killed starts six seconds later, when its session has expired.
    os.kill(kafka.pid, signal.SIGTERM)
    until(lambda: not kafka.running)
    # Without this file, it reads its logs again and makes what it derives from them, as after a crash.
    next(kafka.data_dir.rglob(".kafka_cleanshutdown")).unlink()
    for topic, offsets in topics.items():
        for partition, offset in offsets.items():
            folder = next(kafka.data_dir.rglob(f"{topic}-{partition}/partition.metadata")).parent
            for segment in folder.glob("*.log"):
                _cut(segment, offset)
            for pattern in _DERIVED:
                for file in folder.glob(pattern):
                    file.unlink()
    kafka.start()


def _cut(segment: Path, offset: int) -> None:
    held, at = segment.read_bytes(), 0
    while at + _HEAD.size < len(held):
        first, size = _HEAD.unpack_from(held, at)
        if first + _LAST.unpack_from(held, at + _LAST_AT)[0] >= offset:
            break
        at += _HEAD.size + size
    with segment.open("r+b") as file:
        file.truncate(at)
