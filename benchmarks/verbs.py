"""Deletes and updates of some rows of a large table compared with Delta's statements on the same rows."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.frames import SCHEMA, rows, sample
from benchmarks.harness import Bench, Result, at_least, count_text, main, timed
from benchmarks.upsert import merge_into


def run(bench: Bench) -> list[Result]:
    """Measure a delete and an update of 1 % of the keys, by a condition and by a frame of keys."""
    spark, count = bench.spark, bench.size(5_000_000, 200_000)
    changed = count // 100
    bench.say(f"making two tables of {count_text(count)} rows")
    ours = bench.table("ours", SCHEMA, key=["id"], bucket=2, compaction__auto="false")
    ours.write(rows(spark, count))
    ours.compact()
    plain = bench.path("plain")
    rows(spark, count).write.format("delta").save(plain)
    step = iter(range(1, 1_000))
    batch = iter(range(1, 1_000))

    def condition() -> str:
        """Return a condition that selects different rows each time, spread over the whole table."""
        return f"id % 100 = {next(step) % 100}"

    def sql(statement: str) -> Callable[[], float]:
        def run_it() -> float:
            text = statement.format(table=f"delta.`{plain}`", where=condition())
            return timed(lambda: spark.sql(text))

        return run_it

    def delete() -> float:
        where = condition()
        return timed(lambda: ours.delete(where))

    def update() -> float:
        where = condition()
        return timed(lambda: ours.update(where, {"name": "concat(name, '!')"}))

    def delete_keys() -> float:
        keys = sample(spark, changed, count, seed=next(batch)).select("id").cache()
        keys.count()
        return timed(lambda: ours.delete(keys))

    def merge() -> float:
        frame = sample(spark, changed, count, seed=next(batch)).cache()
        frame.count()
        return timed(lambda: merge_into(spark, plain, frame))

    rounds, some, all_rows = bench.size(5, 2), count_text(changed), count_text(count)
    found = []
    for what, mine, theirs, name in (
        ("delete by a condition", delete, sql("DELETE FROM {table} WHERE {where}"), "DELETE"),
        ("update by a condition", update, sql("UPDATE {table} SET name = concat(name, '!') WHERE {where}"), "UPDATE"),
        ("delete by key", delete_keys, merge, "MERGE of as many rows"),
    ):
        title = f"{what}: {some} of {all_rows} rows"
        turns = bench.take_turns(title, {"ours": mine, name: theirs}, rounds=rounds)
        found.append(at_least(title, turns["ours"], turns[name], 10, name))
    return found


if __name__ == "__main__":
    main(run)
