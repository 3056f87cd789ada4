"""The clauses of a merge: actions for rows that match, and for rows without a match on the other side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from snapshot.errors import InvalidInputError
from snapshot.schema.spec import TableSpec

if TYPE_CHECKING:  # PySpark, which programs without Spark do not load
    from tablestore.dml.conditions import Condition, Value


class Match(StrEnum):
    """The kind of rows that a clause applies to."""

    MATCHED = "when matched"
    """A row of the table and a row of the source for which ``on`` holds."""
    NOT_MATCHED = "when not matched"
    """A row of the source without a match in the table."""
    NOT_MATCHED_BY_SOURCE = "when not matched by source"
    """A row of the table without a match in the source."""


class Action(StrEnum):
    """The action of a clause on its rows."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True)
class Clause:
    """One clause. Of several clauses of the same kind, the first whose condition holds applies.

    Attributes:
        match: the kind of rows that the clause applies to.
        action: what the clause does.
        condition: restricts the clause to some of these rows; None for all.
        values: values by column; None for the source's columns of the same names.
    """

    match: Match
    action: Action
    condition: Condition | None = None
    values: Mapping[str, Value] | None = None

    def __str__(self) -> str:
        """Return the clause's name in messages."""
        condition = "" if self.condition is None else f" and {self.condition!r}"
        return f"{self.match}{condition} then {self.action}"


@dataclass(frozen=True)
class WhenMatched:
    """``when_matched(condition)``, to be completed by an action."""

    condition: Condition | None = None

    def update(self, set: Mapping[str, Value] | None = None) -> Clause:  # noqa: A002 - SQL's own word
        """Return a clause that sets columns; without ``set``, all columns to the source's of the same names."""
        return Clause(Match.MATCHED, Action.UPDATE, self.condition, set)

    def delete(self) -> Clause:
        """Return a clause that deletes the table's row."""
        return Clause(Match.MATCHED, Action.DELETE, self.condition)


@dataclass(frozen=True)
class WhenNotMatched:
    """``when_not_matched(condition)``, to be completed by an action."""

    condition: Condition | None = None

    def insert(self, values: Mapping[str, Value] | None = None) -> Clause:
        """Return a clause that inserts a row; without ``values``, with the source's columns of the same names.

        Columns that ``values`` does not name are NULL.
        """
        return Clause(Match.NOT_MATCHED, Action.INSERT, self.condition, values)


@dataclass(frozen=True)
class WhenNotMatchedBySource:
    """``when_not_matched_by_source(condition)``, to be completed by an action."""

    condition: Condition | None = None

    def update(self, set: Mapping[str, Value]) -> Clause:  # noqa: A002 - SQL's own word
        """Return a clause that sets columns."""
        return Clause(Match.NOT_MATCHED_BY_SOURCE, Action.UPDATE, self.condition, set)

    def delete(self) -> Clause:
        """Return a clause that deletes the table's row."""
        return Clause(Match.NOT_MATCHED_BY_SOURCE, Action.DELETE, self.condition)


def when_matched(condition: Condition | None = None) -> WhenMatched:
    """Start a clause for rows of the table that match a row of the source.

    Args:
        condition: restricts the clause, by ``target.`` and ``source.`` columns; None for all such rows.

    Returns:
        The start of the clause; call ``update`` or ``delete`` on it.
    """
    return WhenMatched(condition)


def when_not_matched(condition: Condition | None = None) -> WhenNotMatched:
    """Start a clause for rows of the source without a match in the table.

    Args:
        condition: restricts the clause, by ``source.`` columns; None for all such rows.

    Returns:
        The start of the clause; call ``insert`` on it.
    """
    return WhenNotMatched(condition)


def when_not_matched_by_source(condition: Condition | None = None) -> WhenNotMatchedBySource:
    """Start a clause for rows of the table without a match in the source.

    Args:
        condition: restricts the clause, by ``target.`` columns; None for all such rows.

    Returns:
        The start of the clause; call ``update`` or ``delete`` on it.
    """
    return WhenNotMatchedBySource(condition)


def check_clauses(clauses: object) -> None:
    """Check that a merge has clauses and that each of them can be reached.

    Raises:
        InvalidInputError: there is no clause, an element is not a clause, or a clause follows one that applies to all
            rows of its kind.
    """
    if not isinstance(clauses, Sequence) or not clauses or not all(isinstance(each, Clause) for each in clauses):
        msg = (
            "merge: when expects clauses, such as [when_matched().update(), when_not_matched().insert()]; got "
            f"{clauses!r}."
        )
        raise InvalidInputError(msg)
    closed: dict[Match, Clause] = {}
    for each in clauses:
        if each.match in closed:
            msg = (
                f"merge: '{each}' is never reached: the clause '{closed[each.match]}' before it matches all such rows."
            )
            raise InvalidInputError(msg)
        if each.condition is None:
            closed[each.match] = each


def keeps_key(clauses: Sequence[Clause], primary_key: Sequence[str]) -> bool:
    """Return whether no clause gives a row another key than its source row's, where ``on`` says that they are equal."""
    return all(_keeps_key(each, primary_key) for each in clauses if each.action is not Action.DELETE)


def _keeps_key(clause: Clause, primary_key: Sequence[str]) -> bool:
    if clause.values is None:
        return True
    named = {name.lower(): value for name, value in clause.values.items()}
    if clause.action is Action.UPDATE:
        return not any(name.lower() in named for name in primary_key)
    assigned = {name: str(named.get(name.lower(), "")).replace("`", "").replace('"', "") for name in primary_key}
    return all(text.lower() == f"source.{name.lower()}" for name, text in assigned.items())


def named_columns(on: Any, spec: TableSpec, source: Sequence[str]) -> list[tuple[str, str]] | None:
    """Return the columns of table and source that ``on`` names; None if it is a condition.

    Raises:
        InvalidInputError: one of them has no such column.
    """
    fields = {name.lower(): name for name in spec.arrow.names}
    source_names = {name.lower(): name for name in source}
    names = [on] if isinstance(on, str) and on.lower() in fields else on
    if isinstance(names, str):
        return None
    unknown = [name for name in names if str(name).lower() not in fields or str(name).lower() not in source_names]
    if unknown or not names:
        msg = (
            f"merge: on expects columns of both table and source, or a condition over target. and source. columns; "
            f"got {list(names)}, the table has {spec.arrow.names}, the source {list(source)}."
        )
        raise InvalidInputError(msg)
    return [(fields[name.lower()], source_names[name.lower()]) for name in names]


def check_sets_all(clause: Clause, spec: TableSpec, source: Sequence[str]) -> None:
    """Check that the source has all columns of the table, for a clause that names none.

    Raises:
        InvalidInputError: it lacks some.
    """
    given = {name.lower() for name in source}
    if missing := [name for name in spec.arrow.names if name.lower() not in given]:
        msg = (
            f"merge: '{clause}' sets all columns, but the source lacks {missing}; it has {list(source)}. Name the "
            "columns to set."
        )
        raise InvalidInputError(msg)
