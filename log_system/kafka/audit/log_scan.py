"""Read a whole log partition for verify and repair: first the positions of its snapshots, then the changes.

Snapshots are located from the log alone: the last record of each transaction in a partition carries a position
(``kafka/register.py``). Verify and repair compare the log index and the register with these positions.

Each function raises ``UnavailableError`` if the broker does not respond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from log_system.kafka.client.messages import Records, Wanted
from log_system.kafka.client.range_reader import BatchSize
from log_system.kafka.client.topic import earliest_offsets, latest_offsets
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import committed_records, group_positions
from log_system.kafka.reader.tail_reader import decode_others
from log_system.kafka.register import SNAPSHOT_HEADER, RegisterPosition
from snapshot.errors import UnavailableError

_BATCH = BatchSize(records=20_000, bytes=4 << 20)
_SETTLE_SECONDS = 5.0
_SETTLE_STEP_SECONDS = 0.05
Progress = Callable[[int], None]
"""A callback that receives the number of offsets read since its last call."""


@dataclass(frozen=True)
class Mark:
    """A record that carries a position.

    Attributes:
        position: the position it carries; ``position.end`` is the offset after the record.
        before: number of committed records from the start of the scan up to and including this one.
    """

    position: RegisterPosition
    before: int


@dataclass(frozen=True)
class PartitionScan:
    """The records and positions found in a log partition.

    Attributes:
        low: the partition's first available offset.
        end: the offset after the last committed record that was scanned.
        records: number of committed records in between.
        marks: the records that carry a position, in order.
        foreign: offset and snapshot id of each record that carries no position and names a snapshot that is not
            committed.
    """

    low: int
    end: int
    records: int
    marks: tuple[Mark, ...]
    foreign: tuple[tuple[int, int], ...]


def bounds(log: KafkaLog, claimed: Sequence[int], *, whole: bool = False) -> list[tuple[int, int]]:
    """Return the first offset and the committed end offset of each of the table's partitions.

    A broker acknowledges a commit shortly before the last stable offset moves. If less can be read than is claimed,
    wait for that. If it takes longer, only another producer's open transaction can be hiding records.

    Args:
        log: the log.
        claimed: for each partition, the end offset according to the log index and the register.
        whole: require everything written to be readable, whatever is claimed. Callers need this to conclude that
            something is missing from the log, and must first end the transactions of the table's own publishers.

    Raises:
        NotFoundError: the topic does not exist.
        UnavailableError: the broker does not respond, or an open transaction hides records that must be read.
    """
    until = time.monotonic() + _SETTLE_SECONDS
    while True:
        written = latest_offsets(log.client, log.topic, read_committed=False)
        ends = latest_offsets(log.client, log.topic, read_committed=True)
        behind = [p for p in ends if p < log.partitions and ends[p] < written[p]]
        hidden = [p for p in behind if whole or (p < len(claimed) and ends[p] < claimed[p])]
        if not hidden:
            break
        if time.monotonic() > until:
            raise _hidden(log, hidden[0], ends[hidden[0]], written[hidden[0]])
        time.sleep(_SETTLE_STEP_SECONDS)
    low = earliest_offsets(log.client, log.topic)
    # Nothing is published to partitions that were added.
    return [(low[p], ends[p]) for p in sorted(ends)][: log.partitions]


def _hidden(log: KafkaLog, partition: int, end: int, written: int) -> UnavailableError:
    return UnavailableError(
        f"topic {log.topic!r}, partition {partition}: expected to read up to offset {written}, got no further than "
        f"{end}: an open transaction, of another producer, hides what follows, and what is hidden may be published. "
        "Nothing was concluded. Wait until it ends, or see it with Kafka's kafka-transactions.sh --find-hanging and "
        "end it with --abort; then try again. If the brokers have lost the end of a transaction of the table's own, "
        "log.repair() ends it."
    )


def positions(log: KafkaLog) -> list[RegisterPosition | None]:
    """Return the register; None for each partition whose offset the broker has lost."""
    with closing(log.client.consumer(log.group)) as consumer:
        return group_positions(log, consumer, range(log.partitions))


def scan(log: KafkaLog, partition: int, low: int, end: int, newest: int, progress: Progress) -> PartitionScan:
    """Scan a partition for positions carried by its records, without decoding changes."""
    marks: list[Mark] = []
    foreign: list[tuple[int, int]] = []
    count, seen = 0, low
    for records in committed_records(log, partition, low, end, batch=_BATCH):
        for message in records.messages:
            count += 1
            headers = message.headers()
            if headers:
                position = RegisterPosition.from_headers(message.offset(), headers, log.table_id)
                if position is not None:
                    marks.append(Mark(position, count))
                elif (named := _named(headers)) is not None and named > newest:
                    foreign.append((message.offset(), named))
        last = int(records.offsets[-1])
        progress(last - seen)
        seen = last
    progress(max(0, end - seen))
    return PartitionScan(low, end, count, tuple(marks), tuple(foreign))


class LogReader:
    """Reads consecutive offset ranges of one partition over one connection."""

    def __init__(self, log: KafkaLog, partition: int, start: int, end: int, progress: Progress) -> None:
        """Create a reader of the committed records from ``start`` up to ``end``; see ``Progress``."""
        self._log = log
        self._codec = log.codec()
        self._records = committed_records(log, partition, start, end, wanted=Wanted(all_keys=True), batch=_BATCH)
        self._ahead: Records | None = None
        self._seen = start
        self._progress = progress

    def decoded(
        self, start: int, end: int, unreadable: Callable[[int, str], None], schema: pa.Schema | None = None
    ) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """Yield the decoded records between two offsets, a few megabytes at a time. Call with ascending ranges.

        Args:
            start: the first offset to decode; earlier records are skipped.
            end: the offset to stop at.
            unreadable: called with the offset and the cause for each record that cannot be decoded; may raise to stop.
            schema: the columns of the records, then ``_kind``; None for the schema of the previous range.

        Yields:
            The columns and ``_kind``, and for each row the offset of its record (int64).
        """
        if schema is not None and schema != self._log.schema:
            self._log = self._log.under(schema)
            self._codec = self._log.codec()
        for records in self._range(start, end):
            parts = decode_others(self._codec, records, lambda offset, error: unreadable(offset, error.reason))
            for part, found in parts:
                yield found.batch, part.offsets[found.record]
            self._advance(int(records.offsets[-1]))
        self._advance(end)

    def _range(self, start: int, end: int) -> Iterator[Records]:
        while (records := self._ahead or next(self._records, None)) is not None:
            inside = records.before(end)
            self._ahead = records.slice(len(inside), len(records)) if len(inside) < len(records) else None
            skipped = len(inside.before(start))
            if skipped < len(inside):
                yield inside.slice(skipped, len(inside))
            if self._ahead is not None:
                return

    def _advance(self, offset: int) -> None:
        """Report progress up to an offset."""
        self._progress(max(0, offset - self._seen))
        self._seen = max(offset, self._seen)


def _named(headers: Sequence[tuple[str, bytes | str | None]]) -> int | None:
    try:
        return int(dict(headers)[SNAPSHOT_HEADER] or b"")
    except (KeyError, ValueError):
        return None
