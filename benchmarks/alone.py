"""Runs a benchmark group in a new process, so that groups do not share memory, caches or a Spark session."""

from __future__ import annotations

import importlib
import multiprocessing
import time
import traceback
from multiprocessing.connection import Connection

from benchmarks.harness import Bench, Result, Say


def run_alone(group: str, *, small: bool, say: Say) -> list[Result]:
    """Run a group by name and return its results; a failure becomes a result. ``say`` displays progress."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, group, small))
    process.start()
    theirs.close()
    try:
        while isinstance(message := mine.recv(), str):
            say(message)
    except EOFError:
        process.join()
        return [Result(f"{group} failed", f"its process ended with exit code {process.exitcode}")]
    process.join()
    return list(message)


def _run(end: Connection, group: str, small: bool) -> None:
    start = time.monotonic()
    try:
        with Bench(small=small, say=end.send) as bench:
            results = importlib.import_module(f"benchmarks.{group}").run(bench)
    except Exception as error:  # noqa: BLE001 - one group's failure must not cost the others their table
        traceback.print_exc()
        results = [Result(f"{group} failed", f"{type(error).__name__} after {time.monotonic() - start:.0f} s")]
    end.send(results)
