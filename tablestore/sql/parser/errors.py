"""``SqlError``, the error for SQL text, with its position and an excerpt of the text."""

from __future__ import annotations

import re

from log_system.kafka.client.secrets import holds_secret
from snapshot.errors import InvalidInputError

#: An option's name and value; in invalid text, quotes or the ``=`` between them may be missing.
_PAIR = re.compile(r"('[\w.\-]+'|[\w.\-]+(?=\s*=))(\s*=\s*(?:'(?:[^']|'')*'?|[^\s,)']+)|\s+'(?:[^']|'')*'?)")


class SqlError(InvalidInputError):
    """SQL text that is invalid in this dialect or cannot be executed; none of it was run.

    Attributes:
        line: line of the error, from 1.
        column: column of the error, from 1.
        text: the text at that position; empty at the end.
        reason: what was expected and what to do.
        excerpt: the line of the error, with credentials masked.
    """

    def __init__(self, reason: str, line: int, column: int, text: str, excerpt: str = "") -> None:
        shown = f"\n  {excerpt}\n  {' ' * (column - 1)}^" if excerpt else ""
        super().__init__(f"line {line}, column {column}: {reason}{shown}")
        self.reason, self.line, self.column, self.text, self.excerpt = reason, line, column, text, excerpt

    def __reduce__(self) -> tuple[type[SqlError], tuple[str, int, int, str, str]]:
        """Support pickling, by the constructor's arguments."""
        return type(self), (self.reason, self.line, self.column, self.text, self.excerpt)


def error_at(source: str, start: int, end: int, reason: str) -> SqlError:
    """Return the error for a part of a text; ``reason`` says what was expected and what to do."""
    shown = masked(source)
    start = min(start, len(source))
    line_start = source.rfind("\n", 0, start) + 1
    line_end = source.find("\n", start)
    excerpt = shown[line_start : line_end if line_end >= 0 else len(source)].replace("\t", " ").rstrip("\r")
    return SqlError(reason, source.count("\n", 0, start) + 1, start - line_start + 1, shown[start:end], excerpt)


def masked(source: str) -> str:
    """Return a text with option values that are credentials replaced by asterisks; offsets do not change."""

    def hide(pair: re.Match[str]) -> str:
        if not holds_secret(pair[1].strip("'"), pair[2].strip(" \t\r\n='")):
            return pair[0]
        return pair[0][: pair.start(2) - pair.start()] + re.sub(r"[^\s'=]", "*", pair[2])

    return _PAIR.sub(hide, source)
