"""The processes that tests kill: forked from one server, which has imported what they run."""

from __future__ import annotations

import multiprocessing
from typing import Final

CONTEXT: Final = multiprocessing.get_context("forkserver")
"""Starts them. A process has a single server, so what it imports is listed here, for all test files."""
CONTEXT.set_forkserver_preload(
    [
        "tests.connectors.harness.crash_worker",
        "tests.crash.processes.append_writer",
        "tests.crash.processes.batch_writer",
        "tests.crash.processes.expirer",
        "tests.crash.processes.racer",
        "tests.crash.processes.worker",
    ]
)
