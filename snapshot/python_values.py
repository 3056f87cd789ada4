"""Values of Arrow arrays as Python objects, also where Python's dates end: Arrow has years before 1 and after 9999."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from snapshot.errors import InvalidInputError

_BEYOND = (OverflowError, ValueError)
"""What Arrow raises for a date or timestamp that Python does not have."""


def printable(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of an array for messages and tables; dates and timestamps that Python does not have as text."""
    try:
        return list(array.to_pylist())
    except _BEYOND:
        return [_printable(value) for value in array]


def _printable(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except _BEYOND:
        if pt.is_struct(value.type):
            return {field.name: _printable(value[i]) for i, field in enumerate(value.type)}
        if pt.is_map(value.type):
            return [tuple(_printable(pair[i]) for i in range(2)) for pair in value.values]
        if pt.is_nested(value.type):
            return [_printable(each) for each in value.values]
        if pt.is_date(value.type):
            return str(np.datetime64(value.value, "D"))
        return str(np.datetime64(value.value, "us")).replace("T", " ") + ("Z" if value.type.tz else "")


def python_row(row: pa.RecordBatch) -> dict[str, Any]:
    """Return a batch of one row as a dict.

    Raises:
        InvalidInputError: a column has a date or timestamp that Python does not have.
    """
    try:
        return dict(row.to_pylist()[0])
    except _BEYOND as error:
        for name, column in zip(row.schema.names, row.columns, strict=True):
            try:
                column.to_pylist()
            except _BEYOND:
                msg = (
                    f"get: column {name!r} is {printable(column)[0]!r}, and Python's dates are of the years 1 to "
                    "9999. Leave the column out with columns=[...], or use to_arrow(filter=...)."
                )
                raise InvalidInputError(msg) from error
        raise
