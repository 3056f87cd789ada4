"""Ctrl-C and SIGTERM, sent to real processes: one line, no traceback, and a handle that goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tablestore.spark.interrupts import starting_quietly
from tests.harness.table_harness import TableHarness
from tests.harness.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.crash
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "160"}
SQL = (
    "CREATE TABLE t (a INT, b STRING); CREATE TABLE u (a INT, b STRING); INSERT INTO t VALUES (1, 'x'); "
    "INSERT INTO u SELECT a, b FROM t"
)
NOISE = ("%3|", "|FAIL|")
WRITES = """
import sys
import threading
from tablestore.context import TableContext
from tablestore.write.publish import PublishPendingError
from tablestore.write.writer import Writer
from tests.harness.local_writes import publisher_of, write

table = TableContext.open(sys.argv[1])
writer = Writer(table, publisher_of(table))
done = interrupted = 0
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
print("ready", flush=True)
while True:
    try:
        if done >= 15 and over.is_set():
            break
        write(writer, [(n, f"{done}.{n}") for n in range(50)])
        done += 1
    except KeyboardInterrupt:
        interrupted += 1
    except PublishPendingError as error:
        # Arrow asks a file whether it is closed, and takes the interrupt in the answer for "yes".
        if "closed file" not in str(error):
            raise
        interrupted += 1
print(done, interrupted, flush=True)
"""

AT_THE_START = """
import os, signal, sys, threading, time
from tablestore.cli import app

def interrupt():
    # PySpark's handler is there from when the JVM has started until the session is complete.
    while getattr(signal.getsignal(signal.SIGINT), "__module__", "") != "pyspark.core.context":
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
app(["sql", "-w", sys.argv[1], "-s", "execution.runtime-mode=batch", "-e", "SELECT 1 + RAND()"])
"""

AS_THE_JVM_STARTS = """
import os, signal, sys, threading
from tablestore.cli import app

def interrupt(event, args):
    if event == "subprocess.Popen" and "spark-submit" in str(args):
        threading.Timer(1, os.kill if sys.argv[2] == "15" else os.killpg, (os.getpid(), int(sys.argv[2]))).start()

sys.addaudithook(interrupt)
app(["sql", "-w", sys.argv[1], "-s", "execution.runtime-mode=batch", "-e", "SELECT 1 + RAND()"])
"""


def started(*command: str) -> subprocess.Popen[str]:
    """Start a process in a group of its own, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=ENV, cwd=Path.cwd(),
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_streaming_insert_of_the_command_line_ends_in_one_line(tmp_path: Path, number: signal.Signals) -> None:
    with started("-m", "tablestore", "sql", "-w", str(tmp_path / "w"), "-e", SQL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Running"):
                break
        time.sleep(3)
        if number == signal.SIGINT:
            # The terminal sends it to every process of the group.
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert out.strip().splitlines() == ["Stopped. The same INSERT continues from its checkpoint."]
    # PySpark and py4j may find Spark gone and print where they were, so tracebacks of theirs are not looked at.
    assert not [word for word in NOISE if word in err], err
    assert process.returncode == 0


@pytest.mark.slow
def test_ctrl_c_while_spark_starts_shows_no_traceback(tmp_path: Path) -> None:
    with started("-c", AT_THE_START, str(tmp_path / "w")) as process:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert "Traceback" not in err
    assert process.returncode == 130


def test_what_fails_because_of_ctrl_c_while_spark_starts_is_ctrl_c() -> None:
    """PySpark tidies up after it, which may fail: Ctrl-C may have come within a call to the JVM."""

    def fail() -> None:
        msg = "Answer from Java side is empty"
        raise RuntimeError(msg)

    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            fail()

    with pytest.raises(KeyboardInterrupt), starting_quietly():
        interrupted()
    with pytest.raises(RuntimeError), starting_quietly():
        fail()


def is_alive(group: int) -> bool:
    """Return whether a process group has a process."""
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_jvm_starts_leaves_no_jvm_behind(tmp_path: Path, number: int) -> None:
    """PySpark's clean-up let the JVM fail with a stack trace, and run on for good."""
    with started("-c", AS_THE_JVM_STARTS, str(tmp_path / "w"), str(int(number))) as process:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert "Exception" not in err
    until(lambda: not is_alive(process.pid))


def test_a_handle_goes_on_after_ctrl_c_in_the_midst_of_writes(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    rig, dice = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic()), random.Random(7)
    with started("-c", WRITES, str(rig.path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # It goes on until its input ends, so each signal finds it at work.
        for _ in range(8):
            time.sleep(dice.uniform(0.1, 0.8))
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    done, interrupted = map(int, out.split())
    assert done >= 15
    assert interrupted > 0
    assert not [word for word in NOISE if word in err], err
    rig.recover()
    rig.audit()
    rig.close()
