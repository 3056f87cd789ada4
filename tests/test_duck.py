"""The DuckDB of the formats: what is left of it when Python ends."""

from __future__ import annotations

import subprocess
import sys

_HELD = """
import threading
import pyarrow as pa
from log_system.formats.duck import Duck

opened = threading.Event()

def hold():
    duck = Duck("64MB")
    print(duck.run("SELECT n FROM t", t=pa.RecordBatch.from_pydict({"n": [1]})).to_pylist())
    opened.set()
    threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
opened.wait()
"""


def test_one_that_a_thread_holds_when_python_ends_says_nothing() -> None:
    run = subprocess.run([sys.executable, "-c", _HELD], capture_output=True, text=True, timeout=60, check=True)
    assert (run.stdout, run.stderr) == ("[{'n': 1}]\n", "")


def test_a_process_that_ran_tasks_says_nothing_when_it_ends() -> None:
    """Tasks set apart what is loaded from Python's collection, DuckDB among it."""
    tasks = "import duckdb; from tablestore.python_worker import begin_task; begin_task(); begin_task()"
    run = subprocess.run([sys.executable, "-c", tasks], capture_output=True, text=True, timeout=60, check=True)
    assert (run.stdout, run.stderr) == ("", "")
