"""Flink SQL on Spark, in the syntax of Flink's documentation."""

from tablestore.sql.catalog.results import Result
from tablestore.sql.parser.errors import SqlError
from tablestore.sql.parser.parse import parse
from tablestore.sql.session import Catalog

__all__ = ["Catalog", "Result", "SqlError", "parse"]
