"""Promise 7: damage to index, change files, disk or clock ends in recovery, or in an error that says what is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileOpener
from pyspark.sql.streaming.datasource import ReadAllAvailable

from log_system.index import INDEX
from snapshot.errors import CorruptedError, DataLostError, TableStoreError, UnavailableError
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore.options.read_options import parse_read_options
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tablestore.write.publish import PublishPendingError
from tests.harness.local_writes import write
from tests.harness.table_harness import TableHarness, changes

pytestmark = pytest.mark.crash
FULL = OSError(errno.ENOSPC, "No space left on device")


def index_file(rig: TableHarness, snapshot: int) -> Path:
    return rig.path / "_log" / f"{snapshot:020d}.json"


def change_files(rig: TableHarness) -> set[Path]:
    return {p for p in (rig.path / "_changes").rglob("*.parquet") if "_delta_log" not in p.parts}


@pytest.mark.parametrize("forgotten", [False, True], ids=["register", "headers-only"])
def test_an_index_that_is_lost_whole_is_rebuilt(rig: TableHarness, forgotten: bool) -> None:
    rig.write(1, 2, 3)
    before = [rig.table.index.get(s) for s in (1, 2, 3)]
    if forgotten:
        rig.forget_groups()
    rig.table.index.delete([1, 2, 3])
    assert rig.recover() == [1, 2, 3]
    assert [rig.table.index.get(s) for s in (1, 2, 3)] == before
    rig.audit()


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_entry_wherever_it_was_is_rebuilt(rig: TableHarness, lost: int) -> None:
    rig.write(1, 2, 3)
    before = rig.table.index.get(lost)
    index_file(rig, lost).unlink()
    rig.recover()
    assert rig.table.index.get(lost) == before
    rig.write(4)
    rig.audit()


@pytest.mark.parametrize("cut", [0, 20], ids=["empty", "torn"])
def test_an_entry_cut_short_is_named_and_mended_as_the_error_says(rig: TableHarness, cut: int) -> None:
    rig.write(1, 2)
    path = index_file(rig, 2)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptedError, match=rf"{path.name}: not an entry.*repair\(\) rebuilds it"):
        rig.write(3)
    path.unlink()
    assert rig.recover() == [2]
    rig.audit()


def test_an_entry_under_anothers_name_is_noticed(rig: TableHarness) -> None:
    rig.write(1, 2)
    shutil.copy(index_file(rig, 1), index_file(rig, 2))
    with pytest.raises(CorruptedError, match="it is that of snapshot 1"):
        rig.recover()


@pytest.mark.parametrize("index_too", [False, True], ids=["index-ahead", "register-ahead"])
def test_a_table_set_back_behind_its_log_publishes_nothing_and_says_so(
    rig: TableHarness, tmp_path: Path, index_too: bool
) -> None:
    rig.write(1, 2)
    shutil.copytree(rig.path, tmp_path / "copy")
    rig.write(3, 4)
    index = tmp_path / "index"
    shutil.copytree(rig.path / "_log", index)
    shutil.rmtree(rig.path)
    shutil.copytree(tmp_path / "copy", rig.path)
    if not index_too:
        shutil.copytree(index, rig.path / "_log", dirs_exist_ok=True)
    with pytest.raises(CorruptedError, match="log holds snapshots up to 4, the table's files only up to 2"):
        rig.write(5)
    assert rig.table.files.latest() == 2


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def flip(path: Path) -> None:
    values = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(path.read_bytes())
    # The last letter of the last value; the page decodes well, to something else.
    data[values.data_page_offset + values.total_compressed_size - 1] ^= 0x01
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "error"),
    [(lose, DataLostError), (cut, CorruptedError), (flip, CorruptedError)],
    ids=["lost", "cut", "flip"],
)
def test_a_change_file_lost_or_damaged_before_it_was_published_stops_the_log_until_it_is_back(
    rig: TableHarness, tmp_path: Path, damage: Callable[[Path], None], error: type[TableStoreError]
) -> None:
    rig.write(1)
    rig.commit(2)
    path = max(change_files(rig), key=lambda p: p.stat().st_mtime_ns)
    shutil.copy(path, tmp_path / "kept")
    damage(path)
    with pytest.raises(error, match=rf"snapshot 2 is committed but not yet.*{path.name}.*until it is restored"):
        rig.write(3)
    assert rig.feed() == [(1, *change) for change in changes(1)]
    shutil.copy(tmp_path / "kept", path)
    assert rig.recover() == [2]
    rig.audit()


def test_a_change_file_that_was_swapped_for_a_shorter_one_is_noticed(rig: TableHarness) -> None:
    rig.commit(1)
    rig.commit(2, rows=4)
    long, short = sorted(change_files(rig), key=lambda p: p.stat().st_mtime)[::3]
    shutil.copy(short, long)
    with pytest.raises(CorruptedError, match=r"expected . rows, got"):
        rig.recover()


@pytest.mark.parametrize("room", [0, 300], ids=["at-once", "half-way"])
def test_a_disk_that_is_full_while_staging_leaves_neither_snapshot_nor_files(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    writer = rig.writer()
    write(writer, changes(1))
    before = change_files(rig)
    real, written = LocalFileOpener.write, 0

    def limited(self: LocalFileOpener, data: bytes) -> Any:
        nonlocal written
        written += len(data)
        if written > room:
            raise FULL
        return real(self, data)

    with monkeypatch.context() as full:
        full.setattr(LocalFileOpener, "write", limited)
        with pytest.raises(UnavailableError, match=r"No space left on device.*nothing was written. Make room"):
            write(writer, changes(2))
    assert change_files(rig) == before
    assert rig.table.files.latest() == 1
    write(writer, changes(3))
    rig.audit()


def test_a_disk_that_is_full_when_the_index_is_written_leaves_a_snapshot_that_recovery_shows(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = rig.writer()
    write(writer, changes(1))
    real = os.open

    def limited(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        descriptor = real(path, flags, *args, **kwargs)
        if not (flags & os.O_CREAT and str(path).startswith(f"{INDEX}/")):
            return descriptor
        os.write(descriptor, b"half")
        os.close(descriptor)
        raise FULL

    with monkeypatch.context() as full:
        full.setattr(os, "open", limited)
        with pytest.raises(PublishPendingError, match=r"snapshot 2 is committed.*No space left"):
            write(writer, changes(2))
    assert not list((rig.path / "_log").glob("*.tmp"))
    assert rig.recover() == [2]
    rig.audit()


def test_a_clock_that_goes_back_moves_and_hides_no_snapshot(rig: TableHarness) -> None:
    rig.write(1, 2, 3)
    hour = 3_600_000
    # Snapshot 2 was committed by a machine whose clock was an hour ahead.
    entry = rig.path / "_changes" / "_delta_log" / f"{2:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] += hour
    entry.write_text("\n".join(map(json.dumps, actions)))
    table = rig.table
    times = {s: table.files.snapshot(s).timestamp_ms for s in (1, 2, 3)}
    assert times[1] < times[3] < times[2]
    assert rig.recover() == []
    rig.write(4)
    rig.audit()
    for time in times.values():
        # A stream from a time holds every snapshot after the one that stood at that time.
        stood = table.files.snapshot_as_of(time - 1).id
        options = {
            "path": str(rig.path),
            "readChangeFeed": "true",
            "scan-mode": "from-timestamp",
            "timestamp": str(time),
        }
        stream = SnapshotStream(parse_read_options(options), feed_schema(table.spec))
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        rows = [
            b.column(COMMIT_VERSION).to_pylist() for part in stream.partitions(start, end) for b in stream.read(part)
        ]
        seen = {version for batch in rows for version in batch}
        assert seen >= set(range(stood + 1, 5))
        assert seen == set(range(min(seen), 5))


@pytest.mark.parametrize(("damage", "error"), [(lose, DataLostError), (cut, CorruptedError)], ids=["lost", "cut"])
def test_a_damaged_file_of_a_writer_that_keeps_no_statistics_is_named(
    rig: TableHarness, damage: Callable[[Path], None], error: type[TableStoreError]
) -> None:
    rig.write(1)
    rig.commit(2)
    entry = rig.path / "_changes" / "_delta_log" / f"{2:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    files = [action["add"] for action in actions if "add" in action]
    for file in files:
        del file["stats"]
    entry.write_text("\n".join(map(json.dumps, actions)))
    damage(rig.path / "_changes" / files[0]["path"])
    with pytest.raises(error, match=r"snapshot 2 is committed but not yet.*until it is restored"):
        rig.recover()
