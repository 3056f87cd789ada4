"""Processes that are suspended, as by a machine that has no time for them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.harness.waiting import until

PATIENT = {"broker.session.timeout.ms": "120000"}
"""Properties of a broker that is not fenced where it does not run for six seconds, as on a busy machine.

A fenced broker leads no partition, which ends queries, and for a moment afterwards no topic can be created.
"""


def suspend(pid: int) -> None:
    """Suspend a process (SIGSTOP), and wait until each of its threads has stopped: until then it may still answer."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: all(_state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir()))


def wait_until_suspended(pid: int | None) -> None:
    """Wait until a process has suspended itself."""
    until(lambda: _state(Path(f"/proc/{pid}")) == "T")


def _state(thread: Path) -> str:
    """Return the state of a process or thread, which follows its name in parentheses."""
    return (thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
