"""Promise 7: a disk that is full when a version is committed, or when compaction writes, leaves all as it was."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from log_system.index import LogIndex
from log_system.local_kafka.owned import LocalKafka
from snapshot.delta.log import DeltaLog
from snapshot.errors import DataLostError, OutcomeUnknownError, UnavailableError
from snapshot.merge.duckdb_engine import errors_mapped, spilling
from tablestore import TableStore
from tablestore.local.handle import LocalHandle
from tablestore.maintenance.compact import compact, compact_if_due
from tablestore.spark.tasks import run_tasks
from tablestore.write.publish import PublishPendingError
from tests.harness.local_writes import rows_of, run_here, write
from tests.harness.spark_tables import frame, make
from tests.harness.table_harness import TableHarness, changes

pytestmark = pytest.mark.crash
ROOM_BYTES = 100
"""What a file may grow to: less than any entry of a log or its index, or any Parquet file, needs."""


@contextmanager
def little_room() -> Iterator[None]:
    """Let the operating system refuse what goes into a file beyond a few bytes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def little_room_for(owner: Any, name: str) -> Iterator[None]:
    """Let there be little room while a method runs."""
    kept, real = vars(owner)[name], getattr(owner, name)

    def crowded(*args: Any, **named: Any) -> Any:
        with little_room():
            return real(*args, **named)

    setattr(owner, name, staticmethod(crowded) if isinstance(kept, classmethod | staticmethod) else crowded)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def parquet(path: Path) -> set[Path]:
    return {p for p in path.rglob("*.parquet") if "_delta_log" not in p.parts}


def test_a_disk_that_is_full_at_the_commit_leaves_neither_snapshot_nor_files(rig: TableHarness) -> None:
    writer = rig.writer()
    write(writer, changes(1))
    before = parquet(rig.path)
    with (
        little_room_for(DeltaLog, "commit"),
        pytest.raises(UnavailableError, match=r"version 2 cannot be committed: .*Nothing was committed. Make room"),
    ):
        write(writer, changes(2))
    assert parquet(rig.path) == before
    assert rig.table.files.latest() == 1
    write(writer, changes(3))
    rig.audit()


@pytest.mark.parametrize("call", ["merge", "commit"])
def test_a_disk_that_is_full_in_a_compaction_leaves_the_table_as_it_was(rig: TableHarness, call: str) -> None:
    rig.write(1, 2)
    table, before = rig.table, parquet(rig.path)

    def merge(tasks: Any, work: Any) -> list[str]:
        with little_room():
            return run_here(tasks, work)

    crowded = little_room_for(DeltaLog, "commit") if call == "commit" else nullcontext()
    with crowded, pytest.raises(UnavailableError, match=r"cannot be (stored|committed).*Make room"):
        compact(table, merge if call == "merge" else run_here)
    assert parquet(rig.path) == before
    assert rows_of(rig.table) == dict(changes(2))
    assert compact(rig.table, run_here) is not None
    assert rows_of(rig.table) == dict(changes(2))
    rig.audit()


