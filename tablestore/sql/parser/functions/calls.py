"""Calls of functions that sqlglot does not know."""

from __future__ import annotations

from sqlglot import exp


def called(node: exp.Expr) -> str:
    """Return the name of the called function, in upper case; empty for a function of sqlglot and all else."""
    return node.name.upper() if isinstance(node, exp.Anonymous) else ""
