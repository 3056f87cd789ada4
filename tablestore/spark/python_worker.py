"""Memory management of Spark's Python workers at the start of a task."""

from __future__ import annotations

import atexit
import gc

import pyarrow as pa

_tasks = 0


def begin_task() -> None:
    """Prepare the Python worker for a task: freeze loaded objects in its second task, and release Arrow's memory.

    Spark runs a garbage collection between the tasks of a Python worker. With this program's modules it takes 40 to
    50 ms (measured), more than a small task. The objects that survive the first task's collection are needed by later
    tasks too, so they are frozen, and later collections skip them.

    Arrow memory that earlier tasks left unused is released, so that a worker is only as large as its largest task.
    """
    global _tasks  # noqa: PLW0603 - of this process
    _tasks += 1
    if _tasks == 2:
        gc.freeze()
        # Frozen objects would outlive the interpreter's shutdown, where DuckDB would print a page of errors about them.
        atexit.register(gc.unfreeze)
    pa.default_memory_pool().release_unused()
