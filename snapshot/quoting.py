"""Quoting of identifiers and string literals for the SQL of DuckDB and Spark."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Quote an identifier for DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def backquoted(name: str) -> str:
    """Quote an identifier for Spark and Flink."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """Quote a string as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