def test_a_disk_that_is_full_while_a_snapshot_is_published_is_said_once(
    rig: TableHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Room comes after somebody has read the message, and not after eight tries."""
    writer = rig.writer()
    write(writer, changes(1))
    with (
        little_room_for(LogIndex, "put"),
        pytest.raises(PublishPendingError, match=r"snapshot 2 is committed but not yet in the log: .*Make room"),
    ):
        write(writer, changes(2))
    assert "tries" not in caplog.text
    write(writer, changes(3))
    rig.audit()


def test_a_compaction_that_fails_after_a_write_is_a_warning_and_the_next_one_does_it(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    rig = TableHarness(
        tmp_path / "t", kafka.bootstrap_servers, topic(), {"compaction__auto": True, "compaction__commits": 2}
    )
    rig.write(1, 2)
    newest = rig.table.files.snapshot(rig.table.files.latest())
    with little_room_for(DeltaLog, "commit"):
        assert LocalHandle(rig.table).finish(newest) == newest
    assert "the write is done; compacting after it failed" in caplog.text
    assert compact_if_due(rig.table, run_here) is not None
    rig.audit()
    rig.close()


def test_a_disk_that_is_full_at_create_leaves_nothing(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    name = topic()
    refused = pytest.raises(UnavailableError, match="the Delta table cannot be created")
    with little_room_for(DeltaLog, "create"), refused:
        make(spark, tmp_path / "t", kafka.bootstrap_servers, name)
    assert not (tmp_path / "t").exists()
    made = make(spark, tmp_path / "t", kafka.bootstrap_servers, name)
    made.write(frame(spark, [(1, "a")]))


def test_a_file_system_that_refuses_in_a_spark_task_is_our_error_and_leaves_no_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TableStore.create(spark, tmp_path / "t", "id bigint, p int", partition_by=["p"])
    # Where the folder of a partition should be, there is a file.
    folder = tmp_path / "t" / "p=1"
    folder.write_text("in the way")
    before = parquet(tmp_path / "t")
    with pytest.raises(UnavailableError, match=r"cannot be stored .*nothing was written"):
        table.write(spark.range(100).selectExpr("id", "cast(id % 2 as int) as p"))
    assert parquet(tmp_path / "t") == before
    folder.unlink()
    table.write(spark.range(100).selectExpr("id", "cast(id % 2 as int) as p"))
    assert table.read().count() == 100


@pytest.mark.parametrize("call", ["write", "tasks"])
def test_a_disk_that_is_full_of_sparks_own_files_is_named_in_one_line(
    spark: SparkSession, tmp_path: Path, call: str
) -> None:
    """Spark shows a hundred lines of Java for it."""
    frame = spark.range(9).selectExpr("if(id = 7, raise_error('java.io.IOException: No space left on device'), id) id")
    table = TableStore.create(spark, tmp_path / "t", "id bigint")
    writes: dict[str, Callable[[], object]] = {
        "write": lambda: table.write(frame),
        "tasks": lambda: run_tasks(spark, ["a"], no_room),
    }
    with pytest.raises(UnavailableError, match=r"^Spark cannot write .*: No space left on device. Make room.*$"):
        writes[call]()
    table.write(spark.range(3))
    assert table.read().count() == 3


def test_a_disk_that_is_full_of_a_querys_files_is_named_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    source, table = (TableStore.create(spark, tmp_path / name, "id bigint") for name in ("source", "table"))
    source.write(spark.range(3))
    options = {"checkpoint": tmp_path / "checkpoint", "trigger": {"availableNow": True}}
    rows = source.read_stream(scan_mode="earliest").select("id")
    bad = rows.selectExpr("if(id = 2, raise_error('java.io.IOException: No space left on device'), id) id")
    with pytest.raises(StreamingQueryException, match=r"^Spark cannot write .*, in its checkpoint: No space left .*$"):
        table.write_stream(bad, **options).awaitTermination()
    table.write_stream(rows, **options).awaitTermination()
    assert table.read().count() == 3


def no_room(task: str) -> str:
    msg = f"java.io.IOException: No space left on device {task}"
    raise OSError(msg)


def test_files_stay_where_an_earlier_try_to_commit_them_may_yet_land(rig: TableHarness) -> None:
    writer, before = rig.writer(), parquet(rig.path)
    real, tries = DeltaLog.commit, 0

    def unanswered_then_crowded(self: DeltaLog, *args: Any, **named: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            msg = "no answer"
            raise OutcomeUnknownError(msg)
        with little_room():
            return real(self, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaLog, "commit", unanswered_then_crowded)
        with pytest.raises(OutcomeUnknownError, match="no answer"):
            write(writer, changes(1))
    # A disk that is full for the second try says nothing of the first, so it is looked for again, three times.
    assert tries == 4
    assert parquet(rig.path) > before
    write(writer, changes(2))
    rig.audit()


def test_a_disk_without_room_for_temporary_files_is_named() -> None:
    def sort() -> None:
        with spilling(memory_limit="12MB") as session, errors_mapped("rows"):
            # By default, the limit is the room on the disk.
            session.execute("SET max_temp_directory_size = '1MB'")
            session.execute("CREATE TEMP TABLE t AS SELECT uuid()::VARCHAR AS s FROM range(1_000_000) ORDER BY s")

    with pytest.raises(UnavailableError, match=r"^rows: no room for temporary files in .*Make room.*TMPDIR") as caught:
        sort()
    assert "PRAGMA" not in str(caught.value)


@pytest.mark.parametrize(
    "printed",
    [
        'Traceback (most recent call last):\n  File "fs.py", line 9, in f\nFileNotFoundError: [Errno 2] x\n\nLINE 1',
        'Traceback (most recent call last):\n\n  File "fs.py", line 7, in _open\n    raise KeyError("inner")\n\n'
        "KeyError: 'inner'\n\n\nThe above exception was the direct cause of the following exception:\n\n\n"
        'Traceback (most recent call last):\n\n  File "fs.py", line 9, in _open\n    raise FileNotFoundError(path)\n'
        "    ^^^^^\n\nFileNotFoundError: [Errno 2] x\n\n\nLINE 1: ...",
    ],
    ids=["python 3.11", "python 3.13"],
)
def test_the_error_of_an_object_store_is_found_below_its_cause(printed: str) -> None:
    with pytest.raises(DataLostError, match=r"\[Errno 2\] x"), errors_mapped("rows"):
        raise duckdb.Error(printed)
