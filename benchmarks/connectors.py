"""The connectors' sources and sinks compared with plain loops of the Kafka client and DuckDB, one process per core.

* Source: a whole topic is read with ``AvailableNow`` into Spark's ``noop`` sink, in one micro-batch. The baseline is a
  loop that consumes the same messages and parses them with DuckDB's ``from_json``, without any checks.
* Sink: a frame of rows is written to a topic. The baseline is a loop that produces the same messages, which it has
  loaded as bytes before the timing starts. Our sink generates the rows, encodes them and, for exactly-once, writes them
  twice: to staging files and to the topic.
* Memory: the peak memory of our Python processes for two topics, one four times as large as the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count as numbers
from typing import Any

from pyspark.sql import DataFrame

from benchmarks.bare import consuming, make_topic, sending, team
from benchmarks.frames import rows
from benchmarks.harness import CORES, Bench, Result, Timed, at_least, count_text, limit, main, seconds_text, timed
from benchmarks.memory import LIMIT_MB, PeakWatch

FORMATS = ("json", "csv", "avro")
GROWTH_MB = 100.0
"""The maximum increase of the peak for a topic that is four times as large."""
_LOOPS = f"bare {{}}, {CORES} processes"
_names = numbers()


def run(bench: Bench) -> list[Result]:
    """Measure sources, sinks and memory."""
    return [*_source(bench), *_sink(bench), *_memory(bench)]


def _source(bench: Bench) -> list[Result]:
    count = bench.size(4_000_000, 1_000_000)
    topics = {name: _filled(bench, name, count) for name in FORMATS}
    whole: list[float] = []

    def ours(name: str) -> float:
        found: list[float] = []
        whole.append(timed(lambda: found.append(_read(bench, name, topics[name], count))) - found[0])
        return found[0]

    contestants: dict[str, Callable[[], float]] = {name: partial(ours, name) for name in FORMATS}
    parts = [(bench.kafka.bootstrap_servers, number, count // CORES) for number in range(CORES)]
    with team(consuming, parts) as bare:
        contestants["loop"] = lambda: bare.run(topics["json"])
        turns = bench.take_turns("source", contestants, rounds=3, rows=count)
    what = f"source, {count_text(count)} rows, one micro-batch"
    loop = _LOOPS.format("consume + from_json")
    start_up = Timed(tuple(whole[len(FORMATS) :]))
    return [
        at_least(f"{what}, JSON", turns["json"], turns["loop"], 0.8, loop),
        *(at_least(f"{what}, {name}", turns[name], turns["json"], 1.0, "JSON") for name in FORMATS[1:]),
        limit("... starting and ending the query, not counted above", start_up.median, None, seconds_text),
    ]


def _sink(bench: Bench) -> list[Result]:
    count = bench.size(2_000_000, 500_000)
    sample = _filled(bench, "json", count)
    once = {
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": "bench",
        "checkpointLocation": bench.path("checkpoint"),
    }
    contestants: dict[str, Callable[[], float]] = {
        f"{name}, {guarantee}": partial(_written, bench, name, count, more)
        for name in FORMATS
        for guarantee, more in (("exactly once", once), ("at least once", {}))
    }
    parts = [(bench.kafka.bootstrap_servers, sample, number, count // CORES) for number in range(CORES)]
    with team(sending, parts) as bare:
        contestants["loop"] = lambda: bare.run(_new(bench))
        turns = bench.take_turns("sink", contestants, rounds=3, rows=count)
    what = f"sink, {count_text(count)} rows"
    results = []
    for guarantee in ("exactly once", "at least once"):
        json = turns[f"json, {guarantee}"]
        results.append(at_least(f"{what}, JSON, {guarantee}", json, turns["loop"], 0.7, _LOOPS.format("produce")))
        results += [
            at_least(f"{what}, {name}, {guarantee}", turns[f"{name}, {guarantee}"], json, 1.0, "JSON")
            for name in FORMATS[1:]
        ]
    return results


def _memory(bench: Bench) -> list[Result]:
    """Read and write a topic and one four times as large; micro-batches are as large as the smaller topic."""
    large = bench.size(4_000_000, 1_000_000)
    peaks: dict[str, list[float]] = {"source": [], "sink, exactly once": []}
    once = {
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": "bench",
        "checkpointLocation": bench.path("checkpoint"),
    }
    for count in (large // 4, large):
        with PeakWatch() as watch:
            _written(bench, "json", count, once)
        peaks["sink, exactly once"].append(max(watch.peaks.values()))
        topic = _filled(bench, "json", count)
        with PeakWatch() as watch:
            _read(bench, "json", topic, count, maxRowsPerTrigger=str(large // 4))
        peaks["source"].append(max(watch.peaks.values()))
    results = []
    for what, (small, big) in peaks.items():
        results.append(limit(f"{what}, {count_text(large)} rows, JSON: largest Python process", big, LIMIT_MB, _mb))
        results.append(limit("... more than for a quarter of the rows", max(0.0, big - small), GROWTH_MB, _mb))
    return results


def _options(bench: Bench, name: str, topic: str) -> dict[str, str]:
    given = {"properties.bootstrap.servers": bench.kafka.bootstrap_servers, "topic": topic, "format": name}
    # Flink's legacy Avro mapping has no type for timestamps with a time zone.
    return given | ({"avro.timestamp_mapping.legacy": "false"} if name == "avro" else {})


def _new(bench: Bench) -> str:
    topic = f"connectors-{next(_names)}"
    make_topic(bench.kafka.bootstrap_servers, topic, CORES)
    return topic


def _filled(bench: Bench, name: str, count: int) -> str:
    """Fill a new topic with the same number of rows in each partition, and return its name."""
    bench.say(f"making a topic of {count_text(count)} rows, {name}")
    topic = _new(bench)
    frame = rows(bench.spark, count).coalesce(CORES)
    options = _options(bench, name, topic) | {"sink.partitioner": "fixed"}
    frame.write.format("kafka-table").options(**options).mode("append").save()
    return topic


def _written(bench: Bench, name: str, count: int, more: dict[str, str]) -> float:
    frame: DataFrame = rows(bench.spark, count).coalesce(CORES)
    options = _options(bench, name, _new(bench)) | more
    return timed(lambda: frame.write.format("kafka-table").options(**options).mode("append").save())


def _read(bench: Bench, name: str, topic: str, count: int, **more: Any) -> float:
    """Stream the whole topic; return the seconds that Spark reports for micro-batches with rows."""
    options = _options(bench, name, topic) | {"scan.startup.mode": "earliest-offset"} | more
    # Avro schemas include nullability, so the reader needs the writer's schema.
    schema = rows(bench.spark, 1).schema
    frame = bench.spark.readStream.format("kafka-table").schema(schema).options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", bench.path("checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    progress = [each for each in query.recentProgress if each.numInputRows]
    assert sum(each.numInputRows for each in progress) == count, [each.numInputRows for each in query.recentProgress]
    return sum(each.durationMs["triggerExecution"] for each in progress) / 1000


def _mb(value: float) -> str:
    return f"{value:,.0f} MB"


if __name__ == "__main__":
    main(run)
