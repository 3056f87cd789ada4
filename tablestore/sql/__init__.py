"""Flink's SQL on Spark: the statements of its documentation, as written."""

from tablestore.sql.errors import SqlError
from tablestore.sql.parse import parse

__all__ = ["SqlError", "parse"]
