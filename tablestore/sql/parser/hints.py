"""Parses hints: ``t /*+ OPTIONS('key' = 'value') */`` after the name of a table, ``/*+ LOOKUP(...) */`` after SELECT.

To the tokenizer a hint is a comment. So hints are found in the gaps between tokens, and known by the token before them:
the name of the table, or SELECT.
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

_NO_MORE: Final = ": Spark plans joins and state by itself"
_COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_PLACE: Final = (
    "a hint goes after the name of a table in FROM or INSERT INTO, t /*+ OPTIONS('key' = 'value') */, or after SELECT"
)
_START: Final = "/*+"
_META: Final = "hints"
_LOOKUPS: Final = "lookups"


@dataclass(frozen=True)
class Hint:
    """A hint and its offsets in the text.

    Attributes:
        start: its first offset.
        end: the offset after it.
        options: of a hint after the name of a table, its options.
        lookups: of a hint after SELECT, the options of each LOOKUP.
    """

    start: int
    end: int
    options: Options = ()
    lookups: tuple[Options, ...] = ()


class HintReader(Reader):
    """Parser for the inside of a hint."""

    def options(self, tokens: list[Token], text: str) -> Options:
        """Parse ``OPTIONS('key' = 'value', ...)``."""
        self.begin(tokens, text)
        if not self._take("OPTIONS"):
            self._expected(f"OPTIONS, the only hint of a table{_NO_MORE}")
        options = self._options()
        self._need_end()
        return options

    def lookups(self, tokens: list[Token], text: str) -> tuple[Options, ...]:
        """Parse ``LOOKUP('table' = 't', ...), ...``."""
        self.begin(tokens, text)
        found: list[Options] = []
        while not found or self._take(","):
            if not self._take("LOOKUP"):
                self._expected(f"LOOKUP, the only hint after SELECT{_NO_MORE}")
            found.append(self._options())
        self._need_end()
        return tuple(found)

    def _need_end(self) -> None:
        if not self._at_end():
            self._expected("the end of the hint")


def read_hints(tokens: Sequence[Token], text: str) -> dict[int, Hint]:
    """Return the hints of a text, each by the last offset of the token before it.

    Raises:
        SyntaxFaultError: a hint is not valid.
    """
    selects = {token.end for token in tokens if token.token_type == TokenType.SELECT}
    hints = {}
    for before, start, end in _found(tokens, text):
        reader, inside = HintReader(dialect=Flink()), _tokens(text, start, end)
        if before in selects:
            hints[before] = Hint(start, end, lookups=reader.lookups(inside, text))
        else:
            hints[before] = Hint(start, end, reader.options(inside, text))
    return hints


def misplaced(hint: Hint) -> SyntaxFaultError:
    """Return the error for a hint that is neither after the name of a table nor after SELECT."""
    return SyntaxFaultError(_PLACE, hint.start, hint.start + len(_START))


def attach(table: exp.Table, hints: dict[int, Hint]) -> None:
    """Take the hint after the name of a table, if there is one, and attach it to the table."""
    hint = hints.pop(table.this.meta.get("end", -1), None)
    if hint is not None:
        table.meta[_META] = hint.options


def detach(table: exp.Table) -> None:
    """Remove the hint of a table."""
    table.meta.pop(_META, None)


def mark(hints: dict[int, Hint], end: int) -> exp.Hint | None:
    """Return the node that stands for the hint after a SELECT at ``end`` until the query is parsed, if there is one."""
    if end not in hints:
        return None
    made = exp.Hint(expressions=[])
    made.meta["end"] = end
    return made


def attach_lookups(select: exp.Select, hints: dict[int, Hint]) -> None:
    """Take the hint after SELECT, if there is one, and attach it to the query."""
    marked = select.args.get("hint")
    if marked is not None:
        select.set("hint", None)
        select.meta[_LOOKUPS] = hints.pop(marked.meta["end"]).lookups


def lookups_of(select: exp.Expr) -> tuple[Options, ...]:
    """Return the options of each LOOKUP hint that is attached to a query."""
    lookups: tuple[Options, ...] = select.meta.get(_LOOKUPS, ())
    return lookups


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


def _tokens(text: str, start: int, end: int) -> list[Token]:
    inner = start + len(_START)
    try:
        # Blanks before it keep the offsets.
        return Flink().tokenize(" " * inner + text[inner : end - 2])
    except TokenError:
        msg = "a quote in this hint is not closed"
        raise SyntaxFaultError(msg, start, end) from None
