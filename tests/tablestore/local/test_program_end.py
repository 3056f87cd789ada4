"""Programs that simply end, with a read half done or a thread at work: at once, without a word, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tablestore import LocalTable
from tests.harness.waiting import PATIENCE_SECONDS

ROWS = 400_000
"""More than the threads of a read keep ready."""
NUMBERS = f"SELECT i::INT AS id, repeat('x', 40) AS v FROM range({ROWS}) t(i)"

BEGIN = """
import sys, threading, time
from tablestore import open_local
held = []
table = open_local(sys.argv[1])
"""
HALF_READ = """
held += [iter(table.scan()), table.scan(), table.changes(0), table.tail(scan_mode="full")]
held += [table.tail(scan_mode="earliest"), held]
for each in held[:5]:
    next(each)


def read_one():
    held.append(iter(table.scan()))
    next(held[-1])


def read_slowly():
    for batch in table.scan():
        begun.set()
        time.sleep(1000)


begun = threading.Event()
threading.Thread(target=read_one).start()
threading.Thread(target=read_slowly, daemon=True).start()
begun.wait()
"""
THREADS = """
def work():
    threading.main_thread().join()
    assert sum(batch.num_rows for batch in table.scan()) == 400_000
    table.write(table.to_arrow())
    table.compact()
    table.tags.create("done")


threading.Thread(target=work).start()
"""
KINDS: dict[str, dict[str, Any]] = {
    "files": {},
    "kafka": {"log": True},
    "eventual": {"log": True, "log.consistency": "eventual"},
}


def ends(script: str, path: str, folder: Path) -> None:
    """Run a program that ends with exit code 0 and prints nothing."""
    (folder / "program.py").write_text(BEGIN + script)
    done: Any = subprocess.run(
        [sys.executable, "program.py", path], capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=folder,
        env={"PYTHONPATH": str(Path.cwd()), "PATH": ""}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_ends_with_reads_half_done(make: Callable[..., LocalTable], tmp_path: Path, kind: str) -> None:
    table = make("id int, v string", primary_key=["id"], bucket=4, **KINDS[kind])
    table.write(duckdb.connect().sql(NUMBERS))
    ends(HALF_READ, table.path, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_go_on_when_the_main_thread_has_ended(
    make: Callable[..., LocalTable], tmp_path: Path, kind: str
) -> None:
    table = make("id int, v string", primary_key=["id"], bucket=4, **KINDS[kind])
    table.write(duckdb.connect().sql(NUMBERS))
    ends(THREADS, table.path, tmp_path)
    assert table.count(tag="done") == ROWS
    assert table.verify().ok
