"""Shaping: checks a frame's columns against the table and adds each row's kind, order and bucket."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from snapshot.errors import InvalidInputError
from snapshot.merge.merge_rules import LAST_ROW, MergeRule
from snapshot.quoting import backquoted, text_literal
from snapshot.row_kind import CHANGE_TYPE, CHANGE_TYPE_NAMES, KIND, RowKind
from snapshot.schema.spark_types import can_widen
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ
from tablestore.write import arrow_input

UNKNOWN_KIND = -1
"""Row kind for an invalid ``_change_type``; staging rejects it."""
_CARRIED = (COMMIT_VERSION, COMMIT_TIMESTAMP)


def prepare_rows(frame: DataFrame, spec: TableSpec) -> DataFrame:
    """Return the rows to append: the table's columns in table order."""
    return frame.select(*table_columns(frame.schema, spec))


def prepare_changes(frame: DataFrame, spec: TableSpec, buckets: int, *, preimages: bool = False) -> DataFrame:
    """Return the changes of a key table; a bucket's changes are all in the Spark partition of the same number.

    Columns: the table's, ``_kind`` (byte), ``_seq`` (long; the order of the frame's rows), ``_bucket`` (int).
    Preimages are left out unless the merge engine retracts them (``preimages``): the postimage that follows a preimage
    replaces its row anyway.
    """
    given = check_columns(frame.schema, spec)
    change_type = given[CHANGE_TYPE].name if CHANGE_TYPE in given else None
    if change_type and not preimages:
        frame = frame.where(~F.col(change_type).eqNullSafe(RowKind.UPDATE_BEFORE.change_type))
    found = [given.get(field.name.lower()) for field in spec.schema.fields]
    if [f and (f.name, f.dataType) for f in found] != [(f.name, f.dataType) for f in spec.schema.fields]:
        frame = frame.select(*table_columns(frame.schema, spec), *([F.col(change_type)] if change_type else []))
    # SQL expressions, because each call on a Column object makes several round trips to Spark's JVM.
    shaped = frame.selectExpr(
        *map(backquoted, spec.schema.names),
        f"{kind_of(change_type)} AS {KIND}",
        f"monotonically_increasing_id() AS {SEQ}",
        f"pmod(hash({', '.join(backquoted(k) for k in spec.primary_key)}), {buckets}) AS {BUCKET}",
    )
    return shaped.repartitionById(buckets, F.col(BUCKET))


def kind_of(change_type: str | None) -> str:
    """Return SQL that maps ``_change_type`` to a row kind for writing: inserts and postimages become upserts."""
    if change_type is None:
        return _byte(RowKind.UPDATE_AFTER)
    kinds = {kind: kind for kind in RowKind} | {RowKind.INSERT: RowKind.UPDATE_AFTER}
    cases = " ".join(f"WHEN {text_literal(kind.change_type)} THEN {_byte(sets)}" for kind, sets in kinds.items())
    return f"CASE {backquoted(change_type)} {cases} ELSE {_byte(UNKNOWN_KIND)} END"


def _byte(number: int) -> str:
    return f"CAST({int(number)} AS TINYINT)"


def table_columns(schema: StructType, spec: TableSpec) -> list[Column]:
    """Return the table's columns as selected from a frame, cast to wider types where needed.

    Raises:
        InvalidInputError: the frame's columns do not fit; see ``check_columns``.
    """
    given = check_columns(schema, spec)
    columns = []
    for field in spec.schema.fields:
        source = given.get(field.name.lower())
        if source is None:
            columns.append(F.lit(None).cast(field.dataType).alias(field.name))
            continue
        column = F.col(backquoted(source.name))
        columns.append((column if source.dataType == field.dataType else column.cast(field.dataType)).alias(field.name))
    return columns


