"""Other processes: one forked after its parent has used a table is refused, since each would lose rows of the other."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from log_system.local_kafka.owned import LocalKafka
from tablestore import LocalTable, create_local
from tests.harness.waiting import PATIENCE_SECONDS

FORKS = """
import os
import sys
import threading
from tablestore import open_local
from snapshot.errors import InvalidInputError

path, act = sys.argv[1:]
table = open_local(path)
table.write([{"id": number} for number in range(100)])
batches = iter(table.to_batches())
next(batches)
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
        "continue": lambda: list(batches),
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
@pytest.mark.parametrize("act", ["write", "locked", "read", "continue", "open"])
def test_a_forked_process_is_refused(tmp_path: Path, act: str) -> None:
    create_local(tmp_path / "t", "id bigint not null", primary_key=["id"], options={"bucket": 2}).close()
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


def write_one(table: LocalTable, number: int) -> int:
    with table:
        written = table.write([{"id": number}])
    assert written is not None
    return written.id


def test_a_table_passed_to_another_process_is_opened_there(
    tmp_path: Path, kafka: LocalKafka, topic: Callable[[], str]
) -> None:
    stored = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "bucket": 1}
    given = {"kafka.client.id": "someone", "kafka.sasl.password": "hidden"}
    with create_local(
        tmp_path / "t", "id bigint not null", primary_key="id", log_system="kafka", options=stored, client_options=given
    ) as table:
        table.write([{"id": 0}])
        assert pickle.loads(pickle.dumps(table))._table.runtime == table._table.runtime
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert sorted(pool.starmap(write_one, [(table, 1), (table, 2)])) == [2, 3]
        assert table.count() == 3
        assert table.verify().ok


ENDS = """
import multiprocessing
import os
import sys
from tablestore import create_local, open_local

path, act, consistency, servers, topic = sys.argv[1:]
options = {"log.consistency": consistency, "kafka.bootstrap.servers": servers, "kafka.topic": topic, "bucket": 2}
with create_local(path, "id bigint not null", primary_key="id", log_system="kafka", options=options) as table:
    table.write([{"id": 1}, {"id": 2}, {"id": 3}])
    followed = table.tail(scan_mode="earliest")
    next(followed)
    if act == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=table.close)
        process.start()
        process.join()
        code = process.exitcode
    else:
        child = os.fork()
        if child == 0 and act == "returns":
            sys.exit()
        if child == 0:
            followed.close()
            table.close()
            del followed, table
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    table.write([{"id": 4}])
    next(followed)
print(code, open_local(path).count())
"""


@pytest.mark.crash
@pytest.mark.parametrize("consistency", ["transactional", "eventual"])
@pytest.mark.parametrize("act", ["returns", "closes", "multiprocessing"])
def test_a_forked_process_ends(
    tmp_path: Path, kafka: LocalKafka, topic: Callable[[], str], act: str, consistency: str
) -> None:
    """The clients' threads are not in it: librdkafka would abort it, or wait for them. The parent goes on."""
    done: Any = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path / "t"), act, consistency, kafka.bootstrap_servers, topic()],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=Path.cwd(), check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "4"], done
