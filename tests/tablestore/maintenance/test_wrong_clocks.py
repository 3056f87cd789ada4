"""A machine whose clock is wrong removes nothing that others need: ages go by the file system's clock, too."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from snapshot.delta.log import DeltaLog
from snapshot.storage import PROBE, Storage
from tablestore import LocalTable, create_local, open_local
from tablestore.streaming.consumers import Consumers
from tests.harness.clocks import clock
from tests.harness.faults import preceded

HOUR = 3_600
YEAR = 365 * 24 * HOUR


def make(path: Path, ddl: str = "id bigint, v string", *, key: bool = True, **given: Any) -> LocalTable:
    options = {"snapshot.expire-auto": False, "compaction.auto": False} if key else {"snapshot.expire-auto": False}
    return create_local(path, ddl, primary_key=["id"] if key else [], options=options, **given)


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
@pytest.mark.parametrize(("older_than", "ahead"), [("1 h", HOUR + 60), ("1 d", 25 * HOUR), ("1 d", YEAR)])
def test_files_that_are_about_to_be_committed_are_no_orphans_for_a_clock_that_is_ahead(
    tmp_path: Path, older_than: str, ahead: float, *, key: bool
) -> None:
    with make(tmp_path / "t", key=key) as table:

        def clean_up() -> None:
            with clock(ahead), open_local(table.path) as other:
                report = other.maintenance.remove_orphans(older_than=older_than)
            assert report.files == ()
            assert report.young > 0

        with preceded(DeltaLog, "commit", clean_up) as happened:
            table.write([{"id": 1, "v": "a"}])
        assert happened()
        assert table.to_arrow().to_pylist() == [{"id": 1, "v": "a"}]


def test_a_clock_that_is_ahead_expires_no_snapshot_and_no_consumer_early(tmp_path: Path) -> None:
    options = {"snapshot.retain-min": 1, "snapshot.retention": "1 h", "consumer.expiration-time": "1 h"}
    with create_local(tmp_path / "t", "id bigint", options=options) as table:
        table.write([{"id": 0}])
        consumers = Consumers(Storage.at(table.path))
        consumers.put("slow", 1)
        with clock(YEAR):
            for n in range(30):
                table.write([{"id": n}])
            report = table.maintenance.expire()
            assert (report.oldest, report.consumers) == (0, ())
        assert [consumer.name for consumer in consumers.all()] == ["slow"]
        assert len(table.snapshots()) == 32


def test_a_clock_that_is_behind_expires_no_snapshot_of_others_early(tmp_path: Path) -> None:
    """Their commits are in its future, and one of a clock that is further behind is not."""
    options = {"snapshot.retain-min": 1, "snapshot.retention": "1 h"}
    with create_local(tmp_path / "t", "id bigint", options=options) as table:
        for n in range(30):
            with clock(-YEAR if n == 25 else 0):
                table.write([{"id": n}])
        with clock(-5 * HOUR):
            table.write([{"id": 30}])
            assert table.maintenance.expire().oldest == 0
        assert len(table.snapshots()) == 32


@pytest.mark.parametrize("older_than", ["0 s", timedelta(0)])
def test_an_age_of_zero_expires_all_snapshots_whatever_the_clocks_are(tmp_path: Path, older_than: Any) -> None:
    with make(tmp_path / "t") as table:
        for ahead in (0, HOUR, -HOUR):
            with clock(ahead):
                for n in range(2):
                    table.write([{"id": n, "v": "a"}])
                newest = table.snapshots()[0].id
                assert table.maintenance.expire(older_than=older_than, keep_last=1).oldest == newest


def test_a_consumer_whose_clock_is_behind_is_not_stale(tmp_path: Path) -> None:
    options = {"snapshot.retain-min": 1, "consumer.expiration-time": "1 h"}
    with create_local(tmp_path / "t", "id bigint", options=options) as table:
        consumers = Consumers(Storage.at(table.path))
        with clock(-2 * HOUR):
            consumers.put("behind", 0)
        assert table.maintenance.expire().consumers == ()
        # Nobody has heard of it for two hours.
        os.utime(Path(table.path) / "_consumers" / "behind.json", (0, time.time() - 2 * HOUR))
        assert table.maintenance.expire().consumers == ("behind",)


def test_partitions_of_today_stay_for_a_clock_that_is_ahead(tmp_path: Path) -> None:
    today, last_year = datetime.now(UTC), datetime.now(UTC) - timedelta(days=365)
    rows = [{"id": n, "day": f"{day:%Y-%m-%d}"} for n, day in enumerate((today, last_year))]
    options = {"partition.expiration-time": "7 d"}
    with create_local(tmp_path / "t", "id bigint, day string", partition_by=["day"], options=options) as table:
        with clock(YEAR):
            table.write(rows)
            report = table.maintenance.expire_partitions()
        assert [row["id"] for row in table.to_arrow().to_pylist()] == [0]
        assert len(report.partitions) < 2


def test_a_clock_that_is_ahead_forgets_no_delete(tmp_path: Path) -> None:
    options = {"sequence.field": "n", "sequence.delete-retention": "1 d", "compaction.auto": False, "bucket": 1}
    with create_local(tmp_path / "t", "id bigint, n bigint", primary_key=["id"], options=options) as table:
        for n in (5, 6):
            table.write([{"id": n, "n": 5}])
            table.delete([{"id": n, "n": 7}])
        with clock(YEAR):
            table.compact()
        table.write([{"id": 5, "n": 6}, {"id": 6, "n": 6}])
        assert table.to_arrow().to_pylist() == []


@pytest.mark.parametrize("behind", [2 * 24 * HOUR, YEAR])
def test_a_delete_of_a_machine_whose_clock_is_behind_is_remembered(tmp_path: Path, behind: float) -> None:
    options = {"sequence.field": "n", "sequence.delete-retention": "1 d", "compaction.auto": False, "bucket": 1}
    with create_local(tmp_path / "t", "id bigint, n bigint", primary_key=["id"], options=options) as table:
        with clock(-behind):
            for n in (5, 6):
                table.write([{"id": n, "n": 5}])
                table.delete([{"id": n, "n": 7}])
        # The tombstones are gathered twice.
        for n in (7, 8):
            table.compact()
            table.write([{"id": n, "n": 5}])
            table.delete([{"id": n, "n": 7}])
        table.compact()
        table.write([{"id": n, "n": 6} for n in (5, 6, 7, 8)])
        assert table.to_arrow().to_pylist() == []


def test_what_a_process_that_dies_leaves_of_a_look_at_the_clock_is_an_orphan(tmp_path: Path) -> None:
    with make(tmp_path / "t") as table:
        left = Path(table.path) / f"{PROBE}left"
        left.touch()
        os.utime(left, (0, time.time() - 2 * 24 * HOUR))
        assert table.maintenance.remove_orphans().files == (left.name,)
        assert not list(Path(table.path).glob(f"{PROBE}*"))
