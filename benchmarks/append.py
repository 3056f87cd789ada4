"""Appends without a log compared with Delta's, and publishing compared with a plain produce loop."""

from __future__ import annotations

from functools import partial

from benchmarks.bare import make_topic, producing, team
from benchmarks.frames import SCHEMA, rows
from benchmarks.harness import CORES, Bench, Result, at_least, count_text, main, timed
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from tablestore.context import TableContext
from tablestore.spark.tasks import run_tasks
from tablestore.table.store import TableStore
from tablestore.write.frame_input import prepare_changes, run_staging
from tablestore.write.writer import Writer


def run(bench: Bench) -> list[Result]:
    """Measure appends and publishing."""
    return [_append(bench), *_publish(bench)]


def _append(bench: Bench) -> Result:
    spark, count = bench.spark, bench.size(4_000_000, 1_000_000)
    plain, ours = bench.path("plain"), bench.table("ours", SCHEMA)
    rows(spark, 10).write.format("delta").save(plain)
    numbers = iter(range(1, 1000))
    what = f"append of {count_text(count)} rows, no log"

    def append() -> float:
        frame = rows(spark, count, seed=next(numbers))
        return timed(lambda: frame.write.format("delta").mode("append").save(plain))

    def our_append() -> float:
        frame = rows(spark, count, seed=next(numbers))
        return timed(lambda: ours.write(frame))

    turns = bench.take_turns(what, {"ours": our_append, "Delta": append}, rounds=bench.size(5, 3), rows=count)
    return at_least(what, turns["ours"], turns["Delta"], 0.8, "Delta append by Spark")


def _publish(bench: Bench) -> list[Result]:
    """Publish a snapshot that was committed but not published; the plain loop produces the bytes of the same rows."""
    count = bench.size(4_000_000, 1_000_000)
    sample = _unpublished(bench, "json", count)
    topics = iter(range(1000))
    parts = [(sample.path, 1, partition) for partition in range(CORES)]
    with team(producing, parts) as bare:

        def loop() -> float:
            topic = f"bare-{next(topics)}"
            make_topic(bench.kafka.bootstrap_servers, topic, CORES)
            return bare.run(topic)

        contestants = {
            "json": lambda: _published(bench, "json", count),
            "produce loop": loop,
            "arrow": lambda: _published(bench, "arrow", count),
        }
        what = f"publish {count_text(count)} rows, {CORES} partitions"
        turns = bench.take_turns(what, contestants, rounds=bench.size(5, 3), rows=count)
    return [
        at_least(f"{what}, JSON", turns["json"], turns["produce loop"], 0.7, f"bare produce, {CORES} processes"),
        at_least(f"{what}, arrow format", turns["arrow"], turns["json"], 4, "JSON"),
    ]


def _published(bench: Bench, log: str, count: int) -> float:
    """Return the seconds that publishing takes a writer that has already taken over the log."""
    opened = TableContext.open(_unpublished(bench, log, count).path)
    publisher = opened.log.publisher(partial(run_tasks, bench.spark))
    assert isinstance(publisher, KafkaPublisher)
    publisher.take_over()
    changes = opened.files.changes(1, CORES)
    taken = timed(lambda: publisher.publish([changes]))
    publisher.discard()
    return taken


def _unpublished(bench: Bench, log: str, count: int) -> TableStore:
    """Return a table with a snapshot that is committed but not published."""
    table = bench.table(f"publish-{log}", SCHEMA, key=["id"], log=log, bucket=CORES)
    opened = TableContext.open(table.path)
    writer = Writer(opened, None)
    shaped = prepare_changes(rows(bench.spark, count), opened.spec, CORES)
    writer.write_staged(run_staging(shaped, writer.stager(whole_buckets=True)))
    return table


if __name__ == "__main__":
    main(run)
