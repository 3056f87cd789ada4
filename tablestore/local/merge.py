"""A merge in this process: DuckDB joins the table's rows with the source's and evaluates the clauses, spilling to disk.

In the join, the table's columns are ``o0``, ... and the source's ``s0``, ...; expressions call them ``target.x`` and
``source.x``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from snapshot.duckdb_connection import batches_of, interruptible
from snapshot.errors import InvalidInputError
from snapshot.merge.duckdb_engine import BATCH_ROWS, no_memory, spilling, streamed
from snapshot.quoting import quoted
from snapshot.schema.nested_nulls import as_nullable
from snapshot.schema.spec import TableSpec
from snapshot.staging.task_results import NOTHING_WRITTEN
from tablestore.dml.merge_clauses import (
    Action,
    Clause,
    Match,
    check_clauses,
    check_sets_all,
    keeps_key,
    named_columns,
)
from tablestore.local.key_changes import MEMORY
from tablestore.local.row_changes import as_value_of, set_column
from tablestore.local.text_filter import parse_text, sql_of
from tablestore.write.value_casts import array_of, can_cast, cast_array

PLACE = "place"
"""Column of the table's rows with a number of the row; only of tables without a key."""
_IN_TARGET, _IN_SOURCE, _CLAUSE = "in_target", "in_source", "clause"
_SIDES = {Match.MATCHED: ("target", "source"), Match.NOT_MATCHED: ("source",), Match.NOT_MATCHED_BY_SOURCE: ("target",)}
_OF = {
    Match.MATCHED: f"{_IN_TARGET} AND {_IN_SOURCE}",
    Match.NOT_MATCHED: f"{_IN_TARGET} IS NULL",
    Match.NOT_MATCHED_BY_SOURCE: f"{_IN_SOURCE} IS NULL",
}


@dataclass(frozen=True)
class Matches:
    """A batch of pairs to which a clause applies.

    Attributes:
        old: the table's columns that the merge reads, by name; NULL for an inserted row.
        new: all columns after the clause; those of a deleted row have no meaning.
        inserted: a mask of the pairs without a row of the table.
        updated: a mask of the rows that are updated.
        deleted: a mask of the rows that are deleted.
        places: the numbers of the table's rows; None unless they were given.
    """

    old: dict[str, pa.Array]
    new: list[pa.Array]
    inserted: np.ndarray
    updated: np.ndarray
    deleted: np.ndarray
    places: pa.Array | None


