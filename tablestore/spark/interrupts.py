"""Handling of Ctrl-C and SIGTERM without tracebacks from Spark and Py4J.

PySpark's own Ctrl-C handler cancels all jobs, including those of streams. It does so by a call to the JVM, possibly
in the middle of another call, which then fails with more tracebacks.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from pyspark.sql import SparkSession

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_SAID_BY_PY4J: Final = "KeyboardInterrupt while sending command."


def interrupt_quietly(spark: SparkSession) -> None:
    """Replace PySpark's Ctrl-C handler by one that raises ``KeyboardInterrupt`` and, if no stream runs, cancels jobs.

    This does nothing outside the main thread, or if the program has its own handler.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if getattr(signal.getsignal(signal.SIGINT), "__module__", "") != "pyspark.core.context":
        return

    def cancel() -> None:
        # This thread has its own connection to the JVM. Errors are ignored: if the process exits in the meantime, its
        # jobs end too.
        with suppress(Exception):
            if not spark.streams.active:
                spark.sparkContext.cancelAllJobs()

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=cancel, name="cancel-jobs", daemon=True).start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    logging.getLogger().addFilter(_is_news)


@contextmanager
def starting_quietly() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the start of Spark without tracebacks, and without a JVM that runs on.

    They wait until the JVM has started: PySpark would remove the folder into which the JVM writes its port, and a JVM
    that cannot write it neither ends nor serves anyone. From then on, PySpark handles Ctrl-C until the session exists.
    Py4J logs a traceback there; errors are raised, too, so hiding it loses nothing.
    """
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)

    root = logging.getLogger()
    root.addFilter(_is_not_of_py4j)
    try:
        # A signal that Python does not handle ends the process at once, before PySpark removes anything.
        with _handled_by(note, [number for number in _ENDING if callable(signal.getsignal(number))]):
            yield
    except Exception as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from None
        raise
    finally:
        root.removeFilter(_is_not_of_py4j)
        if noted:
            signal.raise_signal(noted[0])


def _is_interrupted(error: BaseException | None) -> bool:
    """Return whether an error comes from Ctrl-C: PySpark then stops the context, which may fail within another call."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or _is_interrupted(error.__context__))


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith("while sending command.")


def _is_news(record: logging.LogRecord) -> bool:
    return record.getMessage() != _SAID_BY_PY4J


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` on SIGTERM, as on Ctrl-C, while a command runs in the main thread."""

    def terminated(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(terminated, [signal.SIGTERM]):
        yield


@contextmanager
def interrupts_noted() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets instead of raising; a second one raises.

    This keeps a signal from interrupting a call to the JVM, which would leave an unread response in the connection or
    close it for the next call.
    """
    noted = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    with _handled_by(note, _ENDING):
        yield noted


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], numbers: Iterable[int]) -> Iterator[None]:
    """Let a function handle signals, unless this is not the main thread; one that replaces it meanwhile stays."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers} if is_main else {}
    try:
        yield
    finally:
        for number, previous in before.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, previous)
