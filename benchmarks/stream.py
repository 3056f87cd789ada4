"""A streaming read of the log compared with a plain consume loop that decodes the same records."""

from __future__ import annotations

from benchmarks.bare import consuming, team
from benchmarks.frames import SCHEMA, rows
from benchmarks.harness import CORES, Bench, Result, Timed, at_least, count_text, limit, main, seconds_text, timed
from tablestore.context import TableContext
from tablestore.table.store import TableStore

_JSON_MIN = 0.8


def run(bench: Bench) -> list[Result]:
    """Read the whole log with ``AvailableNow`` into Spark's ``noop`` sink."""
    count, snapshots = bench.size(8_000_000, 2_000_000), 4
    tables: dict[str, TableStore] = {}
    for log in ("json", "arrow"):
        bench.say(f"making a log of {count_text(count)} rows, {log}")
        tables[log] = bench.table(f"stream-{log}", SCHEMA, key=["id"], log=log, bucket=CORES, compaction__auto="false")
        for number in range(snapshots):
            tables[log].write(rows(bench.spark, count // snapshots, seed=number))
    topic = tables["json"].options.log.kafka.topic
    whole: dict[str, list[float]] = {"json": [], "arrow": []}

    def ours(log: str) -> float:
        whole[log].append(timed(lambda: batch_seconds.append(_read(bench, tables[log], count))))
        return batch_seconds.pop()

    batch_seconds: list[float] = []
    servers = bench.kafka.bootstrap_servers
    parts = [(servers, p, _records(tables["json"], p)) for p in range(CORES)]
    with team(consuming, parts) as bare:
        contestants = {"json": lambda: ours("json"), "loop": lambda: bare.run(topic), "arrow": lambda: ours("arrow")}
        turns = bench.take_turns("streaming read", contestants, rounds=bench.size(11, 3), rows=count)
    start_up = Timed(tuple(w - b for w, b in zip(whole["json"][1:], turns["json"].seconds, strict=True)))
    loop = f"bare consume + from_json, {CORES} processes"
    what = f"stream {count_text(count)} rows, one micro-batch"
    return [
        at_least(f"{what}, JSON", turns["json"], turns["loop"], _JSON_MIN, loop),
        at_least(f"{what}, arrow format", turns["arrow"], turns["loop"], 4 * _JSON_MIN, loop),
        limit("... starting and ending the query, not counted above", start_up.median, None, seconds_text),
    ]


def _read(bench: Bench, table: TableStore, count: int) -> float:
    """Stream the whole log; return the seconds that Spark reports for micro-batches with rows."""
    writer = table.read_stream(scan_mode="earliest").writeStream.format("noop")
    query = writer.option("checkpointLocation", bench.path("checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    progress = [p for p in query.recentProgress if p.numInputRows]
    assert sum(p.numInputRows for p in progress) == count, [p.numInputRows for p in query.recentProgress]
    return sum(p.durationMs["triggerExecution"] for p in progress) / 1000


def _records(table: TableStore, partition: int) -> int:
    index = TableContext.open(table.path).index
    entries = [index.get(snapshot) for snapshot in index.snapshots()]
    return sum(entry.partitions[partition].records for entry in entries if entry is not None and entry.partitions)


if __name__ == "__main__":
    main(run)
