"""Conditions on rows as DuckDB SQL, for merge on read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from snapshot.quoting import quoted


@dataclass(frozen=True)
class Condition:
    """One condition on one column, whose name appears once in the SQL.

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
    """A conjunction of conditions; without conditions, it is true for every row. Picklable."""

    conditions: tuple[Condition, ...] = ()

    @property
    def sql(self) -> str:
        """The conditions joined by AND, as DuckDB SQL with the table's column names."""
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
        """Return the conditions joined by AND, with column names mapped by ``name``."""
        return " AND ".join(f"({each.before}{name(each.column)}{each.after})" for each in self.conditions) or "TRUE"

    def on(self, columns: Iterable[str]) -> Predicate:
        """Return the predicate with only the conditions that read these columns."""
        wanted = set(columns)
        return Predicate(tuple(condition for condition in self.conditions if condition.column in wanted))
