"""What a text says: one frozen object a statement.

What a text says to change rows: ``DELETE``, ``UPDATE``, ``INSERT OVERWRITE``, ``TRUNCATE TABLE``, ``MERGE INTO``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sqlglot import exp

from log_system.kafka.client.secrets import ClientValue
from tablestore.sql.parser.types import FlinkType


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


@dataclass(frozen=True)
class Query:
    """A ``SELECT`` or ``VALUES``.

    Attributes:
        text: as written.
        tree: as parsed, in Flink's dialect; not to be changed.
        source: the text that it stands in, in which the tree's parts have their places.
    """

    text: str
    tree: exp.Expr = field(compare=False, repr=False)
    source: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class PhysicalColumn:
    """A column whose values are stored."""

    name: str
    type: FlinkType
    comment: str | None = None


@dataclass(frozen=True)
class MetadataColumn:
    """A column that shows what the connector knows of a row.

    Attributes:
        key: the metadata's name.
        is_virtual: whether it is only read.
    """

    name: str
    type: FlinkType
    key: str
    is_virtual: bool = False
    comment: str | None = None


@dataclass(frozen=True)
class ComputedColumn:
    """A column that is computed from others when it is read.

    Attributes:
        expression: as written.
    """

    name: str
    expression: str
    comment: str | None = None


Column = PhysicalColumn | MetadataColumn | ComputedColumn


@dataclass(frozen=True)
class Watermark:
    """``WATERMARK FOR column AS column - INTERVAL ...``.

    Attributes:
        delay_ms: how much later than others a row may come.
    """

    column: str
    expression: str
    delay_ms: int


class Strategy(StrEnum):
    """What ``LIKE`` does about a part of the other table."""

    INCLUDING = "INCLUDING"
    EXCLUDING = "EXCLUDING"
    OVERWRITING = "OVERWRITING"


@dataclass(frozen=True)
class Like:
    """``LIKE source (...)``.

    Attributes:
        strategies: pairs of a part, such as ``OPTIONS``, and what is done about it.
    """

    source: str
    strategies: tuple[tuple[str, Strategy], ...] = ()


@dataclass(frozen=True)
class CreateTable:
    """``CREATE TABLE``; options as pairs, in the order in which they are written."""

    name: str
    columns: tuple[Column, ...] = ()
    primary_key: tuple[str, ...] = ()
    watermark: Watermark | None = None
    partitioned_by: tuple[str, ...] = ()
    options: tuple[tuple[str, ClientValue], ...] = ()
    comment: str | None = None
    like: Like | None = None
    if_not_exists: bool = False
    temporary: bool = False


@dataclass(frozen=True)
class CreateView:
    """``CREATE VIEW``; without names of columns they are the query's."""

    name: str
    query: Query
    columns: tuple[str, ...] = ()
    comment: str | None = None
    if_not_exists: bool = False
    temporary: bool = False


@dataclass(frozen=True)
class Drop:
    """``DROP TABLE`` and ``DROP VIEW``."""

    name: str
    is_view: bool = False
    if_exists: bool = False
    temporary: bool = False


@dataclass(frozen=True)
class AlterSet:
    """``ALTER TABLE ... SET``."""

    name: str
    options: tuple[tuple[str, ClientValue], ...]
    if_exists: bool = False


@dataclass(frozen=True)
class AlterReset:
    """``ALTER TABLE ... RESET``."""

    name: str
    keys: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True)
class AlterRename:
    """``ALTER TABLE ... RENAME TO`` and ``ALTER VIEW ... RENAME TO``."""

    name: str
    to: str
    is_view: bool = False
    if_exists: bool = False


@dataclass(frozen=True)
class AlterRenameColumn:
    """``ALTER TABLE ... RENAME column TO column``."""

    name: str
    column: str
    to: str
    if_exists: bool = False


@dataclass(frozen=True)
class ColumnPosition:
    """``FIRST`` or ``AFTER column``; without a column it is the first."""

    after: str | None = None


@dataclass(frozen=True)
class AlterAdd:
    """``ALTER TABLE ... ADD``.

    Attributes:
        places: where each column goes, None for the end; empty where none says it.
    """

    name: str
    columns: tuple[Column, ...]
    if_exists: bool = False
    places: tuple[ColumnPosition | None, ...] = ()


@dataclass(frozen=True)
class AlterModify:
    """``ALTER TABLE ... MODIFY``; ``places`` as for ``AlterAdd``, None for where the column is."""

    name: str
    columns: tuple[Column, ...]
    if_exists: bool = False
    places: tuple[ColumnPosition | None, ...] = ()


@dataclass(frozen=True)
class AlterDrop:
    """``ALTER TABLE ... DROP``."""

    name: str
    columns: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True)
class ShowTables:
    """``SHOW TABLES`` and ``SHOW VIEWS``."""

    views_only: bool = False


@dataclass(frozen=True)
class ShowCreate:
    """``SHOW CREATE TABLE`` and ``SHOW CREATE VIEW``."""

    name: str
    is_view: bool = False


@dataclass(frozen=True)
class Describe:
    """``DESCRIBE``."""

    name: str


@dataclass(frozen=True)
class Insert:
    """``INSERT INTO``; without names of columns they are the table's, in order."""

    target: str
    query: Query
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Overwrite:
    """``INSERT OVERWRITE``.

    Attributes:
        partition: columns of ``PARTITION (...)``, with the value of those that have one.
    """

    target: str
    query: Query
    columns: tuple[str, ...] = ()
    partition: tuple[tuple[str, Expression | None], ...] = ()
    place: Place = field(default=Place(), compare=False, repr=False)


@dataclass(frozen=True)
class Merge:
    """``MERGE INTO``.

    Attributes:
        source: a table or view by name, or a query.
    """

    name: str
    source: str | Query
    on: Expression
    clauses: tuple[MergeClause, ...]
    alias: str = ""
    source_alias: str = ""
    place: Place = field(default=Place(), compare=False, repr=False)


Verb = Delete | Update | Truncate | Overwrite | Merge
"""Statements that change rows by what they hold."""


@dataclass(frozen=True)
class StatementSet:
    """``EXECUTE STATEMENT SET``."""

    inserts: tuple[Insert, ...]


@dataclass(frozen=True)
class Select:
    """A query whose rows are shown."""

    query: Query


@dataclass(frozen=True)
class Explain:
    """``EXPLAIN``."""

    statement: Select | Insert | StatementSet


@dataclass(frozen=True)
class SetOption:
    """``SET 'key' = 'value'``; without a key all are shown."""

    key: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class ResetOption:
    """``RESET 'key'``; without a key all."""

    key: str | None = None


Statement = (
    CreateTable
    | CreateView
    | Drop
    | AlterSet
    | AlterReset
    | AlterRename
    | AlterRenameColumn
    | AlterAdd
    | AlterModify
    | AlterDrop
    | ShowTables
    | ShowCreate
    | Describe
    | Insert
    | StatementSet
    | Select
    | Explain
    | SetOption
    | ResetOption
    | Verb
)
