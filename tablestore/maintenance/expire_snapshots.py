"""Snapshot expiry: removes old snapshots with the files, log index entries and Delta log entries only they need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache

from log_system.report import Progress
from snapshot.delta.log import DataFile, DeltaLog
from snapshot.errors import NOT_COMMITTED, DataLostError, InvalidInputError, NotFoundError
from snapshot.messages import counted
from snapshot.staging.stage import CHANGES
from snapshot.storage import Storage
from snapshot.store.garbage import Garbage, commit_expiry, cut_points, entries_below, unneeded, unneeded_of
from snapshot.store.table_files import TableFiles
from snapshot.store.tags import Tag
from tablestore.context import TableContext
from tablestore.options.read_options import timestamp_millis
from tablestore.options.value_types import duration
from tablestore.streaming.consumers import Consumer, Consumers

GRACE_MS = 600_000
"""Readers may still use a snapshot that was the newest within this time, in milliseconds."""
_DUE_SNAPSHOTS_MIN = 20
_DUE_PART = 10
_DELETE_FILES = 100
_SWEEPS_MAX = 5


@dataclass(frozen=True)
class ExpireReport:
    """The result of an expiry: what it removed or, in a dry run, would remove.

    Attributes:
        path: the table's folder.
        dry_run: whether nothing was removed.
        before: the oldest snapshot before the expiry.
        oldest: the oldest snapshot after the expiry.
        held_by: what prevents ``oldest`` and later snapshots from expiring although the rules allow it; empty if
            nothing does.
        data_files: number of data files removed.
        data_bytes: their total size.
        log_entries: number of Delta log entries removed.
        index_entries: number of log index entries removed.
        consumers: stale consumers that were deleted.
        tags: expired tags that were deleted.
    """

    path: str
    dry_run: bool
    before: int
    oldest: int
    held_by: str = ""
    data_files: int = 0
    data_bytes: int = 0
    log_entries: int = 0
    index_entries: int = 0
    consumers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def snapshots(self) -> int:
        """The number of snapshots that expired."""
        return self.oldest - self.before

    def __str__(self) -> str:
        """Return the report as text."""
        would = "would expire" if self.dry_run else "expired"
        text = (
            f"{self.path}: {would} {counted(self.snapshots, 'snapshot')} (the oldest is now {self.oldest}) and "
            f"{counted(self.data_files, 'data file')} of {self.data_bytes:,} bytes; entries of Delta logs: "
            f"{self.log_entries:,}, of the log index: {self.index_entries:,}."
        )
        for what, names in (("consumers", self.consumers), ("tags", self.tags)):
            text += f" Expired {what}: {', '.join(names)}." if names else ""
        return text + (f" Held by {self.held_by}." if self.held_by else "")


@dataclass(frozen=True)
class Rule:
    """A condition under which a snapshot may expire; both parts must hold.

    Attributes:
        replaced_before_ms: the snapshot was replaced by a newer one before this time, in milliseconds since the epoch.
        keep_last: at least this many newer snapshots exist, not counting those committed by expiries.
        now_ms: commits dated later than this were dated by a clock that was ahead.
    """

    replaced_before_ms: int
    keep_last: int
    now_ms: int


Age = timedelta | datetime | str
"""An age: a duration, the text of a duration such as ``"7 d"``, or a point in time."""


def rules_of(
    table: TableContext,
    older_than: Age | None,
    keep_last: int | None,
    now_ms: int | None = None,
    *,
    dry_run: bool = False,
) -> tuple[Rule, ...]:
    """Return the rules for the caller's limits or, if there are none, for the table's options.

    Raises:
        InvalidInputError: ``older_than`` or ``keep_last`` is invalid.
    """
    clocks_ms = table.files.storage.clocks_ms(dry_run=dry_run) if now_ms is None else (now_ms,)
    now_ms, latest_ms = min(clocks_ms), max(clocks_ms)
    if keep_last is not None and keep_last < 1:
        msg = f"expire: keep_last={keep_last}: expected a number of 1 or more; the newest snapshot never expires."
        raise InvalidInputError(msg)
    if older_than is None and keep_last is None:
        options = table.options.snapshot
        rules = [Rule(now_ms - options.retention_ms, options.retain_min, latest_ms)]
        if options.retain_max is not None:
            rules.append(Rule(now_ms - min(GRACE_MS, options.retention_ms), options.retain_max, latest_ms))
        return tuple(rules)
    before = now_ms - GRACE_MS if older_than is None else before_ms(older_than, now_ms, "expire: older_than")
    # An age of zero is that of each snapshot, whatever the clocks are: that of files is some milliseconds late.
    return (Rule(latest_ms if before == now_ms else before, keep_last or 1, latest_ms),)


def before_ms(age: object, now_ms: int, what: str) -> int:
    """Convert an age to a point in time, in milliseconds since the epoch.

    Raises:
        InvalidInputError: the age is neither a duration nor a time.
    """
    if isinstance(age, timedelta):
        if age < timedelta(0):
            msg = f"{what}={age!r}: expected a duration of 0 or more."
            raise InvalidInputError(msg)
        return now_ms - int(age.total_seconds() * 1000)
    if isinstance(age, datetime):
        return timestamp_millis(age)
    text = age.strip() if isinstance(age, str) else ""
    try:
        return now_ms - duration(0).parse(text)
    except ValueError:
        pass
    try:
        return timestamp_millis(datetime.fromisoformat(text))
    except ValueError:
        msg = f"{what}={age!r}: expected a timedelta, a datetime, or text such as '7 d' or '2026-01-31T12:00:00Z'."
        raise InvalidInputError(msg) from None


def expire(
    table: TableContext, rules: Sequence[Rule], *, dry_run: bool = False, progress: Progress | None = None
) -> ExpireReport:
    """Expire snapshots, oldest first, and remove the files that only they need.

    Always kept are the newest snapshot, snapshots that a consumer has not read, snapshots that are not in the log yet,
    and the files of tagged snapshots.

    1. Delete expired tags and stale consumers, and choose the new oldest snapshot. A crash here leaves all snapshots as
       they were.
    2. Announce the choice, keep what consumers need that were written meanwhile, and commit it as a snapshot without
       changes. From now on no reader can open the older snapshots. If a crash leaves some of their files, the next
       expiry removes them, since it reads the whole remaining Delta log.
    3. Remove data files that are no longer needed. They are listed in the Delta log, which is therefore truncated last.
    4. Remove log index entries, oldest first, so that there is never a gap.
    5. Truncate the Delta logs at a checkpoint, again oldest entries first.

    Args:
        table: the table.
        rules: a snapshot may expire if at least one rule allows it.
        dry_run: only report what would be done.
        progress: called with the number of files removed so far and the total.

    Raises:
        ConflictError: other writers committed first too often; nothing has expired.
        TableReplacedError: the table was dropped and created again; the new table is kept.
        UnavailableError: a file system operation failed; call ``expire`` again.
    """
    files = table.files
    # Step 1.
    tags = expire_tags(table, dry_run=dry_run)
    before = files.oldest()
    consumers = Consumers(files.storage)
    stale = _stale(table, consumers.all(), dry_run=dry_run)
    if stale and not dry_run:
        with table.own_folder() as folder:
            consumers.delete(*(consumer.name for consumer in stale), folder=folder)
    active = [consumer for consumer in consumers.all() if consumer not in stale]
    oldest, held_by = _decide(table, before, rules, active)
    # Step 2.
    if oldest > before and not dry_run:
        with table.own_folder() as folder:
            announcement = consumers.announce(oldest, table.spec.table_id, folder)
        # A consumer that is not seen here was written later, and sees the announcement or the commit.
        active = [consumer for consumer in consumers.all() if consumer not in stale]
        oldest, held_by = _held(table, before, oldest, active) or (oldest, held_by)
        try:
            if oldest > before:
                commit_expiry(files, oldest)
        except NOT_COMMITTED:
            consumers.withdraw(announcement, before, table.spec.table_id)
            raise
        oldest = files.oldest()
        consumers.withdraw(announcement, oldest, table.spec.table_id)
    report = ExpireReport(
        table.path, dry_run, before, oldest, held_by, consumers=tuple(consumer.name for consumer in stale), tags=tags
    )
    for attempt in range(_SWEEPS_MAX):
        try:
            # Steps 3 to 5.
            return _sweep(table, report, progress)
        except (NotFoundError, DataLostError):
            # A concurrent expiry has truncated the Delta log while this one was reading it; read the rest again.
            if files.oldest() > oldest:
                return report
            if attempt == _SWEEPS_MAX - 1:
                raise
    raise AssertionError


def expire_tags(table: TableContext, created_before_ms: int | None = None, *, dry_run: bool = False) -> tuple[str, ...]:
    """Delete the tags whose time is over, and those created before a time; return their names.

    1. Delete the tags. A crash after this step leaves files that ``remove_orphans()`` removes.
    2. Delete the files of expired snapshots that only they kept.
    """
    files, now_ms = table.files, int(time.time() * 1000)
    tags = files.tags.all()
    found = [tag for tag in tags if tag.expires_ms is not None and tag.expires_ms <= now_ms]
    if found:
        # The age of a tag goes by the file system's clock, as that of a consumer does.
        now_ms, written = files.storage.now_ms(dry_run=dry_run), files.tags.written_ms()
        found = [
            tag for tag in found if max(tag.created_ms, written.get(tag.name, 0)) + (tag.retained_ms or 0) <= now_ms
        ]
    if created_before_ms is not None:
        found += [tag for tag in tags if tag.created_ms < created_before_ms and tag not in found]
    if found and not dry_run:
        # Step 1.
        with table.own_folder() as folder:
            # Others may have deleted a tag since, or created another one of its name.
            there = files.tags.all()
            found = [tag for tag in found if tag in there]
            for tag in found:
                files.tags.delete(tag.name, folder)
        # Step 2.
        for tag in found:
            remove_files_of_tag(table, tag)
    return tuple(tag.name for tag in found)


def remove_files_of_tag(table: TableContext, tag: Tag) -> None:
    """Delete the files that only a tag kept, which has been deleted; nothing unless its snapshot has expired."""
    if tag.snapshot.id < table.files.oldest():
        remove_garbage(table.files, unneeded_of(table.files, tag), lambda _: None)


def expire_if_due(table: TableContext) -> ExpireReport | None:
    """Expire by the table's options if enough snapshots can expire to justify a commit; cheap if not.

    The newest snapshot is that of the table's last look.
    """
    options, files = table.options.snapshot, table.files
    if not options.auto:
        return None
    newest, before = files.latest(fresh=False), files.oldest(fresh=False)
    least = before + max(_DUE_SNAPSHOTS_MIN, (newest - before) // _DUE_PART)
    if newest - least < options.retain_min:
        return None
    times = _times(files)
    for is_sure in (False, True):
        # Only what may go by this machine's clock is worth a look at the file system's.
        rules = rules_of(table, None, None, None if is_sure else int(time.time() * 1000))
        if not any(_may_go(times, rule, least - 1, newest - rule.keep_last) for rule in rules):
            return None
    consumers = Consumers(files.storage).all()
    if not _stale(table, consumers) and _pin(table, consumers)[0] < least:
        return None
    return expire(table, rules)


def _decide(table: TableContext, before: int, rules: Sequence[Rule], consumers: Sequence[Consumer]) -> tuple[int, str]:
    """Return the new oldest snapshot, and what prevents it from expiring too (may be empty)."""
    files, newest = table.files, table.files.latest()
    pin, _ = _pin(table, consumers)
    oldest, times = before, _times(files)
    for rule in rules:
        last = _last_to_go(files, rule, oldest, newest)
        # One snapshot past the pin is enough to know that the pin holds back a snapshot that could expire.
        while oldest <= pin and _may_go(times, rule, oldest, last):
            oldest += 1
    return _held(table, before, oldest, consumers) or (oldest, "")


def _held(table: TableContext, before: int, oldest: int, consumers: Sequence[Consumer]) -> tuple[int, str] | None:
    """Return the oldest snapshot where something must stay that would expire, and the reason; None if nothing must."""
    pin, held_by = _pin(table, consumers)
    return (max(pin, before), held_by) if pin < oldest else None


def _pin(table: TableContext, consumers: Sequence[Consumer]) -> tuple[int, str]:
    """Return the first snapshot that must be kept with all later ones, and the reason."""
    ours = [consumer for consumer in consumers if consumer.reads(table.spec.table_id)]
    pins = [(consumer.snapshot, f"consumer {consumer.name!r}") for consumer in ours]
    if table.log.publishes:
        pins.append((table.index.newest(), "unpublished snapshots; recover() publishes them"))
    return min(pins, default=(table.files.latest(), ""))


def _last_to_go(files: TableFiles, rule: Rule, oldest: int, newest: int) -> int:
    """Return the newest snapshot that the rule's ``keep_last`` allows to expire.

    Snapshots committed by an expiry are not counted; otherwise a table without writes would lose a snapshot with each
    expiry.
    """
    kept = 0
    for snapshot in range(newest, oldest, -1):
        kept += files.log.commit_at(snapshot).info.get("kind") != "expire"
        if kept == rule.keep_last:
            return snapshot - 1
    return oldest - 1


def _times(files: TableFiles) -> Callable[[int], int]:
    """Return a function that gives the time of a snapshot's commit, and reads each commit once."""
    return cache(lambda snapshot: files.log.commit_at(snapshot).timestamp_ms)


