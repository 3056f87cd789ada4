"""The streaming read of an eventual log as a changelog: each change once, with the row before it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from log_system.base import RecordRange
from snapshot.errors import InvalidInputError
from snapshot.merge.deduplicate import last_records
from snapshot.records import Split
from snapshot.schema.system_columns import SEQ
from snapshot.storage import Storage
from tablestore.normalize.keyed_state import StateSpec
from tablestore.normalize.operator import NormalizedRows, NormalizedSplit
from tablestore.normalize.state_upkeep import StateUpkeep
from tablestore.options.read_options import ReadOptions
from tablestore.read.spark_splits import ReadSplit
from tablestore.read.split_planner import initial_bucket_splits
from tablestore.spark.error_messages import shows_messages
from tablestore.streaming.change_feed import BEFORE_FULL
from tablestore.streaming.eventual_stream import EventualStream, uncommitted
from tablestore.streaming.snapshot_stream import Offset

STATES = "_streams"
"""The folder in a table's folder that holds the states of its streams."""


@dataclass(frozen=True)
class LastOfPartition:
    """Reads the last record of each key from a partition of a table's log."""

    records: RecordRange
    primary_key: tuple[str, ...]

    def between(self, start: int, end: int, /) -> Iterator[pa.RecordBatch]:
        """Yield the last record of each key between two offsets; see ``LastRecords``."""
        for batch in last_records(self.primary_key, self.records.between(start, end).read()):
            yield uncommitted(batch.drop_columns([SEQ]))


@shows_messages
class NormalizedStream(EventualStream):
    """Reads an eventual log through the normalize operator.

    In addition to what an offset of ``EventualStream`` holds, it has ``state``, the id of the query's state, and
    ``origins``, the offsets at which the query began to read the log.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Read the table at ``options.path`` as rows of ``schema``."""
        super().__init__(options, schema)
        files = self._table.files
        self._states = files.storage.child(STATES) if options.state is None else Storage.at(options.state)
        self._begun_with: Offset | None = None
        self._unchecked = set(range(self._table.log.partitions))
        self._upkeep = StateUpkeep()
        self._last: Offset | None = None

    def initialOffset(self) -> Offset:
        """Return the offset at which a new query starts."""
        if self._begun_with is None:
            found = super().initialOffset()
            self._begun_with = found | {"state": uuid.uuid4().hex, "origins": found["offsets"]}
        return self._begun_with

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch; raises what ``EventualStream`` does.

        Raises:
            InvalidInputError: the checkpoint was written by a release that kept its state in Spark's state store.
        """
        self._check_state(start)
        end = super().latestOffset(start, limit)
        origins = end["offsets"] if self._snapshot(start) == BEFORE_FULL else start["origins"]
        self._last = end | {"state": start["state"], "origins": origins}
        return self._last

    def reportLatestOffset(self) -> Offset:
        """Return the log's end and the size of the state, for the query's progress."""
        found = super().reportLatestOffset()
        if self._last is None:
            return found
        return found | self._upkeep.measure(self._state(self._last), map(str, range(len(found["offsets"]))))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch, one per partition of the log; raises what ``EventualStream`` does."""
        self._check_state(end)
        state = self._state(end)
        if self._snapshot(start) == BEFORE_FULL:
            rows = self._rows(end)
            offsets = enumerate(end["offsets"])
            return [ReadSplit(NormalizedRows(rows.get(p), state, str(p), offset)) for p, offset in offsets]
        # A query that was stopped in its first micro-batch may begin elsewhere by now, and has to repeat that one.
        begun = start["offsets"] if start["state"] == end["state"] else end["origins"]
        ranges = self._ranges(begun, end)
        # Only a query that began with a snapshot's rows has a state before its first record.
        missing = self._without_state(state, [(p, at) for p, at, _ in ranges]) if end["snapshot"] else set()
        rows = self._rows(end) if missing else {}
        key = self._table.spec.primary_key
        return [
            ReadSplit(
                NormalizedSplit(
                    LastOfPartition(records, key),
                    state,
                    str(p),
                    at,
                    until,
                    end["origins"][p],
                    rows.get(p) if p in missing else None,
                )
            )
            for (p, at, until), records in zip(ranges, self._tail.splits(ranges, newest=True), strict=True)
        ]

    def commit(self, end: Offset) -> None:
        """Remove files that the state no longer needs, now that a micro-batch is complete."""
        if "state" in end:
            self._upkeep.clean(self._state(end), {str(p): offset for p, offset in enumerate(end["offsets"])})

    def _state(self, offset: Offset) -> StateSpec:
        ttl, spec = self._options.state_ttl_ms, self._table.spec
        folder = self._states.child(offset["state"])
        return StateSpec(folder, spec.change_columns, spec.primary_key, None if ttl is None else ttl * 1000)

    def _rows(self, end: Offset) -> dict[int, Split]:
        files = self._table.files
        self._feed.check(self._position(end))
        return initial_bucket_splits(files, files.snapshot(self._snapshot(end)))

    def _without_state(self, state: StateSpec, begun: Sequence[tuple[int, int]]) -> set[int]:
        """Return the partitions without a state, because the query's initial rows were not read whole."""
        missing = set()
        for partition, offset in begun:
            if partition not in self._unchecked:
                continue
            if any(version <= offset for version in state.versions(str(partition))):
                self._unchecked.discard(partition)
            else:
                missing.add(partition)
        return missing

    def _check_state(self, offset: Offset) -> None:
        if "state" not in offset:
            msg = (
                f"table {self._table.path!r}: this checkpoint was written by a release that kept the state of "
                "normalize in Spark's state store. Start a new query, with a new checkpoint and scan_mode='full'."
            )
            raise InvalidInputError(msg)
