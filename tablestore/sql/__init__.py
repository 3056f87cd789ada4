"""Flink's SQL on Spark: the statements of its documentation, as written."""

from tablestore.sql.catalog import Catalog
from tablestore.sql.errors import SqlError
from tablestore.sql.parse import parse
from tablestore.sql.results import Result

__all__ = ["Catalog", "Result", "SqlError", "parse"]
