"""The SQL of merge engines: merges the new rows of a bucket and the existing rows of their keys into one row per key.

Tables, whose columns are numbered (``numbered_columns.py``): ``old`` has the table's columns; ``new`` also has the row
kind and ``_seq``; ``graves`` has the key and sequence of tombstones. A row's position in the order of arrival is
``ord``: -2 for a tombstone, -1 for the existing row, then ``_seq``.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

from snapshot.duckdb_connection import interruptible
from snapshot.errors import InvalidInputError
from snapshot.merge.merge_rules import SKETCHES, ColumnRule, Deletes, Function, MergeRule
from snapshot.merge.numbered_columns import columns_of, keys_of, names_in, same_key
from snapshot.merge.sketches import register_sketches, unite
from snapshot.quoting import text_literal
from snapshot.row_kind import RowKind
from snapshot.schema.duckdb_types import type_name
from snapshot.schema.spec import TableSpec

_OLD, _GRAVE = -1, -2
_NOT_BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"


def merge(session: duckdb.DuckDBPyConnection, spec: TableSpec, rule: MergeRule) -> None:
    """Merge the rows of ``new`` into those of ``old``.

    Creates the table ``settled`` with the same columns and one row for each key of ``new``: the merged row as
    ``UPDATE_AFTER``, or a ``DELETE`` if no row remains. If the rule keeps tombstones, also creates the table
    ``buried``: key and sequence of each delete.

    Raises:
        InvalidInputError: a merged value is out of its column's range, or a value cannot be retracted.
    """
    keys = ", ".join(keys_of(spec))
    # Materialize it only if it is read twice.
    arrived = "TABLE" if rule.buries or rule.removing else "VIEW"
    if any(column.function in SKETCHES for column in rule.columns.values()):
        register_sketches(session)
    try:
        with interruptible():
            rows = _rows(spec, rule)
            if rule.removing:
                _cut(session, spec, rule, rows)
                rows = "SELECT * FROM rest"
            session.execute(f"CREATE TEMP {arrived} arrived AS {_sequenced(spec, rule, rows)}")
            session.execute(f"CREATE TEMP TABLE merged AS {_merged(spec, rule)}")
    except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException) as error:
        reason = str(error).partition("\n")[0].rpartition("ValueError: ")[2].removesuffix(".")
        msg = f"merge-engine='{rule.name}': a merged value cannot be stored: {reason}."
        raise InvalidInputError(msg) from error
    columns, keyed = columns_of(spec), set(keys_of(spec))
    kind, seq = f"c{len(columns)}", f"c{len(columns) + 1}"
    rows = ", ".join(f"touched.{c}" if c in keyed else f"merged.{c}" for c in columns)
    lives = f"merged.{keys_of(spec)[0]} IS NOT NULL"
    session.execute(f"""
        CREATE TEMP TABLE settled AS
        SELECT {rows}, CASE WHEN {lives} THEN {RowKind.UPDATE_AFTER:d} ELSE {RowKind.DELETE:d} END AS {kind}, {seq}
        FROM (SELECT {keys}, max({seq}) AS {seq} FROM new GROUP BY {keys}) AS touched
        LEFT JOIN merged ON {same_key(keys_of(spec), "touched", "merged")}
    """)
    if rule.buries:
        session.execute(f"CREATE TEMP TABLE buried AS {_buried(spec, rule)}")
    if rule.removing:
        session.execute("DROP TABLE rest")
    session.execute("DROP TABLE merged")
    session.execute(f"DROP {arrived} arrived")


def _rows(spec: TableSpec, rule: MergeRule) -> str:
    """Return a query for all rows: the table's columns, ``ord``, ``gone`` (a retraction), ``deletes`` (a delete)."""
    columns = columns_of(spec)
    listed, kind, seq = ", ".join(columns), f"c{len(columns)}", f"c{len(columns) + 1}"
    retracts = f"{kind} IN ({RowKind.UPDATE_BEFORE:d}, {RowKind.DELETE:d})"
    deletes = f"{kind} = {RowKind.DELETE:d}"
    rows = f"SELECT {listed}, {_OLD} AS ord, FALSE AS gone, FALSE AS deletes FROM old"
    if rule.buries:
        in_graves = {*keys_of(spec), *names_in(spec, rule.buries)}
        known = ", ".join(c if c in in_graves else f"NULL AS {c}" for c in columns)
        rows += f" UNION ALL SELECT {known}, {_GRAVE} AS ord, TRUE AS gone, TRUE AS deletes FROM graves"
    return f"{rows} UNION ALL SELECT {listed}, {seq} AS ord, {retracts} AS gone, {deletes} AS deletes FROM new"


