"""Plans reads of topics: start and end offsets, discovery of new partitions, and handling of data lost to retention.

A scan's position is the next offset of each partition. Partitions that are added later are read from their first
offset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from log_system.kafka.client.cluster import Cluster, GroupOffsets, Offsets, Partition, shortened
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.topic import LOOK_SECONDS
from snapshot.errors import DataLostError, InvalidInputError, NotFoundError
from snapshot.records import LogEnd
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
    """Plans the reads of one query; runs on the driver.

    Attributes:
        discovered: the number of partitions that the last discovery found, those that ``only`` leaves out included.
    """

    def __init__(self, spec: ScanSpec) -> None:
        """Plan reads of ``spec``; connects to the brokers on first use."""
        self._spec = spec
        self._cluster = Cluster(spec.client)
        self._group = GroupOffsets(spec.client, spec.group)
        self._matches = compile_pattern(spec.pattern, "topic-pattern").fullmatch if spec.pattern is not None else None
        self._partitions: list[Partition] = []
        self.discovered = 0
        self._looked_at: float | None = None
        self._ids: dict[str, str] = {}
        self._ids_at = 0.0

    def partitions(self) -> list[Partition]:
        """Return the current partitions.

        New topics and partitions are discovered at the discovery interval; a topic that was deleted, or deleted and
        created again, is noticed within ``LOOK_SECONDS``.

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
            described = self._describe(topics)
            self.discovered, found = len(described), self._own(described)
            new = [each for each in found if each not in self._partitions]
            if self._looked_at is not None and new:
                logger.info("%s: found new partitions %s", self._spec.what, new)
            self._partitions, self._looked_at = found, now
        elif now - self._ids_at >= LOOK_SECONDS:
            self.ids()
        return self._partitions

    def is_known(self, topic: str) -> bool:
        """Return whether a topic was there at the last look; True before the first one."""
        return self._looked_at is None or any(topic == each for each, _ in self._partitions)

    @property
    def known_ids(self) -> Mapping[str, str]:
        """The topic ids by topic name, as of the last look."""
        return self._ids

    def ids(self) -> Mapping[str, str]:
        """Look up and return the topic ids by topic name; partitions of topics whose id has changed are replaced.

        The ids reveal a topic that was deleted and created again: its offsets may look like those of the old topic.

        Raises:
            NotFoundError: a topic configured by name no longer exists.
        """
        if self._looked_at is None:
            self.partitions()
            return self._ids
        before, known = self._ids, {topic for topic, _ in self._partitions}
        asked = sorted(known | before.keys()) if self._matches is not None else self._spec.topics
        found = self._own(self._describe(asked))
        same = {topic for topic in known if topic in self._ids and self._ids[topic] == before.get(topic)}
        kept = [each for each in self._partitions if each[0] in same]
        self._partitions = sorted(kept + [each for each in found if each[0] not in same])
        return self._ids

    def _describe(self, topics: Sequence[str]) -> list[Partition]:
        """Look up topics and their ids; topics of a pattern may have been deleted."""
        described = self._cluster.described(topics, skips_missing=self._matches is not None)
        gone = sorted(self._ids.keys() - {topic for (topic, _), _ in described})
        if gone:
            logger.warning("%s: %s was deleted; what it held and was not read is lost.", self._spec.what, gone)
        self._ids, self._ids_at = {topic: each for (topic, _), each in described if each}, time.monotonic()
        return [each for each, _ in described]

    def _own(self, partitions: Sequence[Partition]) -> list[Partition]:
        """Return those of some partitions that are read."""
        return [each for each in partitions if self._spec.only in (None, each)]

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
        """Return the offsets at which a bounded read ends, None for an unbounded read; called once, at query start.

        Raises:
            InvalidInputError: a configured partition does not exist, or the group has no offset of a partition that has
                messages.
        """
        bound, partitions = self._spec.bound, self.partitions()
        if bound.mode is BoundedMode.UNBOUNDED:
            return None
        if bound.mode is BoundedMode.LATEST:
            return self.ends(partitions)
        if bound.mode is BoundedMode.TIMESTAMP:
            assert bound.timestamp_ms is not None
            return self._cluster.at_time(partitions, bound.timestamp_ms, self._spec.isolation)
        first, latest = self._cluster.earliest(partitions), self.ends(partitions)
        if bound.mode is BoundedMode.SPECIFIC:
            self._check_partitions("scan.bounded.specific-offsets", bound.offsets, partitions)
            # As in Flink, nothing is read of a partition that is not listed.
            wanted = {each: bound.offsets.get(each[1], first[each]) for each in partitions}
        else:
            wanted = self._group.committed(partitions)
            without = [each for each in partitions if each not in wanted and first[each] < latest[each]]
            if without:
                msg = (
                    f"option 'scan.bounded.mode': the read ends at the offsets of group {self._spec.group!r} "
                    f"('properties.group.id'), which has none for {without}. Commit the group's offsets there, or set "
                    "another mode."
                )
                raise InvalidInputError(msg)
        return {each: min(wanted.get(each, latest[each]), latest[each]) for each in partitions}

    def ends(self, partitions: Sequence[Partition] | None = None) -> Offsets:
        """Return the current end offsets of the given partitions, by default of all."""
        return {each: end.offset for each, end in self.log_ends(partitions).items()}

    def log_ends(self, partitions: Sequence[Partition] | None = None) -> dict[Partition, LogEnd]:
        """Return what ``ends`` does, each with the partition's leader epoch."""
        if partitions is not None:
            return self._cluster.ends(partitions, self._spec.isolation)
        asked = self.partitions()
        try:
            return self._cluster.ends(asked, self._spec.isolation)
        except NotFoundError:
            # A topic of the pattern was deleted, or one was created again with fewer partitions.
            self.ids()
            if self._partitions == asked:
                raise
            return self._cluster.ends(self._partitions, self._spec.isolation)

    def lost(self, reached: Mapping[Partition, LogEnd], now: Mapping[Partition, LogEnd]) -> set[Partition]:
        """Return the partitions that have lost what was before an offset, whatever they hold there now.

        Args:
            reached: the offsets, with the leader epochs in which the partitions reached them.
            now: the end of each partition, of which only the epoch is used.
        """
        return shortened(self._spec.client, self._spec.group, reached, now)

    def firsts(self, partitions: Sequence[Partition]) -> Offsets:
        """Return the first offsets that retention has not removed."""
        return self._cluster.earliest(partitions)

    def ranges(
        self,
        start: Mapping[Partition, int],
        end: Mapping[Partition, int],
        recreated: Collection[str] = (),
        ids: Mapping[str, str] | None = None,
        lost: Collection[Partition] = (),
    ) -> list[FetchRange]:
        """Return the ranges between two positions; a partition that ``start`` lacks is read from its first offset.

        Args:
            start: the next offset to read, by partition.
            end: the end offset (exclusive), by partition.
            recreated: topics that were deleted and created again between the two positions.
            ids: the topic ids at ``end``, as far as they are known. Of a topic that has been deleted since, there is
                nothing left to read.
            lost: partitions of which the broker has lost the end, so that other messages have the offsets of what was
                read.

        Raises:
            DataLostError: retention has removed the start of a range, or a topic was deleted, or deleted and created
                again, or a broker has lost messages, and ``auto.offset.reset`` does not allow the read to continue.
        """
        moved = [each for each in end if start.get(each, -1) != end[each] or each[0] in recreated or each in lost]
        there = set(self.partitions())
        gone = recreated_between(ids or {}, self._ids) | {
            topic for topic, number in moved if (topic, number) not in there
        }
        for topic in sorted(gone.union(recreated)):
            happened = "deleted and created again" if any(topic == each for each, _ in there) else "deleted"
            self._check_continues(f"topic {topic!r} was {happened} since this query read it.")
        moved = [each for each in moved if each[0] not in gone]
        first = self._cluster.earliest(moved)
        found = []
        for each in moved:
            begin = start.get(each, first[each])
            if each[0] in recreated:
                begin = first[each] if self._spec.reset == "earliest" else end[each]
            elif each in lost:
                self._check_continues(
                    f"topic {each[0]!r}, partition {each[1]}: the broker has lost messages before offset {begin}, up "
                    "to which this query has read it, as after an unclean leader election. Others may have its offsets."
                )
                begin = first[each] if self._spec.reset == "earliest" else end[each]
            elif begin < first[each] or begin > end[each]:
                begin = self._reset(each, begin, first[each], end[each], is_same=each[0] in (ids or {}))
            if begin < end[each]:
                found.append(FetchRange(*each, begin, end[each], self._ids.get(each[0], "")))
        return found

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit the offsets for the consumer group."""
        self._group.commit(offsets)

    def close(self) -> None:
        """Close connections."""
        self._group.close()

    def _reset(self, at: Partition, begin: int, first: int, end: int, *, is_same: bool) -> int:
        self._check_continues(
            f"topic {at[0]!r}, partition {at[1]}: offset {begin} is to be read next, but the topic holds offsets from "
            f"{first} on and ends at {end}: its retention has overtaken this reader, or it was cut or recreated."
        )
        # If it is the same topic that now ends before the offset, what is before its end has been read.
        return first if self._spec.reset == "earliest" and not (is_same and begin > end) else end

    def _check_continues(self, what: str) -> None:
        """Raise for lost messages unless ``auto.offset.reset`` says where to continue."""
        if self._spec.reset in (None, "none"):
            remedy = "Set 'properties.auto.offset.reset' to 'earliest' or 'latest' to continue, or start a new query."
            msg = f"{what} {remedy}"
            raise DataLostError(msg)
        logger.warning(
            "%s Continuing from the %s offset, according to 'properties.auto.offset.reset'.", what, self._spec.reset
        )

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
                    "group %r: its offset %d of partition %s is no longer available; continuing from %d.",
                    self._spec.group, held[each], each, begin[each],
                )  # fmt: skip
        return {each: inside.get(each, begin[each]) for each in partitions}


def recreated_between(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Return the topics whose id differs between two looks; a topic without an id in either counts as the same."""
    return {topic for topic, topic_id in before.items() if topic_id and after.get(topic, topic_id) != topic_id}
