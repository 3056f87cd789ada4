"""Defaults of columns: values that take the place of NULL in the rows of a write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from snapshot.errors import InvalidInputError
from snapshot.row_kind import KIND, RowKind

DEFAULT_VALUE: Final = "default-value"
"""Last part of the name of the option ``fields.<column>.default-value``."""
FIELDS: Final = "fields."
"""Begin of the names of options of a column."""
_QUOTED_MIN: Final = 2


def defaults_in(properties: Mapping[str, str], schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Return the defaults that a table's options give its columns.

    Raises:
        InvalidInputError: a value does not fit its column.
    """
    given = {name: properties.get(f"{FIELDS}{name}.{DEFAULT_VALUE}") for name in schema.names}
    return {name: default_of(name, text, schema.field(name).type) for name, text in given.items() if text is not None}


def default_of(column: str, text: str, data_type: pa.DataType) -> pa.Scalar:
    """Return the value of a default, which may be in single quotes; an instant is by the clock of UTC.

    Raises:
        InvalidInputError: the text is not a value of the column's type.
    """
    if len(text) >= _QUOTED_MIN and text[0] == text[-1] == "'":
        text = text[1:-1]
    return value_of(text, data_type, f"option '{FIELDS}{column}.{DEFAULT_VALUE}'")


def value_of(text: str, data_type: pa.DataType, what: str) -> pa.Scalar:
    """Return the value that a text is; ``what`` is what it is of, for the message.

    Raises:
        InvalidInputError: the text is not a value of the type.
    """
    try:
        if pa.types.is_timestamp(data_type) and data_type.tz and not text.endswith("Z"):
            return pa.scalar(f"{text}Z").cast(data_type)
        return pa.scalar(text).cast(data_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        msg = f"{what}: expected a value of type {data_type}, got {text!r}: {error}."
        raise InvalidInputError(msg) from error


def filled(
    columns: Mapping[str, pa.Array], defaults: Mapping[str, pa.Scalar], *, in_deletes: Collection[str] = ()
) -> dict[str, pa.Array]:
    """Return columns with their defaults in place of NULL.

    ``_kind`` is among the columns unless every row is new. In deletes, only the columns of ``in_deletes`` are filled.
    """
    done = dict(columns)
    for name, default in defaults.items():
        lacking = columns[name].is_null()
        if KIND in columns and name not in in_deletes:
            lacking = pc.and_(lacking, pc.not_equal(columns[KIND], int(RowKind.DELETE)))
        done[name] = pc.if_else(lacking, default, columns[name])
    return done
