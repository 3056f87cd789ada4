"""``SELECT 1``: what needs no engine to be answered, since it says its values itself.

Only literals are: everything that has to be computed, or has a type that a name does not give, is Spark's, whose
answers another engine would not always share.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tablestore.sql.statements import Select

_LONG_MAX = (1 << 63) - 1
Constant = tuple[Sequence[str], Sequence[tuple[object, ...]]]


def constant_row(select: Select) -> Constant | None:
    """Give the column names and the one row of a SELECT of literals; None where Spark has to be asked.

    Literals are whole numbers, strings, TRUE, FALSE and NULL. Columns without a name are called as Spark calls them.
    """
    tree = select.query.tree
    if not isinstance(tree, exp.Select) or not tree.expressions:
        return None
    if any(value for name, value in tree.args.items() if name != "expressions"):
        return None
    found = [_literal(each) for each in tree.expressions]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    return [name for name, _ in known], [tuple(value for _, value in known)]


def _literal(tree: exp.Expr) -> tuple[str, object] | None:
    if isinstance(tree, exp.Alias):
        inner = _literal(tree.this)
        return None if inner is None else (tree.alias, inner[1])
    if isinstance(tree, exp.Null):
        return "NULL", None
    if isinstance(tree, exp.Boolean):
        return str(tree.this).lower(), bool(tree.this)
    if isinstance(tree, exp.Neg):
        inner = _literal(tree.this)
        positive = inner is not None and isinstance(inner[1], int) and not isinstance(inner[1], bool) and inner[1] > 0
        return (f"-{inner[0]}", -inner[1]) if inner is not None and positive and isinstance(inner[1], int) else None
    if isinstance(tree, exp.Literal) and tree.is_string:
        return tree.this, tree.this
    if isinstance(tree, exp.Literal) and tree.this.isdecimal() and str(int(tree.this)) == tree.this:
        number = int(tree.this)
        return (tree.this, number) if number <= _LONG_MAX else None
    return None
