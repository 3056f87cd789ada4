"""What the tests of row formats share: the tables of the reference vectors, and short ways to code one row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tablestore.connectors.formats.registry import open_row_format
from tablestore.connectors.formats.types import TIME, with_precision

NTZ = pa.timestamp("us")
LTZ = pa.timestamp("us", tz="UTC")


def millis(name: str, kind: pa.DataType = NTZ) -> pa.Field:
    """A TIMESTAMP(3) column."""
    return with_precision(pa.field(name, kind), 3)


PAGEVIEWS = pa.schema([pa.field("user_region", pa.string(), nullable=False), ("pv", pa.int64()), ("uv", pa.int64())])
Q02 = pa.schema([("user_id", pa.int64()), ("page_id", pa.int64()), ("viewtime", NTZ), ("user_region", pa.string())])
ORDERS = pa.schema(
    [("order_id", pa.int64()), ("product", pa.string()), ("amount", pa.decimal128(10, 2)), millis("created_at")]
)
EVENTS = pa.schema([("sensor_id", pa.int64()), ("message", pa.string()), millis("event_ts")])
ITEMS = pa.schema([("item_id", pa.int64()), ("behavior", pa.string())])
"""The table of the reading vectors."""
TIMES = pa.schema([("k", TIME), ("l", pa.list_(TIME))])

AT = dt.datetime(2024, 1, 2, 3, 4, 5, 600_000)
ORDER = (7, 'p,"q"', Decimal("12.50"), AT)


def rows(schema: pa.Schema, *values: Sequence[Any]) -> pa.RecordBatch:
    """A batch from tuples."""
    return pa.RecordBatch.from_arrays(
        [pa.array([row[i] for row in values], kind) for i, kind in enumerate(schema.types)], schema=schema
    )


def written(name: str, schema: pa.Schema, row: Sequence[Any], **options: str) -> bytes:
    """What one row becomes. In option names ``__`` stands for a dot and ``_`` for a dash."""
    (payload,) = open_row_format(name, schema, spelled(options), side="value").encode(rows(schema, row))
    return payload


def read(name: str, schema: pa.Schema, payload: bytes | None, **options: str) -> list[tuple[Any, ...]]:
    """The rows of one payload."""
    row_format = open_row_format(name, schema, spelled(options), side="value")
    batch = row_format.decode([payload]).batch
    return list(zip(*(column.to_pylist() for column in batch), strict=True))


def spelled(options: Mapping[str, str]) -> dict[str, str]:
    """Option names as Python can say them, as the user writes them."""
    return {name.replace("__", ".").replace("_", "-"): text for name, text in options.items()}
