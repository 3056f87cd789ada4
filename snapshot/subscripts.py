"""Elements of arrays and maps in SQL that sqlglot parses, where the column has a word of SQL as its name."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.parser import Parser


class SubscriptParser(Parser):
    """A parser to which only the bare word ``ARRAY`` in front of brackets makes an array of what is in them.

    sqlglot makes one of ``"array"[1]``, ``t.array[1]`` and ``list[1]`` too, which are elements of columns.
    """

    def _parse_bracket(self, this: exp.Expr | None = None) -> exp.Expr | None:
        if this is not None and this.name.upper() in self.ARRAY_CONSTRUCTORS and not _is_constructor(this):
            this = exp.Paren(this=this) if self._match_set(self.BRACKETS, advance=False) else this
        return super()._parse_bracket(this)


def _is_constructor(node: exp.Expr) -> bool:
    word = node.this if isinstance(node, exp.Column) and not node.table else node
    return isinstance(word, exp.Identifier) and not word.quoted and word.name.upper() == "ARRAY"
