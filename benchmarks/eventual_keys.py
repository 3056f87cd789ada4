"""Normalization with many keys, whose state must not be limited by the heap (the session's default of 2 GB)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from benchmarks.eventual import drained
from benchmarks.eventual_log import changes, eventual_table, send
from benchmarks.harness import Bench, Result, count_text, limit, main, reach, seconds_text, timed

_SEND_ROWS = 500_000
_HEAP_MAX = 4e9


def run(bench: Bench) -> list[Result]:
    """Read a log of many keys, then changes of some of them, then save the state."""
    keys = bench.size(10_000_000, 200_000)
    few = keys // 50
    table, checkpoint = eventual_table(bench), bench.path("checkpoint")
    bench.say(f"making a log of {count_text(keys)} keys")
    starts = range(0, keys, _SEND_ROWS)
    send(table, (changes(np.arange(n, min(n + _SEND_ROWS, keys)), np.array(False), n) for n in starts))
    bench.say("reading them")
    seconds, last = drained(bench, table.read_stream(scan_mode="earliest", max_rows=2 * _SEND_ROWS), checkpoint)
    operator = last.stateOperators[0]
    found = [
        reach(f"normalize {count_text(keys)} new keys", keys / seconds, None),
        limit("... heap, at most", _heap(bench), _HEAP_MAX, lambda size: f"{size / 1e9:.1f} GB"),
        limit("... resident memory of the JVM, peak", _peak(), None, lambda size: f"{size / 1e9:.1f} GB"),
        limit("... of it RocksDB's", operator.memoryUsedBytes, None, lambda size: f"{size / 1e9:.2f} GB"),
    ]
    bench.say(f"changing {count_text(few)} of them")
    ids = np.random.default_rng(1).choice(keys, few, replace=False)
    send(table, [changes(ids, ids % 10 == 0, 1)])
    seconds, _ = drained(bench, table.read_stream(scan_mode="earliest"), checkpoint)
    found.append(reach(f"... then {count_text(few)} changes among them, one micro-batch", few / seconds, None))
    bench.say("saving what lives")
    state = bench.path("state")
    save = timed(lambda: table.log.save_state(checkpoint, state))
    seconds, _ = drained(bench, table.read_stream(state=state))
    return [
        *found,
        limit("... keys that live, saved", save, None, seconds_text),
        limit("... and read by a new query", seconds, None, seconds_text),
    ]


def _heap(bench: Bench) -> float:
    """Return the maximum heap size of Spark's JVM, in bytes."""
    size = bench.spark.sparkContext.getConf().get("spark.driver.memory", "1g")
    return float(size[:-1]) * {"m": 2**20, "g": 2**30}[size[-1].lower()]


def _peak() -> float:
    """Return the peak memory in bytes of Spark's JVM, a child of this process, including heap and RocksDB."""
    mine = f"PPid:\t{os.getpid()}\n"
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):
            text = status.read_text()
            if mine in text and b"SparkSubmit" in status.with_name("cmdline").read_bytes():
                return float(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    msg = "the JVM of Spark was not found among the children of this process"
    raise LookupError(msg)


if __name__ == "__main__":
    main(run)
