"""Rows from pandas, Arrow, polars, DuckDB or lists of dicts, as Arrow batches with the table's column types.

A value is converted only if it stays the same.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import duckdb
import pyarrow as pa

from snapshot.duckdb_connection import interruptible
from snapshot.errors import InvalidInputError
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION
from snapshot.staging.task_results import NOTHING_WRITTEN
from tablestore.write.arrow_input import check_names
from tablestore.write.value_casts import array_of, can_cast, cast_array, check_cast, is_missing, without_encoding

Tabular = Any
"""Rows: a Spark, pandas or polars frame, a PyArrow table, batch or reader, a DuckDB relation, a list or an iterator of
dicts or of record batches, or any other object with ``__arrow_c_stream__``."""

_BATCH_ROWS = 16_384
"""Rows of an iterator of dicts that are held at once."""

logger = logging.getLogger("tablestore")
_Column = Any  # an Arrow array or, where the values have no type of their own, a list


def is_pandas(data: object) -> bool:
    """Return whether an object is a pandas frame."""
    # Another thread may be importing pandas; until it is done, there are no frames.
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame is not None and isinstance(data, frame)


def read_tabular(data: Tabular, spec: TableSpec) -> pa.RecordBatchReader:
    """Return rows for a write, with the given columns in the table's types; not for Spark frames.

    Streams and iterators are read batch by batch: a value that does not fit raises when the reader gets there.

    Raises:
        InvalidInputError: the object is not tabular; a column is missing, unknown or of another type; a value does not
            fit.
    """
    fields = _fields(spec)
    first, data = _first_of(data)
    if isinstance(first, dict):
        return _reader_of_rows(data, spec)
    source = _opened(data, spec)
    check_names(_names(source), spec)
    if isinstance(source, dict):
        return pa.table({fields[n.lower()].name: _fitted(n, v, fields) for n, v in source.items()}).to_reader()
    for given in source.schema:
        check_cast(given.type, fields[given.name.lower()].type, given.name)
    target = pa.schema([fields[name.lower()].with_nullable(True) for name in source.schema.names])
    return pa.RecordBatchReader.from_batches(target, (cast_batch(batch, target) for batch in source))


def read_loosely(data: Tabular, spec: TableSpec) -> pa.Table:
    """Return rows with any columns. Those of the table have its types, except where type or values do not fit.

    Raises:
        InvalidInputError: the object is not tabular, or a column's values are of several types.
    """
    source = open_loosely(data, spec)
    if isinstance(source, pa.Table):
        return source
    batches = list(source)
    target = loose_schema(source.schema, batches, spec)
    return pa.Table.from_batches([cast_batch(batch, target) for batch in batches], target)


def open_loosely(data: Tabular, spec: TableSpec) -> pa.Table | pa.RecordBatchReader:
    """Return rows with any columns: what ``read_loosely`` returns or, of an Arrow stream, a stream with its own types.

    Raises:
        InvalidInputError: the object is not tabular, or a column's values are of several types.
    """
    first, data = _first_of(data)
    fields, source = _fields(spec), _opened(list(data) if isinstance(first, dict) else data, spec)
    _names(source)
    if isinstance(source, dict):
        loose = {n: _fitted_or_own(n, values, fields) for n, values in source.items()}
        return pa.table({fields[n.lower()].name if n.lower() in fields else n: values for n, values in loose.items()})
    own = pa.schema([pa.field(field.name, without_encoding(field.type)) for field in source.schema])
    return pa.RecordBatchReader.from_batches(own, (cast_batch(batch, own) for batch in source))


def loose_schema(given: pa.Schema, batches: Iterable[pa.RecordBatch], spec: TableSpec) -> pa.Schema:
    """Return the schema of ``read_loosely`` for a stream of ``open_loosely``, whose batches are read to their end."""
    fields = _fields(spec)
    fitting = {f.name for f in given if f.name.lower() in fields and can_cast(f.type, fields[f.name.lower()].type)}
    for batch in batches:
        fitting = {name for name in fitting if _fits(batch.column(name), fields[name.lower()])}
    named = {f.name: fields[f.name.lower()].name if f.name.lower() in fields else f.name for f in given}
    return pa.schema([(named[f.name], fields[f.name.lower()].type if f.name in fitting else f.type) for f in given])


def cast_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the names and types of a schema.

    Raises:
        InvalidInputError: a value does not fit.
    """
    columns = [cast_array(array, f.type, f.name) for array, f in zip(batch.columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _fits(values: pa.Array, field: pa.Field) -> bool:
    try:
        cast_array(values, field.type, field.name)
    except InvalidInputError:
        logger.debug("column %r keeps its own type", field.name, exc_info=True)
        return False
    return True


def _fields(spec: TableSpec) -> dict[str, pa.Field]:
    """Return the columns that rows for the table may have, by lower-case name."""
    carried = pa.schema(
        [(CHANGE_TYPE, pa.string()), (COMMIT_VERSION, pa.int64()), (COMMIT_TIMESTAMP, pa.timestamp("us", "UTC"))]
    )
    return {field.name.lower(): field for field in (*carried, *spec.arrow)}


def _opened(data: Tabular, spec: TableSpec) -> pa.RecordBatchReader | dict[str, _Column]:
    """Return tabular data as an Arrow stream or, if not all columns have a type of their own, as columns.

    Raises:
        InvalidInputError: the object is not tabular.
    """
    if is_pandas(data):
        return _columns_of_pandas(data)
    if isinstance(data, list | tuple) and all(isinstance(row, dict) for row in data):
        # Each row may have other keys, so that none is overlooked; without rows, the columns are the table's.
        names = dict.fromkeys(key for row in data for key in row) if data else spec.arrow.names
        return {str(name): _present([row.get(name) for row in data]) for name in names}
    if isinstance(data, list | tuple) and all(isinstance(batch, pa.RecordBatch) for batch in data):
        return pa.Table.from_batches(data).to_reader()
    if isinstance(data, pa.RecordBatchReader):
        # Through Arrow's C interface, an exception of its source would lose its class.
        return data
    if hasattr(data, "__arrow_c_stream__"):
        return _streamed(data)
    if isinstance(data, Iterator):
        first = next(data, None)
        if first is None:
            return spec.arrow.empty_table().to_reader()
        if isinstance(first, pa.RecordBatch):
            return pa.RecordBatchReader.from_batches(first.schema, _alike(first.schema, chain([first], data)))
    raise _not_rows(data)


def _streamed(data: object) -> pa.RecordBatchReader:
    """Return the stream of an object of another library; its errors are those of its rows.

    Raises:
        InvalidInputError: the first rows cannot be computed; while reading, others cannot.
    """

    @contextmanager
    def told() -> Iterator[None]:
        try:
            with interruptible():
                yield
        # Through Arrow's C interface, an exception loses its class.
        except (OSError, duckdb.Error) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            msg = f"rows: {type(data).__name__} cannot be read: {reason}. {NOTHING_WRITTEN}"
            raise InvalidInputError(msg) from None

    def batches() -> Iterator[pa.RecordBatch]:
        with told():
            yield from reader

    with told():
        reader = pa.RecordBatchReader.from_stream(data)
    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _not_rows(data: object) -> InvalidInputError:
    msg = (
        "rows: expected a Spark, pandas or polars DataFrame, a PyArrow Table, RecordBatch or RecordBatchReader, a "
        "DuckDB relation, a list or iterator of dicts, record batches or another object with __arrow_c_stream__, got "
        f"{_described(data)}."
    )
    return InvalidInputError(msg)


def _first_of(data: Tabular) -> tuple[object, Tabular]:
    """Return the first item of an iterator, else None, and the data with that item.

    Raises:
        InvalidInputError: the item is neither a dict nor a record batch.
    """
    first = next(data, None) if isinstance(data, Iterator) and not hasattr(data, "__arrow_c_stream__") else None
    if first is None:
        return None, data
    if not isinstance(first, dict | pa.RecordBatch):
        raise _not_rows(data)
    return first, chain([first], data)


def _reader_of_rows(rows: Iterator[object], spec: TableSpec) -> pa.RecordBatchReader:
    """Return an iterator of dicts as a stream whose columns are those of its first ``_BATCH_ROWS`` rows."""
    fields = _fields(spec)
    chunk = list(islice(rows, _BATCH_ROWS))
    names = _names(_opened(chunk, spec))
    check_names(names, spec)
    target = pa.schema([fields[name.lower()].with_nullable(True) for name in names])

    def batches(held: list[object]) -> Iterator[pa.RecordBatch]:
        begin = 0
        while held:
            columns = _opened(held, spec)
            assert isinstance(columns, dict)
            if unknown := [name for name in columns if name not in names]:
                msg = f"rows: unknown columns {unknown} after row {begin}; the rows before have {names}."
                raise InvalidInputError(msg)
            try:
                arrays = [_fitted(name, columns.get(name, [None] * len(held)), fields) for name in names]
            except InvalidInputError as error:
                if not begin:
                    raise
                msg = f"{error} Rows are counted from row {begin} of the iterator."
                raise InvalidInputError(msg) from error
            yield pa.RecordBatch.from_arrays(arrays, schema=target)
            begin += len(held)
            held = list(islice(rows, _BATCH_ROWS))

    return pa.RecordBatchReader.from_batches(target, batches(chunk))


def _alike(schema: pa.Schema, batches: Iterable[object]) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(schema):
            shown = batch.schema.to_string() if isinstance(batch, pa.RecordBatch) else type(batch).__name__
            msg = f"rows: expected record batches of one schema, {schema.to_string()}; number {number} is {shown}."
            raise InvalidInputError(msg)
        yield batch


def _described(data: object) -> str:
    kind = type(data).__name__
    if isinstance(data, list | tuple):
        hint = "; make one table of them" if any(map(is_frame, data)) else ""
        return f"a {kind} of {sorted({type(each).__name__ for each in data})}{hint}"
    hint = next((hint for end, hint in _HINTS.items() if kind.endswith(end)), "")
    return f"a {kind}{hint and f'; {hint}'}"


def is_frame(data: object) -> bool:
    """Return whether an object is a pandas frame or has Arrow's stream, as other frames and tables have."""
    return is_pandas(data) or hasattr(data, "__arrow_c_stream__")


_HINTS = {
    "LazyFrame": "call its collect()",
    "Dataset": "call its scanner().to_reader()",
    "Scanner": "call its to_reader()",
    "dict": "put a row into a list, or columns into pyarrow.table()",
    "generator": "yield dicts or record batches",
    "Series": "call its to_frame()",
    "Path": "read the file first, for example with pyarrow.parquet.read_table()",
    "str": "read a file first, for example with pyarrow.parquet.read_table()",
}
"""What to do with objects that are almost rows, by the end of their class's name."""


def _columns_of_pandas(frame: Any) -> dict[str, _Column]:
    """Return a pandas frame's columns, without the index; NaN and the like are NULL.

    Raises:
        InvalidInputError: two columns have one name, or Arrow has no type for a column.
    """
    columns: dict[str, _Column] = {}
    for number, name in enumerate(map(str, frame.columns)):
        series = frame.iloc[:, number]
        if name in columns:
            raise _repeated([name])
        if series.dtype == object:
            columns[name] = series.where(series.notna(), None).tolist()
        elif series.dtype.kind == "f" and not series.notna().any():
            # pandas has a column without any value as floats, whatever its values would be.
            columns[name] = pa.nulls(len(series))
        else:
            try:
                columns[name] = pa.Array.from_pandas(series)
            except pa.ArrowException as error:
                msg = f"column {name!r}: Arrow has no type for pandas' {series.dtype}; convert it before writing."
                raise InvalidInputError(msg) from error
    return columns


def _present(values: list[Any]) -> list[Any]:
    """Return values with None for pandas' markers of missing values, which rows made from a frame may have."""
    missing = {kind for kind in set(map(type, values)) if is_missing(kind)}
    return [None if type(value) in missing else value for value in values] if missing else values


def _names(source: pa.RecordBatchReader | dict[str, _Column]) -> list[str]:
    """Return the names of the columns.

    Raises:
        InvalidInputError: two names differ in case only, or not at all.
    """
    names = list(source) if isinstance(source, dict) else source.schema.names
    lower = [name.lower() for name in names]
    if repeated := [name for name in names if lower.count(name.lower()) > 1]:
        raise _repeated(repeated)
    return names


def _repeated(names: Sequence[str]) -> InvalidInputError:
    return InvalidInputError(f"rows: columns {list(names)} have the same name, as case does not count; rename one.")


def _fitted(name: str, values: _Column, fields: dict[str, pa.Field]) -> pa.Array | pa.ChunkedArray:
    """Return a column of the table in its type there.

    Raises:
        InvalidInputError: the type or a value does not fit.
    """
    field = fields[name.lower()]
    make = array_of if isinstance(values, list) else cast_array
    return make(values, field.type, field.name)


def _fitted_or_own(name: str, values: _Column, fields: dict[str, pa.Field]) -> pa.Array | pa.ChunkedArray:
    """Return a column in its type in the table if there is one and all values fit; otherwise in its own."""
    if name.lower() in fields:
        try:
            return _fitted(name, values, fields)
        except InvalidInputError:
            logger.debug("column %r keeps its own type", name, exc_info=True)
    own = array_of(values, None, name) if isinstance(values, list) else values
    return cast_array(own, without_encoding(own.type), name)
