"""Where in its text a part of a query is, so that what is refused is refused with its place."""

from __future__ import annotations

from sqlglot import exp

from snapshot.errors import InvalidInputError
from tablestore.sql.parser.dialect import Flink
from tablestore.sql.parser.errors import SqlError, error_at
from tablestore.sql.parser.statements import Query


class RefusedError(InvalidInputError):
    """A part of a query that cannot be had; becomes an `SqlError` where the query's text is known.

    Attributes:
        node: the part.
        word: the word that it begins with, where that is not a name.
        reason: what is not supported, why, and what to do instead.
    """

    def __init__(self, node: exp.Expr | None, reason: str, word: str = "") -> None:
        super().__init__(reason)
        self.node, self.reason, self.word = node, reason, word


def placed(error: RefusedError, query: Query) -> InvalidInputError:
    """Say where in a query's text a refused part is; what has no place there keeps its reason alone."""
    found = None if error.node is None else _span(query.source, error.node, error.word)
    if found is None:
        return InvalidInputError(error.reason)
    made: SqlError = error_at(query.source, *found, error.reason)
    return made


def _span(source: str, node: exp.Expr, word: str) -> tuple[int, int] | None:
    places = [each.meta for each in node.walk() if "start" in each.meta]
    if not source or not places:
        return None
    first = min(places, key=lambda place: int(place["start"]))
    start, end = int(first["start"]), int(first["end"]) + 1
    if not word:
        return start, end
    # The parser keeps the places of names and values; the word before them is found among the text's words.
    before = [
        each for each in Flink().tokenize(source) if each.start <= start and each.text.upper().split()[:1] == [word]
    ]
    return (before[-1].start, before[-1].end + 1) if before else (start, end)
