"""Plans reads of topics: where to begin, how far to go, which partitions there are by now, and what retention took.

An offset of a scan is a position in each partition. Partitions that appear later are read from their beginning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from log_system.kafka.client.cluster import Cluster, GroupOffsets, Offsets, Partition
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.topic import LOOK_SECONDS
from snapshot.errors import DataLostError, InvalidInputError
from tablestore.connectors.kafka.positions import Bound, BoundedMode, Start, StartupMode
from tablestore.connectors.kafka.topic_pattern import compile_pattern

logger: Final = logging.getLogger("tablestore")


@dataclass(frozen=True)
class ScanSpec:
    """What is read.

    Attributes:
        client: the cluster.
        topics: topics by name; empty where a pattern is given.
        pattern: a Java regular expression for topic names.
        group: the consumer group.
        start: where to begin.
        bound: where to end.
        isolation: ``read_committed`` or ``read_uncommitted``.
        reset: where to go on when an offset is not there (``earliest``, ``latest``); ``none`` is an error. None leaves
            it to the case: a group without offsets begins with the latest, a reader overtaken by retention fails.
        discovery_ms: how often new topics and partitions are looked for; 0 is never.
        only: the one partition that is read; None reads all.
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
        """How messages name what is read."""
        return f"topics that match {self.pattern!r}" if self.pattern is not None else f"topic {';'.join(self.topics)!r}"


class Scan:
    """Plans the reads of one query. Lives on the driver."""

    def __init__(self, spec: ScanSpec, clock: Callable[[], float] = time.monotonic) -> None:
        """Plan for ``spec``; nothing is connected before the first question."""
        self._spec = spec
        self._clock = clock
        self._cluster = Cluster(spec.client)
        self._group = GroupOffsets(spec.client, spec.group)
        self._matches = compile_pattern(spec.pattern).fullmatch if spec.pattern is not None else None
        self._partitions: list[Partition] = []
        self._looked_at: float | None = None
        self._ids: dict[str, str] = {}
        self._ids_at = 0.0

    def partitions(self) -> list[Partition]:
        """Give the partitions there are, looked up again when the discovery interval has passed.

        Raises:
            NotFoundError: a topic given by name does not exist.
        """
        now = self._clock()
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
        """Look up the ids of the topics: one that is made anew has offsets too, and passes for the old one by them.

        Topics found by a pattern are looked up when partitions are.

        Raises:
            NotFoundError: a topic given by name does not exist any more.
        """
        if self._matches is None:
            self._ids, self._ids_at = _ids(self._cluster.described(self._spec.topics)), self._clock()
        return self._ids

    def begin(self) -> Offsets:
        """Say where a new query begins.

        Raises:
            InvalidInputError: a partition is named that does not exist, or a group has no offsets and none may be
                taken in their place.
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
        """Say where a bounded read ends; None for one that has no end. Asked once, when a query begins."""
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
        """Give the current ends, of all partitions or of some."""
        return self._cluster.latest(self.partitions() if partitions is None else partitions, self._spec.isolation)

    def firsts(self, partitions: Sequence[Partition]) -> Offsets:
        """Give the first offsets that are still there."""
        return self._cluster.earliest(partitions)

    def ranges(
        self, start: Mapping[Partition, int], end: Mapping[Partition, int], anew: Collection[str] = ()
    ) -> list[FetchRange]:
        """Plan what lies between two positions; a partition that is not in ``start`` is read from its beginning.

        Args:
            start: where to begin.
            end: where to stop.
            anew: topics that were deleted and created again between the two.

        Raises:
            DataLostError: retention has removed where the range begins, or the topic was made anew, and the options
                do not say to go on.
        """
        moved = [each for each in end if start.get(each, -1) != end[each] or each[0] in anew]
        first = self._cluster.earliest(moved)
        found = []
        for each in moved:
            begin = start.get(each, first[each])
            if begin < first[each] or begin > end[each] or (each[0] in anew and each in start):
                begin = self._reset(each, begin, first[each], end[each])
            if begin < end[each]:
                found.append(FetchRange(*each, begin, end[each], self._ids.get(each[0], "")))
        return found

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Tell the brokers how far the group has read."""
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
        """Begin at the offsets given; at the earliest where none is given or it is out of range."""
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
        """Begin where the group has read to; without that, at the latest offset or where the reset option says."""
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
