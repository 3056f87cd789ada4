"""A log belongs to one table and one history of it: what another history holds is never taken for published."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.register import RegisterPosition
from log_system.local_kafka.owned import LocalKafka
from log_system.report import DifferenceKind
from snapshot.delta.entries import entry_of
from snapshot.errors import CorruptedError, DataLostError
from tablestore.ddl.alter import alter
from tablestore.maintenance.expire_snapshots import commit_expiry
from tablestore.write.publish import PublishPendingError
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import drain, publisher_of, write
from tests.harness.log_audit import repair_anew, verify
from tests.harness.table_harness import PARTITIONS, TableHarness, changes

FOREIGN_ROWS = 4


any_log = pytest.mark.parametrize(
    "rig", [{}, {"log__consistency": "eventual"}], ids=["transactional", "eventual"], indirect=True
)


def set_back(rig: TableHarness, *batches: int) -> None:
    """Write batches and put the table's folder back to what it was before them, as from a backup."""
    copy = rig.path.parent / "backup"
    shutil.copytree(rig.path, copy)
    rig.write(*batches)
    rig.close()
    shutil.rmtree(rig.path)
    shutil.move(copy, rig.path)


@any_log
def test_a_restored_table_that_others_wrote_on_is_told_from_the_one_in_the_log(rig: TableHarness) -> None:
    rig.write(1, 2)
    set_back(rig, 3, 4)
    # Two versions that nobody has published get the numbers of two that the log holds.
    rig.commit(13, 14)
    with pytest.raises(CorruptedError, match=r"snapshot 4.*another commit.*repair\(\)"):
        rig.write(15)
    assert rig.table.files.latest() == 4, "the write was committed"
    with pytest.raises(CorruptedError, match="another commit"):
        rig.recover()


@pytest.mark.parametrize("witness", ["headers", "index"])
def test_headers_and_index_tell_histories_apart_where_the_register_has_expired(rig: TableHarness, witness: str) -> None:
    rig.write(1, 2)
    index = rig.path / "_log"
    shutil.copytree(rig.path, rig.path.parent / "backup")
    rig.write(3, 4)
    rig.close()
    if witness == "index":
        shutil.rmtree(rig.path.parent / "backup" / "_log")
        shutil.copytree(index, rig.path.parent / "backup" / "_log")
    shutil.rmtree(rig.path)
    shutil.move(rig.path.parent / "backup", rig.path)
    rig.forget_groups()
    rig.commit(13, 14)
    with pytest.raises(CorruptedError, match=r"snapshot 4.*another commit"):
        rig.recover()


def test_a_writer_under_which_a_table_is_restored_publishes_nothing_more(rig: TableHarness) -> None:
    rig.write(1, 2)
    shutil.copytree(rig.path, rig.path.parent / "backup")
    writer = rig.writer()
    write(writer, changes(3))
    write(writer, changes(4))
    shutil.rmtree(rig.path)
    shutil.move(rig.path.parent / "backup", rig.path)
    rig.commit(13, 14)
    with pytest.raises(DataLostError, match=r"version 4, which this process committed \(upsert\), was replaced"):
        write(writer, changes(15))
    assert rig.table.files.latest() == 4, "the write was committed"
    with pytest.raises(PublishPendingError, match="another commit"):
        write(writer, changes(15))


def test_a_large_snapshot_that_is_half_published_is_not_gone_on_with_by_another_commit(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    options = {"publish__driver_rows_max": 3, "publish__transaction_rows_max": 2}
    rig = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), options)
    rig.write(1)
    copy = rig.path.parent / "backup"
    shutil.copytree(rig.path, copy)
    rig.commit(2)
    with failing(Sender, "position", hits=range(2, 99)), pytest.raises(Crash):
        rig.recover()
    shutil.rmtree(rig.path)
    shutil.move(copy, rig.path)
    rig.commit(12)
    publisher = publisher_of(rig.table)
    publisher.take_over()
    assert sorted((held.snapshot, held.done) for held in publisher.positions()) == [(1, True), (2, False)]
    publisher.discard()
    with pytest.raises(CorruptedError, match=r"snapshot 2.*another commit"):
        rig.recover()


@any_log
@pytest.mark.parametrize("others", [(), (13, 14, 15)], ids=["shorter", "longer"])
def test_a_restored_table_is_published_anew_when_its_topic_is_deleted_and_repaired(
    rig: TableHarness, others: tuple[int, ...]
) -> None:
    rig.write(1, 2)
    set_back(rig, 3, 4)
    rig.commit(*others)
    if others and rig.options == {}:
        # While the topic is there, a repair takes none of its records for this history's.
        told = repair_anew(rig.table)
        assert not told.ok
        assert told.actions == ()
        assert any("delete the topic" in text for text in told.advice), str(told)
        with pytest.raises(CorruptedError, match="another commit"):
            rig.recover()
    rig.delete_topic()
    done = repair_anew(rig.table)
    assert done.ok, str(done)
    rig.write(20)
    if rig.options == {}:
        rig.audit()
    else:
        assert repair_anew(rig.table).ok


