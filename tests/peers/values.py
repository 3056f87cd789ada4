"""Rows of this program spelled as ``flink_runner.py`` spells those of Flink."""

from __future__ import annotations

from datetime import date, time
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame


def rows(frame: DataFrame) -> list[list[Any]]:
    """Return the rows of a frame as JSON has them."""
    columns = [[plain(value) for value in column.to_pylist()] for column in frame.toArrow().columns]
    return [list(row) for row in zip(*columns, strict=True)]


def plain(value: Any) -> Any:
    """Return a value of Arrow as JSON has it: floats with the digits that a FLOAT keeps, and the name of the type."""
    if isinstance(value, float):
        return f"float {value:.7g}"
    if isinstance(value, Decimal):
        return f"decimal {value:f}"
    if isinstance(value, bytes):
        return f"bytes {value.hex()}"
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, dict):
        return ["row", *map(plain, value.values())]
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return ["map", *sorted(([plain(key), plain(each)] for key, each in value), key=repr)]
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value
