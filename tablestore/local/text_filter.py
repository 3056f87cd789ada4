"""A condition written as text, in DuckDB's SQL, as the merge engine applies it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from snapshot.errors import InvalidInputError
from snapshot.merge.duckdb_engine import errors_mapped, read, type_name
from snapshot.merge.predicate import Predicate
from snapshot.quoting import quoted

_REFUSED: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.Query, "a query"),
    (exp.AggFunc, "an aggregate"),
    (exp.Window, "a window function"),
    (exp.Star, "*"),
    (exp.Placeholder, "a parameter"),
    (exp.Parameter, "a parameter"),
)


@dataclass(frozen=True)
class _Conjunct:
    """One of the conditions that are joined by AND.

    Attributes:
        tree: as parsed; not to be changed.
        columns: the table's columns it reads.
        is_plain: whether it calls no function, so that it may be asked twice of a row.
    """

    tree: exp.Expr
    columns: frozenset[str]
    is_plain: bool


@dataclass(frozen=True)
class TextPredicate(Predicate):
    """Conditions of a text, all of which must be true of a row."""

    conjuncts: tuple[_Conjunct, ...] = ()
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]), compare=False)

    @property
    def converts(self) -> bool:
        """Whether a value of a row may be one that the condition cannot be asked of, as a cast's."""
        return any(not each.is_plain or each.tree.find(exp.Cast) is not None for each in self.conjuncts)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """None: values are in the text."""
        return ()

    @property
    def columns(self) -> frozenset[str]:
        """The top-level columns the conditions read."""
        return frozenset(name for each in self.conjuncts for name in each.columns)

    def sql_with(self, name: Callable[[str], str]) -> str:
        """Write the conditions joined by AND, each column as ``name`` writes it."""

        def renamed(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column):
                return node
            first, *fields = [part.name for part in node.parts]
            place = _find(first, self.schema)
            written = _shielded(name(place), self.schema.field(place).type)
            return exp.Var(this=".".join([written, *map(quoted, fields)]))

        texts = [each.tree.transform(renamed).sql(dialect="duckdb") for each in self.conjuncts]
        return " AND ".join(f"({text})" for text in texts) or "TRUE"

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Keep the rows of which the conditions are true, of batches that have been read."""
        with errors_mapped("filter"), duckdb.connect(":memory:", config={"threads": 1}) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for batch in batches:
                connection.register("rows", batch)
                yield from read(connection, f"SELECT * FROM rows WHERE {self.sql}", [], batch.schema)

    def on(self, columns: Iterable[str]) -> TextPredicate:
        """Keep only the conditions that read these columns, and may be asked before others."""
        wanted = set(columns)
        kept = tuple(each for each in self.conjuncts if each.is_plain and each.columns and each.columns <= wanted)
        return TextPredicate(conjuncts=kept, schema=self.schema)


def parse_filter(text: str, schema: pa.Schema) -> TextPredicate:
    """Read a condition on a table's rows.

    Args:
        text: what could stand after ``WHERE`` in DuckDB, such as ``price > 10 AND name LIKE 'a%'``.
        schema: the table's columns.

    Raises:
        InvalidInputError: it is no condition, reads a column that is not there, or compares what cannot be compared.
    """
    try:
        tree = sqlglot.parse_one(text, into=exp.Condition, dialect="duckdb")
    except SqlglotError as error:
        told = [each.get("description") for each in getattr(error, "errors", [])]
        reason = str(told[-1] if told else error).splitlines()[0].rstrip(".")
        msg = f'filter {text!r}: expected a condition in DuckDB\'s SQL, such as "price > 10": {reason}.'
        raise InvalidInputError(msg) from error
    for kind, what in _REFUSED:
        if tree.find(kind) is not None:
            msg = f"filter {text!r}: {what} cannot stand in a condition on single rows; use to_duckdb() for that."
            raise InvalidInputError(msg)
    parts = list(tree.flatten()) if isinstance(tree, exp.And) else [tree]
    found = TextPredicate(conjuncts=tuple(_conjunct(part, text, schema) for part in parts), schema=schema)
    _check(found, text)
    return found


def _conjunct(tree: exp.Expr, text: str, schema: pa.Schema) -> _Conjunct:
    names: set[str] = set()
    for column in tree.find_all(exp.Column):
        name = column.parts[0].name
        place = _find(name, schema)
        if not place:
            msg = f"filter {text!r}: there is no column {name!r}; the table has {schema.names}."
            raise InvalidInputError(msg)
        names.add(place)
    return _Conjunct(tree, frozenset(names), tree.find(exp.Func) is None or _only_logic(tree))


def _only_logic(tree: exp.Expr) -> bool:
    """Tell whether all that sqlglot counts as functions are AND, OR and the like."""
    return all(isinstance(each, exp.Connector | exp.Case | exp.Cast) for each in tree.find_all(exp.Func))


def _find(name: str, schema: pa.Schema) -> str:
    """Find a column as DuckDB does, in any case; empty where there is none."""
    if name in schema.names:
        return name
    return next((each for each in schema.names if each.lower() == name.lower()), "")


def _shielded(sql: str, data_type: pa.DataType) -> str:
    """Keep floats away from Parquet's statistics, which leave NaN out and would hide its rows."""
    return f"({sql} + CAST(0 AS {type_name(data_type)}))" if pa.types.is_floating(data_type) else sql


def _check(predicate: TextPredicate, text: str) -> None:
    """Let DuckDB say whether it understands the condition on columns of these types."""
    row = pa.table([pa.nulls(1, each.type) for each in predicate.schema], names=predicate.schema.names)
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        try:
            # A literal that is no value of the column's type shows only when a row is asked.
            connection.register("row", row).execute(f"SELECT 1 FROM row WHERE {predicate.sql_with(quoted)}")
        except duckdb.Error as error:
            reason = str(error).splitlines()[0].rstrip(".")
            msg = f"filter {text!r}: DuckDB does not take it: {reason}."
            raise InvalidInputError(msg) from error
