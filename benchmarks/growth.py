"""Fixed costs by bucket: a write of one row, a read, a compaction and a creation with few buckets and with many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.frames import SCHEMA, rows, sample
from benchmarks.harness import Bench, Result, Timed, at_most, main, timed
from tablestore.table.store import TableStore

_FEW, _MANY = 2, 128
_BARS = {"create": 4.0, "one-row write": 2.0, "merged read": 2.0, "compaction": 3.0}
"""Most times that 128 buckets may cost what 2 cost."""


def run(bench: Bench) -> list[Result]:
    """Measure tables of the same rows with different numbers of buckets, with a JSON log."""
    count = bench.size(1_000_000, 200_000)
    rounds = bench.size(5, 3)
    measured = {buckets: _Measured(bench, buckets, count) for buckets in (_FEW, _MANY)}
    for number in range(rounds + 1):
        for buckets, each in measured.items():
            bench.say(f"{buckets} buckets, {f'round {number} of {rounds}' if number else 'warm-up'}")
            each.round(number)
    few, many = measured[_FEW].costs(), measured[_MANY].costs()
    what = f"{_MANY} buckets = partitions, {count:,} rows, log"
    return [at_most(f"{name}, {what}", many[name], few[name], bar, f"{_FEW} buckets") for name, bar in _BARS.items()]


@dataclass
class _Measured:
    """A table with some number of buckets, and the seconds of each round."""

    bench: Bench
    buckets: int
    rows: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _BARS})

    def __post_init__(self) -> None:
        self.table = self._create()
        self.table.write(rows(self.bench.spark, self.rows))
        self.table.compact()

    def _create(self) -> TableStore:
        self.bench.say(f"{self.buckets} buckets")
        # Compactions happen when they are measured.
        return self.bench.table(
            "growth", SCHEMA, key=["id"], log="json", bucket=self.buckets, compaction__commits=1_000_000
        )

    def round(self, number: int) -> None:
        """Create another table, change some rows, then measure; round 0 does not count."""
        spark, table = self.bench.spark, self.table
        one = spark.createDataFrame([(number, "one", 0.5, None)], SCHEMA)
        changed = sample(spark, self.rows // 20, self.rows, seed=number)
        work: dict[str, Callable[[], object]] = {
            "create": self._create,
            "one-row write": lambda: table.write(one),
            "merged read": lambda: table.read().agg({"price": "sum", "name": "max"}).collect(),
            "compaction": table.compact,
        }
        for name, run_it in work.items():
            if name == "merged read":
                table.write(changed)
            taken = timed(run_it)
            if number:
                self.seconds[name].append(taken)

    def costs(self) -> dict[str, Timed]:
        """Return the medians of what was measured."""
        return {name: Timed(tuple(taken)) for name, taken in self.seconds.items()}


if __name__ == "__main__":
    main(run)