def test_verify_tells_a_log_of_another_history(rig: TableHarness) -> None:
    rig.write(1, 2)
    set_back(rig, 3)
    # The very rows that the log holds, committed again.
    rig.commit(3)
    table = rig.table
    found = verify(table)
    assert {d.kind for d in found.differences} >= {DifferenceKind.HISTORY}, str(found)
    assert {d.snapshot for d in found.differences if d.kind is DifferenceKind.HISTORY} == {3}
    assert {d.text.split(".")[0] for d in found.differences if d.kind is DifferenceKind.HISTORY} >= {
        "the record belongs to another commit"
    }


def test_a_published_commit_that_is_replaced_is_found_by_verify_and_by_the_next_writer(rig: TableHarness) -> None:
    """A Delta writer has seen that there is no version 2, and writes it after ours is published."""
    rig.write(1, 2)
    rig.close()
    log = rig.table.files.log.storage
    log.put(entry_of(2), b'{"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES"}}')
    found = verify(rig.table)
    assert {d.snapshot for d in found.differences if d.kind is DifferenceKind.HISTORY} == {2}, str(found)
    with pytest.raises(CorruptedError, match=r"snapshot 2 .*another commit.*has replaced the commit"):
        rig.write(3)
    assert rig.table.files.latest() == 2, "the write was committed"


def test_what_was_published_before_commits_were_named_goes_on(rig: TableHarness) -> None:
    rig.write(1, 2)
    old = RegisterPosition(2, 5, 5, done=True, end=7).metadata()
    assert RegisterPosition.from_metadata(7, json.dumps(json.loads(old)[:4])) == RegisterPosition(
        2, 5, 5, done=True, end=7
    )
    for entry in (rig.path / "_log").glob("*.json"):
        raw = json.loads(entry.read_text())
        entry.write_text(json.dumps({name: raw[name] for name in ("snapshot", "timestamp_ms", "kind", "partitions")}))
    rig.forget_groups()
    rig.write(3)
    rig.audit()
    assert repair_anew(rig.table).actions == ()
    assert [rig.table.index.get(s).commit != "" for s in (1, 2, 3)] == [False, False, True]  # type: ignore[union-attr]
    assert len(rig.table.files.snapshot(PARTITIONS).fingerprint) == 16


def test_an_alter_of_a_restored_table_is_refused_before_it_is_committed(rig: TableHarness) -> None:
    rig.write(1, 2)
    shutil.copytree(rig.path / "_changes", rig.path.parent / "backup")
    rig.write(3)
    shutil.rmtree(rig.path / "_changes")
    shutil.move(rig.path.parent / "backup", rig.path / "_changes")
    writer = rig.writer()
    with pytest.raises(CorruptedError, match="log holds snapshots up to 3"):
        alter(rig.table, set_options={"log.headers": "all"}, publish=writer.publish)
    assert rig.table.files.latest() == 2


def test_a_table_whose_snapshots_have_expired_goes_on_in_a_new_topic(rig: TableHarness) -> None:
    rig.write(1, 2, 3, 4)
    commit_expiry(rig.table.files, 3)
    rig.table.index.delete([0, 1, 2])
    rig.close()
    rig.delete_topic()
    done = repair_anew(rig.table)
    assert done.ok, str(done)
    assert any("begins with snapshot 3" in action for action in done.actions)
    # Snapshot 6 keeps the id of the topic that was made again; it has no rows.
    rig.write(7)
    log = drain(rig.servers, rig.topic, PARTITIONS)
    assert sorted(c for part in log for c in part) == sorted([*changes(3), *changes(4), *changes(7)])
    assert [s for s, *_ in rig.feed(after=2)] == [3] * 10 + [4] * 10 + [7] * 10


def test_a_repair_of_an_eventual_log_makes_it_this_history_again(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    rig = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), {"log__consistency": "eventual"})
    rig.write(1, 2)
    shutil.copytree(rig.path / "_changes", rig.path.parent / "backup")
    rig.write(3, 4)
    rig.close()
    shutil.rmtree(rig.path / "_changes")
    shutil.move(rig.path.parent / "backup", rig.path / "_changes")
    rig.commit(13, 14)
    with pytest.raises(CorruptedError, match="another commit"):
        rig.recover()
    done = repair_anew(rig.table)
    assert done.ok, str(done)
    assert any("deleted index entries of other commits, from snapshot 3" in action for action in done.actions)
    rig.write(15)
    assert verify(rig.table).ok
    rig.close()
