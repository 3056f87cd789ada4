"""Input from Spark: checks a frame's columns, adds each row's kind and order, and stages the rows in a job."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from snapshot.errors import InvalidInputError
from snapshot.merge.merge_rules import LAST_ROW, MergeRule
from snapshot.quoting import backquoted, text_literal
from snapshot.row_kind import CHANGE_TYPE, KIND, RowKind
from snapshot.schema.spark_types import as_nullable, can_widen
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import SEQ
from snapshot.staging.stage import StagedFile, Stager, StagesRows
from snapshot.staging.task_results import STAGED, accept_staged, staged_to_arrow
from tablestore.spark.connect import arrow_frame
from tablestore.spark.error_messages import full_disks_named
from tablestore.spark.python_worker import begin_task
from tablestore.spark.shipped import map_batches
from tablestore.spark.tasks import shares
from tablestore.write import arrow_input
from tablestore.write.tabular_input import Tabular, is_frame, read_loosely, read_tabular


def stage_frame(frame: DataFrame, stager: Stager) -> list[StagedFile]:
    """Prepare and stage a frame's rows: in a Spark job, or in this process if the frame is local.

    Raises:
        InvalidInputError: the columns are not the table's, or rows were rejected; the staged files are removed.
        UnavailableError: the file system failed; the staged files are removed.
    """
    spec, rule = stager.spec, stager.rule
    if frame.isLocal():
        check_columns(frame.schema, spec)
        batches = arrow_input.prepare_batches(iter(rows_in_arrow(frame).to_batches()), spec, 0, rule)
        return accept_staged(stager, staged_to_arrow(stager, batches, 0).to_pylist())
    if not spec.has_key:
        return run_staging(prepare_rows(frame, spec), stager)
    return run_staging(prepare_changes(frame, spec, stager.buckets, rule), stager)


@full_disks_named()
def rows_in_arrow(frame: DataFrame) -> pa.Table:
    """Return a frame's rows with nullable fields: ``toArrow`` fails if a row is NULL and its fields are NOT NULL."""
    nullable = {field.name: as_nullable(field.dataType) for field in frame.schema.fields}
    strict = [field.name for field in frame.schema.fields if nullable[field.name] != field.dataType]
    if strict:
        frame = frame.withColumns({name: F.col(backquoted(name)).cast(nullable[name]) for name in strict})
    return frame.toArrow()


@full_disks_named()
def run_staging(shaped: DataFrame, stager: StagesRows) -> list[StagedFile]:
    """Stage a shaped frame in one Spark job and return the descriptions of its files.

    Raises:
        InvalidInputError: rows were rejected; the staged files are removed.
        UnavailableError: the file system failed; the staged files are removed.
    """

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        context = TaskContext.get()
        yield staged_to_arrow(stager, batches, context.partitionId() if context else 0)

    rows = map_batches(shaped, stage, STAGED).collect()
    return accept_staged(stager, [row.asDict() for row in rows])


def prepare_rows(frame: DataFrame, spec: TableSpec) -> DataFrame:
    """Return the rows to append: the table's columns in table order."""
    return frame.select(*table_columns(frame.schema, spec))


def prepare_changes(frame: DataFrame, spec: TableSpec, buckets: int, rule: MergeRule = LAST_ROW) -> DataFrame:
    """Return the changes of a key table; a bucket's changes are all in one Spark partition.

    Columns: the table's, ``_kind`` (byte) if the frame has ``_change_type``, and ``_seq`` (long; the order of the
    frame's rows). Each further column would take Spark time for each row: it makes rows into Arrow value by value.
    Preimages are left out unless the merge engine retracts them: the postimage that follows a preimage replaces its row
    anyway.
    """
    given = check_columns(frame.schema, spec)
    change_type = given[CHANGE_TYPE].name if CHANGE_TYPE in given else None
    marks = arrow_input.marks_in(frame.columns, spec)
    if marks is not None and not rule.takes_preimages and marks.before is RowKind.UPDATE_BEFORE:
        before = marks.names[RowKind.UPDATE_BEFORE]
        frame = frame.where(~F.col(backquoted(given[marks.column.lower()].name)).eqNullSafe(before))
    found = [given.get(field.name.lower()) for field in spec.schema.fields]
    if [f and (f.name, f.dataType) for f in found] != [(f.name, f.dataType) for f in spec.schema.fields]:
        columns = table_columns(frame.schema, spec, fills=False)
        frame = frame.select(*columns, *([F.col(change_type)] if change_type else []))
    in_deletes = arrow_input.filled_in_deletes(spec, rule)
    # SQL expressions, because each call on a Column object makes several round trips to Spark's JVM.
    shaped = frame.selectExpr(
        *(_filled(field, spec, None if field.name in in_deletes else marks) for field in spec.schema.fields),
        *([f"{_kind_of(marks)} AS {KIND}"] if marks is not None else []),
        f"monotonically_increasing_id() AS {SEQ}",
    )
    return by_buckets(shaped, spec, buckets)


