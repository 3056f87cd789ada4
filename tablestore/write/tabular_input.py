"""Rows from pandas, Arrow, polars, DuckDB or lists of dicts, as Arrow batches with the table's column types.

A value is converted only if it stays the same.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from snapshot.errors import InvalidInputError
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION
from tablestore.write.arrow_input import check_names
from tablestore.write.value_casts import array_of, cast_array, check_cast, without_encoding

Tabular = Any
"""Rows: a Spark, pandas or polars frame, a PyArrow table, batch or reader, a DuckDB relation, a list of dicts or of
record batches, or any other object with ``__arrow_c_stream__``."""

logger = logging.getLogger("tablestore")
_Column = Any  # an Arrow array or, where the values have no type of their own, a list


def is_pandas(data: object) -> bool:
    """Return whether an object is a pandas frame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def read_tabular(data: Tabular, spec: TableSpec) -> pa.RecordBatchReader:
    """Return rows for a write, with the given columns in the table's types; not for Spark frames.

    An Arrow stream is read batch by batch: a value that does not fit raises when the reader gets there.

    Raises:
        InvalidInputError: the object is not tabular; a column is missing, unknown or of another type; a value does not
            fit.
    """
    fields = _fields(spec)
    source = _opened(data, spec)
    check_names(_names(source), spec)
    if isinstance(source, dict):
        return pa.table({fields[n.lower()].name: _fitted(n, v, fields) for n, v in source.items()}).to_reader()
    for given in source.schema:
        check_cast(given.type, fields[given.name.lower()].type, given.name)
    target = pa.schema([fields[name.lower()].with_nullable(True) for name in source.schema.names])
    return pa.RecordBatchReader.from_batches(target, _cast_batches(source, fields, target))


def read_loosely(data: Tabular, spec: TableSpec) -> pa.Table:
    """Return rows with any columns. Those of the table have its types, except where type or values do not fit.

    Raises:
        InvalidInputError: the object is not tabular, or a column's values are of several types.
    """
    fields = _fields(spec)
    source = _opened(data, spec)
    _names(source)
    columns = source if isinstance(source, dict) else _columns_of(source.read_all())
    loose = {n: _fitted_or_own(n, values, fields) for n, values in columns.items()}
    return pa.table({fields[n.lower()].name if n.lower() in fields else n: values for n, values in loose.items()})


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
        return {str(name): [row.get(name) for row in data] for name in names}
    if isinstance(data, list | tuple) and all(isinstance(batch, pa.RecordBatch) for batch in data):
        return pa.Table.from_batches(data).to_reader()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    msg = (
        "rows: expected a Spark, pandas or polars DataFrame, a PyArrow Table, RecordBatch or RecordBatchReader, a "
        f"DuckDB relation, a list of dicts or another object with __arrow_c_stream__, got {_described(data)}."
    )
    raise InvalidInputError(msg)


def _described(data: object) -> str:
    kind = type(data).__name__
    if isinstance(data, list | tuple):
        return f"a {kind} of {sorted({type(each).__name__ for each in data})}"
    return f"a {kind}; call its collect()" if kind == "LazyFrame" else f"a {kind}"


def _columns_of_pandas(frame: Any) -> dict[str, _Column]:
    """Return a pandas frame's columns, without the index; NaN and the like are NULL."""
    columns: dict[str, _Column] = {}
    for number, name in enumerate(map(str, frame.columns)):
        series = frame.iloc[:, number]
        if name in columns:
            raise _repeated([name])
        if series.dtype == object:
            columns[name] = series.where(series.notna(), None).tolist()
        else:
            columns[name] = pa.Array.from_pandas(series)
    return columns


def _columns_of(table: pa.Table) -> dict[str, _Column]:
    return dict(zip(table.column_names, table.columns, strict=True))


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


def _cast_batches(
    source: pa.RecordBatchReader, fields: dict[str, pa.Field], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in source:
        columns = [_fitted(name, batch.column(n), fields) for n, name in enumerate(batch.schema.names)]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


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
