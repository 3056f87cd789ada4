"""The streaming read of an upsert table as a changelog: each change once, with the row before it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from log_system.kafka.client.consumers import FetchRange
from snapshot.errors import DataLostError, InvalidInputError
from snapshot.row_kind import CHANGE_TYPE, CHANGE_TYPE_NAMES, KIND, RowKind
from snapshot.schema.physical_names import Columns
from snapshot.schema.system_columns import SEQ, conform
from snapshot.storage import Storage
from tablestore.connectors.kafka.scan_planner import recreated_between
from tablestore.connectors.option_names import STATE
from tablestore.connectors.spark.split_reader import read_last
from tablestore.connectors.spark.stream import Json, KafkaStream, nested, offsets_of, recreated
from tablestore.connectors.table import KafkaTable
from tablestore.normalize.keyed_state import StateSpec
from tablestore.normalize.operator import NormalizedSplit
from tablestore.normalize.state_upkeep import StateUpkeep
from tablestore.spark.error_messages import shows_messages
from tablestore.spark.python_worker import begin_task

CHANGELOG_FORMAT: Final = "upsert-kafka-normalize"


@dataclass(frozen=True)
class LastOfTopicPartition:
    """Reads the last message of each key from a partition of a topic."""

    table: KafkaTable
    part: FetchRange
    columns: tuple[str, ...]

    def between(self, start: int, end: int, /) -> Iterator[pa.RecordBatch]:
        """Yield the last message of each key between two offsets; see ``LastRecords``."""
        for batch in read_last(self.table, replace(self.part, start=start, end=end), self.columns):
            is_delete = pc.equal(batch.column(CHANGE_TYPE), RowKind.DELETE.change_type)
            kinds = pc.if_else(is_delete, np.int8(RowKind.DELETE), np.int8(RowKind.UPDATE_AFTER))
            rows = batch.select([*self.columns, SEQ])
            yield rows.append_column(KIND, kinds)


@dataclass
class ChangesSplit(InputPartition):
    """The changes of one partition in a micro-batch."""

    part: NormalizedSplit


@shows_messages
class ChangelogStream(KafkaStream):
    """Reads an upsert table through the normalize operator.

    In addition to what an offset of ``KafkaStream`` holds, it has ``state``, the id of the query's state, and
    ``origins``, the offsets at which the query began to read each partition.
    """

    def __init__(self, table: KafkaTable, schema: StructType) -> None:
        """Read the table as rows of ``schema``.

        Raises:
            InvalidInputError: option ``stateLocation`` is missing.
        """
        super().__init__(table, schema)
        if table.options.state is None:
            msg = (
                f"option {STATE!r} is required for the changelog of {table.options.what}: the folder in which the "
                "query keeps the newest row of each key. All executors must reach it."
            )
            raise InvalidInputError(msg)
        self._states = Storage.at(table.options.state)
        self._begun_with: Json | None = None
        self._upkeep = StateUpkeep()
        self._last: Json | None = None

    def initialOffset(self) -> Json:
        """Return the start position of a new query."""
        if self._begun_with is None:
            found = super().initialOffset()
            self._begun_with = found | {"state": uuid.uuid4().hex, "origins": found["at"]}
        return self._begun_with

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end position of the next micro-batch; raises what ``KafkaStream`` does.

        Raises:
            DataLostError: partitions were added to a topic.
            InvalidInputError: the checkpoint was written by a release that kept its state in Spark's state store.
        """
        self._check_state(start)
        end = super().latestOffset(start, limit)
        if end is start:
            return start
        self._last = self._with_new_topics(start, end | {"state": start["state"], "origins": start["origins"]})
        return self._last

    def _with_new_topics(self, start: Json, end: Json) -> Json:
        """Return an end position with all partitions of the topics that the query has discovered since ``start``."""
        before, at = offsets_of(start["at"]), offsets_of(end["at"])
        known = {topic for topic, _ in before}
        added = at.keys() - before.keys()
        moved = sorted(number for topic, number in added if topic in known)
        if moved and not recreated(start, end):
            msg = (
                f"{self._table.options.what}: partitions {moved} were added since this query began. Keys may be in "
                "other partitions than before, so which row a message replaces is not known. Write the rows to a new "
                "topic, and start a new query over it."
            )
            raise DataLostError(msg)
        if not added:
            return end
        # Those without messages, too; otherwise they would look as if they had been added later.
        first = self._plan.firsts([each for each in self._plan.partitions() if each[0] not in known])
        return end | {"at": nested(first | at), "origins": nested(first | offsets_of(end["origins"]))}

    def reportLatestOffset(self) -> Json:
        """Return the current end offsets and the size of the state, for the query's progress report."""
        found = super().reportLatestOffset()
        if self._last is None:
            return found
        names = [f"{topic}-{number}" for topic, number in offsets_of(self._last["at"])]
        return found | self._upkeep.measure(self._state(self._last), names)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch, one for each Kafka partition that has messages to read.

        Raises:
            DataLostError: retention has removed messages and ``auto.offset.reset`` does not allow the read to continue;
                or the topic was deleted and created again.
        """
        self._check_state(end)
        self._await_commit()
        if recreated(start, end) or recreated_between(end.get("ids", {}), self._plan.ids()):
            msg = (
                f"{self._table.options.what} was deleted and created again since this query read it, so its messages "
                "do not continue the changelog. Start a new query, with a new checkpoint."
            )
            raise DataLostError(msg)
        # A query that was stopped in its first micro-batch may begin elsewhere by now, and has to repeat that one.
        origins, state = offsets_of(end["origins"]), self._state(end)
        begun = origins | offsets_of(start["at"]) if start["state"] == end["state"] else origins
        splits: list[InputPartition] = []
        for part in self._plan.ranges(begun, offsets_of(end["at"]), lost=self._lost(start, end)):
            at = (part.topic, part.partition)
            records = LastOfTopicPartition(self._table, part, tuple(state.columns.named.names))
            # The state is at the offset where the query has read up to, even if retention has overtaken it since.
            name = f"{part.topic}-{part.partition}"
            splits.append(ChangesSplit(NormalizedSplit(records, state, name, begun[at], part.end, origins[at])))
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in a task."""
        begin_task()
        assert isinstance(partition, ChangesSplit)
        names = pa.array(CHANGE_TYPE_NAMES, pa.string())
        for batch in partition.part.read():
            if batch.num_rows:
                yield conform(batch.append_column(CHANGE_TYPE, names.take(batch.column(KIND))), self._schema)

    def commit(self, end: Json) -> None:
        """Commit the offsets for the consumer group, and remove files that the state no longer needs."""
        super().commit(end)
        if "state" in end:
            done = {f"{topic}-{number}": offset for (topic, number), offset in offsets_of(end["at"]).items()}
            self._upkeep.clean(self._state(end), done)

    def _state(self, offset: Json) -> StateSpec:
        named = pa.schema([field for field in self._schema if field.name not in (CHANGE_TYPE, SEQ)])
        columns = Columns(named, named).loosened(())
        return StateSpec(self._states.child(offset["state"]), columns, self._table.options.key_fields)

    def _check_state(self, offset: Json) -> None:
        if "state" not in offset:
            msg = (
                f"{self._table.options.what}: this checkpoint was written by a release that kept the state of the "
                "changelog in Spark's state store. Start a new query, with a new checkpoint."
            )
            raise InvalidInputError(msg)