def _sequenced(spec: TableSpec, rule: MergeRule, rows: str) -> str:
    """Return a query for rows with columns for each sequence.

    For sequence i: ``s{i}`` is its value, which is greater for newer rows, ``a{i}`` whether the row applies to its
    columns, ``p{i}`` whether the row is on time (not late). The existing row is: where a tombstone is newer than it, a
    verb or a rollback has set it since.
    """
    keys = ", ".join(keys_of(spec))
    for number, sequence in enumerate(rule.sequences):
        fields = names_in(spec, sequence.fields)
        order = ", ".join(f"{each} {'DESC' if sequence.descending else 'ASC'} NULLS FIRST" for each in fields)
        is_plain = len(fields) == 1 and not sequence.descending
        value = fields[0] if is_plain else f"dense_rank() OVER (PARTITION BY {keys} ORDER BY {order})"
        takes = " OR ".join(f"{each} IS NOT NULL" for each in fields) if sequence.is_group else "TRUE"
        before = f"max(s{number}) FILTER (a{number}) OVER (PARTITION BY {keys} ORDER BY ord {_NOT_BEFORE})"
        rows = f"SELECT *, {value} AS s{number}, ({takes}) AS a{number} FROM ({rows})"
        rows = f"SELECT *, {before} AS b{number} FROM ({rows})"
        punctual = f"(ord = {_OLD} OR {_reaches(f's{number}', f'b{number}')})"
        rows = f"SELECT * EXCLUDE (b{number}), {punctual} AS p{number} FROM ({rows})"
    return rows


def _cut(session: duckdb.DuckDBPyConnection, spec: TableSpec, rule: MergeRule, rows: str) -> None:
    """Create the table ``rest``: the rows that arrived after the last delete that removed the row of their key.

    Such a delete is on time in its group, compared with the rows since the last removal. A delete that is on time
    among all rows removes in any case. Without the rows up to it, deletes after it may be on time, too.
    """
    keys = keys_of(spec)
    removes = " OR ".join(f"(a{number} AND p{number})" for number in rule.removing)
    session.execute(f"CREATE TEMP TABLE rest AS {rows}")
    while True:
        session.execute(f"""
            CREATE OR REPLACE TEMP TABLE removed AS
            SELECT {", ".join(keys)}, max(ord) AS last FROM ({_sequenced(spec, rule, "SELECT * FROM rest")})
            WHERE deletes AND ({removes}) GROUP BY {", ".join(keys)}
        """)
        same = same_key(keys, "rest", "removed")
        if session.execute(f"DELETE FROM rest USING removed WHERE {same} AND ord <= last").fetchone() == (0,):
            break
    session.execute("DROP TABLE removed")


def _remaining(spec: TableSpec, rule: MergeRule) -> str:
    """Return a query for the rows to merge; if deletes remove the row, only rows after the last delete."""
    if rule.deletes is not Deletes.REMOVE:
        return "SELECT * FROM arrived"
    removes = "deletes AND p0" if rule.sequences else "deletes"
    window = f"OVER (PARTITION BY {', '.join(keys_of(spec))})"
    after = f"ord > coalesce(max(ord) FILTER ({removes}) {window}, {_GRAVE} - 1)"
    if rule.sequences:
        after += f" AND (ord = {_OLD} OR {_reaches('s0', f'max(s0) FILTER ({removes}) {window}')})"
    return f"SELECT * FROM arrived QUALIFY NOT deletes AND {after}"


def _buried(spec: TableSpec, rule: MergeRule) -> str:
    """Return a query for the new tombstones: the last delete of each key in the new rows that is not late."""
    keys = ", ".join(keys_of(spec))
    listed = ", ".join([*keys_of(spec), *names_in(spec, rule.buries)])
    return (
        f"SELECT {listed} FROM arrived WHERE deletes AND p0 AND ord > {_OLD} "
        f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY ord DESC) = 1"
    )


