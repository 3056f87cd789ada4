"""Filters given as text in DuckDB's SQL, in the form that the merge reader applies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.parsers.duckdb import DuckDBParser

from snapshot.arrow_slices import unsliced
from snapshot.duckdb_connection import interruptible
from snapshot.errors import InvalidInputError
from snapshot.merge.duckdb_engine import MEMORY_LIMIT, errors_mapped, read, spilling
from snapshot.merge.predicate import Predicate
from snapshot.quoting import check_text, quoted
from snapshot.schema.duckdb_types import type_name
from snapshot.subscripts import SubscriptParser

_REFUSED: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.Query, "a query"),
    (exp.AggFunc, "an aggregate"),
    (exp.Window, "a window function"),
    (exp.Star, "*"),
    (exp.Comprehension, "a list comprehension"),  # its variable could be taken for a column
    (exp.Placeholder, "a parameter"),
    (exp.Parameter, "a parameter"),
)


class _Text(DuckDB):
    class Parser(SubscriptParser, DuckDBParser):
        pass


@dataclass(frozen=True)
class _Conjunct:
    """One of the conditions that are joined by AND.

    Attributes:
        tree: the parsed condition; must not be modified.
        columns: the table's columns that the condition reads.
        is_plain: whether the condition calls no function, so that it can be evaluated twice for a row.
    """

    tree: exp.Expr
    columns: frozenset[str]
    is_plain: bool


@dataclass(frozen=True)
class TextPredicate(Predicate):
    """A parsed text filter: conditions that must all be true of a row.

    Attributes:
        conjuncts: the conditions.
        schema: the table's columns.
        what: the filter's name in messages.
    """

    conjuncts: tuple[_Conjunct, ...] = ()
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]), compare=False)
    what: str = field(default="filter", compare=False)

    @property
    def converts(self) -> bool:
        """Whether evaluating the condition may fail for some values, for example in a cast."""
        return any(not each.is_plain or each.tree.find(exp.Cast) is not None for each in self.conjuncts)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """Always empty: the values are literals in the SQL text."""
        return ()

    @property
    def columns(self) -> frozenset[str]:
        """The top-level columns that the conditions read."""
        return frozenset(name for each in self.conjuncts for name in each.columns)

    def sql_with(self, name: Callable[[str], str]) -> str:
        """Return the conditions joined by AND, with each column written as ``name`` returns it."""

        def written(parts: Sequence[str]) -> list[str]:
            place = _find(parts[0], self.schema)
            kind = self.schema.field(place).type
            for part in parts[1:]:
                field_name = _find(part, pa.schema(kind)) if pa.types.is_struct(kind) else ""
                kind = kind.field(field_name).type if field_name else pa.null()
            return [_shielded(".".join([name(place), *map(quoted, parts[1:])]), kind)]

        texts = [sql_of(each.tree, written) for each in self.conjuncts]
        return " AND ".join(f"({text})" for text in texts) or "TRUE"

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the given batches for which the conditions are true."""
        with errors_mapped(self.what), spilling(memory_limit=MEMORY_LIMIT) as connection:
            for batch in batches:
                connection.register("rows", unsliced(batch))
                yield from read(connection, f"SELECT * FROM rows WHERE {self.sql}", [], batch.schema)

    def on(self, columns: Iterable[str]) -> TextPredicate:
        """Return only the conditions that read no other columns and can be evaluated before the rest."""
        wanted = set(columns)
        kept = tuple(each for each in self.conjuncts if each.is_plain and each.columns and each.columns <= wanted)
        return replace(self, conjuncts=kept)


def parse_filter(text: str, schema: pa.Schema, what: str = "filter") -> TextPredicate:
    """Parse a condition in DuckDB's SQL on a table's rows; ``what`` is its name in messages.

    Raises:
        InvalidInputError: the text is not a condition, reads an unknown column, or compares incompatible types.
    """
    what = f"{what} {text!r:.200}"
    tree = parse_expression(text, schema, what, 'a condition in DuckDB\'s SQL, such as "price > 10"')
    parts = list(tree.flatten()) if isinstance(tree, exp.And) else [tree]
    found = TextPredicate(conjuncts=tuple(_conjunct(part, schema) for part in parts), schema=schema, what=what)
    _check(found, what)
    return found


