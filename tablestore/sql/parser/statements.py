"""Parsed statements, as one frozen dataclass for each kind of statement."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sqlglot import exp

from log_system.kafka.client.secrets import ClientValue
from tablestore.dml.merge_clauses import Action, Match
from tablestore.sql.parser.procedures import Call
from tablestore.sql.parser.types import FlinkType


@dataclass(frozen=True)
class Expression:
    """An expression over columns.

    Attributes:
        text: the text as written.
        tree: the parsed tree, in the Flink dialect; callers must not modify it.
    """

    text: str
    tree: exp.Expr = field(compare=False, repr=False)


@dataclass(frozen=True)
class Place:
    """A range of offsets in a text, for error messages; ``source`` is empty if the text is unknown."""

    source: str = ""
    start: int = 0
    end: int = 0


Options = tuple[tuple[str, ClientValue], ...]
Assignments = tuple[tuple[str, Expression], ...]


@dataclass(frozen=True)
class Delete:
    """``DELETE FROM``; without a condition, of all rows."""

    name: str
    where: Expression | None = None
    alias: str = ""
    place: Place = field(default=Place(), compare=False, repr=False)


@dataclass(frozen=True)
class Update:
    """``UPDATE ... SET``; without a condition, of all rows."""

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


@dataclass(frozen=True)
class DropPartitions:
    """``ALTER TABLE ... DROP PARTITION``.

    Attributes:
        partitions: the values of columns for each.
        if_exists: whether a missing table is ignored.
        if_there: whether a missing partition is ignored.
    """

    name: str
    partitions: tuple[Assignments, ...]
    if_exists: bool = False
    if_there: bool = False
    place: Place = field(default=Place(), compare=False, repr=False)


@dataclass(frozen=True)
class MergeClause:
    """``WHEN ... [AND condition] THEN ...``; no assignments or values mean ``UPDATE SET *`` or ``INSERT *``.

    Attributes:
        values: those of ``INSERT VALUES`` without names, in the order of the table's columns.
    """

    match: Match
    action: Action
    condition: Expression | None = None
    assignments: Assignments = ()
    values: tuple[Expression, ...] = ()


@dataclass(frozen=True)
class Query:
    """A ``SELECT`` or ``VALUES``.

    Attributes:
        text: the text as written.
        tree: the parsed tree, in the Flink dialect; callers must not modify it.
        source: the whole text that contains the query, to which the tree's offsets refer.
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
    """A column of connector metadata.

    Attributes:
        key: the connector's name of the metadata.
        is_virtual: whether the column is read-only.
    """

    name: str
    type: FlinkType
    key: str
    is_virtual: bool = False
    comment: str | None = None


@dataclass(frozen=True)
class ComputedColumn:
    """A column that is computed from other columns on read.

    Attributes:
        expression: the expression as written.
    """

    name: str
    expression: str
    comment: str | None = None


Column = PhysicalColumn | MetadataColumn | ComputedColumn


@dataclass(frozen=True)
class Watermark:
    """``WATERMARK FOR column AS column - INTERVAL ...``.

    Attributes:
        delay_ms: how far the watermark is behind the event time, in milliseconds.
    """

    column: str
    expression: str
    delay_ms: int


class Strategy(StrEnum):
    """How ``LIKE`` treats a part of the source table's definition."""

    INCLUDING = "INCLUDING"
    EXCLUDING = "EXCLUDING"
    OVERWRITING = "OVERWRITING"


@dataclass(frozen=True)
class Like:
    """``LIKE source (...)``.

    Attributes:
        strategies: pairs of a part, such as ``OPTIONS``, and its strategy.
    """

    source: str
    strategies: tuple[tuple[str, Strategy], ...] = ()


@dataclass(frozen=True)
class CreateTable:
    """``CREATE TABLE``; options are pairs in the order written."""

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

    @property
    def physical(self) -> tuple[PhysicalColumn, ...]:
        """The columns whose values are stored."""
        return tuple(column for column in self.columns if isinstance(column, PhysicalColumn))

    @property
    def computed(self) -> tuple[ComputedColumn, ...]:
        """The columns that are computed on read."""
        return tuple(column for column in self.columns if isinstance(column, ComputedColumn))