def _may_go(times: Callable[[int], int], rule: Rule, snapshot: int, last: int) -> bool:
    """Return whether a rule allows a snapshot to expire; its age counts from when the next snapshot replaced it."""
    return snapshot <= last and _replaced_ms(times, snapshot, last + 1, rule.now_ms) <= rule.replaced_before_ms


def _replaced_ms(times: Callable[[int], int], snapshot: int, last: int, now_ms: int) -> int:
    """Return when a snapshot was replaced, even where a writer's clock was wrong.

    A commit was made no later than those that follow it, of which ``last`` is the last one looked at, and no earlier
    than the one before it. A time in the future says nothing; for a clock that is behind, that would be most.
    """
    replaced_ms = next((ms for each in range(snapshot + 1, last + 1) if (ms := times(each)) <= now_ms), now_ms)
    made_ms = times(snapshot)
    return max(replaced_ms, made_ms) if made_ms <= now_ms else replaced_ms


def _stale(table: TableContext, consumers: Sequence[Consumer], *, dry_run: bool = False) -> list[Consumer]:
    expiration = table.options.consumer_expiration_ms
    if expiration is None:
        return []
    before = int(time.time() * 1000) - expiration
    old = [consumer for consumer in consumers if consumer.updated_ms < before]
    if not old:
        return []
    # Neither the clock of this machine nor that of the consumer's may end it: the store knows when it was written.
    written = Consumers(table.files.storage).written_ms()
    before = table.files.storage.now_ms(dry_run=dry_run) - expiration
    return [consumer for consumer in old if max(consumer.updated_ms, written.get(consumer.name, 0)) < before]


