"""Parses hints: ``t /*+ OPTIONS('key' = 'value') */`` after the name of a table.

To the tokenizer a hint is a comment. So hints are found in the gaps between tokens, and known by the token before them,
which is the name of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from tablestore.sql.parser.dialect import Flink
from tablestore.sql.parser.statements import Options
from tablestore.sql.parser.token_reader import Reader, SyntaxFaultError

_COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_PLACE: Final = "a hint goes after the name of a table in FROM or INSERT INTO: t /*+ OPTIONS('key' = 'value') */"
_START: Final = "/*+"
_META: Final = "hints"


@dataclass(frozen=True)
class Hint:
    """A hint and its offsets in the text."""

    start: int
    end: int
    options: Options


class HintReader(Reader):
    """Parser for the inside of a hint."""

    def options(self, tokens: list[Token], text: str) -> Options:
        """Parse ``OPTIONS('key' = 'value', ...)``."""
        self.begin(tokens, text)
        if not self._is_word("OPTIONS"):
            self._expected("OPTIONS, the only hint: Spark plans joins and state by itself")
        self._need("OPTIONS")
        options = self._options()
        if not self._at_end():
            self._expected("the end of the hint")
        return options


def read_hints(tokens: Sequence[Token], text: str) -> dict[int, Hint]:
    """Return a text's hints by the last offset of the token before.

    Raises:
        SyntaxFaultError: a hint is not valid.
    """
    for token in tokens:
        if token.token_type == TokenType.HINT:
            raise SyntaxFaultError(_PLACE, token.start, token.end + 1)
    return {before: Hint(start, end, _options(text, start, end)) for before, start, end in _found(tokens, text)}


def misplaced(hint: Hint) -> SyntaxFaultError:
    """Return the error for a hint that is not after the name of a table."""
    return SyntaxFaultError(_PLACE, hint.start, hint.start + len(_START))


def attach(table: exp.Table, hints: dict[int, Hint]) -> None:
    """Take the hint after the name of a table, if there is one, and attach it to the table."""
    hint = hints.pop(table.this.meta.get("end", -1), None)
    if hint is not None:
        table.meta[_META] = hint.options


def hints_of(table: exp.Expr) -> Options:
    """Return the options of the hint that is attached to a table of a query."""
    options: Options = table.meta.get(_META, ())
    return options


def _found(tokens: Sequence[Token], text: str) -> Iterator[tuple[int, int, int]]:
    """Yield for each hint the last offset of the token before, and the hint's offsets."""
    ends = [-1, *(token.end for token in tokens)]
    starts = [*(token.start for token in tokens), len(text)]
    for end, start in zip(ends, starts, strict=True):
        for comment in _COMMENT.finditer(text, end + 1, start):
            if comment[0].startswith(_START):
                yield end, comment.start(), comment.end()


def _options(text: str, start: int, end: int) -> Options:
    inner = start + len(_START)
    try:
        # Blanks before it keep the offsets.
        tokens = Flink().tokenize(" " * inner + text[inner : end - 2])
    except TokenError:
        msg = "a quote in this hint is not closed"
        raise SyntaxFaultError(msg, start, end) from None
    return HintReader(dialect=Flink()).options(tokens, text)
