"""Expiry takes what nobody needs and nothing else, wherever it is interrupted; tags and consumers keep their own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from log_system.files.log import FilesLog
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.delta.log import DeltaLog
from snapshot.errors import AlreadyExistsError, DataLostError, InvalidInputError, NotFoundError
from snapshot.records import ChangeSet
from snapshot.storage import Storage
from snapshot.store import garbage
from snapshot.store.table_files import TableFiles
from snapshot.store.tags import Tags
from tablestore import create_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.inspect.metadata_tables import INSPECTED, inspected
from tablestore.maintenance.change_tags import delete_tag, make_tag
from tablestore.maintenance.compact import compact, compact_if_due
from tablestore.maintenance.expire_snapshots import ExpireReport, expire, expire_if_due, rules_of
from tablestore.read.split_planner import snapshot_splits
from tablestore.streaming.consumers import Consumers
from tablestore.write.writer import Writer
from tests.crash.processes.expirer import expire_and_die
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import SCHEMA, make_table, publisher_of, rows_of, run_here, write
from tests.harness.log_audit import verify
from tests.harness.waiting import PATIENCE_SECONDS

PARTITIONS = 2
NOW = timedelta(0)


class Life:
    """A table that is written to, and what each of its snapshots held when it was made."""

    def __init__(self, path: Path, servers: str, topic: str, *, key: bool = True, **options: object) -> None:
        self.path, self.key, self.servers, self.topic = path, key, servers, topic
        given = {"compaction__auto": False, "snapshot__expire_auto": False, **options}
        self.table = make_table(path, servers, topic, key=key, **given)
        self.publisher: KafkaPublisher = publisher_of(self.table)
        self.writer = Writer(self.table, self.publisher)
        self.held: dict[int, list[tuple[int, str]]] = {0: []}

    def write(self, batches: int, *, rows: int = 4, compact_every: int = 0) -> None:
        for _ in range(batches):
            newest = self.table.files.latest()
            write(
                self.writer, [((newest + n) % 7 if self.key else newest * 10 + n, f"{newest}.{n}") for n in range(rows)]
            )
            if compact_every and self.table.files.latest() % compact_every == 0:
                compact(self.table, run_here)
            self.remember()

    def other_writer(self) -> tuple[TableContext, KafkaPublisher, Writer]:
        """Write some, and let another process's writer take the log over by a write of its own."""
        self.write(2)
        table = TableContext.open(str(self.path))
        publisher = publisher_of(table)
        writer = Writer(table, publisher)
        write(writer, [(1, "before")])
        return table, publisher, writer

    def remember(self) -> None:
        for snapshot in range(max(self.held) + 1, self.table.files.latest() + 1):
            self.held[snapshot] = content(self.table, snapshot)

    def expire(self, keep_last: int, table: TableContext | None = None, **more: Any) -> ExpireReport:
        table = table or self.table
        return expire(table, rules_of(table, NOW, keep_last), **more)

    def check(self, *, oldest: int) -> None:
        """What is kept reads as it did, what is not says so; the log is right, and whoever reads on can."""
        self.remember()
        table = TableContext.open(str(self.path))
        newest, tagged = table.files.latest(), {tag.snapshot.id for tag in table.files.tags.all()}
        assert table.files.oldest() == oldest
        assert [s.id for s in table.files.snapshots()] == list(range(newest, oldest - 1, -1))
        for snapshot in range(0, newest + 1, 1 if oldest else 5):
            if snapshot >= oldest or snapshot in tagged:
                assert content(table, snapshot) == self.held[snapshot], f"snapshot {snapshot}"
            else:
                with pytest.raises(NotFoundError, match=f"snapshot {snapshot} has expired; the oldest is {oldest}"):
                    table.files.snapshot(snapshot)
        for after in range(max(oldest - 1, 0), newest + 1, 1 if oldest else 9):
            assert fed(table, after) == self.wanted_feed(after)
        if oldest > 1:
            with pytest.raises(DataLostError, match="has expired"):
                FilesLog(table.files, PARTITIONS).plan(oldest - 2, newest, table.spec.change_columns)
        report = verify(table)
        assert report.ok, str(report)
        assert table.index.snapshots() == list(range(oldest, table.newest_visible() + 1))

    def wanted_feed(self, after: int) -> list[int]:
        return sorted(s for s in range(after + 1, self.table.files.latest() + 1) if self.rows(s))

    def rows(self, snapshot: int) -> int:
        entry = self.table.index.get(snapshot)
        return 0 if entry is None else entry.rows


