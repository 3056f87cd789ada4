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


def wrap(node: exp.Expr, around: Callable[[exp.Expr], exp.Expr]) -> None:
    """Replace a node by an expression around it, in place."""
    mark = exp.Null()
    node.replace(mark)
    mark.replace(around(node))
