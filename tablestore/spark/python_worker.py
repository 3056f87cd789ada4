"""What a task does for the Python worker that it runs in."""

from __future__ import annotations

import atexit
import gc

import pyarrow as pa

_tasks = 0


def begin_task() -> None:
    """Say that a task begins; in its second one a worker sets apart what is loaded by then.

    Spark collects garbage after each task of a Python worker and before the next may begin, which takes 40 to 50 ms
    with this program's modules (measured), more than a small task. What is there after the first task's collection is
    what later tasks need too, and the collector passes over it from then on.

    What tasks before held of Arrow's memory goes back, so that a worker is as large as its largest task.
    """
    global _tasks  # noqa: PLW0603 - of this process
    _tasks += 1
    if _tasks == 2:
        gc.freeze()
        # Else what is set apart outlives Python's end, where DuckDB prints a page of it.
        atexit.register(gc.unfreeze)
    pa.default_memory_pool().release_unused()
