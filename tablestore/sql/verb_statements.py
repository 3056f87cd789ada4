"""What a text says to change rows: ``DELETE``, ``UPDATE``, ``INSERT OVERWRITE``, ``TRUNCATE TABLE``, ``MERGE INTO``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sqlglot import exp


@dataclass(frozen=True)
class Expression:
    """An expression over columns.

    Attributes:
        text: as written.
        tree: as parsed, in Flink's dialect; not to be changed.
    """

    text: str
    tree: exp.Expr = field(compare=False, repr=False)


@dataclass(frozen=True)
class Place:
    """Where in a text something is named."""

    source: str = ""
    start: int = 0
    end: int = 0


Assignments = tuple[tuple[str, Expression], ...]


@dataclass(frozen=True)
class Delete:
    """``DELETE FROM``; without a condition all rows."""

    name: str
    where: Expression | None = None
    alias: str = ""
    place: Place = field(default=Place(), compare=False, repr=False)


@dataclass(frozen=True)
class Update:
    """``UPDATE ... SET``; without a condition all rows."""

    name: str
    assignments: Assignments
    where: Expression | None = None
    alias: str = ""
    place: Place = field(default=Place(), compare=False, repr=False)


@dataclass(frozen=True)
class Truncate:
    """``TRUNCATE TABLE``."""

    name: str
    place: Place = field(default=Place(), compare=False, repr=False)


class Matching(StrEnum):
    """Which rows a clause of ``MERGE INTO`` is for."""

    MATCHED = "MATCHED"
    NOT_MATCHED = "NOT MATCHED"
    NOT_MATCHED_BY_SOURCE = "NOT MATCHED BY SOURCE"


class Doing(StrEnum):
    """What a clause of ``MERGE INTO`` does."""

    UPDATE = "UPDATE"
    DELETE = "DELETE"
    INSERT = "INSERT"


@dataclass(frozen=True)
class MergeClause:
    """``WHEN ... [AND condition] THEN ...``; without assignments, ``UPDATE SET *`` and ``INSERT *``."""

    match: Matching
    action: Doing
    condition: Expression | None = None
    assignments: Assignments = ()
    place: Place = field(default=Place(), compare=False, repr=False)
