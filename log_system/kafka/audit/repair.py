"""Repair: rebuilds the index, the register and the end of the log from the log's records and the table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from log_system.base import LogIdentity
from log_system.index import IndexEntry, OffsetRange
from log_system.kafka.audit.log_inspection import Inspection, ScanProgress, inspect_log, read_index, stale
from log_system.kafka.audit.log_scan import bounds, positions
from log_system.kafka.bound_log import BoundLog
from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.client.topic import TopicIds, existing_ids, topic_id
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.register import RegisterPosition
from log_system.kafka.topic_claims import claim
from log_system.report import Mended, Progress, RepairReport, Report, advice
from snapshot.errors import (
    ConflictError,
    CorruptedError,
    DataLostError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    TableReplacedError,
)
from snapshot.messages import counted

_ATTEMPTS_MAX = 200
_INSPECTIONS_MAX = 5


def repair(
    table: BoundLog,
    mend: Callable[[Sequence[int]], Mended],
    verify: Callable[[Progress | None], Report],
    progress: Progress | None = None,
) -> RepairReport:
    """Repair what can be repaired so that plain consumers see no change twice or out of order.

    1. Create the topic again if it is gone and ``create`` had made it. Store the id of a topic that was created again,
       by which readers recognize it. A crash here leaves a topic whose id the next repair stores, and which is never
       deleted with the table.
    2. Remove index entries that are unreadable or refer to a deleted topic, because a take-over reads the index.
    3. Mend the log, its index and its register: ``repair_transactional`` or ``repair_eventual``.
    4. Verify.

    Args:
        table: the log and its table.
        mend: does step 3, given the snapshots whose index entries were unreadable.
        verify: compares log and table.
        progress: called by step 4 with the number of offsets read so far and the total.

    Returns:
        What was done, and the differences that remain.

    Raises:
        NotFoundError: the table was dropped; there is no topic of this repair.
        TableReplacedError: the table was dropped and created again.
        UnavailableError: the broker or the file system does not answer; repair again.
        FencedError: another publisher took the log over; repair again.
        ConflictError: other writers committed first too often; repair again.
    """
    log = table.settings
    actions: list[str] = []
    # Step 1.
    made = False
    if describe_topic(log.client, log.topic) is None:
        # A drop removes the table before its topic.
        table.files.latest()
        if not table.spec.owns_topic:
            return _reported(actions, (), verify(None))
        made = table.storage.ensure()
        actions.append(f"created topic {log.topic!r} again, empty")
    actions += _keep_ids(table, made=made)
    # Step 2.
    entries, damaged = read_index(table.index, log.partitions)
    broken, old = sorted(damaged), sorted(stale(entries, topic_id(log.client, log.topic)))
    table.index.delete(sorted({*broken, *old}))
    if old:
        actions.append("deleted the log index: the topic was recreated, and the index described the previous one")
    # Step 3.
    mended = mend(broken)
    # Step 4.
    return _reported([*actions, *mended.actions], mended.obstacles, verify(progress))


def repair_transactional(
    table: BoundLog,
    publisher: KafkaPublisher,
    recover: Callable[[], list[IndexEntry]],
    progress: Progress | None,
    broken: Sequence[int],
) -> Mended:
    """Rebuild the register, the index and the end of the log from the log's records and the table.

    1. Take the log over, abort what brokers that lost the end of a transaction left open, and inspect the log. Others
       may take the log over meanwhile, if only to find that it is damaged; as long as they publish nothing, what was
       inspected is right. After a crash here or in any later step, the next repair or writer takes the log over.
    2. Remove the index entries of snapshots lost at the end of the log, the newest first: an entry must not follow a
       gap that the next writer fills. If the log holds another history of the table (the table was restored from an
       older copy), leave index and register unchanged.
    3. Set the register to what the log holds, in a transaction. As long as it claims what is lost, writers raise an
       error; from then on they publish what follows the last entry of the index.
    4. Rewrite index entries that are missing or wrong.
    5. Recover: publish what the log lacks at its end.

    Args:
        table: the log and its table.
        publisher: publisher of the table's log.
        recover: publishes what the log lacks, with that publisher.
        progress: called with the number of offsets read so far and the total.
        broken: snapshots whose index entries were unreadable and have been removed.

    Raises:
        FencedError: others publish, or took the log over after it was inspected; repair again.
        UnavailableError: the broker or the file system does not answer; repair again.
    """
    # Step 1.
    seen = _inspected(table, publisher, progress)
    if len(seen.maps) != table.settings.partitions or _is_other_history(seen):
        return Mended(())
    # Step 2.
    through = _whole_through(seen)
    beyond = [s for s in seen.entries if s > through]
    table.index.delete(sorted(beyond, reverse=True))
    actions = [f"removed the index entry of snapshot {s}, which the log does not hold" for s in sorted(beyond)]
    # Step 3.
    actions += _restore_register(table, publisher, seen)
    # Step 4.
    actions += _rebuild_index(table, seen, through, broken)
    # Step 5.
    try:
        done = recover()
    except (DataLostError, CorruptedError, InvalidInputError, FileNotFoundError) as error:
        return Mended(tuple(actions), (f"Not everything could be published: {error}",))
    actions += [
        f"published snapshot {entry.snapshot} with {counted(entry.rows, 'change')}" for entry in done if entry.rows
    ]
    return Mended(tuple(actions))


def _inspected(table: BoundLog, publisher: KafkaPublisher, progress: Progress | None) -> Inspection:
    """Return what the log holds while the publisher owns it.

    Raises:
        FencedError: others keep publishing.
    """
    log = table.settings
    for _ in range(_INSPECTIONS_MAX):
        publisher.take_over(check=False)
        publisher.abort_hanging()
        seen = inspect_log(table, ScanProgress(progress), whole=True)
        # A long inspection outlasts the attempts of writers and services to publish.
        publisher.take_over(check=False)
        ends = [end for _, end in bounds(log, (), whole=True)]
        if positions(log) == seen.register and ends == [found.scan.end for found in seen.maps]:
            return seen
    msg = f"topic {log.topic!r}: others published each time while the log was inspected; repair again."
    raise FencedError(msg)


def _restore_register(table: BoundLog, publisher: KafkaPublisher, seen: Inspection) -> list[str]:
    """Correct the register where it is lost or wrong, and return what was done."""
    positions: dict[int, RegisterPosition] = {}
    for partition, (says, found) in enumerate(zip(seen.register, seen.maps, strict=True)):
        right = found.position()
        if right is None:
            right = _from_index(seen, partition) if says is None else says
        # Kafka may have compacted the last record away, so the log may hold later snapshots than its records show.
        behind = table.settings.compacted and says is not None and says.snapshot >= right.snapshot
        if says != right and not behind and (says is not None or right.snapshot):
            positions[partition] = right
    if positions:
        publisher.restore(positions)
    return [
        f"partition {partition}: corrected the register: snapshot {p.snapshot} ends at offset {p.end}"
        if p.snapshot
        else f"partition {partition}: corrected the register: nothing is published"
        for partition, p in positions.items()
    ]


def _from_index(seen: Inspection, partition: int) -> RegisterPosition:
    """Return the register position according to the index, for a partition in which retention has left no records."""
    last = max((s for s in seen.entries if s <= seen.newest), default=0)
    end = seen.entries[last].partitions[partition].end if last else seen.maps[partition].start
    return RegisterPosition(last, 0, 0, done=True, end=end, commit=seen.entries[last].commit if last else "")


def _rebuild_index(table: BoundLog, seen: Inspection, through: int, broken: Sequence[int]) -> list[str]:
    """Rebuild the index from the log, up to the last snapshot before those missing at its end; return what was done."""
    actions: list[str] = []
    first = _first_entry(seen, through)
    if 0 not in seen.entries and first == 1:
        start = tuple(OffsetRange(found.start, found.start, 0, 0) for found in seen.maps)
        table.index.put(IndexEntry(0, 0, "create", start, table=seen.table_id, topic=seen.topic_id))
        actions.append("rebuilt the index entry of snapshot 0, the empty table")
    for snapshot in range(first, through + 1):
        right = seen.entry(snapshot)
        if right is None or right == seen.entries.get(snapshot):
            continue
        word = "corrected" if snapshot in seen.entries else "rebuilt"
        table.index.put(right)
        seen.entries[snapshot] = right
        actions.append(f"{word} the index entry of snapshot {snapshot}")
    if through < seen.oldest - 1:
        actions.append(_begin_at_oldest(table, seen))
    gone = [s for s in broken if s > through or s < first]
    return actions + [f"removed the damaged index entry of snapshot {s}" for s in gone]


def _begin_at_oldest(table: BoundLog, seen: Inspection) -> str:
    """Add an index entry that marks expired snapshots as published, because they can no longer be published."""
    before = seen.oldest - 1
    ends = [found.end_before(seen.oldest) or found.start for found in seen.maps]
    ranges = tuple(OffsetRange(end, end, 0, 0) for end in ends)
    table.index.put(IndexEntry(before, 0, "expire", ranges, table=seen.table_id, topic=seen.topic_id))
    return (
        f"snapshots up to {before} have expired and are no longer in the log, which begins with snapshot "
        f"{seen.oldest}: a consumer that rebuilds the table from it must read the rows first (scan_mode='full')"
    )


def _whole_through(seen: Inspection) -> int:
    """Return the snapshot after which the log's end lacks changes.

    Up to this snapshot, the log has all changes, except for those that retention has removed and for gaps that cannot
    be filled.
    """
    for snapshot in range(1, seen.newest + 1):
        rows = seen.facts[snapshot].rows
        for partition, found in enumerate(seen.maps):
            if (not rows or rows[partition]) and snapshot > max(found.last, found.first - 1):
                return snapshot - 1
    return seen.newest


def _first_entry(seen: Inspection, through: int) -> int:
    """Return the oldest snapshot that should have an index entry; the log has no records of older ones."""
    oldest = min((s for s in seen.entries if s), default=through + 1)
    return max(1, seen.oldest, min(oldest, *(found.first for found in seen.maps)))


def _is_other_history(seen: Inspection) -> bool:
    """Return whether the log holds commits other than the table's; index and register must not adopt them."""
    claimed = [
        held.snapshot
        for held, found in zip(seen.register, seen.maps, strict=True)
        if held is not None and held.end <= found.scan.end and seen.is_other(held.snapshot, held.commit)
    ]
    return bool(claimed or seen.others())


