"""How names and texts are written into the SQL of DuckDB and of Spark."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Quote an identifier for DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def backquoted(name: str) -> str:
    """Quote an identifier for Spark and Flink."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """Quote a string."""
    return "'" + text.replace("'", "''") + "'"
