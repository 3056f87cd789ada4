"""Conditions on rows, as the merge engine applies them in DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from snapshot.quoting import quoted


@dataclass(frozen=True)
class Condition:
    """One condition on one column, which its SQL names once.

    Attributes:
        column: The top-level column it reads.
        before: DuckDB's SQL before the column's name.
        after: The SQL after it, with a ``?`` for each parameter.
        parameters: The values to bind, in order.
    """

    column: str
    before: str
    after: str
    parameters: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Predicate:
    """Conditions that must all be true of a row; none at all is true of every row. Picklable."""

    conditions: tuple[Condition, ...] = ()

    @property
    def sql(self) -> str:
        """The conditions joined by AND, in DuckDB's SQL, with the table's column names."""
        return self.sql_with(quoted)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The values to bind to `sql`, in order."""
        return tuple(value for condition in self.conditions for value in condition.parameters)

    @property
    def columns(self) -> frozenset[str]:
        """The top-level columns the conditions read."""
        return frozenset(condition.column for condition in self.conditions)

    def sql_with(self, name: Callable[[str], str]) -> str:
        """Write the conditions joined by AND, each column as ``name`` writes it."""
        return " AND ".join(f"({each.before}{name(each.column)}{each.after})" for each in self.conditions) or "TRUE"

    def on(self, columns: Iterable[str]) -> Predicate:
        """Keep only the conditions that read these columns."""
        wanted = set(columns)
        return Predicate(tuple(condition for condition in self.conditions if condition.column in wanted))
