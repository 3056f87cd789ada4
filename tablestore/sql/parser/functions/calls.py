"""Calls of functions that sqlglot does not know."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp


def called(node: exp.Expr | None) -> str:
    """Return the name of the called function, in upper case; empty for a function of sqlglot and all else."""
    return node.name.upper() if isinstance(node, exp.Anonymous) else ""


def call(name: str, *arguments: exp.Expr) -> exp.Expr:
    """Return a call of a function of Spark."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def name_outputs(select: exp.Select, is_changed: Callable[[exp.Expr], bool]) -> None:
    """Name columns without a name as Flink does, in place, where Spark would name them by what they are changed to."""
    for number, each in enumerate(select.expressions):
        if not isinstance(each, exp.Alias) and is_changed(each):
            wrap(each, lambda output: exp.alias_(output, f"EXPR${number}", quoted=True))  # noqa: B023 - called at once


def wrap(node: exp.Expr, around: Callable[[exp.Expr], exp.Expr]) -> None:
    """Replace a node by an expression around it, in place."""
    mark = exp.Null()
    node.replace(mark)
    mark.replace(around(node))
