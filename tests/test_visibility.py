"""Promises 1 and 4 while writes go on: a short run of ``make visibility``, and Spark's stream in our reader's place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from log_system.kafka.local import LocalKafka
from snapshot.schema import COMMIT_VERSION
from tablestore import TableStore
from tests.visibility import CONTEXT, Observer, check_complete, make, run, write_commits

pytestmark = pytest.mark.crash


def test_no_reader_sees_a_snapshot_before_its_commit_and_ours_sees_whole_ones(
    kafka: LocalKafka, tmp_path: Path
) -> None:
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
    writer.join(300)
    assert writer.exitcode == 0
    query.processAllAvailable()
    query.stop()
    sight = observer.sight
    check_complete(path, [sight])
    assert (sight.early, sight.torn, sight.disorder, len(sight.delays)) == (0, 0, 0, 60)
