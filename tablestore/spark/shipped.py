"""Functions and data sources as they travel to Spark's Python processes, which may lack this package.

Spark pickles this package's functions and classes by name. A process that cannot import them would fail before any code
of this package runs, with nothing but "No module named 'tablestore'". So they travel as bytes, in a function that is
pickled by value and that says what is missing and how to ship it.
"""

from __future__ import annotations

import pickle
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.cloudpickle import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

_MISSING: Final = (
    "{python} on {host}, which Spark runs as Python, cannot import {module!r}. Executors need this program's packages: "
    "build the session with tablestore.session(), which ships them, or run 'tablestore pack' and use the settings that "
    "it prints; name packages of your own functions with --with. See docs/guide/deploy.md."
)

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
S = TypeVar("S", bound=type)

# Spark's pickler takes what is in this module by value; any other one, by name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def shipped(work: Work) -> Work:
    """Return a function for ``mapInArrow`` that runs ``work`` in a task, or says what the task's Python lacks."""
    held: Any = _Shipped(work)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # In a task this is the function itself: it is loaded with this one, before Spark imports pyarrow.
        return getattr(held, "work", held)(batches)  # type: ignore[no-any-return]

    return run


def map_batches(frame: DataFrame, work: Work, schema: StructType | str) -> DataFrame:
    """Return the frame that ``work`` makes of the batches of another one, whose columns may have any names.

    Spark's ``mapInArrow`` looks columns up by name. A dot in it means a field of a row, and a backtick is an error.
    """
    names = frame.columns
    if not any("." in name or "`" in name for name in names):
        return frame.mapInArrow(shipped(work), schema)

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work(batch.rename_columns(names) for batch in batches)

    numbered = frame.toDF(*(f"c{number}" for number in range(len(names))))
    return numbered.mapInArrow(shipped(named), schema)


def shipped_source(source: type[DataSource]) -> type[DataSource]:
    """Return a data source to register for ``source``: the process that plans it says what it lacks."""
    payload, called = _bytes(source), source.name()

    class Shipped(DataSource):
        @classmethod
        def name(cls) -> str:
            return called

        def __new__(cls, options: Any) -> Any:
            return _load(payload)(options)

    return Shipped


def travels(source: S) -> S:
    """Decorate a data source, reader or writer: the process that receives it says what its Python lacks."""

    def reduced(self: object, protocol: Any) -> tuple[Any, ...]:
        return _rebuild, (_bytes(object.__reduce_ex__(self, protocol)),)

    source.__reduce_ex__ = reduced  # type: ignore[method-assign,assignment]
    return source


class _Shipped:
    """A function that is pickled as bytes."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (_bytes(self.work),)


def _bytes(value: object) -> bytes:
    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def _load(payload: bytes) -> Any:
    """Return the unpickled object.

    Raises:
        RuntimeError: this process cannot import a module of it; in such a process there are no errors of this package.
    """
    try:
        return pickle.loads(payload)
    except ModuleNotFoundError as error:
        named = {"python": sys.executable, "host": platform.node(), "module": error.name}
        raise RuntimeError(_MISSING.format(**named)) from None


def _rebuild(payload: bytes) -> object:
    """Return the object that the result of ``__reduce_ex__`` describes."""
    make, arguments, state = _load(payload)[:3]
    made = make(*arguments)
    made.__dict__.update(state or {})
    return made
