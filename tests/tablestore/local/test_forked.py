"""Processes that are forked from one that has used a table: refused, since each would lose rows of the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tablestore import create_local
from tests.harness.waiting import PATIENCE_SECONDS

FORKS = """
import os
import sys
import threading
from tablestore import open_local
from snapshot.errors import InvalidInputError

path, act = sys.argv[1:]
table = open_local(path)
table.write([{"id": 1}])
held, over = threading.Event(), threading.Event()


def hold() -> None:
    with table._handle.lock:
        held.set()
        over.wait()


if act == "locked":
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
go, went = os.pipe()
child = os.fork()
if child == 0:
    os.read(go, 1)
    acts = {
        "write": lambda: table.write([{"id": 3}]),
        "locked": lambda: table.write([{"id": 3}]),
        "read": table.to_arrow,
        "open": lambda: open_local(path),
    }
    try:
        acts[act]()
    except InvalidInputError as error:
        os.write(1, str(error).encode())
    os._exit(0)
over.set()
table.write([{"id": 2}])
os.write(went, b"!")
os.waitpid(child, 0)
"""


@pytest.mark.crash
@pytest.mark.parametrize("act", ["write", "locked", "read", "open"])
def test_a_forked_process_is_refused(tmp_path: Path, act: str) -> None:
    create_local(tmp_path / "t", "id bigint not null", primary_key=["id"]).close()
    done: Any = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path / "t"), act],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=Path.cwd(), check=True,
    )  # fmt: skip
    assert "was forked from process" in done.stdout, done
    assert "multiprocessing.get_context('spawn')" in done.stdout


def test_processes_that_open_the_table_themselves_may_be_forked(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create_local(path, "id bigint not null", primary_key=["id"]).close()
    script = (
        "import multiprocessing, sys\nfrom tablestore import open_local\n"
        "def work(n):\n    return open_local(sys.argv[1]).write([{'id': n}]).id\n"
        "with multiprocessing.get_context('fork').Pool(3) as pool:\n    print(sorted(pool.map(work, range(6))))\n"
        "print(open_local(sys.argv[1]).count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=Path.cwd(), check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[1, 2, 3, 4, 5, 6]", "6"]
