"""Locates a part of a query in its text, so that errors have a position."""

from __future__ import annotations

from sqlglot import exp

from snapshot.errors import InvalidInputError
from tablestore.sql.parser.dialect import Flink
from tablestore.sql.parser.errors import SqlError, error_at
from tablestore.sql.parser.statements import Query


class RefusedError(InvalidInputError):
    """A part of a query that is not supported; `placed` turns it into an `SqlError` with its position in the text.

    Attributes:
        node: the part of the query's tree.
        reason: what is not supported, why, and what to do instead.
        word: the keyword before the part to point at; "" to point at the part itself.
    """

    def __init__(self, node: exp.Expr | None, reason: str, word: str = "") -> None:
        super().__init__(reason)
        self.node, self.reason, self.word = node, reason, word


def placed(error: RefusedError, query: Query) -> InvalidInputError:
    """Return an error with the position of a refused part; without one if the position is not known."""
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
    # The tree has offsets of names and values only, so look for the last such keyword before them among the tokens.
    before = [
        each for each in Flink().tokenize(source) if each.start <= start and each.text.upper().split()[:1] == [word]
    ]
    return (before[-1].start, before[-1].end + 1) if before else (start, end)
