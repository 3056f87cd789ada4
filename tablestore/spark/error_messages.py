"""Errors of data sources and queries as Spark shows them: the message alone, without tracebacks of Python and Java."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeVar

import py4j  # type: ignore[import-untyped]
import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from snapshot.errors import TableStoreError, UnavailableError
from tablestore.spark.shipped import travels

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark leaves the traceback out of what it tells the JVM if this environment variable is set."""
_PROCESSES: Final = ("pyspark.", "tablestore.python_daemon")
"""The main modules of the processes in which Spark runs a data source; each ends with the first error."""

_MASKED: Final = "streamReader"
"""If this method fails, PySpark 4.2 fails too, with an error of its own; then only the traceback has the message."""

_OURS: Final = re.compile(r"(?:^|: )(?:snapshot|log_system|tablestore)\.[\w.]+Error: (.+)$", re.MULTILINE)
"""An error of this program in a message of Spark, with or without a Python traceback."""

_RAISED: Final = re.compile(
    r"\bpyspark\.errors\.[\w.]+: \[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: P0001)?$", re.MULTILINE
)
"""An error that an expression raises, such as one of the store's, in the traceback of a micro-batch's function."""
_IN_BATCH: Final = re.compile(r"\bpyspark\.errors\.[\w.]+: (.+)$", re.MULTILINE)
"""An error of Spark in the traceback of the function that a streaming query calls with each micro-batch."""
_FRAME: Final = re.compile(r'^\s*File "([^"]+)", line', re.MULTILINE)
"""A frame in such a traceback."""
_PLACE: Final = Path(__file__).parents[2]
_NOT_THE_USERS: Final = (
    *(f"{_PLACE / name}{os.sep}" for name in ("tablestore", "log_system", "snapshot")),
    *(f"{Path(inspect.getfile(package)).parent}{os.sep}" for package in (pyspark, py4j)),
    inspect.getfile(contextlib),
)
"""Where files of the store and of Spark are; a frame elsewhere is the user's, who needs its traceback."""

_ENDS: Final = ("awaitTermination", "processAllAvailable", "exception")
_ENDS_ANY: Final = ("awaitAnyTermination",)
"""Methods that raise or return the error that ended a query."""

_NO_ROOM: Final = re.compile(r"java\.io\.IOException: (No space left on device|Disk quota exceeded)")

S = TypeVar("S", bound=type)


def own_message(error: Exception) -> str | None:
    """Return the message of the error of this program within an exception of Spark, or of a full disk; None if none.

    The same of an error of Spark in a micro-batch that the store writes, such as a failed CAST, around which there are
    tracebacks.
    """
    text = str(error)
    found: list[str] = _OURS.findall(text) or _RAISED.findall(text)
    if not found and all(file.startswith(_NOT_THE_USERS) for file in _FRAME.findall(text)):
        found = _IN_BATCH.findall(text)
    return found[-1] if found else _full_disk(error)


def _full_disk(error: Exception) -> str | None:
    found = _NO_ROOM.search(str(error))
    if found is None:
        return None
    return (
        "Spark cannot write its files, which are in spark.local.dir of driver and executors (by default "
        f"{tempfile.gettempdir()}) and, of a streaming query, in its checkpoint: {found[1]}. Make room, then try again."
    )


def plain_queries(spark: SparkSession) -> None:
    """Make streaming queries that an error of this program has ended raise its message only.

    This goes for all queries in sessions of this kind, also those that the user starts, whose ``foreachBatch`` writes
    to a table. The class stays ``StreamingQueryException``; Spark's own exception, with tracebacks, offsets and plans
    around the message, is its ``__context__``.
    """
    module = sys.modules[type(spark.streams).__module__]
    for kind, names in {"StreamingQuery": _ENDS, "StreamingQueryManager": _ENDS_ANY}.items():
        for name in names:
            method = getattr(getattr(module, kind), name)
            if not hasattr(method, "__wrapped__"):
                setattr(getattr(module, kind), name, _plain(method))


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = method(*args, **kwargs)
        except StreamingQueryException as error:
            message = own_message(error)
            if message is None:
                raise
            raise StreamingQueryException(message) from None
        message = own_message(answer) if isinstance(answer, StreamingQueryException) else None
        return answer if message is None else StreamingQueryException(message)

    return called


def shows_messages(source: S) -> S:
    """Decorate a data source, reader or writer: Spark shows an error of the store as its message.

    An error of any other class is a bug and keeps its traceback. A process that lacks this package says so.
    """
    for name, method in list(vars(source).items()):
        if isinstance(method, FunctionType) and not name.startswith("_") and name != _MASKED:
            setattr(source, name, _shown(method))
    return travels(source)


def _shown(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        with traceback_hidden():
            return method(*args, **kwargs)

    @wraps(method)
    def iterated(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with traceback_hidden():
            yield from method(*args, **kwargs)

    return iterated if inspect.isgeneratorfunction(method) else called


@contextmanager
def full_disks_named() -> Iterator[None]:
    """Raise one error of ours if Spark has no room for its own files; also works as a decorator.

    Raises:
        UnavailableError: the disk of Spark's temporary files is full.
    """
    try:
        yield
    except Exception as error:
        # Errors of Py4J, which is not where Spark Connect is used, or of PySpark.
        msg = None if isinstance(error, TableStoreError) else _full_disk(error)
        if msg is None:
            raise
        raise UnavailableError(msg) from None


@contextmanager
def traceback_hidden() -> Iterator[None]:
    """Let Spark show an error of the store that ends its Python process as the message alone."""
    try:
        yield
    except TableStoreError:
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name.startswith(_PROCESSES):
            os.environ[_HIDE] = "1"
        raise