def by_buckets(frame: DataFrame, spec: TableSpec, buckets: int) -> DataFrame:
    """Return a frame whose rows of a bucket are all in one Spark partition, which may hold several buckets."""
    partitions = shares(frame.sparkSession, buckets)
    keys = ", ".join(backquoted(name) for name in spec.hashed)
    return frame.repartitionById(partitions, F.expr(f"pmod(pmod(hash({keys}), {buckets}), {partitions})"))


def _kind_of(marks: arrow_input.KindMarks) -> str:
    """Return SQL that maps names of kinds to row kinds for writing: inserts and postimages become upserts."""
    written = {RowKind.INSERT: RowKind.UPDATE_AFTER, RowKind.UPDATE_BEFORE: marks.before}
    kinds = {kind: kind for kind in RowKind} | written
    cases = " ".join(f"WHEN {text_literal(marks.names[kind])} THEN {_byte(sets)}" for kind, sets in kinds.items())
    return f"CASE {backquoted(marks.column)} {cases} ELSE {_byte(marks.unknown)} END"


def _filled(field: StructField, spec: TableSpec, marks: arrow_input.KindMarks | None) -> str:
    """Return SQL of a column with its default in place of NULL: in all rows, or with ``marks`` in all but deletes."""
    name = backquoted(field.name)
    if field.name not in spec.defaults:
        return name
    default = _default(field, spec)
    if marks is None:
        return f"coalesce({name}, {default}) AS {name}"
    deleted = f"{backquoted(marks.column)} <=> {text_literal(marks.names[RowKind.DELETE])}"
    return f"if({deleted}, {name}, coalesce({name}, {default})) AS {name}"


def _default(field: StructField, spec: TableSpec) -> str:
    """Return SQL of a column's default."""
    text = str(spec.defaults[field.name].cast(pa.string()))
    return f"CAST({text_literal(text)} AS {field.dataType.simpleString()})"


def _byte(number: int) -> str:
    return f"CAST({int(number)} AS TINYINT)"


def table_columns(schema: StructType, spec: TableSpec, *, fills: bool = True) -> list[Column]:
    """Return the table's columns as selected from a frame, cast to wider types where needed.

    With ``fills``, the defaults of columns are put in place of NULL.

    Raises:
        InvalidInputError: the frame's columns do not fit; see ``check_columns``.
    """
    given = check_columns(schema, spec)
    columns = []
    for field in spec.schema.fields:
        source = given.get(field.name.lower())
        column = F.lit(None) if source is None else F.col(backquoted(source.name))
        if source is None or source.dataType != field.dataType:
            # Spark does not cast to a NOT NULL field of a row; the writer checks such fields.
            column = column.cast(as_nullable(field.dataType))
        if fills and field.name in spec.defaults:
            column = F.coalesce(column, F.expr(_default(field, spec)))
        columns.append(column.alias(field.name))
    return columns


def check_columns(schema: StructType, spec: TableSpec) -> dict[str, StructField]:
    """Check a frame's columns, by name (``arrow_input.check_names``) and type; return them by lower-case name.

    Raises:
        InvalidInputError: a column is missing, unknown or of another type, or the frame has ``_change_type`` although
            the table has no key.
    """
    arrow_input.check_names(schema.names, spec)
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


def deletes_of(keys: DataFrame, spec: TableSpec, rule: MergeRule = LAST_ROW) -> DataFrame:
    """Return a delete for each row of a frame of keys (and sequence fields, if any); other columns are NULL.

    Raises:
        InvalidInputError: the table has no key; the frame lacks a key column or a sequence field; or the merge engine
            needs whole rows for deletes.
    """
    kept = arrow_input.delete_columns(keys.columns, spec, rule)
    given = {name.lower(): name for name in keys.columns}
    if keys.isLocal():
        return arrow_frame(keys.sparkSession, arrow_input.deletes_of(rows_in_arrow(keys), spec, kept))
    return keys.select(
        *[
            F.col(backquoted(given[f.name.lower()])).alias(f.name)
            if f.name in kept
            else F.lit(None).cast(f.dataType).alias(f.name)
            for f in spec.schema.fields
        ],
        F.lit(RowKind.DELETE.change_type).alias(CHANGE_TYPE),
    )


def is_tabular(data: object) -> bool:
    """Return whether an object is rows or looks like rows, rather than a condition."""
    return isinstance(data, DataFrame | list | tuple | Iterator) or is_frame(data)


def frame_of(spark: SparkSession, data: Tabular, spec: TableSpec, *, exact: bool = True) -> DataFrame:
    """Return tabular data as a Spark frame; a Spark frame is returned unchanged.

    It is read with ``read_tabular`` if ``exact``, otherwise with ``read_loosely``.

    Raises:
        InvalidInputError: the rows do not fit.
    """
    if isinstance(data, DataFrame):
        return data
    table = read_tabular(data, spec).read_all() if exact else read_loosely(data, spec)
    of_table = dict(zip(zip(spec.arrow.names, spec.arrow.types, strict=True), spec.schema.fields, strict=True))
    fields = []
    for each in table.schema:
        known = of_table.get((each.name, each.type))
        data_type = known.dataType if known else from_arrow_type(each.type, prefer_timestamp_ntz=True)
        fields.append(StructField(each.name, data_type))
    return arrow_frame(spark, table, StructType(fields))
