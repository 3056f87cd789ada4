"""Normalization with many keys: memory of Python processes, size of the state, and how soon a query restarts."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from benchmarks.eventual import drained, state_bytes
from benchmarks.eventual_log import changes, eventual_table, send
from benchmarks.harness import Bench, Result, count_text, limit, main, reach, seconds_text

_SEND_ROWS = 500_000
_MEMORY_MAX = 600e6
_RESTART_MAX = 5.0


def run(bench: Bench) -> list[Result]:
    """Read a log of many keys, then changes of some of them, then restart with a few changes."""
    keys = bench.size(10_000_000, 200_000)
    few = keys // 50
    table, checkpoint, states = eventual_table(bench), bench.path("checkpoint"), bench.path("states")
    bench.say(f"making a log of {count_text(keys)} keys")
    starts = range(0, keys, _SEND_ROWS)
    row = send(table, (changes(np.arange(n, min(n + _SEND_ROWS, keys)), np.array(False), n) for n in starts))

    def read(rows: int | None = None) -> float:
        return drained(bench, table.read_stream(scan_mode="earliest", max_rows=rows, state=states), checkpoint)[0]

    bench.say("reading them")
    with _Peak() as peak:
        seconds = read(2 * _SEND_ROWS)
    found = [
        reach(f"normalize {count_text(keys)} new keys", keys / seconds, None),
        limit("... memory of a Python process, peak", peak.size, _MEMORY_MAX, lambda size: f"{size / 1e6:.0f} MB"),
        limit("... state on disk", state_bytes(states), 1.5 * row * keys, lambda size: f"{size / 1e6:.0f} MB"),
    ]
    ids = np.random.default_rng(1).choice(keys, few, replace=False)
    for count, what in ((few, "changes among them, one micro-batch"), (min(few, 1_000), "changes after a restart")):
        bench.say(f"changing {count_text(count)} of them")
        send(table, [changes(ids[:count], ids[:count] % 10 == 0, count)])
        seconds = read()
        found.append(reach(f"... then {count_text(count)} {what}", count / seconds, None))
    return [*found, limit("... the micro-batch of these changes", seconds, _RESTART_MAX, seconds_text)]


class _Peak(threading.Thread):
    """Notes the largest memory of a Python process below this one, without files that are mapped into memory."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.size = 0.0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.2):
            self.size = max([self.size, *map(_own_memory, _python_processes())])

    def __enter__(self) -> _Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join(5)


def _python_processes() -> list[Path]:
    """Return the Python processes that descend from Spark's JVM, a child of this process."""
    parents: dict[int, int] = {}
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            number = int(status.parent.name)
            parents[number] = int(lines["PPid"])
            if "python" in lines["Name"] and number != os.getpid():
                found.append(number)
    return [Path("/proc") / str(number) for number in found if _descends(number, parents)]


def _descends(number: int, parents: dict[int, int]) -> bool:
    while number in parents:
        number = parents[number]
        if number == os.getpid():
            return True
    return False


def _own_memory(process: Path) -> float:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for line in (process / "status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return float(line.split()[1]) * 1024
    return 0.0


if __name__ == "__main__":
    main(run)
