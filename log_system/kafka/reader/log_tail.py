"""The tail of an eventual log for streaming readers: its offsets, and splits of its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import pyarrow as pa

from log_system.base import LoggedTable, RecordRange
from log_system.kafka.client.cluster import Cluster
from log_system.kafka.client.topic import topic_id
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import is_another, shortened_partitions
from log_system.kafka.reader.tail_reader import read_tail
from snapshot.errors import DataLostError
from snapshot.records import LogEnd
from snapshot.schema.adapter import RESTART, Adapter
from snapshot.schema.system_columns import with_kind


@dataclass(frozen=True)
class RecordsSplit:
    """The records of one partition between two offsets; with ``newest``, superseded ones may be left out.

    ``log`` decodes the columns as the newest records have them.
    """

    log: KafkaLog
    partition: int
    start: int
    end: int
    newest: bool
    adapt: Adapter

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes with ``_kind``, ``_seq`` and ``_commit_timestamp``."""
        return map(self.adapt, read_tail(self.log, self.partition, self.start, self.end, newest=self.newest))

    def between(self, start: int, end: int, /) -> RecordsSplit:
        """Return the split of the records of the partition between two other offsets."""
        return replace(self, start=start, end=end)


class KafkaTail:
    """Reads the tail of one log."""

    def __init__(self, log: KafkaLog, files: LoggedTable) -> None:
        """Create the reader for the table ``files``; nothing connects before the first call."""
        self._log = log
        self._files = files
        self._table = files.storage.root
        self._cluster = Cluster(log.client)
        self._partitions = [(log.topic, partition) for partition in range(log.partitions)]

    def starts(self) -> list[int]:
        """Return the first offset of each partition."""
        offsets = self._cluster.earliest(self._partitions)
        return [offsets[partition] for partition in self._partitions]

    def ends(self) -> list[LogEnd]:
        """Return the last stable offset of each partition, with its leader epoch."""
        found = self._cluster.ends(self._partitions, "read_committed")
        return [found[partition] for partition in self._partitions]

    def generation(self) -> str:
        """Return the topic's id."""
        return topic_id(self._log.client, self._log.topic)

    def check(self, generation: str, /, reached: Sequence[LogEnd] = ()) -> None:
        """Check that the topic still is the one with this id, and that its partitions have not lost these ends.

        A topic that was created again restarts its offsets, which also order the changes, at 0. A query would skip all
        records up to its old offset, and take newer changes for older ones. So it would where a broker has lost the end
        of a partition.

        Raises:
            DataLostError: the topic is another one of the same name, or the broker has lost the end of a partition.
        """
        now = self.generation()
        if is_another(generation, now):
            msg = (
                f"table {self._table!r}: topic {self._log.topic!r} was deleted and recreated since this query read it: "
                f"expected the topic with id {generation}, got one with id {now}. What the query has not read of it is "
                "gone. Let log.repair() publish the table's rows again, then start a new query, with a new checkpoint "
                "and scan_mode='full'."
            )
            raise DataLostError(msg)
        if reached:
            self._check_ends(reached)

    def _check_ends(self, reached: Sequence[LogEnd]) -> None:
        """Compare where the partitions end, and where a leader epoch has ended that is over.

        A broker that has lost the end of a partition does so under a new leader epoch, even if it is the same broker.
        """
        found = self._cluster.ends(self._partitions, "read_uncommitted")
        now = [found[partition] for partition in self._partitions]
        for partition, (was, end) in enumerate(zip(reached, now, strict=True)):
            if end.offset < was.offset:
                self._raise_lost(partition, was.offset, f"ends at offset {end.offset}, before")
        for partition in shortened_partitions(self._log, reached, now):
            self._raise_lost(partition, reached[partition].offset, "has lost what was before")

    def _raise_lost(self, partition: int, offset: int, found: str) -> NoReturn:
        msg = (
            f"table {self._table!r}: partition {partition} of topic {self._log.topic!r} {found} offset {offset}, up to "
            "which this query has read it: the broker has lost the end of the log, as after an unclean leader "
            "election. Let log.repair() bring back what is missing, then start a new query, with a new checkpoint and "
            "scan_mode='full'."
        )
        raise DataLostError(msg)

    def splits(self, ranges: Sequence[tuple[int, int, int]], *, newest: bool) -> list[RecordRange]:
        """Return splits of records; see ``LogTail.splits``.

        Writers have changed the table's columns before they sent records with the new ones. So what the newest
        definition cannot decode is not the table's, and what does not fit the columns as opened is an error of its own.
        """
        wanted = self._files.spec.change_columns
        given = wanted.until(self._files.spec_at_least(self._files.latest()).change_columns)
        log = replace(self._log.under(with_kind(given.named)), client=self._log.client.outlasting())
        return [RecordsSplit(log, *each, newest, Adapter(given, wanted, RESTART)) for each in ranges]
