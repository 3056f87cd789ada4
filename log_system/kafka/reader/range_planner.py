"""Plans which ranges of the log hold the changes of consecutive snapshots."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from log_system.files.log import FilesSplit
from log_system.gate import PartitionSlice, slices
from log_system.index import IndexEntry
from log_system.kafka.bound_log import BoundLog
from log_system.kafka.client.topic import earliest_of
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import is_another
from log_system.kafka.reader.snapshot_reader import read_slice
from snapshot.errors import DataLostError
from snapshot.records import ChangeSet, Split
from snapshot.schema.adapter import RESTART, Adapter
from snapshot.schema.physical_names import Columns
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import with_kind

logger = logging.getLogger("tablestore")

REPLACING = ("truncate", "overwrite")
"""Kinds of snapshots for whose deletes the log may have a single truncate record (``log.truncate-record``)."""


@dataclass(frozen=True)
class LogPiece:
    """Changes in one log partition of snapshots that share a schema; ``log`` decodes that schema."""

    log: KafkaLog
    piece: PartitionSlice
    adapt: Adapter

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes, in order, with ``_kind``, ``_commit_version`` and ``_commit_timestamp``."""
        yield from map(self.adapt, read_slice(self.log, self.piece))


@dataclass(frozen=True)
class LogSplit:
    """Changes of several snapshots in one log partition, in pieces with one schema each.

    A snapshot for whose deletes the log has only one truncate record is a piece that reads the table's files.
    """

    pieces: tuple[LogPiece | FilesSplit, ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes, in order, with ``_kind``, ``_commit_version`` and ``_commit_timestamp``."""
        for piece in self.pieces:
            yield from piece.read()


def plan(bound: BoundLog, after: int, through: int, columns: Columns) -> list[Split] | None:
    """Return splits of the changes of snapshots ``after + 1`` to ``through``, one per partition.

    Returns:
        The splits; None if the log lacks records or index entries, or the topic was deleted and created again.
    """
    pieces: dict[int, list[LogPiece | FilesSplit]] = {}
    topics: set[str] = set()
    settings = replace(bound.settings, client=bound.settings.client.outlasting())
    try:
        for spec, first, last in _epochs(bound, after, through):
            log = settings.under(with_kind(spec.change_columns.named))
            adapt = Adapter(spec.change_columns, columns, RESTART)
            entries = bound.index.entries(first - 1, last)
            topics |= {entry.topic for entry in entries}
            for run in _runs(bound, entries):
                if isinstance(run, list):
                    for piece in slices(run):
                        pieces.setdefault(piece.partition, []).append(LogPiece(log, piece, adapt))
                else:
                    for bucket in run.buckets:
                        pieces.setdefault(bucket, []).append(FilesSplit((run,), bucket, columns))
    except DataLostError as error:
        logger.warning("table %s: %s Reading the table's files instead.", bound.path, error)
        return None
    in_log = [each.piece for parts in pieces.values() for each in parts if isinstance(each, LogPiece)]
    if in_log and (why := _why_gone(bound.settings, in_log, topics)):
        logger.warning(
            "table %s: %s snapshots %d to %d; reading the table's files instead.", bound.path, why, after + 1, through
        )
        return None
    return [LogSplit(tuple(parts)) for _, parts in sorted(pieces.items())]


def _runs(bound: BoundLog, entries: Sequence[IndexEntry]) -> Iterator[list[IndexEntry] | ChangeSet]:
    """Yield runs of index entries; a snapshot with a truncate record is yielded separately, as its change files.

    The truncate record does not say which rows were deleted, but the files do. The files exist as long as the index
    entry, because both expire with their snapshot.
    """
    run = list[IndexEntry]()
    for entry in entries:
        if entry.kind in REPLACING and bound.files.truncates(entry.snapshot):
            yield run
            yield bound.files.changes(entry.snapshot, bound.settings.partitions)
            run = []
        else:
            run.append(entry)
    yield run


def _epochs(bound: BoundLog, after: int, through: int) -> Iterator[tuple[TableSpec, int, int]]:
    """Yield the runs of snapshots between column changes: the table definition, the first and the last snapshot."""
    newest, last = bound.files.spec_at_least(through), through
    epochs: list[tuple[TableSpec, int, int]] = []
    while last > after:
        spec = newest.at(last)
        first = max(after + 1, spec.since)
        epochs.append((spec, first, last))
        last = first - 1
    return reversed(epochs)


def _why_gone(log: KafkaLog, wanted: Sequence[PartitionSlice], topics: set[str]) -> str:
    """Return why the log no longer has all of the slices; empty if it has.

    ``topics`` are the topic ids in the index entries.
    """
    earliest = earliest_of(log.client, log.topic)
    if any(is_another(topic, earliest.topic_id) for topic in topics):
        return "the topic was deleted and recreated after"
    expired = any(earliest.offsets[piece.partition] > piece.start and piece.records for piece in wanted)
    return "the log's retention has passed" if expired else ""