def check_columns(schema: StructType, spec: TableSpec) -> dict[str, StructField]:
    """Check a frame's columns against the table's; names are case-insensitive.

    Columns that were added to the table later may be missing, so that existing writers continue to work; their rows
    have NULL in them.

    Returns:
        The frame's columns by lower-case name.

    Raises:
        InvalidInputError: a column is missing, unknown or of another type, or the frame has ``_change_type`` although
            the table has no key.
    """
    check_names(schema.names, spec)
    given = {field.name.lower(): field for field in schema.fields}
    for field in spec.schema.fields:
        source = given.get(field.name.lower())
        if source is not None and not can_widen(source.dataType, field.dataType):
            msg = (
                f"column {field.name!r}: expected {field.dataType.simpleString()}, "
                f"got {source.dataType.simpleString()}; cast it before writing."
            )
            raise InvalidInputError(msg)
    return given


def check_names(names: Sequence[str], spec: TableSpec) -> None:
    """Check the names of a frame's columns; see ``check_columns``.

    Raises:
        InvalidInputError: a column is missing or unknown, or is ``_change_type`` although the table has no key.
    """
    given = {name.lower() for name in names}
    wanted = {name.lower() for name in spec.arrow.names}
    allowed = wanted | ({CHANGE_TYPE, *_CARRIED} if spec.has_key else set())
    if CHANGE_TYPE in given and not spec.has_key:
        msg = (
            f"column {CHANGE_TYPE!r}: only a table with a primary key takes {', '.join(CHANGE_TYPE_NAMES)}; "
            "this table has none. Drop the column to append the rows."
        )
        raise InvalidInputError(msg)
    missing = [name for name in spec.arrow.names if name.lower() not in given and name not in spec.added]
    extra = [name for name in names if name.lower() not in allowed]
    if missing or extra:
        parts = [f"missing {missing}" if missing else "", f"unknown {extra}" if extra else ""]
        msg = (
            f"the frame's columns are not the table's: {' and '.join(filter(None, parts))}. "
            f"The table has {spec.arrow.names}; select these."
        )
        raise InvalidInputError(msg)


def deletes_of(keys: DataFrame, spec: TableSpec, rule: MergeRule = LAST_ROW) -> DataFrame:
    """Return a delete for each row of a frame of keys (and sequence fields, if any); other columns are NULL.

    Raises:
        InvalidInputError: the table has no key; the frame lacks a key column or a sequence field; or the merge engine
            needs whole rows for deletes.
    """
    if not spec.has_key:
        msg = "delete: this table has no primary key, so its rows cannot be named."
        raise InvalidInputError(msg)
    given = {name.lower(): name for name in keys.columns}
    if rule.takes_preimages:
        msg = (
            f"delete: with merge-engine='{rule.name}' a delete takes its row's values back, and keys alone have none. "
            f"Write whole rows with a column {CHANGE_TYPE!r} that says 'delete'."
        )
        raise InvalidInputError(msg)
    missing = [name for name in spec.primary_key if name.lower() not in given]
    if missing:
        msg = f"delete: the frame lacks key columns {missing}; it has {keys.columns}."
        raise InvalidInputError(msg)
    missing = [name for name in rule.buries if name.lower() not in given]
    if missing:
        msg = (
            f"delete: with sequence.field a delete needs its sequence too; the frame lacks {missing}; it has "
            f"{keys.columns}. Without it, no row would be older than the delete."
        )
        raise InvalidInputError(msg)
    kept = (*spec.primary_key, *rule.buries)
    if keys.isLocal():
        return keys.sparkSession.createDataFrame(arrow_input.deletes_of(keys.toArrow(), spec, kept))
    return keys.select(
        *[
            F.col(backquoted(given[f.name.lower()])).alias(f.name)
            if f.name in kept
            else F.lit(None).cast(f.dataType).alias(f.name)
            for f in spec.schema.fields
        ],
        F.lit(RowKind.DELETE.change_type).alias(CHANGE_TYPE),
    )
