"""The clauses of a merge: what becomes of rows that match, and of those without a counterpart on the other side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from snapshot.errors import InvalidInputError
from tablestore.dml.conditions import Condition, Value


class Match(StrEnum):
    """Which rows a clause is for."""

    MATCHED = "when matched"
    """A row of the table and one of the source for which ``on`` holds."""
    NOT_MATCHED = "when not matched"
    """A row of the source without one of the table."""
    NOT_MATCHED_BY_SOURCE = "when not matched by source"
    """A row of the table without one of the source."""


class Action(StrEnum):
    """What a clause does."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True)
class Clause:
    """One clause; of several for the same rows, the first whose condition holds counts.

    Attributes:
        match: which rows it is for.
        action: what it does.
        condition: which of them; None for all.
        values: what columns are set to; None for the source's columns of the same names.
    """

    match: Match
    action: Action
    condition: Condition | None = None
    values: Mapping[str, Value] | None = None

    def __str__(self) -> str:
        """Name the clause in messages."""
        condition = "" if self.condition is None else f" and {self.condition!r}"
        return f"{self.match}{condition} then {self.action}"


@dataclass(frozen=True)
class WhenMatched:
    """``when_matched(condition)``, to be finished by what is done."""

    condition: Condition | None = None

    def update(self, set: Mapping[str, Value] | None = None) -> Clause:  # noqa: A002 - SQL's own word
        """Set columns; without ``set``, all of them to the source's of the same names."""
        return Clause(Match.MATCHED, Action.UPDATE, self.condition, set)

    def delete(self) -> Clause:
        """Delete the table's row."""
        return Clause(Match.MATCHED, Action.DELETE, self.condition)


@dataclass(frozen=True)
class WhenNotMatched:
    """``when_not_matched(condition)``, to be finished by what is done."""

    condition: Condition | None = None

    def insert(self, values: Mapping[str, Value] | None = None) -> Clause:
        """Insert a row; columns that are not named are NULL. Without ``values``, the source's of the same names."""
        return Clause(Match.NOT_MATCHED, Action.INSERT, self.condition, values)


@dataclass(frozen=True)
class WhenNotMatchedBySource:
    """``when_not_matched_by_source(condition)``, to be finished by what is done."""

    condition: Condition | None = None

    def update(self, set: Mapping[str, Value]) -> Clause:  # noqa: A002 - SQL's own word
        """Set columns."""
        return Clause(Match.NOT_MATCHED_BY_SOURCE, Action.UPDATE, self.condition, set)

    def delete(self) -> Clause:
        """Delete the table's row."""
        return Clause(Match.NOT_MATCHED_BY_SOURCE, Action.DELETE, self.condition)


def when_matched(condition: Condition | None = None) -> WhenMatched:
    """Say what becomes of a row of the table for which the source has one.

    Args:
        condition: which of them, over ``target.`` and ``source.`` columns; None for all.
    """
    return WhenMatched(condition)


def when_not_matched(condition: Condition | None = None) -> WhenNotMatched:
    """Say what becomes of a row of the source for which the table has none.

    Args:
        condition: which of them, over ``source.`` columns; None for all.
    """
    return WhenNotMatched(condition)


def when_not_matched_by_source(condition: Condition | None = None) -> WhenNotMatchedBySource:
    """Say what becomes of a row of the table for which the source has none.

    Args:
        condition: which of them, over ``target.`` columns; None for all.
    """
    return WhenNotMatchedBySource(condition)


def check_clauses(clauses: Sequence[Clause]) -> None:
    """Refuse a list of clauses of which one would never be reached.

    Raises:
        InvalidInputError: there is none, something else came, or one follows a clause for all rows of its kind.
    """
    if not clauses or not all(isinstance(each, Clause) for each in clauses):
        msg = (
            "merge: when expects clauses, such as [when_matched().update(), when_not_matched().insert()]; got "
            f"{clauses!r}."
        )
        raise InvalidInputError(msg)
    closed: dict[Match, Clause] = {}
    for each in clauses:
        if each.match in closed:
            msg = f"merge: '{each}' is never reached: '{closed[each.match]}' before it takes all such rows."
            raise InvalidInputError(msg)
        if each.condition is None:
            closed[each.match] = each
