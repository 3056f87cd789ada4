"""Quoting of identifiers and string literals for the SQL of DuckDB and Spark."""

from __future__ import annotations

from snapshot.errors import InvalidInputError


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can hold a text: half of a surrogate pair, as of a file's name in bytes, it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_text(text: str, what: str) -> None:
    """Check that a path, a name or an SQL text is Unicode, which a Python string need not be.

    Raises:
        InvalidInputError: it is not.
    """
    if not is_unicode(text):
        msg = (
            f"{what}: expected text that UTF-8 can hold, got half of a surrogate pair in {text!a:.200}. Choose a name "
            "or text without it; rename a folder."
        )
        raise InvalidInputError(msg)


def quoted(name: str) -> str:
    """Quote an identifier for DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def backquoted(name: str) -> str:
    """Quote an identifier for Spark and Flink."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """Quote a string as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
