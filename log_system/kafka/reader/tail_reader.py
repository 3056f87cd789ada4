"""Read an eventual log by offsets without the gate: all records, in log order. Runs in Spark tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from log_system.formats import LogFormat
from log_system.formats.base import DecodedChanges
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.messages import Records, Wanted, joined, newest
from log_system.kafka.client.range_reader import read_records
from log_system.kafka.log import KafkaLog
from log_system.kafka.reader.snapshot_reader import FOREIGN
from snapshot.errors import BadRecordError, CorruptedError
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, SEQ

logger: Final = logging.getLogger("tablestore")
_REMEDY = "Start a new query with scan_mode='full'."
_HELD_RECORDS: Final = 100_000
_HELD_BYTES: Final = 64 << 20
_DECODED_RECORDS: Final = 20_000
_FOLDED_TIMES: Final = 3
_ROW_BITS = 24
"""Low bits of ``_seq`` for a row's number in its record (an arrow record holds many rows); the offset is above them."""


def tail_schema(log: KafkaLog) -> pa.Schema:
    """Return the schema of the batches of ``read_tail``."""
    columns = log.schema.append(pa.field(SEQ, pa.int64()))
    return columns.append(pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")))


def offset_of(seq: pa.Array) -> pa.Array:
    """Return the record offsets of rows of ``read_tail`` from their ``_seq``; NULL stays NULL."""
    return pc.shift_right(seq, _ROW_BITS)


def read_tail(log: KafkaLog, partition: int, start: int, end: int, *, newest: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a partition between two offsets, in log order.

    Offsets without a record (transaction markers, or records that Kafka has compacted away) are skipped.

    Args:
        log: the log.
        partition: the partition.
        start: the first offset, which the log must still hold.
        end: the offset after the last one.
        newest: leave out records that are superseded by later ones with the same key, on a best-effort basis: at least
            the last record of each key is returned. Records left out are not decoded, which saves most of the work.

    Yields:
        The table's columns, ``_kind``, ``_seq`` (int64, the order within the partition) and ``_commit_timestamp`` (the
        record's own timestamp, because whether it is committed is not known here).

    Raises:
        DataLostError: retention has removed the first offset.
        CorruptedError: a record cannot be decoded.
        UnavailableError: the broker does not respond.
    """
    codec, schema = log.kept_codec(), tail_schema(log)
    group, part = f"{log.group}-tail", FetchRange(log.topic, partition, start, end, log.topic_id)
    found = read_records(log.client, group, part, Wanted(all_keys=True, times=True), remedy=_REMEDY)
    # If foreign records are skipped, they must be detected by decoding before they can supersede the table's own
    # records with the same key.
    folds = newest and not log.skips_foreign
    for records, decoded in _decoded(log, partition, codec, _newest(found) if folds else found):
        offsets = records.offsets
        assert records.times is not None
        record = decoded.record
        row = np.arange(len(record)) - np.searchsorted(record, record, side="left")
        columns = [
            *decoded.batch.columns,
            pa.array((offsets[record] << _ROW_BITS) + row),
            pa.array(records.times[record] * 1000).cast(pa.timestamp("us", "UTC")),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _decoded(
    log: KafkaLog, partition: int, codec: LogFormat, batches: Iterable[Records]
) -> Iterator[tuple[Records, DecodedChanges]]:
    """Yield records with their decoded changes; a record that cannot be decoded is skipped or raises, as the log says.

    Raises:
        CorruptedError: a record cannot be decoded, and the log does not skip foreign records.
    """

    def bad(offset: int, error: BadRecordError) -> None:
        place = f"topic {log.topic!r}, partition {partition}, offset {offset}"
        if not log.skips_foreign:
            msg = f"{place}: {error.reason}. {FOREIGN}"
            raise CorruptedError(msg) from error
        logger.warning("%s: a record that is not the table's is left out: %s", place, error.reason)

    for batch in batches:
        yield from decode_others(codec, batch, bad)


def decode_others(
    codec: LogFormat, records: Records, bad: Callable[[int, BadRecordError], None]
) -> Iterator[tuple[Records, DecodedChanges]]:
    """Yield records with their changes, in parts, without those that cannot be decoded: ``bad`` is called with each.

    ``bad`` gets the offset of a record and what is wrong with it, and may raise to stop.
    """
    while len(records):
        try:
            found = codec.decode(records.keys, records.values)
        except BadRecordError as error:
            number = error.position
            bad(int(records.offsets[number]), error)
            before, records = records.slice(0, number), records.slice(number + 1, len(records))
            if number:
                yield before, codec.decode(before.keys, before.values)
        else:
            yield records, found
            return


def _newest(batches: Iterable[Records]) -> Iterator[Records]:
    """Yield the last record of each key, in log order, deduplicating as many records as fit into bounded memory.

    Keys are compared by their bytes in the log, so two encodings of one key count as two keys.
    """
    held: list[Records] = []
    for records in batches:
        if records.keys.null_count:
            # A record without a key holds rows of many keys, or is foreign, which decoding will find out.
            yield from _pieces(held)
            held = []
            yield records
            continue
        held.append(records)
        # Deduplicate a large batch at once, and keep the result only if it is small: each record is then processed
        # about twice.
        if _reach(held, _FOLDED_TIMES * _HELD_RECORDS, _HELD_BYTES):
            held = [_folded(held)]
            if _reach(held, _HELD_RECORDS, _HELD_BYTES // 2):
                yield from _pieces(held)
                held = []
    yield from _pieces(held)


def _reach(held: Sequence[Records], count: int, size: int) -> bool:
    return sum(map(len, held)) >= count or sum(each.size for each in held) >= size


def _folded(held: Sequence[Records]) -> Records:
    return newest(joined(held))


def _pieces(held: Sequence[Records]) -> Iterator[Records]:
    if held:
        records = _folded(held)
        for start in range(0, len(records), _DECODED_RECORDS):
            yield records.slice(start, _DECODED_RECORDS)