class LocalMerge:
    """A merge that has been checked against the columns of table and source.

    Attributes:
        by_key: rows match exactly if their primary keys are equal, and no clause sets another key.
        columns: the table's columns that the merge reads, in the table's order.
    """

    def __init__(self, spec: TableSpec, source: pa.Schema, on: str | Sequence[str], when: Sequence[Clause]) -> None:
        """Check a merge.

        Raises:
            InvalidInputError: ``on`` or a clause cannot be evaluated; or a clause sets an unknown column, sets a value
                of another type or is never reached.
        """
        check_clauses(when)
        self._spec, self._source, self._clauses = spec, source, tuple(when)
        self._read: set[str] = set(spec.primary_key)
        named = named_columns(on, spec, source.names)
        if named is None:
            assert isinstance(on, str)
            self._on = self._condition(on, "merge: on", ("target", "source"))
        else:
            self._read |= {mine for mine, _ in named}
            self._on = " AND ".join(f"{self._target(mine)} = {self._of_source(theirs)}" for mine, theirs in named)
        is_key = named is not None and {mine for mine, _ in named} == set(spec.primary_key)
        self.by_key = spec.has_key and is_key and keeps_key(when, spec.primary_key)
        self._conditions = [
            None
            if each.condition is None
            else self._condition(each.condition, f"merge: {each.match}", _SIDES[each.match])
            for each in when
        ]
        self._texts: dict[tuple[int, str], str] = {}
        self._constants: dict[tuple[int, str], pa.Array] = {}
        for number, clause in enumerate(when):
            self._assign(number, clause)
            if clause.action is Action.UPDATE:
                self._read |= {name for name in spec.arrow.names if not self._sets(number, name)}
        self.columns = [name for name in spec.arrow.names if name in self._read]

    def _has(self, match: Match) -> bool:
        return any(each.match is match for each in self._clauses)

    @contextmanager
    def opened(self, rows: Iterable[pa.RecordBatch]) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open DuckDB with the source's rows, for any number of calls of ``matches``."""
        schema = pa.schema([(f"s{i}", field.type) for i, field in enumerate(self._source)])
        named = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in rows)
        with spilling(memory_limit=MEMORY) as connection:
            with streamed(connection, "given", schema, named):
                connection.execute(f"CREATE TEMP TABLE source AS SELECT *, TRUE AS {_IN_SOURCE} FROM given")
            yield connection

    def matches(
        self, connection: duckdb.DuckDBPyConnection, rows: Iterable[pa.RecordBatch], *, places: bool = False
    ) -> Iterator[Matches]:
        """Join the table's rows with the source's and yield the pairs to which a clause applies.

        With ``places``, the numbers of the rows follow their ``columns``.

        Raises:
            InvalidInputError: an expression cannot be evaluated on a row, or a value does not fit its column.
            UnavailableError: source and table have too many large values.
        """
        fields = [self._spec.arrow.field(name) for name in self.columns]
        names = [f"o{self._spec.arrow.get_field_index(name)}" for name in self.columns]
        given = [pa.field(name, field.type) for name, field in zip(names, fields, strict=True)]
        if places:
            given.append(pa.field(PLACE, pa.int64()))
        schema = pa.schema([*given, pa.field(_IN_TARGET, pa.bool_())])
        named = (
            pa.RecordBatch.from_arrays([*batch.columns, pa.repeat(pa.scalar(True), batch.num_rows)], schema=schema)
            for batch in rows
        )
        with streamed(connection, "target", schema, named):
            try:
                with interruptible():
                    found = connection.sql(self._query(schema.names)).to_arrow_reader(BATCH_ROWS)
                    for batch in batches_of(found):
                        if batch.num_rows:
                            yield self._evaluated(batch, places=places)
            except (duckdb.InvalidInputException, duckdb.ConversionException, duckdb.OutOfRangeException) as error:
                if error.__cause__ is not None:
                    raise
                msg = f"merge: DuckDB cannot evaluate an expression: {_reason(error)}. {NOTHING_WRITTEN}"
                raise InvalidInputError(msg) from error
            except duckdb.OutOfMemoryException as error:
                raise no_memory(what="merge", error=error) from error

    def _query(self, kept: Sequence[str]) -> str:
        stays, comes = self._has(Match.NOT_MATCHED_BY_SOURCE), self._has(Match.NOT_MATCHED)
        how = {(False, False): "INNER", (True, False): "LEFT", (False, True): "RIGHT", (True, True): "FULL"}
        cases = " ".join(
            f"WHEN {_OF[each.match]}{'' if condition is None else f' AND coalesce({condition}, FALSE)'} THEN {number}"
            for number, (each, condition) in enumerate(zip(self._clauses, self._conditions, strict=True))
        )
        joined = f"SELECT * FROM target {how[stays, comes]} JOIN source ON {self._on}"
        chosen = f"SELECT *, CASE {cases} END AS {_CLAUSE} FROM ({joined})"
        # An expression may fail on rows of other clauses.
        values = [
            f"CASE WHEN {_CLAUSE} = {number} THEN {text} END AS {_value(number, name, self._spec)}"
            for (number, name), text in self._texts.items()
        ]
        return f"SELECT {', '.join([*kept, _CLAUSE, *values])} FROM ({chosen}) WHERE {_CLAUSE} IS NOT NULL"

    def _evaluated(self, batch: pa.RecordBatch, *, places: bool) -> Matches:
        spec, clause = self._spec, batch.column(_CLAUSE).to_numpy(zero_copy_only=False)
        old = {name: _fitted(batch, f"o{spec.arrow.get_field_index(name)}", name, spec) for name in self.columns}
        new = []
        for field in spec.arrow:
            value = old.get(field.name, pa.nulls(batch.num_rows, field.type))
            for number in range(len(self._clauses)):
                if not self._sets(number, field.name):
                    continue
                mine = pa.array(clause == number)
                if (number, field.name) in self._constants:
                    set_to = pa.repeat(self._constants[number, field.name][0], batch.num_rows)
                else:
                    set_to = _fitted(batch, _value(number, field.name, spec), field.name, spec)
                value = pc.if_else(mine, set_to, value)
            new.append(value)
        masks = {
            action: np.isin(clause, [n for n, each in enumerate(self._clauses) if each.action is action])
            for action in Action
        }
        return Matches(
            old,
            new,
            inserted=masks[Action.INSERT],
            updated=masks[Action.UPDATE],
            deleted=masks[Action.DELETE],
            places=batch.column(PLACE) if places else None,
        )

    def _sets(self, number: int, name: str) -> bool:
        return (number, name) in self._texts or (number, name) in self._constants

    def _assign(self, number: int, clause: Clause) -> None:
        """Check the values of a clause; if it names none, all columns are set to the source's."""
        if clause.action is Action.DELETE:
            return
        what, schema = f"merge: {clause.match} then {clause.action}", self._spec.arrow
        if clause.values is None:
            check_sets_all(clause, self._spec, self._source.names)
            theirs = {field.name.lower(): field for field in self._source}
            for field in schema:
                given = theirs[field.name.lower()]
                if not can_cast(given.type, field.type):
                    msg = f"merge: column {field.name!r} is {field.type}, the source's is {given.type}; cast it."
                    raise InvalidInputError(msg)
                self._texts[number, field.name] = self._of_source(given.name)
            return
        given_values: object = clause.values
        if not isinstance(given_values, dict) or not given_values:
            msg = (
                f"{what}: expected a mapping of columns to new values, such as {{'price': 'price * 2'}}; got "
                f"{given_values!r}."
            )
            raise InvalidInputError(msg)
        for name, value in given_values.items():
            set_before = [each for each in schema.names if self._sets(number, each)]
            found = set_column(schema, name, set_before, what)
            self._set(number, found, value, f"{what}: column {found.name!r}", _SIDES[clause.match])

    def _set(self, number: int, field: pa.Field, value: object, what: str, sides: Sequence[str]) -> None:
        if not isinstance(value, str):
            self._constants[number, field.name] = array_of([value], field.type, field.name)
            return
        tree = parse_text(value, f"{what}: {value!r}", "an expression in DuckDB's SQL")
        text = as_value_of(field, self._written(tree, f"{what}: {value!r}", sides))
        column = self._on_nulls(text, f"{what}: {value!r}")
        cast_array(column, as_nullable(field.type), field.name)
        self._texts[number, field.name] = text

    def _condition(self, condition: object, what: str, sides: Sequence[str]) -> str:
        if not isinstance(condition, str):
            msg = f"{what}: expected a condition in DuckDB's SQL as text, got {type(condition).__name__}."
            raise InvalidInputError(msg)
        what = f"{what} {condition!r}"
        tree = parse_text(condition, what, 'a condition in DuckDB\'s SQL, such as "target.id = source.id"')
        text = f"({self._written(tree, what, sides)})"
        kind = self._on_nulls(text, what).type
        if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            msg = f"{what}: expected a condition, got an expression of type {kind}."
            raise InvalidInputError(msg)
        return text

    def _written(self, tree: exp.Expr, what: str, sides: Sequence[str]) -> str:
        """Return an expression over the columns of the join.

        Raises:
            InvalidInputError: a column is unknown, in both sides, or of a side that the clause's rows do not have.
        """
        columns = {"target": self._spec.arrow.names, "source": self._source.names}

        def written(parts: Sequence[str]) -> list[str]:
            side = parts[0].lower() if len(parts) > 1 and parts[0].lower() in columns else ""
            name, *fields = parts[1:] if side else parts
            found = [
                (each, column)
                for each in ([side] if side else sides)
                for column in columns[each]
                if each in sides and column.lower() == name.lower()
            ]
            if len(found) != 1:
                held = ", ".join(f"the {'table' if each == 'target' else each} has {columns[each]}" for each in sides)
                why = "is in both; write target. or source. before it" if found else f"cannot be read here; {held}"
                msg = f"{what}: column {'.'.join(parts)!r} {why}."
                raise InvalidInputError(msg)
            ((where, column),) = found
            return [self._target(column) if where == "target" else self._of_source(column), *map(quoted, fields)]

        return sql_of(tree, written)

    def _target(self, name: str) -> str:
        self._read.add(name)
        return f"o{self._spec.arrow.get_field_index(name)}"

    def _of_source(self, name: str) -> str:
        return f"s{self._source.names.index(name)}"

    def _on_nulls(self, text: str, what: str) -> pa.ChunkedArray:
        """Return an expression's value where all columns are NULL: DuckDB checks some literals only on a row.

        Raises:
            InvalidInputError: DuckDB does not take the expression.
        """
        columns = {f"o{i}": pa.nulls(1, field.type) for i, field in enumerate(self._spec.arrow)}
        columns |= {f"s{i}": pa.nulls(1, field.type) for i, field in enumerate(self._source)}
        with spilling(memory_limit=MEMORY) as connection:
            connection.register("row", pa.table(columns))
            try:
                with interruptible():
                    return connection.sql(f"SELECT {text} FROM row").to_arrow_table().column(0)
            except duckdb.Error as error:
                msg = f"{what}: DuckDB rejects it: {_reason(error)}."
                raise InvalidInputError(msg) from error


def _value(number: int, name: str, spec: TableSpec) -> str:
    return f"v{number}_{spec.arrow.get_field_index(name)}"


def _fitted(batch: pa.RecordBatch, column: str, name: str, spec: TableSpec) -> pa.Array:
    return cast_array(batch.column(column), spec.arrow.field(name).type, name)


def _reason(error: duckdb.Error) -> str:
    return str(error).splitlines()[0].rstrip(".")
