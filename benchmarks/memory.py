"""Peak memory of our Python processes while a large snapshot is staged, published and streamed.

The figures are the peak resident set sizes (the kernel's ``VmHWM``) of the driver's Python process and of each Python
process below it, including Spark's workers. The group runs in its own process, because a peak never decreases.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from benchmarks.frames import SCHEMA, rows
from benchmarks.harness import CORES, Bench, Result, count_text, limit, main, timed

LIMIT_MB = 600.0
_EVERY_SECONDS = 0.1


class PeakWatch(threading.Thread):
    """A context manager that tracks the peak memory of this process and all Python processes below it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._done = threading.Event()
        self.peaks: dict[int, float] = {}

    def __enter__(self) -> PeakWatch:
        """Reset the peaks of this process and those below it, and start watching."""
        for pid in _python_processes():
            _reset_peak(pid)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._look()
        self._done.set()
        self.join()

    def run(self) -> None:
        """Record peaks until the watch is stopped."""
        while not self._done.wait(_EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        for pid in _python_processes():
            self.peaks[pid] = max(self.peaks.get(pid, 0), _peak_mb(pid))

    def results(self, what: str) -> list[Result]:
        """Return the peaks of the driver and of the largest worker."""
        driver = self.peaks.get(os.getpid(), 0)
        workers = max((mb for pid, mb in self.peaks.items() if pid != os.getpid()), default=0.0)
        return [
            limit(f"{what}: largest of {len(self.peaks) - 1} Python workers", workers, LIMIT_MB, _mb),
            limit(f"{what}: driver's Python", driver, LIMIT_MB, _mb),
        ]


def run(bench: Bench) -> list[Result]:
    """Write, publish and stream one large snapshot of a table with a key, in both log formats."""
    count = bench.size(10_000_000, 2_000_000)
    found: list[Result] = []
    for log in ("json", "arrow"):
        table = bench.table(f"memory-{log}", SCHEMA, key=["id"], log=log, bucket=CORES)
        bench.say(f"writing and publishing {count_text(count)} rows, {log}")
        frame = rows(bench.spark, count)
        with PeakWatch() as watch:
            seconds = timed(lambda table=table, frame=frame: table.write(frame))
        found += watch.results(f"write and publish {count_text(count)} rows, {log} ({seconds:.0f} s)")
        bench.say(f"streaming {count_text(count)} rows, {log}")
        stream = table.read_stream(scan_mode="earliest").writeStream.format("noop")
        with PeakWatch() as watch:
            query = stream.option("checkpointLocation", bench.path("checkpoint")).trigger(availableNow=True).start()
            seconds = timed(query.awaitTermination)
        found += watch.results(f"stream {count_text(count)} rows, {log} ({seconds:.0f} s)")
    return found


def _python_processes() -> list[int]:
    """Return the ids of this process and of the Python processes below it."""
    below: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, tail = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        pid = int(folder.name)
        names[pid] = head.partition("(")[2]
        below.setdefault(int(tail.split()[1]), []).append(pid)
    found, waiting = [], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += below.get(pid, [])
    return [pid for pid in found if names.get(pid, "").startswith("python")]


def _peak_mb(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def _reset_peak(pid: int) -> None:
    """Reset a process's peak to its current memory, if the kernel allows it."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _mb(value: float) -> str:
    return f"{value:,.0f} MB"


if __name__ == "__main__":
    main(run)
