"""Arrow types and what is nested in them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def types_within(data_type: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all types nested in it; of a map, also the struct of key and value."""
    yield data_type
    for number in range(data_type.num_fields):
        yield from types_within(data_type.field(number).type)