def _sweep(table: TableContext, report: ExpireReport, progress: Progress | None) -> ExpireReport:
    """Run steps 3 to 5 of ``expire``; in a dry run, only count."""
    files, oldest = table.files, report.oldest
    garbage = unneeded(files, oldest)
    index = [snapshot for snapshot in table.index.snapshots() if snapshot < oldest]
    entries = [name for log, version in cut_points(files, oldest) for name in _entries(files, log, version)]
    meter = _Meter(progress, len(garbage) + len(index) + len(entries))
    if report.dry_run:
        existing = [
            f for storage, folder_files in _by_folder(files, garbage) for f in folder_files if storage.exists(f.path)
        ]
        return _counted(report, len(existing), sum(file.size for file in existing), len(entries), len(index))
    # Step 3.
    removed, size = remove_garbage(files, garbage, meter)
    with table.own_folder() as folder:
        # Step 4.
        table.index.delete(index)
        meter(len(index))
        # Step 5.
        for name in entries:
            files.storage.delete(name, folder=folder)
            meter(1)
    return _counted(report, removed, size, len(entries), len(index))


def _entries(files: TableFiles, log: DeltaLog, version: int) -> list[str]:
    """Return the paths, within the table's folder, of the log entries that ``version`` and later ones do not need."""
    prefix = f"{CHANGES}/" if log.storage != files.storage else ""
    return [f"{prefix}{name}" for name in entries_below(log, version)]


def remove_garbage(files: TableFiles, garbage: Garbage, meter: Callable[[int], None]) -> tuple[int, int]:
    """Remove data files, some of which may no longer exist; return the number removed and their total size."""
    count = size = 0
    for storage, folder_files in _by_folder(files, garbage):
        for file in folder_files:
            if storage.delete(file.path):
                count, size = count + 1, size + file.size
            meter(1)
    return count, size


def _by_folder(files: TableFiles, garbage: Garbage) -> Iterator[tuple[Storage, tuple[DataFile, ...]]]:
    yield files.storage, garbage.base
    yield files.log.storage, garbage.changes


def _counted(report: ExpireReport, files: int, size: int, entries: int, index: int) -> ExpireReport:
    return replace(report, data_files=files, data_bytes=size, log_entries=entries, index_entries=index)


class _Meter:
    """Counts removed files and reports them to the progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, files: int) -> None:
        self._done += files
        if self._progress is not None and (self._done % _DELETE_FILES == 0 or self._done == self._total):
            self._progress(self._done, self._total)
