"""The one error of SQL texts: it says where, and shows the place."""

from __future__ import annotations

import re

from log_system.kafka.client.secrets import holds_secret
from snapshot.errors import InvalidInputError

#: The name of an option and its value; in a damaged text the quotes or the sign between them may be missing.
_PAIR = re.compile(r"('[\w.\-]+'|[\w.\-]+(?=\s*=))(\s*=\s*(?:'(?:[^']|'')*'?|[^\s,)']+)|\s+'(?:[^']|'')*'?)")
_PREFIX = re.compile(r"^(properties|kafka)\.")


class SqlError(InvalidInputError):
    """A text that is no statement of this dialect, or one that cannot be done; nothing of it was run.

    Attributes:
        line: of the place, from 1.
        column: of the place, from 1.
        text: what is there; empty at the end of the text.
        reason: what was expected and what to do.
    """

    def __init__(self, reason: str, line: int, column: int, text: str, excerpt: str = "") -> None:
        shown = f"\n  {excerpt}\n  {' ' * (column - 1)}^" if excerpt else ""
        super().__init__(f"line {line}, column {column}: {reason}{shown}")
        self.reason, self.line, self.column, self.text, self.excerpt = reason, line, column, text, excerpt

    def __reduce__(self) -> tuple[type[SqlError], tuple[str, int, int, str, str]]:
        """Pickle by what it was made from."""
        return type(self), (self.reason, self.line, self.column, self.text, self.excerpt)


def error_at(source: str, start: int, end: int, reason: str) -> SqlError:
    """Make the error of a place in a text.

    Args:
        source: the whole text.
        start: offset of the place.
        end: offset behind it.
        reason: what was expected and what to do.
    """
    shown = masked(source)
    start = min(start, len(source))
    line_start = source.rfind("\n", 0, start) + 1
    line_end = source.find("\n", start)
    excerpt = shown[line_start : line_end if line_end >= 0 else len(source)].replace("\t", " ").rstrip("\r")
    return SqlError(reason, source.count("\n", 0, start) + 1, start - line_start + 1, shown[start:end], excerpt)


def masked(source: str) -> str:
    """Put stars over the values of options that hold credentials; every offset stays what it was."""

    def hide(pair: re.Match[str]) -> str:
        name, value = _PREFIX.sub("", pair[1].strip("'")), pair[2].strip(" \t\r\n='")
        if not holds_secret(name, value):
            return pair[0]
        return pair[0][: pair.start(2) - pair.start()] + re.sub(r"[^\s'=]", "*", pair[2])

    return _PAIR.sub(hide, source)