def content(table: TableContext, snapshot: int) -> list[tuple[int, str]]:
    """Read a snapshot's rows by our own reader."""
    table.files.snapshot(snapshot)
    batches = [b for part in snapshot_splits(table.files, snapshot, tasks=1) for b in part.read()]
    return sorted((row["id"], row["v"]) for b in batches for row in b.to_pylist())


def fed(table: TableContext, after: int) -> list[int]:
    """Read the changes after a snapshot from the table's files; give the snapshots they are of."""
    parts = FilesLog(table.files, PARTITIONS).plan(after, table.files.latest(), table.spec.change_columns)
    found = [v for part in parts for b in part.read() for v in b.column("_commit_version").to_pylist()]
    return sorted(set(found))


def on_disk(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*.parquet") if "_delta_log" not in p.parts}


def needed(table: TableContext) -> set[str]:
    """Every data file that a kept snapshot or a tag reads, or that holds a kept snapshot's changes."""
    files, folder = table.files, "_changes/" if table.spec.has_key else ""
    layouts = [files.layout(s) for s in range(files.oldest(), files.latest() + 1)]
    layouts += [tag.layout for tag in files.tags.all()]
    found = {f.path for layout in layouts for f in layout.base} | {
        folder + f.path for la in layouts for f in la.changes
    }
    for snapshot in range(max(files.oldest(), 1), files.latest() + 1):
        found |= {folder + f.path for held in files.changes(snapshot, PARTITIONS).files.values() for f in held}
    return found


@pytest.mark.parametrize("key", [True, False], ids=["key table", "append table"])
def test_what_is_kept_reads_as_before_and_what_is_not_is_gone_from_the_disk(
    servers: str, tmp_path: Path, topic: Callable[[], str], key: bool
) -> None:
    life = Life(tmp_path / "t", servers, topic(), key=key)
    open_before = TableContext.open(str(life.path))
    assert (open_before.files.latest(), open_before.newest_visible()) == (0, 0)
    life.write(27, compact_every=8)
    tagged = make_tag(life.table, "monthly", 12)
    make_tag(life.table, "newest", None)
    with pytest.raises(AlreadyExistsError, match="'monthly'"):
        make_tag(life.table, "monthly", 13)
    newest = life.table.files.latest()

    plan = life.expire(5, dry_run=True)
    assert (plan.before, plan.oldest) == (0, newest - 4)
    life.check(oldest=0)
    steps: list[tuple[int, int]] = []
    done = life.expire(5, progress=lambda n, of: steps.append((n, of)))
    assert replace(done, dry_run=True) == plan
    assert done.index_entries == newest - 4
    assert done.log_entries
    assert done.data_files
    assert steps[-1] == (done.data_files + done.index_entries + done.log_entries,) * 2
    life.check(oldest=newest - 4)
    assert on_disk(life.path) == needed(life.table)
    assert not (Path(life.table.files.log.storage.root) / "_delta_log" / f"{0:020d}.json").exists()

    # A handle that has seen nothing of all this goes on, and so do writers.
    assert content(open_before, newest) == life.held[newest]
    assert open_before.newest_visible() == newest
    # Nor does it help a publisher that was asleep to write an entry that has expired since.
    entry = life.table.index.get(newest - 4)
    assert entry is not None
    life.table.index.put(replace(entry, snapshot=newest - 9))
    assert TableContext.open(str(life.path)).newest_visible() == newest
    life.write(17, compact_every=8)
    last = life.table.files.latest()
    again = life.expire(3)
    life.check(oldest=last - 2)
    assert again.before == newest - 4
    assert on_disk(life.path) == needed(life.table)
    assert content(life.table, 12) == life.held[12]
    delete_tag(life.table, tagged.name)
    delete_tag(life.table, "newest")
    assert on_disk(life.path) == needed(life.table)
    with pytest.raises(NotFoundError, match="'monthly' does not exist; the table has no tags"):
        delete_tag(life.table, "monthly")
    for _ in range(3):
        idle = life.expire(3)
        assert (idle.snapshots, idle.data_files, idle.log_entries, idle.index_entries) == (0, 0, 0, 0)
    assert life.table.files.latest() == last + 1


def test_nothing_goes_that_a_consumer_the_log_or_a_reader_under_way_needs(
    servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    life = Life(tmp_path / "t", servers, topic(), consumer__expiration_time="1 h")
    life.write(12)
    consumers = Consumers(life.table.files.storage)
    consumers.put("slow", 4)
    consumers.put("quick", 9)
    report = life.expire(1)
    assert (report.oldest, report.held_by) == (4, "consumer 'slow'")
    life.check(oldest=4)
    # Without an age, what was the newest a moment ago stays for those who are reading it.
    assert expire(life.table, rules_of(life.table, None, 1)).oldest == 4
    assert expire(life.table, rules_of(life.table, None, None)).oldest == 4

    unheard = consumers.get("slow")
    assert unheard is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tablestore.streaming.consumers.time.time", lambda: unheard.updated_ms / 1000 - 7200)
        consumers.put("slow", 4)
    os.utime(life.path / "_consumers" / "slow.json", (0, unheard.updated_ms / 1000 - 7200))
    assert life.expire(1, dry_run=True).consumers == ("slow",)
    report = life.expire(1)
    assert (report.oldest, report.held_by, report.consumers) == (9, "consumer 'quick'", ("slow",))
    assert consumers.delete("quick")

    # Two snapshots that nobody has published stay, and the one before them.
    other = Writer(TableContext.open(str(life.path)), None)
    published = life.table.index.latest()
    write(other, [(1, "later")])
    write(other, [(2, "later")])
    report = life.expire(1)
    assert published is not None
    assert (report.oldest, report.held_by[:21]) == (published.snapshot, "unpublished snapshots")
    life.write(1)
    life.check(oldest=published.snapshot)
    for argument in ({"keep_last": 0}, {"older_than": "soon"}, {"older_than": timedelta(-1)}):
        with pytest.raises(InvalidInputError, match=next(iter(argument))):
            rules_of(life.table, **{"older_than": None, "keep_last": None, **argument})


@pytest.fixture(scope="module")
def prepared(kafka: Any, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """A table whose snapshots and checkpoints make an expiry do all it can do; for copying only."""
    life = Life(tmp_path_factory.mktemp("prepared") / "t", kafka.bootstrap_servers, f"expire-{uuid.uuid4().hex}")
    life.write(27, compact_every=8)
    make_tag(life.table, "kept", 5)
    return life


@pytest.mark.crash
@pytest.mark.parametrize(
    ("point", "hit"),
    [("commit", 1), *(("delete-file", hit) for hit in (1, 2, 20, 35, 50))],
    ids=str,
)
@pytest.mark.parametrize("side", ["before", "after"])
def test_an_expiry_that_is_killed_harms_nobody_and_the_next_one_finishes_it(
    prepared: Life, tmp_path: Path, point: str, hit: int, side: str
) -> None:
    path, newest = tmp_path / "t", prepared.table.files.latest()
    shutil.copytree(prepared.path, path)
    process = CONTEXT.Process(target=expire_and_die, args=(str(path), 3, f"{point}:{side}", hit))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == -signal.SIGKILL, f"{point}:{side} was never reached {hit} times"

    table = TableContext.open(str(path))
    oldest = table.files.oldest()
    assert oldest == (0 if (point, side) == ("commit", "before") else newest - 2)
    for snapshot in (5, *range(oldest, newest + 1)):
        assert content(table, snapshot) == prepared.held[snapshot]
    if oldest:
        assert fed(table, oldest - 1) == [s for s in range(oldest, newest + 1) if prepared.rows(s)]
    entries = table.index.snapshots()
    assert entries == list(range(entries[0], newest + 1))

    report = prepared.expire(3, table)
    assert report.oldest == newest - 2
    assert on_disk(path) == needed(table)
    assert table.index.snapshots() == list(range(newest - 2, newest + 1))
    left = sorted(int(p.name[:20]) for p in (path / "_changes" / "_delta_log").glob("[0-9]*.json"))
    # Delta's log is cut at its last checkpoint that is old enough; of what is before, nothing is left.
    assert left == list(range(left[0], newest + 2))
    assert newest - 22 < left[0] <= newest - 2
    for snapshot in (5, *range(newest - 2, newest + 1)):
        assert content(TableContext.open(str(path)), snapshot) == prepared.held[snapshot]


def test_a_tag_made_while_its_snapshot_expires_is_kept_or_refused(
    servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    life = Life(tmp_path / "t", servers, topic())
    life.write(12)
    compact(life.table, run_here)
    life.remember()
    hold = Tags.hold

    def expired_before(self: Tags, name: str, tag: Any) -> None:
        life.expire(2, TableContext.open(str(life.path)))
        hold(self, name, tag)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tags, "hold", expired_before)
        with pytest.raises(NotFoundError, match="snapshot 3 has just expired"):
            make_tag(TableContext.open(str(life.path)), "late", 3)
    assert life.table.files.tags.all() == []
    life.write(4)
    compact(life.table, run_here)
    life.remember()
    oldest = life.table.files.oldest()
    commit = DeltaLog.commit

    def tagged_first(self: DeltaLog, *args: Any, **named: Any) -> Any:
        if named["info"]["kind"] == "expire" and not life.table.files.tags.all():
            make_tag(TableContext.open(str(life.path)), "in-time", oldest)
        return commit(self, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaLog, "commit", tagged_first)
        life.expire(2, TableContext.open(str(life.path)))
    assert life.table.files.oldest() > oldest
    assert content(TableContext.open(str(life.path)), oldest) == life.held[oldest]

    # Only the other tag keeps the snapshot now, and it goes while the new one is made.
    def deleted_before(self: Tags, name: str, tag: Any) -> None:
        delete_tag(TableContext.open(str(life.path)), "in-time")
        hold(self, name, tag)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tags, "hold", deleted_before)
        with pytest.raises(NotFoundError, match=f"snapshot {oldest} has just expired"):
            make_tag(TableContext.open(str(life.path)), "too-late", oldest)
    assert life.table.files.tags.keeping() == []


@pytest.mark.parametrize("key", [True, False], ids=["key table", "append table"])
def test_with_expiry_on_its_own_the_disk_does_not_fill(tmp_path: Path, key: bool) -> None:
    options = {"snapshot.retention": "0 s", "snapshot.retain-min": 5, "compaction.commits": 20, "bucket": 2}
    keys = ["id"] if key else []
    path = tmp_path / "t"
    table = create_drop.create(TableDefinition(str(path), SCHEMA, primary_key=keys, options=options))
    writer = Writer(table, None)
    most = 0
    for number in range(200 if key else 80):
        write(writer, [((number + n) % 50 if key else number, f"{number}.{n}") for n in range(4)])
        compact_if_due(table, run_here)
        expire_if_due(table)
        most = max(most, sum(p.is_file() for p in path.rglob("*")) if number % 10 == 9 else 0)
    # Without expiry each of the snapshots has an entry and a file or two.
    assert most < (150 if key else 120)
    assert table.files.latest() - table.files.oldest() < 35
    assert len(content(table, table.files.latest())) == (50 if key else 320)


def test_readers_and_writers_do_not_notice_an_expiry_that_spares_what_they_read(
    servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    life = Life(tmp_path / "t", servers, topic())
    life.write(5)
    write(life.writer, [(7, "same")])
    stop = threading.Event()

    def write_many(number: int) -> int:
        table = TableContext.open(str(life.path))
        writer = Writer(table, publisher_of(table))
        for batch in range(20):
            write(writer, [(number, str(batch)), (100 + number, None), (7, "same")])
        return 0

    def expire_often() -> int:
        found = 0
        while not stop.is_set():
            table = TableContext.open(str(life.path))
            if random.random() < 0.3:
                compact(table, run_here)
            found += expire(table, rules_of(table, NOW, 12)).snapshots
        return found

    def read_often() -> int:
        reads = 0
        table = TableContext.open(str(life.path))
        while not stop.is_set():
            newest = table.files.latest()
            try:
                assert dict(content(table, newest))[7]
                changes = table.files.changes(newest, PARTITIONS)
                assert sum(b.num_rows for p in range(PARTITIONS) for b in changes.batches(p)) == changes.snapshot.rows
                reads += 1
            except (DataLostError, NotFoundError):
                # A reader that more than the twelve kept snapshots have overtaken may fail; nobody else may.
                if table.files.oldest() <= newest:
                    raise
        return reads

    with ThreadPoolExecutor(5) as pool:
        writers = [pool.submit(write_many, number) for number in (1, 2)]
        others = [pool.submit(expire_often), pool.submit(expire_often), pool.submit(read_often)]
        try:
            for each in writers:
                each.result()
        finally:
            stop.set()
        expired = others[0].result() + others[1].result()
        assert expired > 10
        assert others[2].result() > 3
    table = TableContext.open(str(life.path))
    now = dict(content(table, table.files.latest()))
    assert (now[1], now[2], now[7]) == ("19", "19", "same")
    assert verify(table).ok
    life.expire(1)
    assert on_disk(life.path) == needed(TableContext.open(str(life.path)))


def test_snapshots_are_read_after_the_entries_of_maintenance_before_them_are_cut(tmp_path: Path) -> None:
    table = create_drop.create(
        TableDefinition(
            str(tmp_path / "t"), SCHEMA, primary_key=["id"], options={"bucket": "2", "compaction.auto": "false"}
        )
    )
    writer = Writer(table, None)
    for number in range(1, 4):
        write(writer, [(number, "v")])
    assert expire(table, rules_of(table, NOW, 1)).oldest == 3
    for number in range(5, 46):
        write(writer, [(number, "v")])
    now = TableContext.open(table.path)
    assert expire(now, rules_of(now, NOW, 1)).log_entries > 20
    assert sorted(row for row in rows_of(TableContext.open(table.path))) == [1, 2, 3, *range(5, 46)]
    assert compact(TableContext.open(table.path), run_here) is not None
    assert len(rows_of(TableContext.open(table.path))) == 44


def test_looking_inside_needs_no_spark(servers: str, tmp_path: Path, topic: Callable[[], str]) -> None:
    life = Life(tmp_path / "t", servers, topic())
    life.write(4, compact_every=3)
    make_tag(life.table, "t1", 2)
    Consumers(life.table.files.storage).put("reader", 3)
    write(Writer(TableContext.open(str(life.path)), None), [(1, "unpublished"), (2, "unpublished")])
    table = TableContext.open(str(life.path))
    found = {name: inspected(table, name).to_pylist() for name in INSPECTED}
    newest = table.files.latest()
    assert [(s["snapshot_id"], s["kind"], s["published"]) for s in found["snapshots"]][:2] == [
        (newest, "upsert", False),
        (newest - 1, "upsert", True),
    ]
    assert [s["tags"] for s in found["snapshots"] if s["snapshot_id"] == 2] == [["t1"]]
    paths = {life.path / f["path"] for f in found["files"]}
    assert all(p.exists() for p in paths)
    assert {f["kind"] for f in found["files"]} == {"base", "changes"}
    assert sum(b["rows"] for b in found["buckets"]) == sum(p["rows"] for p in found["partitions"]) > 0
    assert sum(b["change_rows"] for b in found["buckets"]) == 6
    assert [(c["name"], c["type"], c["key_position"]) for c in found["schemas"]] == [
        ("id", "bigint", 0),
        ("v", "string", None),
    ]
    assert {o["name"]: o["value"] for o in found["options"]}["bucket"] == "2"
    assert {entry["lag_snapshots"] for entry in found["log"]} == {1}
    assert sum(entry["lag_rows"] for entry in found["log"]) == 2
    assert all(entry["end_offset"] >= entry["published_end"] for entry in found["log"])
    (reader,) = found["consumers"]
    assert (reader["consumer"], reader["snapshot_id"]) == ("reader", 3)
    assert (reader["table_lag_snapshots"], reader["log_lag_snapshots"]) == (newest - 3, newest - 4)
    assert (reader["table_lag_rows"], reader["log_lag_rows"]) == (6, 4)
    assert reader["table_lag_seconds"] >= reader["log_lag_seconds"] > 0
    (tag,) = found["tags"]
    assert (tag["tag"], tag["snapshot_id"]) == ("t1", 2)
    with pytest.raises(InvalidInputError, match="'owls': expected one of snapshots, files"):
        inspected(table, "owls")


def test_a_writer_that_slept_while_others_wrote_and_expired_goes_on(
    servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    life = Life(tmp_path / "t", servers, topic())
    table, publisher, sleeper = life.other_writer()
    life.write(8)
    life.expire(2)
    made = write(sleeper, [(1, "after")])
    assert made is not None
    assert (made.id, table.newest_visible()) == (life.table.files.latest(), made.id)
    publisher.discard()
    life.write(2)
    life.check(oldest=life.table.files.oldest())


def test_a_publisher_whose_snapshot_others_publish_and_expire_first_has_nothing_left_to_do(
    servers: str, tmp_path: Path, topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path / "t", servers, topic())
    _, publisher, slow = life.other_writer()
    looked_up = TableFiles.published

    def late(files: TableFiles, snapshot: int, buckets: int, *, fresh: bool = True) -> ChangeSet:
        monkeypatch.undo()
        life.write(8, compact_every=4)
        life.expire(2)
        return looked_up(files, snapshot, buckets, fresh=fresh)

    monkeypatch.setattr(TableFiles, "published", late)
    made = write(slow, [(1, "after")])
    assert made is not None
    assert made.id < life.table.files.oldest()
    publisher.discard()
    life.check(oldest=life.table.files.oldest())


@pytest.mark.parametrize("key", [True, False], ids=["key table", "append table"])
def test_a_clock_that_was_wrong_neither_keeps_snapshots_nor_expires_them_early(
    tmp_path: Path, key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, options = ("id",) if key else (), {"snapshot.retain-min": 1, "snapshot.expire-auto": "false"}
    clock, day = time.time, 86_400
    table = create_drop.create(TableDefinition(str(tmp_path / "t"), SCHEMA, primary_key=keys, options=options))
    writer = Writer(table, None)
    # Snapshots 3 and 6 are of a machine whose clock is a year ahead, then a month behind.
    for days in (1, 2, 365, 3, 11, -30, 11):
        monkeypatch.setattr(time, "time", lambda days=days: clock() + days * day)
        write(writer, [(1, str(days))])
    table = TableContext.open(table.path)
    # Time has passed for the file system, too.
    monkeypatch.setattr(Storage, "_modified_ms", lambda *_: int(time.time() * 1000))
    report = expire(table, rules_of(table, None, None), dry_run=True)
    # Snapshot 3 was replaced eight days ago, 4 and 5 just now.
    assert report.oldest == 4
    assert expire(table, rules_of(table, NOW, 1), dry_run=True).oldest == 7


@pytest.mark.parametrize("checked", [False, True], ids=["first expiry", "after another expiry"])
@pytest.mark.parametrize("tagged", [False, True], ids=["expired", "kept by a tag that is deleted"])
def test_files_that_another_writer_restored_stay_with_the_snapshots_that_have_them(
    tmp_path: Path, *, tagged: bool, checked: bool
) -> None:
    """Delta's RESTORE adds a file again, and a later delete removes it a second time."""
    made = create_local(tmp_path / "t", "id bigint, v string", options={"snapshot.expire-auto": "false"})
    for number in (1, 2):
        made.write([{"id": number, "v": "a"}])
    table = TableContext.open(str(tmp_path / "t"))
    if tagged:
        make_tag(table, "before", 2)
    made.delete("id = 1")
    made.write([{"id": 4, "v": "a"}])
    if checked:
        assert expire(table, rules_of(table, NOW, 3)).oldest == 2
    DeltaTable(tmp_path / "t").restore(2)
    made.recover()
    made.delete("id = 1")
    newest = table.files.latest()
    assert newest == 7 + checked
    expire(table, rules_of(table, NOW, 4))
    if tagged:
        delete_tag(table, "before")
    for snapshot, ids in ((newest - 2, [1, 2]), (newest - 1, [1, 2]), (newest, [2])):
        assert [n for n, _ in content(TableContext.open(str(tmp_path / "t")), snapshot)] == ids
    assert fed(table, newest - 2) == [newest - 1, newest]


def test_an_expiry_reads_no_version_that_another_one_has_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if another Delta writer added files since the oldest snapshot, which may be old ones, all are read again."""
    made = create_local(tmp_path / "t", "id bigint", options={"snapshot.expire-auto": "false"})
    table = TableContext.open(str(tmp_path / "t"))
    spans: list[tuple[int, int]] = []
    commits = garbage._commits

    def counted(files: TableFiles, first: int, last: int) -> Any:
        spans.append((first, last))
        return commits(files, first, last)

    monkeypatch.setattr(garbage, "_commits", counted)

    def expired(keep: int) -> list[tuple[int, int]]:
        for number in range(3):
            made.write([{"id": number}])
            made.delete(f"id = {number}")
        spans.clear()
        expire(table, rules_of(table, NOW, keep))
        return spans.copy()

    # The expiry is version 7.
    assert expired(4) == [(4, 6), (7, 7)]
    assert expired(8) == [(7, 13), (14, 14)]
    for _ in range(4):
        write_deltalake(tmp_path / "t", pa.table({"id": [9]}), mode="append")
    # Versions 15 to 18 are foreign. The oldest is 16, then 17, then 35.
    assert expired(9) == [(17, 24), (17, 25)]
    assert expired(14) == [(25, 31), (18, 32)]
    assert expired(4) == [(36, 38), (39, 39)]

    # Version 46 is committed by another writer just before the expiry, which becomes 47.
    commit = DeltaLog.commit

    def overtaken(self: DeltaLog, *args: Any, **named: Any) -> Any:
        if named["info"]["kind"] == "expire":
            monkeypatch.setattr(DeltaLog, "commit", commit)
            made.write([{"id": 0}])
        return commit(self, *args, **named)

    monkeypatch.setattr(DeltaLog, "commit", overtaken)
    assert expired(4) == [(43, 45), (46, 46), (47, 47)]
