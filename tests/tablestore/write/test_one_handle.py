"""One handle in several threads: writes take turns, reads run beside them, and each snapshot is published once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tablestore import TableStore, create_local, open_local
from tests.harness.spark_tables import frame, make, rows
from tests.harness.table_audit import audit
from tests.harness.waiting import PATIENCE_SECONDS

THREADS, WRITES = 4, 4


@pytest.mark.parametrize("altered", [False, True], ids=["write", "set-options"])
def test_threads_that_write_through_one_handle_publish_each_snapshot_once(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str], altered: bool
) -> None:
    name = topic()
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, name, compaction__auto=False)
    local = open_local(tmp_path / "t")
    start, done = Barrier(THREADS + altered), Event()

    def write(thread: int) -> None:
        start.wait(PATIENCE_SECONDS)
        for number in range(WRITES):
            table.write(frame(spark, [(thread * WRITES + number, f"{thread}.{number}"), (1_000, "same")]))

    def alter() -> None:
        start.wait(PATIENCE_SECONDS)
        for number in range(3):
            table.alter.set_options({"publish.transaction-rows-max": 1_000 + number})

    def read() -> int:
        looks = 0
        while not done.is_set():
            assert table.snapshots(1)[0].id >= 0
            assert local.count() >= 0
            assert table.options.log is not None
            looks += 1
        return looks

    with ThreadPoolExecutor(THREADS + 2) as pool:
        reading = pool.submit(read)
        writing = [pool.submit(write, thread) for thread in range(THREADS)]
        writing += [pool.submit(alter)] if altered else []
        try:
            for each in writing:
                each.result(PATIENCE_SECONDS)
        finally:
            done.set()
        assert reading.result(PATIENCE_SECONDS) > 0
    assert len(rows(table.read())) == THREADS * WRITES + 1
    assert len(table.snapshots()) == THREADS * WRITES + 1 + 3 * altered
    audit(tmp_path / "t", kafka.bootstrap_servers, name, 2)
    assert TableStore.open(spark, table.path).verify().ok


def test_close_waits_for_a_write_of_another_thread(kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> None:
    log = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
    table = create_local(tmp_path / "t", "id int", primary_key=["id"], log_system="kafka", options=log)
    done = Event()

    def close() -> None:
        while not done.is_set():
            table.close()

    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(close)
        try:
            for number in range(WRITES):
                table.write([{"id": number}])
        finally:
            done.set()
        closing.result(PATIENCE_SECONDS)
    assert table.verify().ok
