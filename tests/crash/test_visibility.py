"""Promises 1 and 4 while writes go on: a short run of ``make visibility``, and Spark's stream in our reader's place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from log_system.local_kafka.owned import LocalKafka
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore import TableStore
from tests.crash.visibility import Observer, check_complete, make, run, write_commits
from tests.harness.forked import CONTEXT
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash


def test_b48_no_reader_sees_a_snapshot_before_its_commit_and_ours_sees_whole_ones(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    """No consumer of the log sees a record before its snapshot, over 300 commits."""
    sights, newest, _ = run(tmp_path, kafka.bootstrap_servers, 300)
    assert newest >= 300
    for sight in sights:
        assert (sight.early, sight.torn or 0, sight.disorder, len(sight.delays)) == (0, 0, 0, 300), sight.reader


def test_a_spark_stream_sees_whole_committed_snapshots_in_order(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    path, _ = make(tmp_path, kafka.bootstrap_servers)
    observer, newest = Observer(path, "Spark stream", whole=True), [0]

    def look(batch: DataFrame, _: int) -> None:
        ids = [row[0] for row in batch.select(COMMIT_VERSION).collect()]
        observer.see(ids)
        # A micro-batch follows the one before; its rows come in no order.
        observer.sight.disorder += bool(ids) and min(ids) <= newest[0]
        newest[0] = max([newest[0], *ids])

    stream = TableStore.open(spark, path).read_stream(scan_mode="earliest", max_snapshots=15)
    query = stream.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    writer = CONTEXT.Process(target=write_commits, args=(str(path), 60))
    writer.start()
    writer.join(PATIENCE_SECONDS)
    assert writer.exitcode == 0
    query.processAllAvailable()
    query.stop()
    sight = observer.sight
    check_complete(path, [sight])
    assert (sight.early, sight.torn, sight.disorder, len(sight.delays)) == (0, 0, 0, 60)


def test_the_observer_counts_what_is_early_torn_or_out_of_order(tmp_path: Path) -> None:
    log = tmp_path / "t" / "_changes" / "_delta_log"
    log.mkdir(parents=True)
    for snapshot in (1, 2):
        add = {"add": {"stats": '{"numRecords": 3}', "dataChange": True}}
        (log / f"{snapshot:020d}.json").write_text(json.dumps(add))
    observer = Observer(tmp_path / "t", "ours", whole=True)
    observer.see([1, 1, 1])
    observer.place(0, 1, 10)
    assert observer.sight.clean
    assert len(observer.sight.delays) == 1
    observer.see([2, 2])
    assert (observer.sight.early, observer.sight.torn, len(observer.sight.delays)) == (0, 1, 1)
    observer.see([3])
    assert observer.sight.early == 1
    for partition, snapshot, offset in ((0, 1, 10), (0, 0, 11), (1, 1, 0)):
        observer.place(partition, snapshot, offset)
    assert observer.sight.disorder == 2