def _reaches(value: str, least: str) -> str:
    """Return the condition that a value is at least another one; NULL is the smallest."""
    return f"coalesce({value} >= {least}, {least} IS NULL)"


def _merged(spec: TableSpec, rule: MergeRule) -> str:
    """Return a query for the merged rows: aggregates by key, and the expressions computed from them."""
    aggregates, results = list(keys_of(spec)), []
    for name, inner in zip(spec.arrow.names, columns_of(spec), strict=True):
        if name in spec.primary_key:
            results.append(inner)
            continue
        data_type = spec.arrow.field(name).type
        parts, result = _folded(inner, data_type, name, rule)
        aggregates += [f"{expression} AS {alias}" for alias, expression in parts.items()]
        results.append(f"CAST({result} AS {type_name(data_type)}) AS {inner}")
    kept = f"SELECT {', '.join(aggregates)} FROM ({_remaining(spec, rule)}) AS kept GROUP BY {', '.join(keys_of(spec))}"
    return f"SELECT {', '.join(results)} FROM ({kept}) AS folded"


def _folded(x: str, data_type: pa.DataType, name: str, rule: MergeRule) -> tuple[dict[str, str], str]:
    """Return a column's aggregates by name, and the expression that computes its merged value from them."""
    column = rule.columns[name]
    own = column.sequence
    if own is not None and name in rule.sequences[own].fields:
        # The sequence is that of the last row that was not late, even if that row retracts values.
        return {x: _aggregate("arg_max_null", f"{x}, ord", f"a{own}", f"p{own}")}, x
    retracts = rule.takes_preimages
    # A verb may have set a value of a group whose sequence is NULL.
    applies = [] if own is None else [f"(a{own} OR (ord = {_OLD} AND {x} IS NOT NULL))"]
    counts = [*(["NOT gone"] if retracts and column.ignore_retract else []), *applies]
    if column.function is Function.PRODUCT:
        return _product(x, data_type, counts, retracts=retracts)
    if column.function is Function.SUM:
        return _sum(x, counts, retracts=retracts)
    if column.function in SKETCHES:
        return {x: _aggregate("list", x, *counts, f"{x} IS NOT NULL")}, f"{unite(column.function)}({x})"
    if column.function in (Function.MERGE_MAP, Function.NESTED_UPDATE):
        return _folded_in_order(x, data_type, counts, column)
    if column.function is Function.LISTAGG and column.distinct:
        return _distinct_texts(x, column.delimiter, counts)
    if column.function is Function.COLLECT:
        return _collect(x, data_type, counts, distinct=column.distinct, retracts=retracts and not column.ignore_retract)
    if column.function is Function.LAST_NON_NULL_VALUE and own is not None:
        return _last_non_null(x, own, counts, retracts=retracts and not column.ignore_retract)
    return {x: _plain(x, column, counts, retracts=retracts)}, x


def _last_non_null(x: str, sequence: int, counts: list[str], *, retracts: bool) -> tuple[dict[str, str], str]:
    """Return the SQL of the last value in a sequence; without any, a late value stays, the one that arrived first.

    A retraction leaves no value: only what arrives later is one.
    """
    punctual, late = [*counts, f"p{sequence}", f"{x} IS NOT NULL"], [*counts, f"NOT p{sequence}"]
    if not retracts:
        first = _aggregate("arg_min", f"{x}, ord", *late)
        return {x: f"coalesce({_aggregate('arg_max', f'{x}, ord', *punctual)}, {first})"}, x
    behind = [*late, "NOT gone", f"{x} IS NOT NULL"]
    parts = {
        x: _aggregate("arg_max_null", f"CASE WHEN gone THEN NULL ELSE {x} END, ord", *punctual),
        f"{x}_gone": _aggregate("max", "ord", *punctual, "gone"),
        f"{x}_late": _aggregate("list", f"{{'v': {x}, 'ord': ord}} ORDER BY ord", *behind),
    }
    return parts, f"coalesce({x}, list_filter({x}_late, lambda e: coalesce(e.ord > {x}_gone, TRUE))[1].v)"


