"""Small files are put together and files that nothing points at are removed, under the eyes of writers and readers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from snapshot.delta.log import DeltaLog
from snapshot.errors import InvalidInputError
from tablestore import create_local
from tablestore.context import TableContext
from tablestore.local.handle import LocalHandle
from tablestore.maintenance.compact import compact, compact_if_due
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tablestore.maintenance.remove_orphans import remove_orphans
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import drain_raw, make_table, publisher_of, run_here, staged, write
from tests.harness.log_audit import verify
from tests.tablestore.maintenance.test_expire_snapshots import content, fed, on_disk

DAYS_2 = 172_800


def published(servers: str, topic: str) -> list[list[bytes]]:
    return [[message.value() for message in part] for part in drain_raw(servers, topic, 2)]


def rows_of(table: TableContext) -> list[tuple[int, str]]:
    return content(table, table.files.latest())


def test_small_files_are_put_together_and_nobody_sees_it(
    servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    name, path = topic(), tmp_path / "t"
    table = make_table(path, servers, name, key=False, compaction__auto=False)
    writer = Writer(table, publisher_of(table))
    for number in range(6):
        write(writer, [(number, str(number)), (number + 100, "x")])
    held = {s: content(table, s) for s in range(7)}
    log = published(servers, name)

    def with_an_append(tasks: Any, work: Any) -> list[str]:
        results = run_here(tasks, work)
        write(Writer(TableContext.open(str(path)), None), [(7, "meanwhile")])
        return results

    made = compact(table, with_an_append)
    assert made is not None
    assert (made.id, made.operation, made.rows) == (8, "compact", 0)
    assert [f.rows for f in table.files.base_table.files()] == [1, 12] or [
        f.rows for f in table.files.base_table.files()
    ] == [
        12,
        1,
    ]
    assert content(table, 8) == sorted([*held[6], (7, "meanwhile")])
    assert {s: content(table, s) for s in range(7)} == held
    assert fed(table, 0) == [1, 2, 3, 4, 5, 6, 7]
    assert published(servers, name) == log
    write(writer, [(8, "later")])
    assert table.index.snapshots() == list(range(10))
    assert verify(table).ok
    assert sorted(r["id"] for r in DeltaTable(path).to_pyarrow_table().to_pylist()) == [k for k, _ in rows_of(table)]

    # Of two at once one is done, and its files are all that is listed.
    barrier = Barrier(2)

    def together(tasks: Any, work: Any) -> list[str]:
        barrier.wait()
        return run_here(tasks, work)

    before = rows_of(table)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda each: compact(each, together), [table, TableContext.open(str(path))]))
    assert sum(each is not None for each in both) == 1
    assert rows_of(table) == before
    assert compact(table, run_here) is None
    write(writer, [(9, "last")])
    expire(table, rules_of(table, "0 s", 1))
    assert on_disk(path) == {f.path for f in table.files.base_table.files()}
    assert rows_of(table) == sorted([*before, (9, "last")])

    # By itself after so many commits, and an interrupted one leaves what was.
    often = make_table(tmp_path / "often", servers, topic(), key=False, compaction__commits=4)
    writer = Writer(often, None)
    for number in range(9):
        write(writer, [(number, "v")])
        if number == 3:
            with failing(DeltaLog, "commit"), pytest.raises(Crash):
                compact_if_due(often, run_here)
            assert len(rows_of(often)) == 4
        compact_if_due(often, run_here)
    assert [s.operation for s in often.files.snapshots()].count("compact") == 2
    assert rows_of(often) == [(n, "v") for n in range(9)]
    assert len(often.files.base_table.files()) < 4


def test_compaction_is_due_where_others_have_committed_past_the_multiple(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_local(path, "id bigint", options={"compaction.commits": "4"})
    handle = LocalHandle(TableContext.open(path))

    def after(appends: int) -> str:
        for _ in range(appends):
            write_deltalake(path, pa.table({"id": [1]}), mode="append")
        handle.renew()
        for work in handle.maintenance().values():
            work()
        files = TableContext.open(path).files
        return files.snapshot(files.latest()).operation

    # The snapshots are 3, then 5 and 6, then 7, then 8 and 9.
    assert [after(appends) for appends in (3, 2, 1, 1)] == ["foreign", "compact", "foreign", "compact"]


@pytest.mark.parametrize("key", [True, False], ids=["key table", "append table"])
def test_orphans_go_when_they_are_old_and_only_orphans(
    servers: str, tmp_path: Path, topic: Callable[[], str], key: bool
) -> None:
    path = tmp_path / "t"
    table = make_table(path, servers, topic(), key=key, compaction__auto=False)
    writer = Writer(table, publisher_of(table))
    for number in range(25):
        write(writer, [(number, str(number))])
        if number in {9, 19}:
            compact(table, run_here)
    expire(table, rules_of(table, "0 s", 4))
    known = on_disk(path)
    # Left by writers that died: staged rows, a compaction's files, a draft.
    staged(writer.stager(whole_buckets=True), [(1, "never committed")])
    with failing(DeltaLog, "commit"), pytest.raises(Crash):
        compact(TableContext.open(str(path)), run_here)
    (path / "_log" / "draft.json.tmp").write_text("{")
    orphans = (on_disk(path) - known) | {"_log/draft.json.tmp"}
    assert len(orphans) >= 3
    assert remove_orphans(table).files == ()
    assert remove_orphans(table).young == len(orphans)
    old = time.time() - DAYS_2
    for file in path.rglob("*"):
        os.utime(file, (old, old))
    slow = staged(writer.stager(whole_buckets=True), [(77, "slow")])

    plan = remove_orphans(table, dry_run=True)
    assert set(plan.files) == orphans
    assert plan.bytes == sum((path / name).stat().st_size for name in orphans)
    told: list[tuple[int, int]] = []
    done = remove_orphans(table, "1 d", progress=lambda n, of: told.append((n, of)))
    assert (done.files, done.young) == (plan.files, len(slow))
    assert told[-1] == (len(orphans), len(orphans))
    assert remove_orphans(table).files == ()
    held = rows_of(table)
    made = writer.write_staged(slow)
    assert made is not None
    assert rows_of(table) == sorted([*held, (77, "slow")])
    assert remove_orphans(table).young == 0
    assert verify(table).ok
    with pytest.raises(InvalidInputError, match="expected an hour or more"):
        remove_orphans(table, "59 min")