def parse_expression(text: str, schema: pa.Schema, what: str, expected: str) -> exp.Expr:
    """Parse an expression in DuckDB's SQL over a row of a table; ``what`` and ``expected`` are for messages.

    Raises:
        InvalidInputError: the text is not an expression on single rows, or reads an unknown column.
    """
    tree = parse_text(text, what, expected)
    check_text(text, what)
    for column in tree.find_all(exp.Column):
        name = column.parts[0].name
        if not _find(name, schema):
            msg = f"{what}: there is no column {name!r}; the table has {schema.names}."
            raise InvalidInputError(msg)
    return tree


def parse_text(text: object, what: str, expected: str) -> exp.Expr:
    """Parse an expression in DuckDB's SQL, whatever columns it reads; arguments as for ``parse_expression``.

    Raises:
        InvalidInputError: the text is not an expression on single rows.
    """
    if not isinstance(text, str):
        msg = f"{what}: expected {expected}, as text; got a {type(text).__name__}."
        raise InvalidInputError(msg)
    try:
        tree = sqlglot.parse_one(text, into=exp.Condition, dialect=_Text)
    except SqlglotError as error:
        reasons = [each.get("description") for each in getattr(error, "errors", [])]
        reason = str(reasons[-1] if reasons else error).splitlines()[0].rstrip(".")
        if reason.startswith("Required keyword"):
            reason = "a part of it is missing"  # sqlglot names the class that the part is an attribute of
        msg = f"{what}: expected {expected}: {reason}."
        raise InvalidInputError(msg) from error
    for kind, refused in _REFUSED:
        if tree.find(kind) is not None:
            msg = f"{what}: {refused} cannot stand in an expression on single rows; use to_duckdb() for that."
            raise InvalidInputError(msg)
    for each in tree.find_all(exp.DataType):
        if not isinstance(each.parent, exp.Cast | exp.DataType | exp.ColumnDef):
            name = each.sql(_Text)
            msg = f"{what}: '{name}' is a type; write the name of a column in double quotes, as in \"date\"[1]."
            raise InvalidInputError(msg)
    return tree


def sql_of(tree: exp.Expr, written: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """Return an expression in DuckDB's SQL; ``written`` returns the parts to write for those of a column's name."""

    def renamed(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        return exp.Var(this=".".join(written([part.name for part in node.parts])))

    return str(tree.transform(renamed).sql(dialect="duckdb", comments=False))


def _conjunct(tree: exp.Expr, schema: pa.Schema) -> _Conjunct:
    names = frozenset(_find(column.parts[0].name, schema) for column in tree.find_all(exp.Column))
    return _Conjunct(tree, names, tree.find(exp.Func) is None or _only_logic(tree))


def _only_logic(tree: exp.Expr) -> bool:
    """Return whether everything that sqlglot classifies as a function is AND, OR, CASE or CAST."""
    return all(isinstance(each, exp.Connector | exp.Case | exp.Cast) for each in tree.find_all(exp.Func))


def _find(name: str, schema: pa.Schema) -> str:
    """Return the column with this name, ignoring case like DuckDB; empty if there is none."""
    if name in schema.names:
        return name
    return next((each for each in schema.names if each.lower() == name.lower()), "")


def _shielded(sql: str, data_type: pa.DataType) -> str:
    """Return SQL that prevents pruning by Parquet statistics on floats, which ignore NaN and would hide its rows."""
    return f"({sql} + CAST(0 AS {type_name(data_type)}))" if pa.types.is_floating(data_type) else sql


def _check(predicate: TextPredicate, what: str) -> None:
    """Check that DuckDB accepts the condition on columns of these types."""
    row = pa.table([pa.nulls(1, each.type) for each in predicate.schema], names=predicate.schema.names)
    with spilling(memory_limit=MEMORY_LIMIT) as connection:
        try:
            # A literal that is invalid for the column's type fails only when the condition is evaluated on a row.
            with interruptible():
                connection.register("row", row).execute(f"SELECT 1 FROM row WHERE {predicate.sql_with(quoted)}")
        except duckdb.Error as error:
            reason = str(error).splitlines()[0].rstrip(".")
            msg = f"{what}: DuckDB rejects it: {reason}."
            raise InvalidInputError(msg) from error
