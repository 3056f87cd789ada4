"""Ctrl-C and SIGTERM end what runs, in one line and without Spark's and Py4J's tracebacks.

PySpark's own handler of Ctrl-C cancels all jobs, those of streams too, by a call to the JVM in the midst of another
one, which fails with tracebacks of its own.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from pyspark.sql import SparkSession

_SAID_BY_PY4J: Final = "KeyboardInterrupt while sending command."


def interrupt_quietly(spark: SparkSession) -> None:
    """Let Ctrl-C raise ``KeyboardInterrupt`` and nothing else, and end the jobs of this session if none is a stream's.

    Only in the main thread, and only in place of PySpark's own handler: a program's handler stays.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if getattr(signal.getsignal(signal.SIGINT), "__module__", "") != "pyspark.core.context":
        return

    def cancel() -> None:
        # Another thread has another connection to the JVM. The process may end meanwhile, which ends the jobs too.
        with suppress(Exception):
            if not spark.streams.active:
                spark.sparkContext.cancelAllJobs()

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=cancel, name="cancel-jobs", daemon=True).start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    logging.getLogger().addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.getMessage() != _SAID_BY_PY4J


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Take SIGTERM for Ctrl-C while a command runs in the main thread."""

    def terminated(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interrupts_noted() -> Iterator[threading.Event]:
    """Note Ctrl-C and SIGTERM in an event instead of raising, so that no call to the JVM is cut short; a second raises.

    A call that is cut short leaves its answer behind, and the next one may find the connection closed.
    """
    noted = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