def _plain(x: str, column: ColumnRule, counts: list[str], *, retracts: bool) -> str:
    """Return the aggregate of a function that DuckDB has."""
    punctual = counts if column.sequence is None else [*counts, f"p{column.sequence}"]
    kept = f"CASE WHEN gone THEN NULL ELSE {x} END" if retracts else x
    match column.function:
        case Function.LAST_VALUE:
            return _aggregate("arg_max_null", f"{kept}, ord", *punctual)
        case Function.LAST_NON_NULL_VALUE:
            return _aggregate("arg_max_null", f"{kept}, ord", *punctual, f"{x} IS NOT NULL")
        case Function.FIRST_VALUE:
            # A retraction, whose value is NULL here, can be the first row, too.
            first = _aggregate("arg_min_null", f"{kept}, ord", *[each for each in counts if each != "NOT gone"])
            if column.sequence is None:
                return first
            behind = [*counts, f"NOT p{column.sequence}"]
            before = _aggregate("arg_max_null", f"{kept}, ord", *behind)
            return f"CASE WHEN {_aggregate('count', '*', *behind)} > 0 THEN {before} ELSE {first} END"
        case Function.FIRST_NON_NULL_VALUE:
            first = _aggregate("arg_min", f"{x}, ord", *counts)
            if column.sequence is None:
                return first
            return f"coalesce({_aggregate('arg_max', f'{x}, ord', *counts, f'NOT p{column.sequence}')}, {first})"
        case Function.COUNT:
            one = f"CASE WHEN {x} IS NULL THEN 0 WHEN ord = {_OLD} THEN {x} WHEN gone THEN -1 ELSE 1 END"
            return f"coalesce({_aggregate('sum', one, *counts)}, 0)"
        case Function.LISTAGG:
            return _aggregate("string_agg", f"{x}, {text_literal(column.delimiter)} ORDER BY ord", *counts)
    return _aggregate(column.function.value, x, *counts)


def _aggregate(function: str, argument: str, *conditions: str) -> str:
    return f"{function}({argument})" + (f" FILTER ({' AND '.join(conditions)})" if conditions else "")


def _collect(
    x: str, data_type: pa.DataType, counts: list[str], *, distinct: bool, retracts: bool
) -> tuple[dict[str, str], str]:
    """Return the SQL that concatenates arrays; NULL if there are none.

    A retraction removes elements that arrived before it, so the arrays are folded in order. It removes the first of
    equal elements; an element that is not present is ignored.
    """
    present = [*counts, f"{x} IS NOT NULL"]
    if not retracts:
        lists = _aggregate("list", f"{x} ORDER BY ord", *present)
        unique = f"list_filter({x}, lambda e, i: list_position({x}, e) = i)"
        return {x: f"flatten({lists})"}, unique if distinct else x
    same = "lambda y: y IS NOT DISTINCT FROM e"
    # Keep an element if more equal elements precede it, itself included, than are retracted.
    up_to, taken = f"len(list_filter(a.v[1:i], {same}))", f"len(list_filter(b.v, {same}))"
    added = "list_concat(a.v, b.v)"
    if distinct:
        added = f"list_filter({added}, lambda e, i: list_position({added}, e) = i)"
    step = f"CASE WHEN b.gone THEN list_filter(a.v, lambda e, i: {up_to} > {taken}) ELSE {added} END"
    nothing = f"{{'v': NULL::{type_name(data_type)}, 'gone': FALSE}}"
    lists = _aggregate("list", f"{{'v': {x}, 'gone': gone}} ORDER BY ord", *present)
    return {x: lists}, f"list_reduce({x}, lambda a, b: {{'v': {step}, 'gone': FALSE}}, {nothing}).v"


def _distinct_texts(x: str, delimiter: str, counts: list[str]) -> tuple[dict[str, str], str]:
    """Return the SQL that joins the distinct texts between delimiters, in order, without blank ones; NULL if none."""
    between = text_literal(delimiter)
    parts = f"string_split(array_to_string({x}, {between}), {between})"
    texts = f"list_filter({parts}, lambda e: trim(e) <> '')"
    unique = f"list_filter({texts}, lambda e, i: list_position({texts}, e) = i)"
    return {x: _aggregate("list", f"{x} ORDER BY ord", *counts, f"{x} IS NOT NULL")}, (
        f"array_to_string({unique}, {between})"
    )


