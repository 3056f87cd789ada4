"""DuckDB within the program: Ctrl-C in the midst of a query, and what is left of it when Python ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from log_system.formats import thread_duckdb as module
from log_system.formats.thread_duckdb import Duck
from snapshot import duckdb_connection
from snapshot.duckdb_connection import IDLE_MAX
from snapshot.merge.duckdb_engine import errors_mapped, load, spilling
from tests.harness.waiting import PATIENCE_SECONDS

_HELD = """
import threading
import pyarrow as pa
from log_system.formats.thread_duckdb import Duck

opened = threading.Event()

def hold():
    duck = Duck("64MB")
    print(duck.run("SELECT n FROM t", t=pa.RecordBatch.from_pydict({"n": [1]})).to_pylist())
    opened.set()
    threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
opened.wait()
"""

_FORKED = """
import os
import pyarrow as pa
from log_system.formats.thread_duckdb import Duck

def run():
    duck = Duck("64MB")
    assert duck.run("SELECT n FROM t", t=pa.RecordBatch.from_pydict({"n": [1]})).to_pylist() == [{"n": 1}]
    return duck

given_back = run()._database
child = os.fork()
if child == 0:
    print(run()._database is not given_back, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_one_that_a_thread_holds_when_python_ends_says_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _HELD], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert (run.stdout, run.stderr) == ("[{'n': 1}]\n", "")


def test_a_process_that_ran_tasks_says_nothing_when_it_ends() -> None:
    """Tasks set apart what is loaded from Python's collection, DuckDB among it."""
    tasks = "import duckdb; from tablestore.spark.python_worker import begin_task; begin_task(); begin_task()"
    run = subprocess.run(
        [sys.executable, "-c", tasks], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert (run.stdout, run.stderr) == ("", "")


def test_a_forked_process_opens_its_own_connection() -> None:
    # Python 3.12 and newer warn of forks beside threads, which are what is tested here.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKED]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert (run.stdout, run.stderr) == ("True\n", "")


def test_the_connection_of_one_that_is_gone_serves_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening DuckDB takes longer than a small task, and each task has new objects."""
    opened: list[str] = []
    monkeypatch.setattr(duckdb_connection, "_idle", {})
    monkeypatch.setattr(module, "_PreparedQueries", _counted(opened))
    key, value = pa.RecordBatch.from_pydict({"n": [1]}), pa.RecordBatch.from_pydict({"s": ["one"]})
    for _ in range(3):
        first, second = Duck("64MB"), Duck("64MB")
        assert first.run("SELECT n FROM t", t=key).to_pylist() == [{"n": 1}]
        assert second.run("SELECT s FROM t", t=value).to_pylist() == [{"s": "one"}]
        del second, first
    assert opened == ["64MB", "64MB"]
    assert [each._numbers for each in idle()] == [1, 1], "a query was prepared again"


def test_a_connection_serves_only_the_same_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_connection, "_idle", {})
    one = pa.RecordBatch.from_pydict({"n": [1]})
    for limit in ("64MB", "128MB"):
        sql = "SELECT current_setting('memory_limit') AS bytes FROM t"
        assert Duck(limit).run(sql, t=one).to_pylist() == [{"bytes": {"64MB": "61.0 MiB", "128MB": "122.0 MiB"}[limit]}]


def test_a_connection_that_was_interrupted_serves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_connection, "_idle", {})
    duck, one = Duck("64MB"), pa.RecordBatch.from_pydict({"n": [1]})
    with ctrl_c_after(0.1), pytest.raises(KeyboardInterrupt):
        duck.run("SELECT sum(n * i) FROM t, range(1000000000000) r(i)", t=one)
    del duck
    assert not idle()


def test_idle_connections_are_few_and_hold_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_connection, "_idle", {})
    one = pa.RecordBatch.from_pydict({"n": [1]})
    ducks = [Duck("64MB") for _ in range(IDLE_MAX + 2)]
    for duck in ducks:
        duck.run("SELECT n FROM t", t=one)
    del duck, ducks
    assert len(idle()) == IDLE_MAX == 8
    assert all(slot.batch is None for each in idle() for slot in each._slots.values())


def idle() -> list[Any]:
    return [database for databases in duckdb_connection._idle.values() for database in databases]


def _counted(opened: list[str]) -> type:
    class Counted(module._PreparedQueries):
        def __init__(self, memory_limit: str) -> None:
            opened.append(memory_limit)
            super().__init__(memory_limit)

    return Counted


@contextmanager
def ctrl_c_after(seconds: float) -> Iterator[None]:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_ends_a_query_and_the_next_one_runs() -> None:
    duck, one = Duck("64MB"), pa.RecordBatch.from_pydict({"n": [1]})
    assert duck.run("SELECT n FROM t", t=one).to_pylist() == [{"n": 1}]
    with ctrl_c_after(0.1), pytest.raises(KeyboardInterrupt):
        duck.run("SELECT sum(n * i) FROM t, range(1000000000000) r(i)", t=one)
    assert duck.run("SELECT n FROM t", t=one).to_pylist() == [{"n": 1}]


def test_ctrl_c_while_a_table_is_registered_leaves_none_half_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB asks for the columns when a table is registered: Python runs, and a signal may arrive there."""
    duck, one = Duck("64MB"), pa.RecordBatch.from_pydict({"n": [1]})
    with monkeypatch.context() as patch:
        patch.setattr(module._Slot, "__arrow_c_stream__", lambda *_: signal.raise_signal(signal.SIGALRM))
        with ctrl_c_after(60), pytest.raises(KeyboardInterrupt):
            duck.run("SELECT n FROM t", t=one)
    assert duck.run("SELECT n FROM t", t=one).to_pylist() == [{"n": 1}]


def test_ctrl_c_in_the_midst_of_a_merge_is_no_corruption() -> None:
    """DuckDB tells of it as of invalid input, which would be taken for a damaged file."""
    schema = pa.schema([("n", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [1]}, schema=schema)
        raise KeyboardInterrupt

    with spilling(memory_limit="64MB") as session, pytest.raises(KeyboardInterrupt), errors_mapped("merge"):
        load(session, "t", schema, batches())


def test_invalid_input_that_speaks_of_an_interrupt_stays_an_error() -> None:
    with spilling(memory_limit="64MB") as session, pytest.raises(duckdb.ConversionException):
        session.execute("SELECT CAST('failed: KeyboardInterrupt' AS INT)")
