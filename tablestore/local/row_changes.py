"""The changes of a local statement to each row: DuckDB evaluates its condition and its new values on Arrow batches."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from decimal import Decimal

import duckdb
import pyarrow as pa

from snapshot.arrow_slices import unsliced
from snapshot.duckdb_connection import interruptible
from snapshot.errors import InvalidInputError
from snapshot.merge.duckdb_engine import MEMORY_LIMIT, spilling
from snapshot.quoting import quoted
from snapshot.schema.duckdb_types import type_name
from snapshot.schema.nested_nulls import as_nullable
from snapshot.staging.task_results import NOTHING_WRITTEN
from tablestore.local.text_filter import parse_expression, parse_filter
from tablestore.write.value_casts import array_of, cast_array

Value = str | bool | int | float | Decimal | date | bytes | None
"""The text of an expression in DuckDB's SQL over the current row, or a constant that is not text."""


class RowChanges:
    """The condition and the new values of a statement, checked against the table's columns.

    Attributes:
        where: the condition; None for all rows.
    """

    def __init__(self, schema: pa.Schema, verb: str, where: str | None, values: object = None) -> None:
        """Check a statement.

        Args:
            schema: the table's columns.
            verb: the statement's name in messages.
            where: its condition; None for all rows.
            values: the new values by column; case does not count.

        Raises:
            InvalidInputError: the condition or a value cannot be evaluated, or a column is unknown or set twice.
        """
        self._schema = schema
        self._verb = verb
        self.where = None if where is None else parse_filter(where, schema, f"{verb}: where")
        self._texts: dict[str, str] = {}
        self._constants: dict[str, pa.Array] = {}
        if values is not None and not isinstance(values, Mapping):
            msg = f"{verb}: set: expected new values by column, such as {{'price': 'price * 2'}}; got {values!r:.200}."
            raise InvalidInputError(msg)
        for name, value in (values or {}).items():
            self._assign(name, value)
        if self._texts:
            with self.evaluator() as evaluator:
                evaluator.updated(_one_row(schema))

    @property
    def columns(self) -> frozenset[str]:
        """The columns that get new values."""
        return frozenset([*self._texts, *self._constants])

    @contextmanager
    def evaluator(self) -> Iterator[RowEvaluator]:
        """Open DuckDB, for one thread."""
        with spilling(memory_limit=MEMORY_LIMIT) as connection:
            where = "TRUE" if self.where is None else self.where.sql
            yield RowEvaluator(connection, self._verb, where, self._texts, self._constants)

    def _assign(self, name: str, value: Value) -> None:
        field = set_column(self._schema, name, self.columns, f"{self._verb}: set")
        what = f"{self._verb}: set: column {field.name!r}"
        if not isinstance(value, str):
            self._constants[field.name] = array_of([value], field.type, field.name)
            return
        tree = parse_expression(value, self._schema, f"{what}: {value!r}", "an expression in DuckDB's SQL")
        self._texts[field.name] = as_value_of(field, tree.sql(dialect="duckdb", comments=False))


def set_column(schema: pa.Schema, name: object, others: Container[str], what: str) -> pa.Field:
    """Return a column that is set beside others; case does not count.

    Raises:
        InvalidInputError: it is unknown, or among the others.
    """
    field = next((each for each in schema if each.name.lower() == str(name).lower()), None)
    if field is None or field.name in others:
        why = "is not a column" if field is None else "is set twice"
        msg = f"{what}: {name!r} {why}; the table has {schema.names}."
        raise InvalidInputError(msg)
    return field


def as_value_of(field: pa.Field, text: str) -> str:
    """Return an expression in DuckDB's SQL that can be a value of a column."""
    # DuckDB reads 1.5 as a decimal, which Arrow does not cast to a float.
    return f"CAST(({text}) AS {type_name(field.type)})" if pa.types.is_floating(field.type) else f"({text})"


class RowEvaluator:
    """Evaluates a statement's condition and values on batches with the table's columns. For one thread."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        verb: str,
        where: str,
        texts: Mapping[str, str],
        constants: Mapping[str, pa.Array],
    ) -> None:
        self._connection = connection
        self._verb = verb
        self._where = where
        self._texts = texts
        self._constants = constants

    def matches(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a mask of the rows for which the condition is true.

        Raises:
            InvalidInputError: the condition cannot be evaluated on a row.
        """
        return self._evaluated(batch, [f"coalesce({self._where}, FALSE)"], "where").column(0).combine_chunks()

    def updated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with their new values.

        Raises:
            InvalidInputError: a value cannot be evaluated on a row, or does not fit its column.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name, constant in self._constants.items():
            columns[name] = pa.repeat(constant[0], batch.num_rows)
        if self._texts:
            found = self._evaluated(batch, list(self._texts.values()), "set")
            for name, values in zip(self._texts, found.columns, strict=True):
                column = cast_array(values, batch.schema.field(name).type, name)
                columns[name] = column.combine_chunks()
        fields = [batch.schema.field(name).with_nullable(True) for name in batch.schema.names]
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))

    def _evaluated(self, batch: pa.RecordBatch, expressions: list[str], clause: str) -> pa.Table:
        selected = ", ".join(f"{text} AS {quoted(f'v{number}')}" for number, text in enumerate(expressions))
        try:
            with interruptible():
                self._connection.register("rows", unsliced(batch))
                return self._connection.sql(f"SELECT {selected} FROM rows").to_arrow_table()
        except duckdb.Error as error:
            reason = str(error).splitlines()[0].rstrip(".")
            msg = f"{self._verb}: {clause}: DuckDB cannot evaluate it: {reason}. {NOTHING_WRITTEN}"
            raise InvalidInputError(msg) from error


def _one_row(schema: pa.Schema) -> pa.RecordBatch:
    """Return a row of NULLs, also within its columns: DuckDB checks some literals only when it evaluates them."""
    fields = [pa.field(field.name, as_nullable(field.type)) for field in schema]
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in fields], schema=pa.schema(fields))
