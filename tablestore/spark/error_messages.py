"""Errors of data sources as Spark shows them: the message alone, without the traceback of Spark's Python process."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any, Final, TypeVar

from snapshot.errors import TableStoreError
from tablestore.spark.shipped import travels

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark leaves the traceback out of what it tells the JVM if this environment variable is set."""
_PROCESSES: Final = ("pyspark.", "tablestore.python_daemon")
"""The main modules of the processes in which Spark runs a data source; each ends with the first error."""

_MASKED: Final = "streamReader"
"""If this method fails, PySpark 4.2 fails too, with an error of its own; then only the traceback has the message."""

S = TypeVar("S", bound=type)


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
def traceback_hidden() -> Iterator[None]:
    """Let Spark show an error of the store that ends its Python process as the message alone."""
    try:
        yield
    except TableStoreError:
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name.startswith(_PROCESSES):
            os.environ[_HIDE] = "1"
        raise