def _keep_ids(table: BoundLog, *, made: bool) -> list[str]:
    """Store changed ids of topic and cluster in the table's definition, without rows; return what was done.

    Args:
        table: the log and its table.
        made: this repair created the topic, so the table owns it.

    Raises:
        NotFoundError: the table was dropped, and the topic that this repair created is removed again.
    """
    log = table.settings
    ids = existing_ids(log.client, log.topic)
    for _ in range(_ATTEMPTS_MAX):
        try:
            newest = table.files.latest()
            spec = table.files.spec_at_least(newest)
            known = TopicIds(spec.topic_id, spec.cluster_id)
            if known == ids or not (made or spec.topic_id):
                return []
            after = replace(spec, owns_topic=made, topic_id=ids.topic_id, cluster_id=ids.cluster_id)
            table.files.alter(after, newest + 1, f"repair-{uuid.uuid4().hex}")
        except ConflictError:
            continue
        except (NotFoundError, TableReplacedError):
            if made:
                identity = LogIdentity(made, ids.topic_id, ids.cluster_id)
                table.storage.remove(table.spec.table_id, identity, dropping=False, deleted=lambda: None)
            raise
        claim(log.client, log.topic, ids, spec.table_id)
        return [f"stored the id of the recreated topic {log.topic!r} in snapshot {newest + 1}"]
    msg = f"table {table.path!r}: others committed first {_ATTEMPTS_MAX} times in a row; repair again."
    raise ConflictError(msg)


def _reported(actions: Sequence[str], obstacles: Sequence[str], report: Report) -> RepairReport:
    return RepairReport(tuple(actions), report, (*obstacles, *advice(report.differences)))
