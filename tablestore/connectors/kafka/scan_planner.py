"""Plans reads of topics: start and end offsets, discovery of new partitions, and handling of data lost to retention.

A scan's position is the next offset of each partition. Partitions that are added later are read from their first
offset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from log_system.kafka.client.cluster import Cluster, GroupOffsets, Offsets, Partition
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.topic import LOOK_SECONDS
from snapshot.errors import DataLostError, InvalidInputError
from tablestore.connectors.java_regex import compile_pattern
from tablestore.connectors.kafka.positions import Bound, BoundedMode, Start, StartupMode

logger: Final = logging.getLogger("tablestore")


@dataclass(frozen=True)
class ScanSpec:
    """The input of a scan: topics, start, end and settings.

    Attributes:
        client: the cluster.
        topics: topic names; empty if a pattern is set.
        pattern: a Java regular expression for topic names.
        group: the consumer group.
        start: where to start.
        bound: where to end.
        isolation: ``read_committed`` or ``read_uncommitted``.
        reset: where to continue if an offset does not exist (``earliest`` or ``latest``); ``none`` raises an error. If
            None, a group without offsets starts at the latest offset, and a reader overtaken by retention fails.
        discovery_ms: interval at which new topics and partitions are discovered; 0 disables discovery.
        only: the single partition to read; None reads all partitions.
    """

    client: KafkaClient
    topics: tuple[str, ...]
    pattern: str | None
    group: str
    start: Start
    bound: Bound
    isolation: str
    reset: str | None
    discovery_ms: int
    only: Partition | None = None

    @property
    def what(self) -> str:
        """The topics or the topic pattern, as shown in messages to the user."""
        return f"topics that match {self.pattern!r}" if self.pattern is not None else f"topic {';'.join(self.topics)!r}"


class Scan:
    """Plans the reads of one query; runs on the driver."""

    def __init__(self, spec: ScanSpec) -> None:
        """Plan reads of ``spec``; connects to the brokers on first use."""
        self._spec = spec
        self._cluster = Cluster(spec.client)
        self._group = GroupOffsets(spec.client, spec.group)
        self._matches = compile_pattern(spec.pattern, "topic-pattern").fullmatch if spec.pattern is not None else None
        self._partitions: list[Partition] = []
        self._looked_at: float | None = None
        self._ids: dict[str, str] = {}
        self._ids_at = 0.0

    def partitions(self) -> list[Partition]:
        """Return the current partitions, refreshed at the discovery interval.

        Raises:
            NotFoundError: a topic configured by name does not exist.
        """
        now = time.monotonic()
        interval_s = self._spec.discovery_ms / 1000
        if self._looked_at is None or (interval_s and now - self._looked_at >= interval_s):
            topics = list(self._spec.topics)
            if self._matches is not None:
                matches = self._matches
                topics = self._cluster.topics(lambda name: matches(name) is not None)
            described = self._cluster.described(topics)
            self._ids, self._ids_at = _ids(described), now
            found = [each for each, _ in described]
            if self._spec.only is not None:
                found = [each for each in found if each == self._spec.only]
            new = [each for each in found if each not in self._partitions]
            if self._looked_at is not None and new:
                logger.info("%s: found new partitions %s", self._spec.what, new)
            self._partitions, self._looked_at = found, now
        elif now - self._ids_at >= LOOK_SECONDS:
            self.ids()
        return self._partitions

    def ids(self) -> Mapping[str, str]:
        """Return the topic ids by topic name; topics matched by a pattern are refreshed by ``partitions`` only.

        The ids reveal a topic that was deleted and created again: its offsets may look like those of the old topic.

        Raises:
            NotFoundError: a topic configured by name no longer exists.
        """
        if self._matches is None:
            self._ids, self._ids_at = _ids(self._cluster.described(self._spec.topics)), time.monotonic()
        return self._ids

    def begin(self) -> Offsets:
        """Return the offsets at which a new query starts.

        Raises:
            InvalidInputError: a configured partition does not exist, or the group has no usable offsets and
                ``auto.offset.reset`` is ``none``.
        """
        start, partitions = self._spec.start, self.partitions()
        if start.mode is StartupMode.EARLIEST:
            return self._cluster.earliest(partitions)
        if start.mode is StartupMode.LATEST:
            return self.ends(partitions)
        if start.mode is StartupMode.TIMESTAMP:
            assert start.timestamp_ms is not None
            return self._cluster.at_time(partitions, start.timestamp_ms, self._spec.isolation)
        if start.mode is StartupMode.SPECIFIC:
            return self._specific(start.offsets, partitions)
        return self._from_group(partitions)

    def until(self) -> Offsets | None:
        """Return the offsets at which a bounded read ends, None for an unbounded read; called once, at query start."""
        bound, partitions = self._spec.bound, self.partitions()
        if bound.mode is BoundedMode.UNBOUNDED:
            return None
        if bound.mode is BoundedMode.LATEST:
            return self.ends(partitions)
        if bound.mode is BoundedMode.TIMESTAMP:
            assert bound.timestamp_ms is not None
            return self._cluster.at_time(partitions, bound.timestamp_ms, self._spec.isolation)
        latest = self.ends(partitions)
        if bound.mode is BoundedMode.SPECIFIC:
            self._check_partitions("scan.bounded.specific-offsets", bound.offsets, partitions)
            wanted = {each: bound.offsets[each[1]] for each in partitions if each[1] in bound.offsets}
        else:
            wanted = self._group.committed(partitions)
        return {each: min(wanted.get(each, latest[each]), latest[each]) for each in partitions}

    def ends(self, partitions: Sequence[Partition] | None = None) -> Offsets:
        """Return the current end offsets of the given partitions, by default of all."""
        return self._cluster.latest(self.partitions() if partitions is None else partitions, self._spec.isolation)

    def firsts(self, partitions: Sequence[Partition]) -> Offsets:
        """Return the first offsets that retention has not removed."""
        return self._cluster.earliest(partitions)

    def ranges(
        self, start: Mapping[Partition, int], end: Mapping[Partition, int], recreated: Collection[str] = ()
    ) -> list[FetchRange]:
        """Return the ranges between two positions; a partition that ``start`` lacks is read from its first offset.

        Args:
            start: the next offset to read, by partition.
            end: the end offset (exclusive), by partition.
            recreated: topics that were deleted and created again between the two positions.

        Raises:
            DataLostError: retention has removed the start of a range, or a topic was deleted and created again, and
                ``auto.offset.reset`` does not allow the read to continue.
        """
        moved = [each for each in end if start.get(each, -1) != end[each] or each[0] in recreated]
        first = self._cluster.earliest(moved)
        found = []
        for each in moved:
            begin = start.get(each, first[each])
            if begin < first[each] or begin > end[each] or (each[0] in recreated and each in start):
                begin = self._reset(each, begin, first[each], end[each])
            if begin < end[each]:
                found.append(FetchRange(*each, begin, end[each], self._ids.get(each[0], "")))
        return found

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit the offsets for the consumer group."""
        self._group.commit(offsets)

    def close(self) -> None:
        """Close connections."""
        self._group.close()

    def _reset(self, at: Partition, begin: int, first: int, end: int) -> int:
        what = (
            f"topic {at[0]!r}, partition {at[1]}: offset {begin} is to be read next, but the topic holds offsets from "
            f"{first} on and ends at {end}: its retention has overtaken this reader, or it was recreated."
        )
        if self._spec.reset in (None, "none"):
            msg = f"{what} Set 'properties.auto.offset.reset' to 'earliest' or 'latest' to go on, or start a new query."
            raise DataLostError(msg)
        logger.warning(
            "%s Going on from the %s offset, as 'properties.auto.offset.reset' says.", what, self._spec.reset
        )
        return first if self._spec.reset == "earliest" else end

    def _specific(self, wanted: Mapping[int, int], partitions: Sequence[Partition]) -> Offsets:
        """Return the configured offsets; the earliest offset if none is configured or it is out of range."""
        self._check_partitions("scan.startup.specific-offsets", wanted, partitions)
        first, ends = self._cluster.earliest(partitions), self.ends(partitions)
        found: Offsets = {}
        for each in partitions:
            offset = wanted.get(each[1], first[each])
            found[each] = offset if first[each] <= offset <= ends[each] else first[each]
            if offset != found[each]:
                logger.warning(
                    "option 'scan.startup.specific-offsets': partition %d of topic %r holds offsets %d to %d, not %d; "
                    "reading from the earliest.", each[1], each[0], first[each], ends[each], offset,
                )  # fmt: skip
        return found

    def _check_partitions(self, option: str, wanted: Mapping[int, int], partitions: Sequence[Partition]) -> None:
        there = [number for _, number in partitions]
        unknown = [number for number in wanted if number not in there]
        if unknown:
            msg = f"option '{option}': {self._spec.what} has partitions {there}, not {unknown}."
            raise InvalidInputError(msg)

    def _from_group(self, partitions: Sequence[Partition]) -> Offsets:
        """Return the group's committed offsets.

        A partition without a usable committed offset starts where ``auto.offset.reset`` says, by default at the latest
        offset.
        """
        held = self._group.committed(partitions)
        first, ends = self._cluster.earliest(partitions), self.ends(partitions)
        inside = {each: offset for each, offset in held.items() if first[each] <= offset <= ends[each]}
        rest = [each for each in partitions if each not in inside]
        if rest and self._spec.reset == "none":
            msg = (
                f"group {self._spec.group!r} has no usable offset for {rest}, and 'properties.auto.offset.reset' is "
                "'none'. Set it to 'earliest' or 'latest', or set 'scan.startup.mode'."
            )
            raise InvalidInputError(msg)
        begin = first if self._spec.reset == "earliest" else ends
        for each in rest:
            if each in held:
                logger.warning(
                    "group %r: its offset %d of partition %s is no longer there; going on from %d.",
                    self._spec.group, held[each], each, begin[each],
                )  # fmt: skip
        return {each: inside.get(each, begin[each]) for each in partitions}


def _ids(described: Iterable[tuple[Partition, str]]) -> dict[str, str]:
    return {topic: topic_id for (topic, _), topic_id in described if topic_id}