@dataclass(frozen=True)
class CreateTableAs:
    """``CREATE TABLE ... AS query``.

    Attributes:
        table: the table, with the columns that are declared besides those of the query.
        query: the query.
        names: the names of the query's columns in the order of the table; empty for their own order.
    """

    table: CreateTable
    query: Query
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class CreateView:
    """``CREATE VIEW``; if ``columns`` is empty, the query's column names are used."""

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
    """``FIRST`` or ``AFTER column``; None is ``FIRST``."""

    after: str | None = None


@dataclass(frozen=True)
class AlterAdd:
    """``ALTER TABLE ... ADD``.

    Attributes:
        places: position of each column, None for the end; empty if no column has a position.
    """

    name: str
    columns: tuple[Column, ...]
    if_exists: bool = False
    places: tuple[ColumnPosition | None, ...] = ()


@dataclass(frozen=True)
class AlterModify:
    """``ALTER TABLE ... MODIFY``; ``places`` is as in ``AlterAdd``, but None keeps a column where it is."""

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
class AlterWatermark:
    """``ALTER TABLE ... ADD``, ``MODIFY`` or ``DROP WATERMARK``.

    Attributes:
        watermark: the new watermark; None if it is dropped.
        is_new: whether the table must not have one yet.
    """

    name: str
    watermark: Watermark | None
    is_new: bool = False
    if_exists: bool = False


@dataclass(frozen=True)
class ShowTables:
    """``SHOW TABLES`` and ``SHOW VIEWS``, of names that are ``LIKE`` a pattern, or are not."""

    views_only: bool = False
    like: str = "%"
    is_negated: bool = False


@dataclass(frozen=True)
class ShowPartitions:
    """``SHOW PARTITIONS``, of all partitions or of those with some values."""

    name: str
    partition: Assignments = ()


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
    """``INSERT INTO``; if ``columns`` is empty, the table's columns are filled in order.

    Attributes:
        hints: options of a hint after the table's name.
        partition: columns of ``PARTITION (...)``, each with its value or None.
    """

    target: str
    query: Query
    columns: tuple[str, ...] = ()
    hints: Options = ()
    partition: tuple[tuple[str, Expression | None], ...] = ()


@dataclass(frozen=True)
class Overwrite:
    """``INSERT OVERWRITE``.

    Attributes:
        partition: columns of ``PARTITION (...)``, each with its value or None.
        hints: options of a hint after the table's name.
    """

    target: str
    query: Query
    columns: tuple[str, ...] = ()
    partition: tuple[tuple[str, Expression | None], ...] = ()
    hints: Options = ()
    place: Place = field(default=Place(), compare=False, repr=False)


@dataclass(frozen=True)
class Merge:
    """``MERGE INTO``; the source is the name of a table or view, or a query."""

    name: str
    source: str | Query
    on: Expression
    clauses: tuple[MergeClause, ...]
    alias: str = ""
    source_alias: str = ""
    place: Place = field(default=Place(), compare=False, repr=False)


Verb = Delete | Update | Truncate | DropPartitions | Overwrite | Merge
"""Statements that change rows of a store table at once, without a streaming query."""


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
    """``SET 'key' = 'value'``; without a key, list all settings."""

    key: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class ResetOption:
    """``RESET 'key'``; without a key, reset all settings."""

    key: str | None = None


Statement = (
    CreateTable
    | CreateTableAs
    | CreateView
    | Drop
    | AlterSet
    | AlterReset
    | AlterRename
    | AlterRenameColumn
    | AlterAdd
    | AlterModify
    | AlterWatermark
    | AlterDrop
    | ShowTables
    | ShowPartitions
    | ShowCreate
    | Describe
    | Insert
    | StatementSet
    | Select
    | Explain
    | SetOption
    | ResetOption
    | Call
    | Verb
)