def _folded_in_order(
    x: str, data_type: pa.DataType, counts: list[str], column: ColumnRule
) -> tuple[dict[str, str], str]:
    """Return the SQL that folds maps, or arrays of rows, one after the other; NULL if there are none."""
    if column.function is Function.MERGE_MAP:
        added = "CASE WHEN a.v IS NULL THEN b.v ELSE map_concat(a.v, b.v) END"
        has_key = "list_contains(map_keys(b.v), e.key)"
        taken = f"map_from_entries(list_filter(map_entries(a.v), lambda e: NOT {has_key}))"
    else:
        added, taken = _nested_update(column.nested_key)
    step = f"CASE WHEN b.gone THEN {taken} ELSE {added} END"
    nothing = f"{{'v': NULL::{type_name(data_type)}, 'gone': FALSE}}"
    values = _aggregate("list", f"{{'v': {x}, 'gone': gone}} ORDER BY ord", *counts, f"{x} IS NOT NULL")
    return {x: values}, f"list_reduce({x}, lambda a, b: {{'v': {step}, 'gone': FALSE}}, {nothing}).v"


def _nested_update(nested_key: tuple[int, ...]) -> tuple[str, str]:
    """Return the SQL of elements ``a.v`` with those of ``b.v`` added, and of those without those of ``b.v``.

    With a key, the last element of each replaces the others.
    """

    def key(element: str) -> str:
        fields = (f"'k{number}': struct_extract_at({element}, {number + 1})" for number in nested_key)
        return f"{{{', '.join(fields)}}}" if nested_key else element

    new = "list_filter(b.v, lambda e: e IS NOT NULL)"
    kept = f"list_filter(a.v, lambda e: NOT list_contains(list_transform({new}, lambda y: {key('y')}), {key('e')}))"
    if not nested_key:
        return f"list_concat(a.v, {new})", kept
    later = f"list_transform({new}[i + 1:], lambda z: {key('z')})"
    last = f"list_filter({new}, lambda e, i: NOT list_contains({later}, {key('e')}))"
    return f"list_concat({kept}, {last})", kept


def _sum(x: str, counts: list[str], *, retracts: bool) -> tuple[dict[str, str], str]:
    if not retracts:
        return {x: _aggregate("sum", x, *counts)}, x
    # Retracted values have their own sum, because the smallest value of an integer type cannot be negated.
    parts = {f"{x}_in": _aggregate("sum", x, *counts, "NOT gone"), f"{x}_out": _aggregate("sum", x, *counts, "gone")}
    return parts, f"CASE WHEN {x}_out IS NULL THEN {x}_in ELSE coalesce({x}_in, 0) - {x}_out END"


def _product(x: str, data_type: pa.DataType, counts: list[str], *, retracts: bool) -> tuple[dict[str, str], str]:
    """Return the aggregates and the expression of a product, exact except for floats; retractions divide it."""
    present = [*counts, f"{x} IS NOT NULL"]
    if pa.types.is_floating(data_type):
        parts = {f"{x}_in": _aggregate("product", x, *present, "NOT gone")}
        parts[f"{x}_out"] = _aggregate("product", x, *present, "gone")
        result, fits, quotient = f"{x}_in", f"{x}_out <> 0", f"{x}_in / {x}_out"
    else:
        one = type_name(data_type) if pa.types.is_decimal(data_type) else "HUGEINT"
        parts = {f"{x}_in": _aggregate("list", f"{x}::{one} ORDER BY ord", *present, "NOT gone")}
        parts[f"{x}_out"] = _aggregate("list", f"{x}::{one} ORDER BY ord", *present, "gone")
        result, back = (f"list_reduce({x}_{side}, lambda a, b: (a * b)::{one})" for side in ("in", "out"))
        # DuckDB evaluates a CASE branch only for the rows that take it, so nothing is divided by zero.
        fits = f"CASE WHEN {back} = 0 THEN FALSE ELSE {result} % {back} = 0 END"
        quotient = f"{result} // {back}"
    if not retracts or pa.types.is_decimal(data_type):
        return {f"{x}_in": parts[f"{x}_in"]}, result
    refused = "error('product: a delete retracts a value that is 0 or not a factor of the product')"
    has_factor = f"CASE WHEN {x}_in IS NULL THEN FALSE ELSE {fits} END"
    return parts, f"CASE WHEN {x}_out IS NULL THEN {result} WHEN {has_factor} THEN {quotient} ELSE {refused} END"
